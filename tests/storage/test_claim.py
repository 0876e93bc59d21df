"""Claim: the right jobs, in the right order, each once, whoever else is claiming."""

from __future__ import annotations

import queue
import threading
import time
from random import Random

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Lane
from mulligan.worker.claim import Claimer, load_previous_attempts
from support.store import (
    FAILED,
    HOUR,
    KINDS,
    Background,
    a_job,
    claim,
    close_worker,
    ended,
    enqueue,
    finish,
    get,
    insert,
    jobs,
    now,
    once_more,
    open_worker,
    policies,
    sql,
    state_of,
    take,
    together,
    undone,
    unique_job,
)


@pytest.fixture(autouse=True)
def worker(store):
    return open_worker(store)


def gate(store, scope, key, until=None):
    with store.begin() as unit:
        unit.close_gate(Gate(scope, key, unit.now(), until, "closed", "a person"))


# -- order ---------------------------------------------------------------------------------------
@pytest.mark.seed("000-29")
def test_lower_priority_numbers_go_first_then_the_earlier_time_then_the_earlier_id(store):
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


def test_a_lease_carries_what_the_job_is(store):
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


def test_take_answers_in_the_order_it_was_asked(store):
    ids = enqueue(store, 60)
    wanted = ids[::2][::-1] + ids[1::2]
    assert [lease.id for lease in take(store, *wanted)] == wanted


def test_take_passes_over_what_cannot_be_taken_and_goes_on_to_the_next(store):
    ids = enqueue(store, 6)
    sql(store, "UPDATE {p}job SET deadline_at = 1 WHERE id = :id", {"id": ids[0]})
    take(store, ids[1])
    with store.begin() as unit:
        assert [lease.id for lease in unit.claim_jobs("w1", ids, 3)] == ids[2:5]


# -- when not ------------------------------------------------------------------------------------
@pytest.mark.seed("000-27")
def test_nothing_starts_before_its_time_not_even_by_name(store):
    (later,) = enqueue(store, delay=60 * SECOND)
    assert claim(store) == take(store, later) == []
    store.shift_clock(61 * SECOND)
    assert [lease.id for lease in claim(store)] == [later]


def test_nothing_starts_past_its_deadline_and_the_next_one_is_not_held_up(store):
    (late,) = enqueue(store, deadline=60 * SECOND)
    (fine,) = enqueue(store)
    store.shift_clock(61 * SECOND)
    assert [lease.id for lease in claim(store, 1)] == [fine]
    assert state_of(store, late) == "queued"


def test_a_closed_worker_takes_nothing_and_neither_does_one_nobody_knows(store):
    (job_id,) = enqueue(store)
    close_worker(store)
    assert claim(store, 5) == []
    assert take(store, job_id, worker="nobody") == []
    open_worker(store, "w2")
    assert [lease.id for lease in claim(store, 5, worker="w2")] == [job_id]


@pytest.mark.seed("000-28")
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
def test_a_closed_gate_holds_its_own_and_nobody_else(store, scope, key, held, free):
    new = {
        "a": a_job(),
        "b": a_job(kind="mail"),
        "c": a_job(uses="bucket"),
        "d": a_job(kind="mail", uses="bucket,smtp"),
        "e": a_job(queue="other"),
    }
    insert(store, *new.values())
    gate(store, scope, key)
    assert {lease.id for lease in claim(store, 9)} == {new[name].id for name in free}
    with store.begin() as unit:
        assert unit.open_gate(scope, key)
        assert not unit.open_gate(scope, key)
    assert {lease.id for lease in claim(store, 9)} == {new[name].id for name in held}


def test_a_gate_opens_by_itself_when_its_time_is_up(store):
    (job_id,) = enqueue(store)
    gate(store, "queue", "default", until=now(store) + 60 * SECOND)
    with store.begin() as unit:
        claimed = Claimer("w1", KINDS).claim(unit, 5)
    assert claimed.leases == []
    assert claimed.next_due == pytest.approx(claimed.now + 60 * SECOND, abs=5 * SECOND)
    store.shift_clock(61 * SECOND)
    assert [lease.id for lease in claim(store)] == [job_id]


CLOSURES = [  # what is there, what comes, what stands; in seconds from now, None: until opened by hand
    (60, 30, 60),
    (30, 60, 60),
    (60, None, None),
    (None, 60, None),
]


@pytest.mark.parametrize(("first", "second", "stands"), CLOSURES)
def test_the_longer_closure_stands(store, first, second, stands):
    at = now(store)
    for length in (first, second):
        gate(store, "kind", "mail", None if length is None else at + length * SECOND)
    with store.read() as unit:
        (found,) = unit.list_gates()
    assert found.until == (None if stands is None else at + stands * SECOND)


# -- each once -----------------------------------------------------------------------------------
def test_two_who_saw_the_same_candidates_take_each_job_once(store):
    """Between one worker's choice and its claim another may claim the same rows (reliability 11)."""
    open_worker(store, "w2")
    ids = enqueue(store, 20)
    with store.begin() as unit:
        seen = [job_id for _, _, job_id, _ in unit.list_due_jobs([("default|render||0", 0)], 20)]
    first, second = together(lambda: take(store, *seen), lambda: take(store, *seen, worker="w2"))
    assert sorted(lease.id for lease in first + second) == ids


@pytest.mark.seed("002-16")
def test_many_workers_claim_two_thousand_jobs_each_exactly_once(store):
    ids = enqueue(store, 2000)
    workers = [open_worker(store, f"worker {n}") for n in range(5)]

    def drain(worker: str) -> list[tuple[str, int]]:
        claimer, mine = Claimer(worker, KINDS), []
        while leases := claim(store, 37, claimer=claimer):
            mine += [(lease.id, lease.token) for lease in leases]
            finish(store, leases)
        return mine

    taken = [one for mine in together(*[lambda w=w: drain(w) for w in workers]) for one in mine]
    assert sorted(taken) == [(job_id, 1) for job_id in ids]
    with store.read() as unit:
        assert dict(unit.count_jobs_by_state(10_000))["succeeded"] == 2000


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_who_meets_locked_rows_passes_on_at_once(store):
    open_worker(store, "w2")
    ids = enqueue(store, 20)
    with store.begin() as unit:
        assert len(unit.claim_jobs("w1", ids, 10)) == 10
        other = Background(lambda: claim(store, 10, worker="w2"))
        assert [lease.id for lease in other.answer()] == ids[10:]


def test_one_lane_is_taken_in_order_up_to_the_limit_by_an_open_worker_only(store):
    at = now(store)
    times = [at - 3, at - 1, at - 2, at + HOUR]
    ids = [
        one.id for one in insert(store, *[a_job(run_at=time) for time in times], a_job(priority=1))
    ]
    with store.begin() as unit:
        assert unit.claim_from_lane("nobody", "default|render||0", 0, 9) == []
        assert [lease.id for lease in unit.claim_from_lane("w1", "default|render||0", 0, 2)] == [
            ids[0],
            ids[2],
        ]
        assert [lease.id for lease in unit.claim_from_lane("w1", "default|render||0", 0, 2)] == [ids[1]]
        assert unit.claim_from_lane("w1", "default|render||0", 0, 2) == []


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_who_meets_locked_rows_of_one_lane_passes_on_at_once(store):
    open_worker(store, "w2")
    ids = enqueue(store, 20)
    with store.begin() as unit:
        assert len(unit.claim_from_lane("w1", "default|render||0", 0, 10)) == 10
        other = Background(lambda: claim(store, 10, worker="w2"))
        assert [lease.id for lease in other.answer()] == ids[10:]


def test_tokens_only_grow_whatever_becomes_of_the_attempt(store):
    quick = policies(base_delay=0, max_retries=9)
    (job_id,) = enqueue(store)
    seen = []
    for _ in range(4):
        lease = once_more(store, job_id)
        seen.append((lease.token, lease.attempt))
        finish(store, lease, FAILED, policies=quick)
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_claim_whose_answer_was_lost_can_be_looked_up(store):
    ids = enqueue(store, 3)
    leases = claim(store, 2)
    with store.read() as unit:
        assert sorted(unit.list_leases("w1")) == sorted(leases)
        assert unit.list_leases("w2") == []
    assert state_of(store, ids[2]) == "queued"


def test_the_claim_of_a_transaction_that_fails_never_happened(store):
    (job_id,) = enqueue(store)
    with undone(store.begin()) as unit:
        assert unit.claim_jobs("w1", [job_id], 1)
    assert get(store, job_id)[4:6] == ("queued", 0)
    assert claim(store)[0].token == 1


# -- lanes ---------------------------------------------------------------------------------------
def test_the_look_lists_each_lane_and_priority_once_with_its_earliest_time(store):
    at = now(store)
    wanted = {
        ("default", "mail", "", -9): [at + HOUR, at],
        ("default", "mail", "", 0): [at - HOUR] * 3,
        ("default", "render", "", 0): [at, at - 1],
        ("default", "render", "bucket,smtp", 9): [at + 5 * HOUR],
        ("z", "render", "", 0): [at],
    }
    insert(
        store,
        *[
            a_job(queue=queue, kind=kind, uses=uses, priority=priority, run_at=run_at)
            for (queue, kind, uses, priority), times in wanted.items()
            for run_at in times
        ],
    )
    with store.read() as unit:
        look = unit.read_claim_state()
    assert sorted(look.lanes) == sorted(
        (Lane(queue, kind, uses, retry=False).key, priority, min(times))
        for (queue, kind, uses, priority), times in wanted.items()
    )


def test_the_look_does_not_list_what_does_not_wait(store):
    enqueue(store, 3)
    finish(store, claim(store, 3)[:2])
    with store.read() as unit:
        assert unit.read_claim_state().lanes == []


def test_candidates_are_due_ordered_and_bounded(store):
    at = now(store)
    times = [at - 3, at - 1, at - 2, at + HOUR]
    ids = [one.id for one in insert(store, *[a_job(run_at=time) for time in times])]
    with store.read() as unit:
        assert unit.list_due_jobs([("default|render||0", 0), ("no|such||0", 3)], 10) == [
            (0, at - 3, ids[0], "default|render||0"),
            (0, at - 2, ids[2], "default|render||0"),
            (0, at - 1, ids[1], "default|render||0"),
        ]
        assert len(unit.list_due_jobs([("default|render||0", 0)], 2)) == 2
        assert unit.list_due_jobs([], 5) == []


def test_retries_wait_in_a_lane_of_their_own_and_get_their_share(store):
    quick = policies(base_delay=0)
    failed = [ended_once(store, quick) for _ in range(100)]
    enqueue(store, 100)
    claimer = Claimer("w1", KINDS)
    share = [lease.id in failed for _ in range(10) for lease in claim(store, 10, claimer=claimer)]
    assert 10 <= sum(share) <= 30
    assert any(share[:50])


def ended_once(store, quick):
    (job_id,) = enqueue(store)
    finish(store, take(store, job_id), FAILED, policies=quick)
    return job_id


# -- what a later attempt knows ------------------------------------------------------------------
def test_memories_are_the_checkpoints_and_the_last_failure(store):
    fresh, clean = enqueue(store, 2)
    job_id = ended(store, FAILED)
    lease = once_more(store, job_id)
    with store.begin() as unit:
        assert unit.save_checkpoint(*lease[:1], "w1", lease.token, "page", "17")
        assert unit.save_checkpoint(*lease[:1], "w1", lease.token, "page", "18")
        memories = unit.get_previous_attempts([fresh, clean, job_id])
    assert set(memories) == {job_id}
    assert memories[job_id].checkpoints == {"page": "18"}
    assert memories[job_id].previous["code"] == "BOOM"
    assert memories[job_id].previous["attempt"] == 1


def test_what_earlier_attempts_left_is_read_only_for_kinds_that_could_look_at_it(store):
    lease = once_more(store, ended(store, FAILED))
    with store.begin() as unit:
        assert set(load_previous_attempts(unit, [lease])) == {lease.id}
        assert set(load_previous_attempts(unit, [lease], frozenset({lease.kind}))) == {lease.id}
        assert load_previous_attempts(unit, [lease], frozenset({"another"})) == {}


def test_a_hint_comes_soon_after_an_insert(store):
    hinted, stop = threading.Event(), threading.Event()
    listener = Background(lambda: store.watch(hinted.set, stop))
    try:
        for _ in range(100):  # the watch may begin a moment after our first insert
            insert(store, *jobs(1))
            if hinted.wait(0.2):
                break
        assert hinted.is_set()
    finally:
        stop.set()
    listener.answer()


@pytest.mark.timing
def test_a_hint_comes_as_soon_when_somebody_has_just_written(store):
    """A write is looked at again and again until its commit counts; the next one must not wait for the end of that."""
    heard, stop = queue.SimpleQueue(), threading.Event()
    listener = Background(lambda: store.watch(lambda: heard.put(time.monotonic()), stop))
    rng, delays = Random(7), []
    try:
        insert(store, *jobs(1))
        heard.get(timeout=10)
        for _ in range(60):
            time.sleep(rng.uniform(0.004, 0.04))
            while not heard.empty():
                heard.get()
            insert(store, *jobs(1))
            written = time.monotonic()
            delays.append(heard.get(timeout=10) - written)
    finally:
        stop.set()
    listener.answer()
    assert sorted(delays)[54] < 0.006


def test_expired_jobs_at_the_head_do_not_keep_the_others_waiting(store):
    insert(store, *jobs(50, priority=-5, deadline_at=now(store) + 1))
    [good] = enqueue(store)
    store.shift_clock(10 * SECOND)
    assert [lease.id for lease in claim(store, 10)] == [good]


def test_a_key_held_only_while_queued_is_free_once_the_job_runs(store):
    insert(store, unique_job("k", cover=["queued"]))
    claim(store)
    assert [answer.fresh for answer in insert(store, unique_job("k", cover=["queued"]))] == [True]
