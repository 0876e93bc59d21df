"""Events: complete for every job, and no reader skips an event that commits late."""

from __future__ import annotations

import threading
from random import Random

import pytest

from mulligan.core.attempt import Ending
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import State
from mulligan.events.queries import EventQueries
from mulligan.jobs import repair as recover
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.worker import upkeep
from mulligan.worker.queries import LeaseQueries
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    CANCELLED,
    FAILED,
    FATAL,
    HELD,
    LOST,
    PARKED,
    POLICIES,
    RELEASED,
    RETURNED,
    SNOOZED,
    BackgroundCall,
    a_job,
    all_rows,
    claim,
    claim_new_job,
    claim_when_due,
    enqueue,
    get,
    insert,
    job_events,
    jobs,
    open_worker,
    read_event_table,
    replay,
    rolled_back,
    run_concurrently,
    settle_leases,
    sql,
)
from support.waiting import until


def write_event(tx, name):
    EventQueries(tx).write_events([NewEvent(EventType.QUEUE_CHANGED, actor=name)])


def read_all(store, cursor=0):
    with store.read() as tx:
        return EventQueries(tx).list_events_after(cursor, 1_000_000)


def names(events):
    return [event.actor for event in events]


# --- Events of a job ---
def test_the_events_of_a_job_add_up_to_its_row(store):
    rng = Random(20)
    for worker in ("w1", "w2"):
        open_worker(store, worker)
    outcomes = [RETURNED, FAILED, FATAL, SNOOZED, PARKED, HELD, CANCELLED, LOST, RELEASED]
    ids = enqueue(store, 30, uses="bucket", max_retries=3)
    for _ in range(8):
        for job_id in ids:
            row = get(store, job_id)
            if row.state == State.QUEUED:
                settle_leases(store, claim_when_due(store, job_id), rng.choice(outcomes))
            elif row.state == State.PARKED:
                rng.choice([recover.release, recover.retry, recover.cancel])(
                    store, job_id, actor="ann"
                )
            elif row.state in {State.DEAD, State.CANCELLED}:
                recover.retry(store, job_id, actor="ann")
    for row in all_rows(store):
        events = job_events(store, row.id)
        assert replay(events) == (row.state, row.generation, row.attempt, row.token)
        assert [event.id for event in events] == sorted(event.id for event in events)
        assert events[0].type == "job.queued"
    assert {row.state for row in all_rows(store)} >= {"queued", "succeeded"}


def test_an_event_has_an_actor_data_and_a_time(store):
    lease = claim_new_job(store, owner="acme", batch_id="b1")
    recover.cancel(store, lease.id, actor="ann", reason="wrong file")
    settle_leases(store, lease, FAILED)
    queued, started, requested, cancelled = job_events(store, lease.id)
    assert {event.owner for event in (queued, started, requested, cancelled)} == {"acme"}
    assert {event.batch_id for event in (queued, started, requested, cancelled)} == {"b1"}
    assert (requested.actor, requested.data["reason"]) == ("ann", "wrong file")
    assert (started.data, started.attempt, started.token) == ({"worker": "w1", "retries": 0}, 1, 1)
    assert queued.at <= started.at <= requested.at <= cancelled.at
    assert "wrong file" in cancelled.data["reason"]


def test_a_failed_transaction_writes_no_events(store):
    with rolled_back(store.begin()) as tx:
        write_event(tx, "never")
        JobQueries(tx).insert_jobs([a_job()], announce=True)
    assert read_all(store) == []


# --- The cursor ---
def test_events_after_a_cursor_are_listed_in_order_up_to_the_limit(store):
    with store.begin() as tx:
        for n in range(10):
            write_event(tx, str(n))
    events = read_all(store)
    assert names(events) == [str(n) for n in range(10)]
    with store.read() as tx:
        assert EventQueries(tx).list_events_after(events[3].id, 3) == events[4:7]
        assert EventQueries(tx).list_events_after(events[-1].id, 3) == []


def test_a_reader_does_not_pass_an_uncommitted_event(postgres):
    with postgres.begin() as late:
        write_event(late, "first, but late")
        with postgres.begin() as quick:
            write_event(quick, "second, but quick")
        assert read_all(postgres) == []
    assert names(read_all(postgres)) == ["first, but late", "second, but quick"]


def test_open_transactions_do_not_hold_back_earlier_events(postgres):
    with postgres.begin() as tx:
        write_event(tx, "before")
    with postgres.begin() as late:
        write_event(late, "late")
        with postgres.begin() as quick:
            write_event(quick, "quick")
        assert names(read_all(postgres)) == ["before"]


def test_a_rolled_back_writer_does_not_hold_readers_back(postgres):
    with rolled_back(postgres.begin()) as late:
        write_event(late, "never")
        with postgres.begin() as quick:
            write_event(quick, "quick")
    assert names(read_all(postgres)) == ["quick"]


def test_rolled_back_events_leave_no_gap_for_readers(postgres):
    with postgres.begin() as late:
        with rolled_back(late.savepoint()):
            write_event(late, "never")
        write_event(late, "late")
        with postgres.begin() as quick:
            write_event(quick, "quick")
        assert read_all(postgres) == []
    assert names(read_all(postgres)) == ["late", "quick"]


def finish_in(tx, lease):
    settle(tx, [Ending(lease, RETURNED)], SettleContext(POLICIES, tx.now(), Random(1)))


def insert_alone(tx, count):
    """Use the variant for a statement that is a transaction."""
    tx._autocommit = True
    JobQueries(tx).insert_jobs(jobs(count), announce=True)


VERBS = {
    "insert": lambda tx, lease: JobQueries(tx).insert_jobs(jobs(2), announce=True),
    "insert one": lambda tx, lease: JobQueries(tx).insert_jobs(jobs(1), announce=True),
    "insert, alone": lambda tx, lease: insert_alone(tx, 20),
    "insert one, alone": lambda tx, lease: insert_alone(tx, 1),
    "announce": lambda tx, lease: JobQueries(tx).announce_jobs(10),
    "take": lambda tx, lease: LeaseQueries(tx).claim_jobs(
        "w1", [row.id for row in SearchQueries(tx).list_jobs({"state": "queued"}, 5, None)], 5
    ),
    "settle": finish_in,
    "write_events": lambda tx, lease: write_event(tx, "late"),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_statement_that_writes_events_holds_readers_back_until_its_commit(postgres, verb):
    lease = claim_new_job(postgres)
    insert(postgres, a_job(), announce=False)
    start = read_all(postgres)[-1].id
    with postgres.begin() as late:
        verb(late, lease)
        with postgres.begin() as quick:
            write_event(quick, "quick")
        assert read_all(postgres, start) == []
    after = read_all(postgres, start)
    assert after[-1].actor == "quick"
    assert len(after) > 1


def test_an_unrelated_long_transaction_delays_no_reader(postgres):
    with postgres.transaction() as stranger:
        stranger.execute("CREATE TABLE theirs (n integer)")
        stranger.execute("INSERT INTO theirs VALUES (1)")
        stranger.execute("SELECT pg_advisory_xact_lock(1)")
        with postgres.begin() as tx:
            write_event(tx, "ours")
        assert names(read_all(postgres)) == ["ours"]


def test_a_long_transaction_of_a_caller_delays_no_reader(postgres):
    with postgres.transaction() as caller:
        JobQueries(postgres.join(caller)).insert_jobs(jobs(3), announce=False)
        with postgres.begin() as tx:
            write_event(tx, "ours")
        assert names(read_all(postgres)) == ["ours"]


def test_a_transaction_with_many_events_takes_one_lock(postgres):
    """Locks are in a table that all sessions share; thousands would fill it."""
    with postgres.begin() as tx:
        for n in range(50):
            write_event(tx, str(n))
        assert sql(postgres, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(1,)]
    assert len(read_all(postgres)) == 50


def test_a_reader_among_many_writers_reads_every_event_once_and_in_order(store):
    writers, each = 6, 120
    stop = threading.Event()
    read: list[int] = []

    def follow() -> None:
        cursor = 0
        while True:
            last_round = stop.is_set()
            with store.read() as tx:
                found = EventQueries(tx).list_events_after(cursor, 50)
            read.extend(event.id for event in found)
            cursor = read[-1] if read else 0
            if last_round and not found:
                return

    def write(seed: int) -> None:
        rng = Random(seed)
        for _ in range(each):
            with store.begin() as tx:
                for _ in range(rng.randint(1, 3)):
                    write_event(tx, "x")
                if rng.random() < 0.1:
                    JobQueries(tx).insert_jobs(jobs(1), announce=True)

    reader = BackgroundCall(follow)
    run_concurrently(*[lambda seed=seed: write(seed) for seed in range(writers)])
    stop.set()
    reader.result()
    assert read == [event[0] for event in read_event_table(store)]
    assert len(read) >= writers * each


def test_upkeep_writes_events_for_passed_deadlines(store):
    (job_id,) = enqueue(store, deadline=1)
    until(lambda: upkeep.expire_deadlines(store) == 1, what="the deadline passes")
    died = job_events(store, job_id)[-1]
    assert (died.type, died.actor, died.data["code"]) == ("job.died", "upkeep", "DEADLINE_PASSED")
    assert claim(store) == []


def test_the_newest_event_is_the_last_readable_one(store):
    with store.read() as tx:
        assert EventQueries(tx).newest_event() == 0
    for name in "ab":
        with store.begin() as tx:
            write_event(tx, name)
    with store.read() as tx:
        assert EventQueries(tx).newest_event() == EventQueries(tx).list_events_after(0, 10)[-1].id
        assert EventQueries(tx).event_lag() == 0


def test_an_uncommitted_event_holds_the_newest_one_back(postgres):
    with postgres.begin() as tx:
        write_event(tx, "first")
    with postgres.begin() as late:
        write_event(late, "late")
        with postgres.begin() as tx:
            write_event(tx, "early")
        with postgres.read() as tx:
            assert (
                EventQueries(tx).newest_event()
                == EventQueries(tx).list_events_after(0, 10)[-1].id
                == 1
            )
            assert EventQueries(tx).event_lag() > 0
    with postgres.read() as tx:
        assert names(EventQueries(tx).list_events_after(0, 10)) == ["first", "late", "early"]
