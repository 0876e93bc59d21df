"""Every job's story is whole, and no reader ever skips an event that commits late."""

from __future__ import annotations

import threading
from random import Random

import pytest

from mulligan.core.attempt import Ending
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import State
from mulligan.jobs import repair as recover
from mulligan.worker import upkeep
from mulligan.worker.settle import settle
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
    Background,
    a_job,
    all_rows,
    claim,
    enqueue,
    finish,
    folded,
    get,
    insert,
    jobs,
    log_of,
    once_more,
    open_worker,
    running,
    sql,
    story,
    together,
    undone,
)
from support.waiting import until


def tell(unit, name):
    unit.write_events([NewEvent(EventType.QUEUE_CHANGED, actor=name)])


def read_all(store, cursor=0):
    with store.read() as unit:
        return unit.list_events_after(cursor, 1_000_000)


def names(events):
    return [event.actor for event in events]


# -- stories -------------------------------------------------------------------------------------
def test_the_story_of_any_life_folds_to_the_row(store):
    rng = Random(20)
    for worker in ("w1", "w2"):
        open_worker(store, worker)
    outcomes = [RETURNED, FAILED, FATAL, SNOOZED, PARKED, HELD, CANCELLED, LOST, RELEASED]
    ids = enqueue(store, 30, uses="bucket", max_retries=3)
    for _ in range(8):
        for job_id in ids:
            row = get(store, job_id)
            if row.state == State.QUEUED:
                finish(store, once_more(store, job_id), rng.choice(outcomes))
            elif row.state == State.PARKED:
                rng.choice([recover.release, recover.retry, recover.cancel])(
                    store, job_id, actor="ann"
                )
            elif row.state in {State.DEAD, State.CANCELLED}:
                recover.retry(store, job_id, actor="ann")
    for row in all_rows(store):
        events = story(store, row.id)
        assert folded(events) == (row.state, row.generation, row.attempt, row.token)
        assert [event.id for event in events] == sorted(event.id for event in events)
        assert events[0].type == "job.queued"
    assert {row.state for row in all_rows(store)} >= {"queued", "succeeded"}


def test_an_event_carries_who_what_and_when(store):
    lease = running(store, owner="acme", batch_id="b1")
    recover.cancel(store, lease.id, actor="ann", reason="wrong file")
    finish(store, lease, FAILED)
    queued, started, asked, cancelled = story(store, lease.id)
    assert {event.owner for event in (queued, started, asked, cancelled)} == {"acme"}
    assert {event.batch_id for event in (queued, started, asked, cancelled)} == {"b1"}
    assert (asked.actor, asked.data["reason"]) == ("ann", "wrong file")
    assert (started.data, started.attempt, started.token) == ({"worker": "w1"}, 1, 1)
    assert queued.at <= started.at <= asked.at <= cancelled.at
    assert "wrong file" in cancelled.data["reason"]


def test_what_fails_to_commit_was_never_told(store):
    with undone(store.begin()) as unit:
        tell(unit, "never")
        unit.insert_jobs([a_job()], announce=True)
    assert read_all(store) == []


# -- the cursor ----------------------------------------------------------------------------------
def test_events_come_in_order_after_the_cursor_and_bounded(store):
    with store.begin() as unit:
        for n in range(10):
            tell(unit, str(n))
    events = read_all(store)
    assert names(events) == [str(n) for n in range(10)]
    with store.read() as unit:
        assert unit.list_events_after(events[3].id, 3) == events[4:7]
        assert unit.list_events_after(events[-1].id, 3) == []


def test_a_reader_does_not_pass_an_event_that_is_still_to_be_committed(postgres):
    with postgres.begin() as late:
        tell(late, "first, but late")
        with postgres.begin() as quick:
            tell(quick, "second, but quick")
        assert read_all(postgres) == []
    assert names(read_all(postgres)) == ["first, but late", "second, but quick"]


def test_what_was_committed_before_is_not_held_back_by_who_writes_now(postgres):
    with postgres.begin() as unit:
        tell(unit, "before")
    with postgres.begin() as late:
        tell(late, "late")
        with postgres.begin() as quick:
            tell(quick, "quick")
        assert names(read_all(postgres)) == ["before"]


def test_who_writes_late_and_gives_up_holds_nobody_back_any_longer(postgres):
    with undone(postgres.begin()) as late:
        tell(late, "never")
        with postgres.begin() as quick:
            tell(quick, "quick")
    assert names(read_all(postgres)) == ["quick"]


def test_what_was_told_and_taken_back_leaves_no_gap_for_readers(postgres):
    with postgres.begin() as late:
        with undone(late.savepoint()):
            tell(late, "never")
        tell(late, "late")
        with postgres.begin() as quick:
            tell(quick, "quick")
        assert read_all(postgres) == []
    assert names(read_all(postgres)) == ["late", "quick"]


def finish_in(unit, lease):
    settle(unit, [Ending(lease, RETURNED)], POLICIES, unit.now(), Random(1))


def insert_alone(unit, count):
    """As it tells where the statement is a transaction."""
    unit._autocommit = True
    unit.insert_jobs(jobs(count), announce=True)


VERBS = {
    "insert": lambda unit, lease: unit.insert_jobs(jobs(2), announce=True),
    "insert one": lambda unit, lease: unit.insert_jobs(jobs(1), announce=True),
    "insert, alone": lambda unit, lease: insert_alone(unit, 20),
    "insert one, alone": lambda unit, lease: insert_alone(unit, 1),
    "announce": lambda unit, lease: unit.announce_jobs(10),
    "take": lambda unit, lease: unit.claim_jobs(
        "w1", [row.id for row in unit.list_jobs({"state": "queued"}, 5, None)], 5
    ),
    "settle": finish_in,
    "write_events": lambda unit, lease: tell(unit, "late"),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_that_tells_holds_readers_back_until_it_is_committed(postgres, verb):
    lease = running(postgres)
    insert(postgres, a_job(), announce=False)
    start = read_all(postgres)[-1].id
    with postgres.begin() as late:
        verb(late, lease)
        with postgres.begin() as quick:
            tell(quick, "quick")
        assert read_all(postgres, start) == []
    after = read_all(postgres, start)
    assert after[-1].actor == "quick"
    assert len(after) > 1


def test_a_strangers_long_transaction_delays_nothing(postgres):
    with postgres.transaction() as stranger:
        stranger.execute("CREATE TABLE theirs (n integer)")
        stranger.execute("INSERT INTO theirs VALUES (1)")
        stranger.execute("SELECT pg_advisory_xact_lock(1)")
        with postgres.begin() as unit:
            tell(unit, "ours")
        assert names(read_all(postgres)) == ["ours"]


def test_a_caller_who_enqueues_and_then_takes_its_time_delays_no_reader(postgres):
    with postgres.transaction() as caller:
        postgres.join(caller).insert_jobs(jobs(3), announce=False)
        with postgres.begin() as unit:
            tell(unit, "ours")
        assert names(read_all(postgres)) == ["ours"]


def test_a_transaction_that_tells_much_takes_one_lock_for_it(postgres):
    """Each lock has its place in a table that all sessions share; thousands would leave none for the others."""
    with postgres.begin() as unit:
        for n in range(50):
            tell(unit, str(n))
        assert sql(postgres, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(1,)]
    assert len(read_all(postgres)) == 50


def test_a_reader_that_runs_beside_many_writers_sees_every_event_once_and_in_order(store):
    writers, each = 6, 120
    stop = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        cursor = 0
        while True:
            last_round = stop.is_set()
            with store.read() as unit:
                found = unit.list_events_after(cursor, 50)
            seen.extend(event.id for event in found)
            cursor = seen[-1] if seen else 0
            if last_round and not found:
                return

    def write(seed: int) -> None:
        rng = Random(seed)
        for _ in range(each):
            with store.begin() as unit:
                for _ in range(rng.randint(1, 3)):
                    tell(unit, "x")
                if rng.random() < 0.1:
                    unit.insert_jobs(jobs(1), announce=True)

    reader = Background(follow)
    together(*[lambda seed=seed: write(seed) for seed in range(writers)])
    stop.set()
    reader.answer()
    assert seen == [event[0] for event in log_of(store)]
    assert len(seen) >= writers * each


def test_deadlines_are_told_by_upkeep(store):
    (job_id,) = enqueue(store, deadline=1)
    until(lambda: upkeep.expire_deadlines(store) == 1, what="the deadline passes")
    died = story(store, job_id)[-1]
    assert (died.type, died.actor, died.data["code"]) == ("job.died", "upkeep", "DEADLINE_PASSED")
    assert claim(store) == []


def test_the_newest_event_is_the_last_one_a_reader_may_see(store):
    with store.read() as unit:
        assert unit.newest_event() == 0
    for name in "ab":
        with store.begin() as unit:
            tell(unit, name)
    with store.read() as unit:
        assert unit.newest_event() == unit.list_events_after(0, 10)[-1].id
        assert unit.event_lag() == 0


def test_an_event_that_commits_late_holds_the_newest_one_back(postgres):
    with postgres.begin() as unit:
        tell(unit, "first")
    with postgres.begin() as late:
        tell(late, "late")
        with postgres.begin() as unit:
            tell(unit, "early")
        with postgres.read() as unit:
            assert unit.newest_event() == unit.list_events_after(0, 10)[-1].id == 1
            assert unit.event_lag() > 0
    with postgres.read() as unit:
        assert names(unit.list_events_after(0, 10)) == ["first", "late", "early"]
