"""Steps, verdicts and fates of bulk actions: numbers in, words out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.attempt import Verb
from mulligan.core.errors import Refused
from mulligan.core.job import SECOND, State
from mulligan.operations.rules import (
    AT_ONCE,
    CAREFUL,
    IN_FLIGHT,
    IN_FLIGHT_SECONDS,
    RECENT,
    REST,
    Action,
    End,
    ItemCounts,
    ItemOutcome,
    StepVerdict,
    bound,
    checked_share,
    checked_steps,
    end_words,
    fate,
    fuelled,
    last_place,
    planned,
    remembered,
    step_of,
    stop_words,
    to_send,
    total_of,
    verdict,
)

SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=6)
COUNTS = st.integers(0, 300)
TALLIES = st.builds(
    lambda waiting, sent, recovered, same, other, done, refused, skipped: ItemCounts(
        waiting + sent + recovered + same + other + done + refused + skipped,
        waiting,
        sent,
        recovered,
        same,
        other,
        done,
        refused,
        skipped,
    ),
    *[COUNTS] * 8,
)
SHARES = st.sampled_from([0.0, 0.01, 0.1, 0.29, 0.5, 0.7, 1.0])


# -- steps ------------------------------------------------------------------------------------------
def test_the_steps_of_ten_thousand_and_of_five():
    assert [tally.size for tally in planned(CAREFUL, 10_000)] == [1, 10, 100, 9889]
    assert [tally.size for tally in planned(CAREFUL, 5)] == [1, 4]
    assert [tally.size for tally in planned(AT_ONCE, 7)] == [7]
    assert planned(CAREFUL, 0) == [ItemCounts()]
    assert [tally.size for tally in planned((2, 3), 100)] == [2, 3]
    assert (bound((2, 3)), bound(CAREFUL)) == (5, None)


@given(SIZES, st.booleans(), st.integers(0, 3000))
def test_every_item_is_in_one_step_and_in_order(sizes, rest, total):
    steps = (*sizes, REST) if rest else tuple(sizes)
    most = total if bound(steps) is None else min(total, bound(steps))
    plan = planned(steps, total)
    assert total_of(plan).size == total_of(plan).waiting == most
    assert last_place(plan, len(plan) - 1) == most
    found = [step_of(plan, place) for place in range(1, most + 1)]
    assert found == sorted(found)
    assert all(found.count(n + 1) == tally.size for n, tally in enumerate(plan))
    assert step_of(plan, most + 1) == 0


@pytest.mark.parametrize(
    "steps",
    [
        [],
        (),
        "rest",
        "1,10",
        None,
        7,
        [0],
        [-1],
        [1, 0],
        [True],
        [1.5],
        [math.nan],
        [math.inf],
        ["all"],
        [None],
        [REST, 1],
        [REST, REST],
        [1_000_001],
        [1] * 21,
        b"rest",
        {"rest": 1},
    ],
)
def test_steps_that_make_no_sense_are_refused(steps):
    with pytest.raises(Refused, match="steps"):
        checked_steps(steps)


@pytest.mark.parametrize("steps", [[1, 10, 100, REST], [REST], [1], (5, 5), [1_000_000]])
def test_steps_that_do(steps):
    assert checked_steps(steps) == tuple(steps)


@pytest.mark.parametrize(
    "share", [-0.1, 1.1, math.nan, math.inf, -math.inf, True, None, "10%", "", 10]
)
def test_shares_that_make_no_sense_are_refused(share):
    with pytest.raises(Refused, match="stop_if"):
        checked_share(share)


@pytest.mark.parametrize("share", [0, 0.1, 1, 1.0])
def test_shares_that_do(share):
    assert checked_share(share) == share


# -- judging ----------------------------------------------------------------------------------------
@given(TALLIES, SHARES)
def test_a_step_is_never_over_while_something_is_open(tally, share):
    said = verdict(tally, share)
    assert (said is StepVerdict.NEXT) <= (tally.open == 0)
    assert (said is StepVerdict.GO_ON) <= (tally.open > 0)


@given(TALLIES, SHARES)
def test_it_stops_only_if_the_share_cannot_get_below_any_more_whatever_the_open_ones_do(
    tally, share
):
    best = tally._replace(recovered=tally.recovered + tally.open, waiting=0, sent=0)
    worst = tally._replace(same=tally.same + tally.open, waiting=0, sent=0)
    if verdict(tally, share) is StepVerdict.STOP:
        assert verdict(best, share) is StepVerdict.STOP
        assert best.same / best.judged > share
    elif worst.judged and worst.same / worst.judged <= share:
        assert verdict(worst, share) is StepVerdict.NEXT


@given(TALLIES, SHARES, st.integers(1, 50))
def test_more_of_the_same_never_talks_it_out_of_stopping(tally, share, more):
    if verdict(tally, share) is StepVerdict.STOP:
        assert (
            verdict(tally._replace(same=tally.same + more, size=tally.size + more), share)
            is StepVerdict.STOP
        )


@pytest.mark.parametrize(
    ("same", "recovered", "share", "said"),
    [
        (1, 9, 0.1, StepVerdict.NEXT),
        (2, 8, 0.1, StepVerdict.STOP),
        (29, 71, 0.29, StepVerdict.NEXT),
        (30, 70, 0.29, StepVerdict.STOP),
        (7, 3, 0.7, StepVerdict.NEXT),
        (1, 99, 0.0, StepVerdict.STOP),
        (10, 0, 1.0, StepVerdict.NEXT),
    ],
)
def test_a_share_is_allowed_up_to_the_hair(same, recovered, share, said):
    assert verdict(ItemCounts(same + recovered, same=same, recovered=recovered), share) is said


def test_what_was_refused_or_skipped_says_nothing_about_the_cause():
    assert verdict(ItemCounts(10, same=1, refused=5, skipped=4), 0.1) is StepVerdict.STOP
    assert verdict(ItemCounts(10, refused=5, skipped=5), 0.0) is StepVerdict.NEXT


def test_a_long_step_is_stopped_by_its_last_hundred():
    tally = ItemCounts(10_000, waiting=8_000, recovered=1_980, same=20)
    good, bad = "r" * 90 + "s" * 10, "r" * 89 + "s" * 11
    assert verdict(tally, 0.1, good) is StepVerdict.GO_ON
    assert verdict(tally, 0.1, bad) is StepVerdict.STOP
    assert verdict(tally, 0.1, bad[1:]) is StepVerdict.GO_ON  # too few yet


def test_only_the_last_hundred_are_remembered_and_only_what_had_an_attempt():
    recent = remembered(
        "",
        [ItemOutcome.RECOVERED] * 150
        + [ItemOutcome.SKIPPED, ItemOutcome.REFUSED, ItemOutcome.DONE]
        + [ItemOutcome.SAME, ItemOutcome.OTHER],
    )
    assert recent == "r" * 98 + "so"
    assert len(recent) == RECENT


# -- sending ----------------------------------------------------------------------------------------
@given(TALLIES, st.floats(0, 1e6), st.floats(0.001, 1e6), st.integers(1, 200))
def test_never_more_than_wait_than_the_rate_brought_and_than_may_be_under_way(
    tally, tokens, rate, most
):
    count = to_send(tally, tokens, rate, most)
    assert 0 <= count <= min(tally.waiting, most)
    assert count <= tokens or count == 0
    assert count == 0 or tally.sent + count <= max(IN_FLIGHT, round(rate * IN_FLIGHT_SECONDS))


def test_a_rate_brings_a_second_s_worth_at_most_and_a_clock_that_goes_back_nothing():
    assert fuelled(0.0, 0, 20.0, SECOND // 2).tokens == 10
    assert fuelled(0.0, 0, 20.0, 3600 * SECOND).tokens == 20
    assert fuelled(0.0, 0, 0.1, 3600 * SECOND).tokens == 1
    assert fuelled(3.0, 10 * SECOND, 20.0, 5 * SECOND).tokens == 3


# -- fates ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("end", "became", "words"),
    [
        (End("g", Verb.SUCCEED), ItemOutcome.RECOVERED, ""),
        (End("g", Verb.DIE, "g", "GW", "It is down."), ItemOutcome.SAME, "GW: It is down."),
        (End("g", Verb.RETRY, "g", "GW", "It is down."), ItemOutcome.SAME, "GW: It is down."),
        (End("g", Verb.DIE, "h", "BAD"), ItemOutcome.OTHER, "BAD: "),
        (End("code-GW", Verb.DIE, None, "GW"), ItemOutcome.SAME, "GW: "),
        (End(None, Verb.DIE, None, "GW"), ItemOutcome.OTHER, "GW: "),
        (End(None, Verb.PARK, said="which one?"), ItemOutcome.OTHER, "which one?"),
        (End(None, Verb.SNOOZE), ItemOutcome.OTHER, "snooze"),
        (End("g", state=State.DEAD, died_of="g"), ItemOutcome.SAME, "it died while it waited"),
        (End("g", state=State.DEAD, died_of="h"), ItemOutcome.OTHER, "it died while it waited"),
        (End(None, state=State.DEAD, died_of=None), ItemOutcome.OTHER, "it died while it waited"),
        (End("g"), ItemOutcome.OTHER, "the job is gone"),
        (End("g", state=State.CANCELLED), ItemOutcome.OTHER, "it is cancelled, without an attempt"),
        (
            End("g", state=State.QUEUED, later=True),
            ItemOutcome.OTHER,
            "somebody retried it again before its first attempt",
        ),
    ],
)
def test_what_an_end_means(end, became, words):
    assert fate(end) == (became, words)


# -- words ------------------------------------------------------------------------------------------
def test_a_stop_is_told_with_its_numbers():
    plan = [
        ItemCounts(1, recovered=1),
        ItemCounts(10, waiting=0, same=7, recovered=3),
        ItemCounts(9_989, 9_989),
    ]
    assert stop_words(plan, 1, 0.1, "rsss", [("GW_5XX", 7)]) == (
        "7 of the 10 of step 2 of 3 failed again of the same cause (GW_5XX), more than 10 %; "
        "9,989 of 10,000 are untouched"
    )


def test_a_stop_by_the_last_hundred_speaks_of_them():
    plan = [ItemCounts(10_000, waiting=8_000, recovered=1_980, same=20)]
    told = stop_words(plan, 0, 0.1, "r" * 89 + "s" * 11, [])
    assert told.startswith(
        "11 of the 100 that ended last in step 1 failed again of the same cause, more than 10 %"
    )


def test_an_end_is_told_with_its_numbers():
    assert (
        end_words(Action.RETRY, [ItemCounts(3, recovered=2, same=1)])
        == "retry of 3: 2 recovered, 1 same"
    )
    assert end_words(Action.CANCEL, [ItemCounts(2, done=2)]) == "cancel of 2: 2 done"
    assert end_words(Action.CANCEL, [ItemCounts()]) == "no job matched"
