"""Tests of the rules of operations: steps, verdicts, outcomes and sentences."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND
from mulligan.core.errors import Refused
from mulligan.core.job import State
from mulligan.operations.rules import (
    CANARY_STEPS,
    IN_FLIGHT_SECONDS,
    MAX_IN_FLIGHT,
    RECENT_ITEMS,
    REST,
    SINGLE_STEP,
    Action,
    ItemCounts,
    ItemEnd,
    ItemOutcome,
    StepVerdict,
    append_recent,
    check_steps,
    check_stop_if,
    describe_end,
    describe_stop,
    judge_item,
    judge_step,
    last_place,
    max_items,
    plan_steps,
    refill_tokens,
    sendable_count,
    step_number,
    sum_counts,
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


# --- Steps ---
def test_plan_steps_divides_jobs_into_steps():
    assert [tally.size for tally in plan_steps(CANARY_STEPS, 10_000)] == [1, 10, 100, 9889]
    assert [tally.size for tally in plan_steps(CANARY_STEPS, 5)] == [1, 4]
    assert [tally.size for tally in plan_steps(SINGLE_STEP, 7)] == [7]
    assert plan_steps(CANARY_STEPS, 0) == [ItemCounts()]
    assert [tally.size for tally in plan_steps((2, 3), 100)] == [2, 3]
    assert (max_items((2, 3)), max_items(CANARY_STEPS)) == (5, None)


@given(SIZES, st.booleans(), st.integers(0, 3000))
def test_every_item_is_in_one_step_and_in_order(sizes, rest, total):
    steps = (*sizes, REST) if rest else tuple(sizes)
    most = total if max_items(steps) is None else min(total, max_items(steps))
    plan = plan_steps(steps, total)
    assert sum_counts(plan).size == sum_counts(plan).waiting == most
    assert last_place(plan, len(plan) - 1) == most
    found = [step_number(plan, place) for place in range(1, most + 1)]
    assert found == sorted(found)
    assert all(found.count(n + 1) == tally.size for n, tally in enumerate(plan))
    assert step_number(plan, most + 1) == 0


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
def test_invalid_steps_are_refused(steps):
    with pytest.raises(Refused, match="steps"):
        check_steps(steps)


@pytest.mark.parametrize("steps", [[1, 10, 100, REST], [REST], [1], (5, 5), [1_000_000]])
def test_valid_steps_are_accepted(steps):
    assert check_steps(steps) == tuple(steps)


@pytest.mark.parametrize(
    "share", [-0.1, 1.1, math.nan, math.inf, -math.inf, True, None, "10%", "", 10]
)
def test_invalid_stop_if_is_refused(share):
    with pytest.raises(Refused, match="stop_if"):
        check_stop_if(share)


@pytest.mark.parametrize("share", [0, 0.1, 1, 1.0])
def test_valid_stop_if_is_accepted(share):
    assert check_stop_if(share) == share


# --- Judging ---
@given(TALLIES, SHARES)
def test_a_step_is_never_finished_while_items_are_open(tally, share):
    verdict = judge_step(tally, share)
    assert (verdict is StepVerdict.NEXT) <= (tally.open == 0)
    assert (verdict is StepVerdict.CONTINUE) <= (tally.open > 0)


@given(TALLIES, SHARES)
def test_a_step_stops_only_if_open_items_cannot_bring_it_below_the_limit(tally, share):
    best = tally._replace(recovered=tally.recovered + tally.open, waiting=0, sent=0)
    worst = tally._replace(same=tally.same + tally.open, waiting=0, sent=0)
    if judge_step(tally, share) is StepVerdict.STOP:
        assert judge_step(best, share) is StepVerdict.STOP
        assert best.same / best.judged > share
    elif worst.judged and worst.same / worst.judged <= share:
        assert judge_step(worst, share) is StepVerdict.NEXT


@given(TALLIES, SHARES, st.integers(1, 50))
def test_more_failures_never_revoke_a_stop(tally, share, more):
    if judge_step(tally, share) is StepVerdict.STOP:
        assert (
            judge_step(tally._replace(same=tally.same + more, size=tally.size + more), share)
            is StepVerdict.STOP
        )


@pytest.mark.parametrize(
    ("same", "recovered", "share", "verdict"),
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
def test_a_share_equal_to_the_limit_is_allowed(same, recovered, share, verdict):
    assert (
        judge_step(ItemCounts(same + recovered, same=same, recovered=recovered), share) is verdict
    )


def test_refused_and_skipped_items_do_not_count_as_judged():
    assert judge_step(ItemCounts(10, same=1, refused=5, skipped=4), 0.1) is StepVerdict.STOP
    assert judge_step(ItemCounts(10, refused=5, skipped=5), 0.0) is StepVerdict.NEXT


def test_a_long_step_stops_if_its_last_hundred_exceed_the_limit():
    tally = ItemCounts(10_000, waiting=8_000, recovered=1_980, same=20)
    good, bad = "r" * 90 + "s" * 10, "r" * 89 + "s" * 11
    assert judge_step(tally, 0.1, good) is StepVerdict.CONTINUE
    assert judge_step(tally, 0.1, bad) is StepVerdict.STOP
    assert judge_step(tally, 0.1, bad[1:]) is StepVerdict.CONTINUE  # too few yet


def test_recent_holds_the_last_hundred_items_with_an_attempt():
    recent = append_recent(
        "",
        [ItemOutcome.RECOVERED] * 150
        + [ItemOutcome.SKIPPED, ItemOutcome.REFUSED, ItemOutcome.DONE]
        + [ItemOutcome.SAME, ItemOutcome.OTHER],
    )
    assert recent == "r" * 98 + "so"
    assert len(recent) == RECENT_ITEMS


# --- Sending ---
@given(TALLIES, st.floats(0, 1e6), st.floats(0.001, 1e6), st.integers(1, 200))
def test_sendable_count_respects_waiting_items_rate_and_items_in_flight(tally, tokens, rate, most):
    count = sendable_count(tally, tokens, rate, most)
    assert 0 <= count <= min(tally.waiting, most)
    assert count <= tokens or count == 0
    assert count == 0 or tally.sent + count <= max(MAX_IN_FLIGHT, round(rate * IN_FLIGHT_SECONDS))


def test_tokens_refill_to_one_second_at_most_and_not_when_the_clock_goes_back():
    assert refill_tokens(0.0, 0, 20.0, SECOND // 2).tokens == 10
    assert refill_tokens(0.0, 0, 20.0, 3600 * SECOND).tokens == 20
    assert refill_tokens(0.0, 0, 0.1, 3600 * SECOND).tokens == 1
    assert refill_tokens(3.0, 10 * SECOND, 20.0, 5 * SECOND).tokens == 3


# --- Fates ---
@pytest.mark.parametrize(
    ("end", "outcome", "why"),
    [
        (ItemEnd("g", Verb.SUCCEED), ItemOutcome.RECOVERED, ""),
        (ItemEnd("g", Verb.DIE, "g", "GW", "It is down."), ItemOutcome.SAME, "GW: It is down."),
        (ItemEnd("g", Verb.RETRY, "g", "GW", "It is down."), ItemOutcome.SAME, "GW: It is down."),
        (ItemEnd("g", Verb.DIE, "h", "BAD"), ItemOutcome.OTHER, "BAD: "),
        (ItemEnd("code-GW", Verb.DIE, None, "GW"), ItemOutcome.SAME, "GW: "),
        (ItemEnd(None, Verb.DIE, None, "GW"), ItemOutcome.OTHER, "GW: "),
        (ItemEnd(None, Verb.PARK, message="which one?"), ItemOutcome.OTHER, "which one?"),
        (ItemEnd(None, Verb.SNOOZE), ItemOutcome.OTHER, "snooze"),
        (ItemEnd("g", state=State.DEAD, died_of="g"), ItemOutcome.SAME, "it died while waiting"),
        (ItemEnd("g", state=State.DEAD, died_of="h"), ItemOutcome.OTHER, "it died while waiting"),
        (ItemEnd(None, state=State.DEAD, died_of=None), ItemOutcome.OTHER, "it died while waiting"),
        (ItemEnd("g"), ItemOutcome.OTHER, "the job was deleted"),
        (
            ItemEnd("g", state=State.CANCELLED),
            ItemOutcome.OTHER,
            "it is cancelled without an attempt",
        ),
        (
            ItemEnd("g", state=State.QUEUED, retried_again=True),
            ItemOutcome.OTHER,
            "it was retried again before its first attempt",
        ),
    ],
)
def test_the_end_of_an_item_decides_its_outcome(end, outcome, why):
    assert judge_item(end) == (outcome, why)


# --- Words ---
def test_a_stop_is_described_with_its_numbers():
    plan = [
        ItemCounts(1, recovered=1),
        ItemCounts(10, waiting=0, same=7, recovered=3),
        ItemCounts(9_989, 9_989),
    ]
    assert describe_stop(plan, 1, 0.1, "rsss", [("GW_5XX", 7)]) == (
        "Stopped at step 2 of 3: 7 of 10 retried jobs failed again with GW_5XX (limit 10 %). "
        "9,989 of 10,000 jobs were not retried."
    )


def test_a_stop_by_recent_items_describes_them():
    plan = [ItemCounts(10_000, waiting=8_000, recovered=1_980, same=20)]
    text = describe_stop(plan, 0, 0.1, "r" * 89 + "s" * 11, [])
    assert text.startswith(
        "Stopped at step 1 of 1: 11 of the last 100 retried jobs failed again with the same cause "
        "(limit 10 %). 8,000 of 10,000 jobs were not retried."
    )


def test_an_end_is_described_with_its_numbers():
    assert (
        describe_end(Action.RETRY, [ItemCounts(3, recovered=2, same=1)])
        == "Retry of 3 jobs: 2 recovered, 1 failed again."
    )
    assert describe_end(Action.CANCEL, [ItemCounts(2, done=2)]) == "Cancel of 2 jobs: 2 done."
    assert describe_end(Action.CANCEL, [ItemCounts()]) == "No job matched."
