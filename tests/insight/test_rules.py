"""Statistics and advice: each number as docs/operate/insight.md defines it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.durations import SECOND
from mulligan.core.statistics import (
    CodeCount,
    EndCount,
    FailureCount,
    GenerationCount,
    InsightCounts,
    JobCount,
    ManualRetryCount,
    TrialCount,
)
from mulligan.insight.rules import (
    ENOUGH,
    PRIORS,
    bound_false_retriable,
    build_advice,
    compute_numbers,
    estimate_chances,
    format_percent,
)
from support.builders import NOW

DAY = 86_400 * SECOND
TODAY = NOW // DAY


def build_counts(**counts):
    empty = {
        "jobs": [],
        "ended": [],
        "codes": [],
        "failures": [],
        "trials": [],
        "generations": [],
        "manual_retries": [],
    }
    return InsightCounts(
        now=NOW, since=NOW - 7 * DAY, age_step=DAY, truncated=False, **(empty | counts)
    )


def trial(k, trials, successes, *, cls="timeout", code="GW_TIMEOUT", uses="", age=0, busy=0):
    return TrialCount(cls, code, uses, k, age, trials, successes, 0.0, busy or trials * SECOND)


def failure(n, *, cls="timeout", code="GW_TIMEOUT", rule="r", verb="retry", k=1, cost=0.0):
    return FailureCount(cls, code, rule, verb, k, n, cost, n * SECOND)


def generation(jobs, outcome="succeeded", *, cls="timeout", retried=True, hopeless=False, ms=1000):
    return GenerationCount(cls, outcome, retried, hopeless, ms, jobs)


# --- Rates ---
def test_retry_success_and_rescue_have_different_totals():
    generations = [
        generation(60),
        generation(20, "dead"),
        generation(20, "dead", cls="", retried=False),
        generation(7, "pending"),
        generation(3, "cancelled"),
        generation(900, cls="", retried=False, ms=None),
    ]
    found = compute_numbers(build_counts(generations=generations))
    assert (found.retry_success.part, found.retry_success.whole) == (60, 80)
    assert (found.rescue.part, found.rescue.whole) == (60, 100)
    assert found.failed_first == 110


def test_a_success_after_more_than_a_week_is_no_rescue():
    assert (
        compute_numbers(
            build_counts(generations=[generation(1, ms=8 * 86_400_000), generation(1)])
        ).rescue.part
        == 1
    )


def test_permanent_failures_exclude_invalid_input():
    jobs = [
        JobCount(TODAY, "succeeded", "", 90),
        JobCount(TODAY, "dead", "transient", 4),
        JobCount(TODAY, "dead", "auth", 2),
        JobCount(TODAY, "dead", "invalid_input", 4),
        JobCount(TODAY, "cancelled", "", 50),
        JobCount(TODAY, "parked", "", 50),
    ]
    found = compute_numbers(build_counts(jobs=jobs))
    assert (
        found.permanent_failure.part,
        found.user_failure.part,
        found.permanent_failure.whole,
    ) == (6, 4, 100)
    assert (found.jobs, found.pending) == (200, 50)
    (day,) = found.days
    assert not day.settled
    assert (day.jobs, day.pending, day.succeeded, day.dead) == (200, 50, 90, 10)


def test_false_retriable_is_given_as_bounds():
    generations = [
        generation(50),
        generation(30, "dead"),
        generation(20, "dead", hopeless=True),
        generation(9, "pending"),
        generation(5, cls=""),
    ]
    low, high = bound_false_retriable(generations)
    assert (low.part, high.part, low.whole, high.whole) == (20, 50, 100, 100)
    assert bound_false_retriable(generations, "unknown").high.value is None


def test_false_permanent_needs_manual_retries():
    assert compute_numbers(build_counts()).false_permanent.value is None
    hand = [
        ManualRetryCount("permanent", "X", "r", 10, 4),
        ManualRetryCount("timeout", "Y", "r", 10, 10),
    ]
    assert compute_numbers(build_counts(manual_retries=hand)).false_permanent.value == 0.4


def test_unknown_share_waste_and_costs():
    failures = [
        failure(30, cls="unknown", cost=3.0),
        failure(70, cost=1.0),
        failure(10, verb="die", k=4),
    ]
    trials = [trial(2, 50, 25)._replace(cost=5.0)]
    found = compute_numbers(
        build_counts(
            failures=failures,
            trials=trials,
            jobs=[JobCount(TODAY, "dead", "x", 100)],
            generations=[generation(50), generation(50)],
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


def test_time_to_success_includes_jobs_that_never_succeeded():
    generations = [generation(60, ms=2000), generation(40, "dead", ms=500)]
    times = compute_numbers(build_counts(generations=generations)).time_to_success
    assert times == (2.0, None, 2.0, 2.0, 2.0)


@pytest.mark.seed("002-36")
def test_the_mean_time_to_success_is_of_rescued_jobs():
    generations = [generation(3, ms=2000), generation(1, ms=6000), generation(9, "dead", ms=500)]
    assert (
        compute_numbers(build_counts(generations=generations)).time_to_success.rescued_mean == 3.0
    )
    assert (
        compute_numbers(build_counts(generations=generations[2:])).time_to_success.rescued_mean
        is None
    )


def test_without_counts_there_are_no_numbers():
    found = compute_numbers(build_counts())
    assert (found.retry_success.value, found.amplification, found.retry_cost_per_job) == (
        None,
        None,
        None,
    )
    assert (found.cells, found.chances, found.wasted, found.days) == ((), (), (), ())
    assert build_advice(build_counts()) == ()


# --- Chances ---
def test_a_job_with_two_dependencies_counts_for_both():
    cells = compute_numbers(
        build_counts(trials=[trial(2, 10, 4, uses="gateway,s3"), trial(2, 10, 6, uses="s3")])
    ).cells
    assert [(one.dependency, one.success.part, one.success.whole) for one in cells] == [
        ("gateway", 4, 10),
        ("s3", 10, 20),
    ]


def test_a_code_with_few_trials_is_estimated_from_its_class():
    found = {
        one.code: one.chance
        for one in estimate_chances([trial(2, 1000, 100), trial(2, 2, 2, code="RARE")], DAY)
    }
    assert found[""].mean == pytest.approx(0.1, abs=0.02)
    assert 0.1 < found["RARE"].mean < 0.4
    assert found["RARE"].trials == 2


@given(st.sampled_from(sorted(PRIORS)), st.integers(2, 9), st.integers(0, 300), st.integers(0, 30))
def test_a_chance_is_a_probability_with_its_number_of_trials(cls, k, trials, age):
    (whole, code) = estimate_chances([trial(k, trials, trials // 2, cls=cls, age=age)], DAY)
    for one in (whole.chance, code.chance):
        assert 0 <= one.low <= one.mean <= one.high <= 1
        assert one.trials == trials


# --- Advice ---
def test_advice_to_stop_before_attempts_that_rarely_succeed():
    trials = [trial(2, 500, 250), trial(3, 250, 60), trial(4, 66, 2), trial(5, 60, 0)]
    (one, *_) = build_advice(
        build_counts(trials=trials, codes=[CodeCount("timeout", "GW_TIMEOUT", 500, 40)])
    )
    assert one.text == (
        "4th and later attempts after GW_TIMEOUT succeed in 1.6 % of cases "
        "(2 of 126; with 95 % confidence below 5.6 %). "
        'A limit of 3 attempts, Policy(classes={"timeout": Policy(max_retries=2)}), '
        "would lose 0.4 % of 500 jobs and save 14 % of their retries, 2.1 min of work."
    )
    assert (one.attempts, one.seconds) == (126, 126.0)


def test_advice_not_to_retry_mentions_a_single_incident():
    (one,) = build_advice(
        build_counts(trials=[trial(2, 80, 0)], codes=[CodeCount("timeout", "GW_TIMEOUT", 80, 1)])
    )
    assert one.text.startswith(
        "Retries after GW_TIMEOUT succeed in 0 % of cases "
        "(0 of 80; with 95 % confidence below 4.6 %). Not retrying it"
    )
    assert "All of these failures fell into one hour, perhaps into one incident." in one.text


def test_advice_for_one_more_retry_is_marked_as_an_estimate():
    counts = build_counts(
        trials=[trial(2, 100, 50), trial(3, 50, 25)],
        codes=[CodeCount("timeout", "GW_TIMEOUT", 100, 9)],
        failures=[failure(25, verb="die", k=3)],
    )
    (one,) = build_advice(counts)
    assert (
        "3rd attempts after GW_TIMEOUT still succeed in 50 % of cases (25 of 50), "
        "and 25 jobs died there." in one.text
    )
    assert "This is an estimate" in one.text


def test_advice_to_check_a_rule_whose_jobs_succeed_on_manual_retry():
    (one,) = build_advice(
        build_counts(
            manual_retries=[ManualRetryCount("permanent", "HTTP_404", "http.refused", 25, 20)]
        )
    )
    assert "25 jobs that were not retried because of HTTP_404 (rule http.refused)" in one.text
    assert "proves nothing" in one.text


def test_advice_to_add_a_rule_for_unknown_failures():
    (one,) = build_advice(
        build_counts(failures=[failure(20, cls="unknown", code="UNKNOWN_ERROR"), failure(80)])
    )
    assert one.text.startswith(
        "20 % of failures (20 of 100) have class unknown. Most of them are UNKNOWN"
    )


def test_the_most_expensive_advice_comes_first():
    trials = [trial(2, 40, 0, code="CHEAP"), trial(2, 40, 0, code="DEAR", busy=900 * SECOND)]
    codes = [CodeCount("timeout", "CHEAP", 40, 9), CodeCount("timeout", "DEAR", 40, 9)]
    assert [one.code for one in build_advice(build_counts(trials=trials, codes=codes))] == [
        "DEAR",
        "CHEAP",
    ]


@given(
    st.lists(st.tuples(st.integers(2, 6), st.integers(0, ENOUGH - 1)), max_size=1),
    st.integers(0, ENOUGH - 1),
    st.integers(0, ENOUGH - 1),
)
def test_below_twenty_trials_there_is_no_advice(rows, failures, tries):
    counts = build_counts(
        trials=[trial(k, n, 0) for k, n in rows],
        codes=[CodeCount("timeout", "GW_TIMEOUT", 10, 9)],
        failures=[failure(failures, cls="unknown")],
        manual_retries=[ManualRetryCount("permanent", "X", "r", tries, tries)],
    )
    assert build_advice(counts) == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0, "0 %"),
        (0.0004, "under 0.1 %"),
        (0.004, "0.4 %"),
        (0.03, "3 %"),
        (0.614, "61 %"),
    ],
)
def test_format_percent(value, expected):
    assert format_percent(value) == expected
