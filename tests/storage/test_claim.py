"""Claim: the right jobs, in the right order, each once, with concurrent workers."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from itertools import chain
from random import Random

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Lane
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import SearchQueries
from mulligan.worker.claim import Claimer
from mulligan.worker.queries import LeaseQueries, WorkerQueries
from support.store import (
    FAILED,
    HOUR,
    KINDS,
    BackgroundCall,
    a_job,
    claim,
    claim_by_id,
    claim_when_due,
    close_worker,
    enqueue,
    get,
    insert,
    jobs,
    now,
    open_worker,
    policies,
    rolled_back,
    run_concurrently,
    run_once,
    save_checkpoint,
    settle_leases,
    sql,
    state_of,
    unique_job,
)


@pytest.fixture(autouse=True)
def worker(store):
    return open_worker(store)


def close_gate(store, scope, key, until=None):
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate(scope, key, tx.now(), until, "closed", "a person"))


# --- Order ---
@pytest.mark.seed("000-29")
def test_jobs_are_claimed_by_priority_then_due_time_then_id(store):
    early, late = now(store) - 2 * HOUR, now(store) - HOUR
    last, third, second, first, fourth = (
        a_job(priority=9, run_at=early),
        a_job(priority=0, run_at=late),
        a_job(priority=0, run_at=early, kind="mail"),
        a_job(priority=-9, run_at=late),
        a_job(priority=0, run_at=late, queue="other"),
    )
    insert(store, last, third, second, first, fourth)
    assert [lease.id for lease in claim(store, 5)] == [
        job.id for job in (first, second, third, fourth, last)
    ]


def test_a_lease_contains_the_job(store):
    at = now(store) - SECOND
    job = a_job(
        kind="mail",
        queue="fast",
        priority=2,
        uses="smtp",
        run_at=at,
        timeout=7,
        deadline=HOUR,
        policy="{}",
    )
    insert(store, job)
    (lease,) = claim(store)
    assert (lease.kind, lease.queue, lease.owner, lease.uses, lease.run_at) == (
        "mail",
        "fast",
        "acme",
        "smtp",
        at,
    )
    assert (lease.worker, lease.token, lease.attempt, lease.generation) == ("w1", 1, 1, 1)
    assert lease.started_at == lease.first_started_at == get(store, job.id).started_at
    assert lease.deadline_at == lease.created_at + HOUR


def test_claimed_jobs_are_returned_in_the_requested_order(store):
    ids = enqueue(store, 60)
    wanted = ids[::2][::-1] + ids[1::2]
    assert [lease.id for lease in claim_by_id(store, *wanted)] == wanted


def test_a_claim_skips_jobs_that_cannot_be_claimed(store):
    ids = enqueue(store, 6)
    sql(store, "UPDATE {p}job SET deadline_at = 1 WHERE id = :id", {"id": ids[0]})
    claim_by_id(store, ids[1])
    with store.begin() as tx:
        assert [lease.id for lease in LeaseQueries(tx).claim_jobs("w1", ids, 3)] == ids[2:5]


# --- Jobs that are not claimed ---
@pytest.mark.seed("000-27")
def test_no_job_starts_before_its_time_even_if_chosen_by_id(store):
    (later,) = enqueue(store, delay=60 * SECOND)
    assert claim(store) == claim_by_id(store, later) == []
    store.shift_clock(61 * SECOND)
    assert [lease.id for lease in claim(store)] == [later]


def test_a_job_past_its_deadline_is_skipped(store):
    (late,) = enqueue(store, deadline=60 * SECOND)
    (fine,) = enqueue(store)
    store.shift_clock(61 * SECOND)
    assert [lease.id for lease in claim(store, 1)] == [fine]
    assert state_of(store, late) == "queued"


def test_closed_and_unknown_workers_claim_nothing(store):
    (job_id,) = enqueue(store)
    close_worker(store)
    assert claim(store, 5) == []
    assert claim_by_id(store, job_id, worker="nobody") == []
    open_worker(store, "w2")
    assert [lease.id for lease in claim(store, 5, worker="w2")] == [job_id]


def test_a_worker_claims_only_kinds_and_queues_it_knows(store):
    ours, kind, queue = insert(
        store, a_job(queue="a"), a_job(kind="strange", queue="a"), a_job(queue="b")
    )
    claimer = Claimer("w1", frozenset({"render"}), frozenset({"a"}))
    assert [lease.id for lease in claim(store, 5, claimer=claimer)] == [ours.id]
    assert {state_of(store, kind.id), state_of(store, queue.id)} == {"queued"}


GATES = [
    ("queue", "default", {"a", "b", "c", "d"}, {"e"}),
    ("kind", "render", {"a", "c", "e"}, {"b", "d"}),
    ("dependency", "bucket", {"c", "d"}, {"a", "b", "e"}),
    ("dependency", "buck", set(), {"a", "b", "c", "d", "e"}),
]


@pytest.mark.parametrize(
    ("scope", "key", "held", "free"), GATES, ids=[f"{scope}-{key}" for scope, key, *_ in GATES]
)
def test_a_closed_gate_holds_only_its_own_jobs(store, scope, key, held, free):
    new = {
        "a": a_job(),
        "b": a_job(kind="mail"),
        "c": a_job(uses="bucket"),
        "d": a_job(kind="mail", uses="bucket,smtp"),
        "e": a_job(queue="other"),
    }
    insert(store, *new.values())
    close_gate(store, scope, key)
    assert {lease.id for lease in claim(store, 9)} == {new[name].id for name in free}
    with store.begin() as tx:
        assert GuardQueries(tx).open_gate(scope, key)
        assert not GuardQueries(tx).open_gate(scope, key)
    assert {lease.id for lease in claim(store, 9)} == {new[name].id for name in held}


def test_a_gate_opens_by_itself_when_its_time_is_up(store):
    (job_id,) = enqueue(store)
    close_gate(store, "queue", "default", until=now(store) + 60 * SECOND)
    with store.begin() as tx:
        claimed = Claimer("w1", KINDS).claim(tx, 5)
    assert claimed.leases == []
    assert claimed.next_due == pytest.approx(claimed.now + 60 * SECOND, abs=5 * SECOND)
    store.shift_clock(61 * SECOND)
    assert [lease.id for lease in claim(store)] == [job_id]


CLOSURES = [  # existing closure, new closure, expected; in seconds from now, None: no end
    (60, 30, 60),
    (30, 60, 60),
    (60, None, None),
    (None, 60, None),
]


@pytest.mark.parametrize(("first", "second", "stands"), CLOSURES)
def test_the_longer_closure_of_a_gate_wins(store, first, second, stands):
    at = now(store)
    for length in (first, second):
        close_gate(store, "kind", "mail", None if length is None else at + length * SECOND)
    with store.read() as tx:
        (found,) = GuardQueries(tx).list_gates()
    assert found.until == (None if stands is None else at + stands * SECOND)


# --- Each once ---
def test_two_workers_with_the_same_candidates_claim_each_job_once(store):
    """Between the choice of a worker and its claim another may claim the same rows."""
    open_worker(store, "w2")
    ids = enqueue(store, 20)
    with store.begin() as tx:
        candidates = GuardQueries(tx).list_due_jobs([("default|render||0", 0)], 20)
    found = [candidate.id for candidate in candidates]
    first, second = run_concurrently(
        lambda: claim_by_id(store, *found), lambda: claim_by_id(store, *found, worker="w2")
    )
    assert sorted(lease.id for lease in first + second) == ids


@pytest.mark.seed("002-16")
def test_many_workers_claim_two_thousand_jobs_each_exactly_once(store):
    ids = enqueue(store, 2000)
    workers = [open_worker(store, f"worker {n}") for n in range(5)]

    def drain(worker: str) -> list[tuple[str, int]]:
        claimer = Claimer(worker, KINDS)
        claimed = []
        while leases := claim(store, 37, claimer=claimer):
            claimed += [(lease.id, lease.token) for lease in leases]
            settle_leases(store, leases)
        return claimed

    claims = run_concurrently(*[partial(drain, worker) for worker in workers])
    taken = list(chain.from_iterable(claims))
    assert sorted(taken) == [(job_id, 1) for job_id in ids]
    with store.read() as tx:
        assert dict(SearchQueries(tx).count_jobs_by_state(10_000))["succeeded"] == 2000


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_locked_rows_are_skipped_without_waiting(store):
    open_worker(store, "w2")
    ids = enqueue(store, 20)
    with store.begin() as tx:
        assert len(LeaseQueries(tx).claim_jobs("w1", ids, 10)) == 10
        other = BackgroundCall(lambda: claim(store, 10, worker="w2"))
        assert [lease.id for lease in other.result()] == ids[10:]


def claim_lane(tx, worker, n):
    """Claim the next `n` jobs of a lane."""
    picked = GuardQueries(tx).list_due_jobs([("default|render||0", 0)], n)
    return [lease.id for lease in LeaseQueries(tx).claim_candidates(worker, picked)]


def test_a_lane_is_claimed_in_order_up_to_the_limit_by_an_open_worker(store):
    at = now(store)
    times = [at - 3, at - 1, at - 2, at + HOUR]
    inserted = insert(store, *[a_job(run_at=time) for time in times], a_job(priority=1))
    ids = [job.id for job in inserted]
    with store.begin() as tx:
        assert claim_lane(tx, "nobody", 9) == []
        assert claim_lane(tx, "w1", 2) == [ids[0], ids[2]]
        assert claim_lane(tx, "w1", 2) == [ids[1]]
        assert claim_lane(tx, "w1", 2) == []


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_locked_rows_of_one_lane_are_skipped_without_waiting(store):
    open_worker(store, "w2")
    ids = enqueue(store, 20)
    with store.begin() as tx:
        assert claim_lane(tx, "w1", 10) == ids[:10]
        other = BackgroundCall(lambda: claim(store, 10, worker="w2"))
        assert [lease.id for lease in other.result()] == ids[10:]


def test_tokens_only_grow_however_attempts_end(store):
    quick = policies(base_delay=0, max_retries=9)
    (job_id,) = enqueue(store)
    found = []
    for _ in range(4):
        lease = claim_when_due(store, job_id)
        found.append((lease.token, lease.attempt))
        settle_leases(store, lease, FAILED, policies=quick)
    assert found == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_leases_of_a_lost_claim_response_can_be_listed(store):
    ids = enqueue(store, 3)
    leases = claim(store, 2)
    with store.read() as tx:
        assert sorted(WorkerQueries(tx).list_leases("w1")) == sorted(leases)
        assert WorkerQueries(tx).list_leases("w2") == []
    assert state_of(store, ids[2]) == "queued"


def test_a_rolled_back_claim_leaves_no_trace(store):
    (job_id,) = enqueue(store)
    with rolled_back(store.begin()) as tx:
        assert LeaseQueries(tx).claim_jobs("w1", [job_id], 1)
    assert get(store, job_id)[4:6] == ("queued", 0)
    assert claim(store)[0].token == 1


# --- Lanes ---
def test_the_claim_state_lists_each_lane_and_priority_once_with_its_earliest_time(store):
    at = now(store)
    wanted = {
        ("default", "mail", "", -9): [at + HOUR, at],
        ("default", "mail", "", 0): [at - HOUR] * 3,
        ("default", "render", "", 0): [at, at - 1],
        ("default", "render", "bucket,smtp", 9): [at + 5 * HOUR],
        ("z", "render", "", 0): [at],
    }
    expected = []
    for (queue_name, kind, uses, priority), times in wanted.items():
        lane = Lane(queue_name, kind, uses, retry=False)
        expected.append((lane.key, priority, min(times)))
        for run_at in times:
            job = a_job(queue=queue_name, kind=kind, uses=uses, priority=priority, run_at=run_at)
            insert(store, job)
    with store.read() as tx:
        state = GuardQueries(tx).read_claim_state()
    assert sorted(state.lanes) == sorted(expected)


def test_the_claim_state_lists_only_queued_jobs(store):
    enqueue(store, 3)
    settle_leases(store, claim(store, 3)[:2])
    with store.read() as tx:
        assert GuardQueries(tx).read_claim_state().lanes == []


def test_due_jobs_are_listed_in_order_up_to_the_limit(store):
    at = now(store)
    times = [at - 3, at - 1, at - 2, at + HOUR]
    inserted = insert(store, *[a_job(run_at=time) for time in times])
    first, third, second, _ = (job.id for job in inserted)
    lane = "default|render||0"
    with store.read() as tx:
        queries = GuardQueries(tx)
        assert queries.list_due_jobs([(lane, 0), ("no|such||0", 3)], 10) == [
            (0, at - 3, first, lane),
            (0, at - 2, second, lane),
            (0, at - 1, third, lane),
        ]
        assert len(queries.list_due_jobs([(lane, 0)], 2)) == 2
        assert queries.list_due_jobs([], 5) == []


def test_retries_have_their_own_lane_and_share(store):
    quick = policies(base_delay=0)
    failed = [ended_once(store, quick) for _ in range(100)]
    enqueue(store, 100)
    claimer = Claimer("w1", KINDS)
    claimed = []
    for _ in range(10):
        claimed += claim(store, 10, claimer=claimer)
    are_retries = [lease.id in failed for lease in claimed]
    assert 10 <= sum(are_retries) <= 30
    assert any(are_retries[:50])


def ended_once(store, quick):
    (job_id,) = enqueue(store)
    settle_leases(store, claim_by_id(store, job_id), FAILED, policies=quick)
    return job_id


# --- Previous attempts ---
def test_previous_attempts_are_checkpoints_and_the_last_failure(store):
    fresh, clean = enqueue(store, 2)
    job_id = run_once(store, FAILED)
    lease = claim_when_due(store, job_id)
    with store.begin() as tx:
        assert save_checkpoint(tx, lease, "page", "17")
        assert save_checkpoint(tx, lease, "page", "18")
        found = WorkerQueries(tx).get_previous_attempts([fresh, clean, job_id])
    assert set(found) == {job_id}
    assert found[job_id].steps["page"].value == "18"
    assert found[job_id].previous["code"] == "BOOM"
    assert found[job_id].previous["attempt"] == 1


def test_previous_attempts_are_read_only_for_kinds_that_use_them(store):
    lease = claim_when_due(store, run_once(store, FAILED))
    its_kind, other_kind = frozenset({lease.kind}), frozenset({"another"})
    with store.begin() as tx:
        queries = WorkerQueries(tx)
        assert set(queries.previous_attempts_of([lease])) == {lease.id}
        assert set(queries.previous_attempts_of([lease], its_kind)) == {lease.id}
        assert queries.previous_attempts_of([lease], other_kind) == {}


def test_a_hint_follows_an_insert_soon(store):
    hinted, stop = threading.Event(), threading.Event()
    listener = BackgroundCall(lambda: store.watch(hinted.set, stop))
    try:
        for _ in range(100):  # the watch may start after the first insert
            insert(store, *jobs(1))
            if hinted.wait(0.2):
                break
        assert hinted.is_set()
    finally:
        stop.set()
    listener.result()


@pytest.mark.timing
def test_a_hint_follows_soon_even_after_another_write(store):
    """The file is checked repeatedly until a commit is visible; the next write must not wait."""
    hints, stop = queue.SimpleQueue(), threading.Event()
    listener = BackgroundCall(lambda: store.watch(lambda: hints.put(time.monotonic()), stop))
    rng, delays = Random(7), []
    try:
        insert(store, *jobs(1))
        hints.get(timeout=10)
        for _ in range(60):
            time.sleep(rng.uniform(0.004, 0.04))
            while not hints.empty():
                hints.get()
            insert(store, *jobs(1))
            written = time.monotonic()
            delays.append(hints.get(timeout=10) - written)
    finally:
        stop.set()
    listener.result()
    assert sorted(delays)[54] < 0.006


def test_expired_jobs_at_the_head_of_a_lane_delay_no_others(store):
    insert(store, *jobs(50, priority=-5, deadline_at=now(store) + 1))
    [good] = enqueue(store)
    store.shift_clock(10 * SECOND)
    assert [lease.id for lease in claim(store, 10)] == [good]


def test_a_key_held_only_while_queued_is_free_once_the_job_runs(store):
    insert(store, unique_job("k", cover=["queued"]))
    claim(store)
    assert [answer.fresh for answer in insert(store, unique_job("k", cover=["queued"]))] == [True]
