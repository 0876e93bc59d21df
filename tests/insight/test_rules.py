"""Numbers from counts: each as docs/operate/insight.md defines it, none where nothing was tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.job import SECOND
from mulligan.core.statistics import (
    CodeCount,
    EndCount,
    FailureCount,
    HandCount,
    InsightCounts,
    JobCount,
    LifeCount,
    TrialCount,
)
from mulligan.insight.rules import (
    ENOUGH,
    PRIORS,
    advice,
    chances,
    false_retriable,
    numbers,
    percent,
)
from support.builders import NOW

DAY = 86_400 * SECOND
TODAY = NOW // DAY


def a_tally(**counts):
    given = {
        "jobs": [],
        "ended": [],
        "codes": [],
        "failures": [],
        "trials": [],
        "lives": [],
        "by_hand": [],
    }
    return InsightCounts(now=NOW, since=NOW - 7 * DAY, width=DAY, cut=False, **(given | counts))


def trial(k, trials, successes, *, cls="timeout", code="GW_TIMEOUT", uses="", age=0, busy=0):
    return TrialCount(cls, code, uses, k, age, trials, successes, 0.0, busy or trials * SECOND)


def failure(n, *, cls="timeout", code="GW_TIMEOUT", rule="r", verb="retry", k=1, cost=0.0):
    return FailureCount(cls, code, rule, verb, k, n, cost, n * SECOND)


def life(jobs, outcome="succeeded", *, cls="timeout", retried=True, hopeless=False, ms=1000):
    return LifeCount(cls, outcome, retried, hopeless, ms, jobs)


# -- rates ------------------------------------------------------------------------------------------
def test_retry_success_is_of_those_tried_again_and_rescue_of_all_that_failed_first():
    lives = [
        life(60),
        life(20, "dead"),
        life(20, "dead", cls="", retried=False),
        life(7, "pending"),
        life(3, "cancelled"),
        life(900, cls="", retried=False, ms=None),
    ]
    found = numbers(a_tally(lives=lives))
    assert (found.retry_success.part, found.retry_success.whole) == (60, 80)
    assert (found.rescue.part, found.rescue.whole) == (60, 100)
    assert found.failed_first == 110


def test_a_success_after_more_than_a_week_is_no_rescue():
    assert numbers(a_tally(lives=[life(1, ms=8 * 86_400_000), life(1)])).rescue.part == 1


def test_permanent_failures_are_those_of_the_system_and_bad_input_stands_beside_them():
    jobs = [
        JobCount(TODAY, "succeeded", "", 90),
        JobCount(TODAY, "dead", "transient", 4),
        JobCount(TODAY, "dead", "auth", 2),
        JobCount(TODAY, "dead", "invalid_input", 4),
        JobCount(TODAY, "cancelled", "", 50),
        JobCount(TODAY, "parked", "", 50),
    ]
    found = numbers(a_tally(jobs=jobs))
    assert (
        found.permanent_failure.part,
        found.user_failure.part,
        found.permanent_failure.whole,
    ) == (6, 4, 100)
    assert (found.jobs, found.pending) == (200, 50)
    (day,) = found.days
    assert not day.settled
    assert (day.jobs, day.pending, day.succeeded, day.dead) == (200, 50, 90, 10)


def test_hopeless_verdicts_have_bounds_and_no_false_precision():
    lives = [
        life(50),
        life(30, "dead"),
        life(20, "dead", hopeless=True),
        life(9, "pending"),
        life(5, cls=""),
    ]
    low, high = false_retriable(lives)
    assert (low.part, high.part, low.whole, high.whole) == (20, 50, 100, 100)
    assert false_retriable(lives, "unknown").high.value is None


def test_without_a_retry_by_hand_there_is_no_number_about_wrong_refusals():
    assert numbers(a_tally()).false_permanent.value is None
    hand = [HandCount("permanent", "X", "r", 10, 4), HandCount("timeout", "Y", "r", 10, 10)]
    assert numbers(a_tally(by_hand=hand)).false_permanent.value == 0.4


def test_unknown_share_waste_and_costs():
    failures = [
        failure(30, cls="unknown", cost=3.0),
        failure(70, cost=1.0),
        failure(10, verb="die", k=4),
    ]
    trials = [trial(2, 50, 25)._replace(cost=5.0)]
    found = numbers(
        a_tally(
            failures=failures,
            trials=trials,
            jobs=[JobCount(TODAY, "dead", "x", 100)],
            lives=[life(50), life(50)],
            ended=[EndCount("failed", 110), EndCount("returned", 40)],
        )
    )
    assert found.unknown.value == pytest.approx(30 / 110)
    assert [(waste.cls, waste.failures, waste.cost) for waste in found.wasted] == [
        ("unknown", 30, 3.0),
        ("timeout", 80, 1.0),
    ]
    assert (found.retry_cost_per_job, found.retry_cost_per_retried) == (0.05, 0.05)
    assert found.amplification == 1.5


def test_time_to_success_does_not_forget_those_that_never_did():
    lives = [life(60, ms=2000), life(40, "dead", ms=500)]
    waited = numbers(a_tally(lives=lives)).time_to_success
    assert waited == (2.0, None, 2.0, 2.0, 2.0)


@pytest.mark.seed("002-36")
def test_the_mean_time_to_success_is_of_those_that_did_succeed():
    lives = [life(3, ms=2000), life(1, ms=6000), life(9, "dead", ms=500)]
    assert numbers(a_tally(lives=lives)).time_to_success.rescued_mean == 3.0
    assert numbers(a_tally(lives=lives[2:])).time_to_success.rescued_mean is None


def test_nothing_counted_claims_nothing():
    found = numbers(a_tally())
    assert (found.retry_success.value, found.amplification, found.retry_cost_per_job) == (
        None,
        None,
        None,
    )
    assert (found.cells, found.chances, found.wasted, found.days) == ((), (), (), ())
    assert advice(a_tally()) == ()


# -- chances ----------------------------------------------------------------------------------------
def test_a_job_that_uses_two_things_counts_for_both():
    cells = numbers(
        a_tally(trials=[trial(2, 10, 4, uses="gateway,s3"), trial(2, 10, 6, uses="s3")])
    ).cells
    assert [(one.dependency, one.success.part, one.success.whole) for one in cells] == [
        ("gateway", 4, 10),
        ("s3", 10, 20),
    ]


def test_a_code_with_few_trials_is_judged_by_its_class():
    found = {
        one.code: one.chance
        for one in chances([trial(2, 1000, 100), trial(2, 2, 2, code="RARE")], DAY)
    }
    assert found[""].mean == pytest.approx(0.1, abs=0.02)
    assert 0.1 < found["RARE"].mean < 0.4
    assert found["RARE"].trials == 2


@given(st.sampled_from(sorted(PRIORS)), st.integers(2, 9), st.integers(0, 300), st.integers(0, 30))
def test_a_chance_is_always_one_and_says_on_what_it_rests(cls, k, trials, age):
    (whole, code) = chances([trial(k, trials, trials // 2, cls=cls, age=age)], DAY)
    for one in (whole.chance, code.chance):
        assert 0 <= one.low <= one.mean <= one.high <= 1
        assert one.trials == trials


# -- advice -----------------------------------------------------------------------------------------
def test_attempts_that_hardly_ever_succeed_are_advised_against_with_their_price():
    trials = [trial(2, 500, 250), trial(3, 250, 60), trial(4, 66, 2), trial(5, 60, 0)]
    (one, *_) = advice(a_tally(trials=trials, codes=[CodeCount("timeout", "GW_TIMEOUT", 500, 40)]))
    assert one.text == (
        "4th and later attempts after GW_TIMEOUT succeed 1.6 % (2 of 126, surely below 5.6 %); a limit of 3 attempts "
        '(Policy(classes={"timeout": Policy(max_retries=2)})) would lose 0.4 % of those 500 jobs and save 14 % of '
        "their retries, 2.1 min of work."
    )
    assert (one.attempts, one.seconds) == (126, 126.0)


def test_retries_that_never_help_are_advised_against_altogether_and_one_incident_is_called_so():
    (one,) = advice(
        a_tally(trials=[trial(2, 80, 0)], codes=[CodeCount("timeout", "GW_TIMEOUT", 80, 1)])
    )
    assert one.text.startswith(
        "Retries after GW_TIMEOUT succeed 0 % (0 of 80, surely below 4.6 %); not retrying it"
    )
    assert "all of it fell into one hour" in one.text


def test_a_limit_that_cuts_off_what_still_helps_is_named_as_a_guess():
    tally = a_tally(
        trials=[trial(2, 100, 50), trial(3, 50, 25)],
        codes=[CodeCount("timeout", "GW_TIMEOUT", 100, 9)],
        failures=[failure(25, verb="die", k=3)],
    )
    (one,) = advice(tally)
    assert (
        "3rd attempts after GW_TIMEOUT still succeed 50 % (25 of 50), and 25 jobs ended there."
        in one.text
    )
    assert "nobody has tried" in one.text


def test_refusals_that_people_overcome_are_a_hint():
    (one,) = advice(a_tally(by_hand=[HandCount("permanent", "HTTP_404", "http.refused", 25, 20)]))
    assert "25 jobs that were not retried because of HTTP_404 (rule http.refused)" in one.text
    assert "proves nothing" in one.text


def test_many_failures_that_no_rule_knows_ask_for_a_rule():
    (one,) = advice(
        a_tally(failures=[failure(20, cls="unknown", code="UNKNOWN_ERROR"), failure(80)])
    )
    assert one.text.startswith(
        "20 % of the failures (20 of 100) have a cause that no rule knows; most of them are UNKNOWN"
    )


def test_the_dearest_comes_first():
    trials = [trial(2, 40, 0, code="CHEAP"), trial(2, 40, 0, code="DEAR", busy=900 * SECOND)]
    codes = [CodeCount("timeout", "CHEAP", 40, 9), CodeCount("timeout", "DEAR", 40, 9)]
    assert [one.code for one in advice(a_tally(trials=trials, codes=codes))] == ["DEAR", "CHEAP"]


@given(
    st.lists(st.tuples(st.integers(2, 6), st.integers(0, ENOUGH - 1)), max_size=1),
    st.integers(0, ENOUGH - 1),
    st.integers(0, ENOUGH - 1),
)
def test_below_twenty_trials_nothing_is_said(rows, failures, tries):
    tally = a_tally(
        trials=[trial(k, n, 0) for k, n in rows],
        codes=[CodeCount("timeout", "GW_TIMEOUT", 10, 9)],
        failures=[failure(failures, cls="unknown")],
        by_hand=[HandCount("permanent", "X", "r", tries, tries)],
    )
    assert advice(tally) == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (0, "0 %"),
        (0.0004, "under 0.1 %"),
        (0.004, "0.4 %"),
        (0.03, "3 %"),
        (0.614, "61 %"),
    ],
)
def test_percent(value, words):
    assert percent(value) == words
