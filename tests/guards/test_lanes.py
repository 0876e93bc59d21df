"""Lanes: order of claims and open lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.job import Candidate, ClaimState, Gate, Lane
from mulligan.guards.lanes import MAX_RETRY_SHARE, MIN_RETRY_SHARE, Capacity, LaneView, pick

candidates = st.tuples(
    st.integers(-9, 9), st.integers(0, 100), st.text("abcdef", min_size=1, max_size=4)
)


def pick_ids(fresh, retries, n, credit, limits=()):
    """Pick among (priority, due time, id) of two lanes. Return the ids and the credit."""
    jobs, left = pick(
        [Candidate(*job, "default|render||0") for job in fresh],
        [Candidate(*job, "default|render|s3|1") for job in retries],
        n,
        credit,
        Capacity(dict(limits)),
    )
    return [job.id for job in jobs], left


def waiting(prefix):
    lists = st.lists(candidates, max_size=30, unique_by=lambda one: one[2])
    return lists.map(
        lambda found: sorted((priority, at, prefix + name) for priority, at, name in found)
    )


def test_single_sequence_keeps_its_order():
    fresh = [(-1, 5, "a"), (0, 1, "b"), (0, 2, "c")]
    assert pick_ids(fresh, [], 2, 0.0) == (["a", "b"], 0.0)
    assert pick_ids([], fresh, 5, 0.5) == (["a", "b", "c"], 0.5)


@given(waiting("f"), waiting("r"), st.integers(0, 40), st.floats(0, 1))
def test_all_slots_are_filled_and_no_job_is_picked_twice(fresh, retries, n, credit):
    chosen, left = pick_ids(fresh, retries, n, credit)
    everything = {one[2] for one in (*fresh, *retries)}
    assert len(chosen) == len(set(chosen)) == min(n, len(everything))
    assert set(chosen) <= everything
    assert 0 <= left <= 1


@given(waiting("f"), waiting("r"), st.integers(0, 40), st.floats(0, 1))
def test_fresh_and_retries_keep_their_order(fresh, retries, n, credit):
    chosen, _ = pick_ids(fresh, retries, n, credit)
    for side in (fresh, retries):
        names = [one[2] for one in side]
        taken = [name for name in chosen if name in names]
        assert taken == names[: len(taken)]


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=60))
def test_retries_get_10_to_30_percent_over_any_series_of_calls(calls):
    """Fresh jobs and retries always wait; which of them is older changes between calls."""
    credit, slots, taken = 0.0, 0, 0
    for n, retry_first in calls:
        fresh = [(0, 1, f"f{i}") for i in range(n + 1)]
        retries = [(0, 0 if retry_first else 2, f"r{i}") for i in range(n + 1)]
        chosen, credit = pick_ids(fresh, retries, n, credit)
        slots += n
        taken += sum(name.startswith("r") for name in chosen)
        assert MIN_RETRY_SHARE * slots - 1 <= taken <= MAX_RETRY_SHARE * slots + 1


def test_single_claims_keep_the_share_over_time():
    fresh, retries, credit, taken = [(0, 1, "f")], [(-9, 0, "r")], 0.0, 0
    for _ in range(1000):
        chosen, credit = pick_ids(fresh, retries, 1, credit)
        taken += chosen == ["r"]
    assert 299 <= taken <= 301


def test_high_priority_fresh_jobs_do_not_starve_retries():
    fresh, retries, credit, taken = [(-9, 0, "f")], [(9, 5, "r")], 0.0, 0
    for _ in range(1000):
        chosen, credit = pick_ids(fresh, retries, 1, credit)
        taken += chosen == ["r"]
    assert 99 <= taken <= 101


def test_a_job_without_capacity_leaves_its_slot_to_the_next():
    fresh, retries = [(0, 1, "f1"), (0, 2, "f2")], [(0, 0, "r1"), (0, 0, "r2")]
    assert pick_ids(fresh, retries, 4, 1.0, {("dependency", "s3"): 1}.items())[0] == [
        "r1",
        "f1",
        "f2",
    ]
    assert pick_ids(fresh, retries, 4, 1.0, {("queue", "default"): 1}.items())[0] == ["r1"]
    assert pick_ids(fresh, retries, 4, 1.0, {("queue", "other"): 0}.items())[0] != []


def test_a_limit_that_both_share_is_not_exceeded():
    fresh = [(0, at, f"f{at}") for at in range(9)]
    retries = [(0, at, f"r{at}") for at in range(9)]
    ids, _ = pick_ids(fresh, retries, 9, 0.0, {("queue", "default"): 4}.items())
    assert len(ids) == 4


LANES = [
    (Lane("pdf", "render", "", False), 0),
    (Lane("pdf", "render", "gateway,s3", True), 5),
    (Lane("mail", "send", "smtp", False), 0),
]
KINDS = frozenset({"render", "send"})


def due_lanes(gates, queues, kinds):
    state = ClaimState(100, [], {}, [(lane.key, priority, 100) for lane, priority in LANES])
    return LaneView(state, gates, queues, kinds).due


def opened(*gates, queues=None, kinds=KINDS):
    keys = due_lanes(gates, queues, kinds)
    return [[lane.key for lane, _ in LANES].index(key) for key, _ in keys]


def gate(scope, key, until=None):
    return Gate(scope, key, 0, until, "", "")


def test_lane_is_open_if_queue_kind_and_all_dependencies_are():
    assert opened() == [0, 1, 2]
    assert opened(gate("queue", "pdf")) == [2]
    assert opened(gate("kind", "send")) == [0, 1]
    assert opened(gate("dependency", "s3")) == [0, 2]
    assert opened(gate("dependency", "s")) == [0, 1, 2]


def test_gate_opens_at_its_end():
    assert opened(gate("queue", "pdf", 101)) == [2]
    assert opened(gate("queue", "pdf", 100)) == [0, 1, 2]


def test_worker_claims_only_its_kinds_and_queues():
    assert opened(kinds=frozenset({"send"})) == [2]
    assert opened(queues=frozenset({"pdf"})) == [0, 1]
    assert opened(queues=frozenset()) == []


def test_open_lane_has_its_priority():
    assert due_lanes([], None, KINDS)[1] == ("pdf|render|gateway,s3|1", 5)
