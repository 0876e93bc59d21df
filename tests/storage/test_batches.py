"""Batches under races: whoever comes at once, each generation has one outcome, and nobody waits in a circle."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from random import Random

import pytest

from mulligan.batches import completion as batching
from mulligan.batches.service import Batches, new_batch
from mulligan.config import read_settings
from mulligan.core.errors import BatchExpired, BatchSealed, NothingFailed
from mulligan.jobs.service import Jobs
from mulligan.storage import open_store
from mulligan.storage.sql import load_statement
from mulligan.worker import upkeep
from support.store import (
    FATAL,
    HOUR,
    RETURNED,
    Background,
    a_job,
    close_worker,
    finish,
    get,
    insert,
    is_postgres,
    jobs,
    open_worker,
    prefix,
    sql,
    sweep,
    take,
    together,
    waits_for_a_lock,
)
from support.waiting import until

UNTIL = 3.0  # seconds a caller's transaction stays open


@pytest.fixture
def batches(store):
    return batches_of(store)


def batches_of(store):
    return Batches(lambda: store, Jobs(lambda: store, read_settings(environ={})))


def begun(store, members=0, *, sealed=False, **said):
    """A batch with members that run."""
    batches = batches_of(store)
    new = new_batch("spring", "", said.pop("tolerance", 0), said.pop("expires_in", None), None)
    batch = batches.begin(new._replace(**said))
    with suppress(Exception):
        open_worker(store)
    leases = []
    if members:
        new = jobs(members, batch_id=batch.id)
        insert(store, *new)
        leases = take(store, *[job.id for job in new])
    if sealed:
        batches.seal(batch.id)
    return batch.id, leases


def told(store, batch_id):
    with store.read() as unit:
        return [event.type.removeprefix("batch.") for event in unit.list_batch_events(batch_id)]


def row_of(store, batch_id):
    with store.read() as unit:
        return unit.get_batch(batch_id)


# -- at the same moment --------------------------------------------------------------------------
def two_last_members_at_once(store, times):
    for _ in range(times):
        batch_id, (one, other) = begun(store, 2, sealed=True)
        together(
            lambda lease=one: finish(store, lease), lambda lease=other: finish(store, lease, FATAL)
        )
        assert told(store, batch_id) == ["sealed", "partial"]


@pytest.mark.seed("000-59")
def test_two_last_members_that_end_at_the_same_moment_make_one_outcome(store):
    two_last_members_at_once(store, 20)


@pytest.mark.seed("000-59")
@pytest.mark.slow
def test_two_last_members_that_end_at_the_same_moment_two_hundred_times(store):
    two_last_members_at_once(store, 200)


def test_the_last_member_and_the_seal_at_the_same_moment_make_one_outcome(store, batches):
    for _ in range(20):
        batch_id, [lease] = begun(store, 1)
        together(
            lambda lease=lease: finish(store, lease),
            lambda batch_id=batch_id: batches.seal(batch_id),
        )
        assert told(store, batch_id) == ["sealed", "ready"]


def test_many_members_of_many_batches_in_any_order_make_one_outcome_each(store):
    made = [begun(store, 8, sealed=True) for _ in range(6)]
    leases = [lease for _, found in made for lease in found]
    Random(7).shuffle(leases)
    parts = [leases[n::8] for n in range(8)]
    together(*[lambda part=part: finish(store, part) for part in parts])
    for batch_id, _ in made:
        assert told(store, batch_id) == ["sealed", "ready"]


def test_retries_and_endings_at_once_do_not_wait_in_a_circle(store, batches):
    for _ in range(5):
        batch_id, leases = begun(store, 16, sealed=True)
        finish(store, leases[:8], FATAL)
        presses = [lambda batch_id=batch_id: pressed(batches, batch_id)] * 4
        together(
            *presses,
            *[lambda n=n, found=leases: finish(store, found[8 + n :: 2], FATAL) for n in range(2)],
        )
        pressed(batches, batch_id)
        while waiting := queued(store, batch_id):
            finish(store, take(store, *waiting))
        names, row = told(store, batch_id), row_of(store, batch_id)
        assert names.count("reopened") == row.generation - 1
        assert (
            len([name for name in names if name in {"ready", "partial", "failed"}])
            == row.generation
        )
        assert row.outcome == "ready"


def queued(store, batch_id):
    with store.read() as unit:
        return [job.id for job in unit.list_jobs({"batch_id": batch_id, "state": "queued"}, 100, None)]


def pressed(batches, batch_id):
    with suppress(NothingFailed):
        batches.retry_failed(batch_id)


def test_a_cancel_and_endings_at_once_make_one_outcome(store, batches):
    for _ in range(10):
        batch_id, leases = begun(store, 4, sealed=True)
        works = [lambda lease=lease: finish(store, lease) for lease in leases]
        together(*works, lambda batch_id=batch_id: cancelled(batches, batch_id))
        names = told(store, batch_id)
        assert [name for name in names if name not in {"sealed", "cancelled"}] == [
            "ready"
        ] or not ended(store, batch_id)


def cancelled(batches, batch_id):
    with suppress(Exception):
        batches.cancel(batch_id)


def ended(store, batch_id):
    with store.read() as unit:
        return not unit.list_jobs({"batch_id": batch_id, "state": "running"}, 1, None)


# -- who adds delays nobody ----------------------------------------------------------------------
def settle_while_a_caller_adds(store, store_url, seconds):
    """End jobs while a caller's transaction adds members. A blocked ending would wait for ever: the
    caller commits only afterwards.
    """
    batch_id, leases = begun(store, 5)
    others = take(store, *[one.id for one in insert(store, *jobs(5))])
    with closing(open_store(store_url)) as caller, caller.transaction() as connection:
        unit = caller.join(connection)
        assert unit.get_batch_for_share(batch_id) is not None
        unit.insert_jobs(jobs(50, batch_id=batch_id), announce=False)
        ends = time.monotonic() + seconds
        for lease in (*leases, *others):
            finish(store, lease)
        waiting = Background(lambda: batches_of(store).seal(batch_id))
        until(lambda: waits_for_a_lock(store), 10, "the seal waits for who adds")
        while time.monotonic() < ends:
            (more,) = take(store, insert(store, a_job())[0].id)
            finish(store, more)
    waiting.answer()
    assert told(store, batch_id) == ["sealed"]


def test_an_open_transaction_that_adds_members_blocks_no_other_ending(postgres, postgres_url):
    settle_while_a_caller_adds(postgres, postgres_url, UNTIL)


@pytest.mark.slow
def test_a_transaction_open_for_twenty_seconds_that_adds_members_blocks_no_other_ending(
    postgres, postgres_url
):
    settle_while_a_caller_adds(postgres, postgres_url, 20.0)


def test_upkeep_waits_for_nobody_who_adds(postgres, postgres_url):
    batch_id, _ = begun(postgres, expires_in=60)
    postgres.shift_clock(61 * 1_000_000)
    with closing(open_store(postgres_url)) as caller, caller.transaction() as connection:
        assert caller.join(connection).get_batch_for_share(batch_id) is not None
        Background(lambda: batching.sweep_batches(postgres)).answer(10)
        assert row_of(postgres, batch_id).sealed_at is None
    batching.sweep_batches(postgres)
    assert told(postgres, batch_id) == ["sealed", "ready", "expired"]


def test_a_running_member_that_adds_cannot_end_before_its_members_are_there(postgres, postgres_url):
    batch_id, [lease] = begun(postgres, 1, sealed=True)
    with closing(open_store(postgres_url)) as caller:
        with caller.transaction() as connection:
            unit = caller.join(connection)
            assert unit.holds_lease(lease.id, lease.worker, lease.token, batch_id)
            with postgres.begin() as other:  # what the attempt still tells is not kept waiting
                assert other.save_checkpoint(lease.id, lease.worker, lease.token, "half", "1")
                other.update_progress(lease.worker, [(lease.id, lease.token, 0.5, "half")])
            ending = Background(lambda: finish(postgres, lease))
            until(lambda: waits_for_a_lock(postgres), 10, "its end waits")
            (child,) = unit.insert_jobs(jobs(1, batch_id=batch_id), announce=False)
        ending.answer()
    assert row_of(postgres, batch_id).outcome is None
    finish(postgres, take(postgres, child.id))
    assert told(postgres, batch_id) == ["sealed", "ready"]


# -- upkeep --------------------------------------------------------------------------------------
def test_an_end_that_nobody_noticed_is_noticed_by_upkeep_once(store):
    batch_id, [lease] = begun(store, 1, sealed=True)
    finish(store, lease)
    sql(store, "UPDATE {p}batch_progress SET outcome = NULL, outcome_at = NULL")
    sql(store, "DELETE FROM {p}event WHERE type = 'batch.ready'")
    together(*[lambda: batching.sweep_batches(store)] * 4)
    assert told(store, batch_id) == ["sealed", "ready"]
    assert batching.sweep_batches(store) == 0


def test_a_batch_that_upkeep_cannot_see_to_stops_no_other(store, caplog):
    bad, _ = begun(store, on_complete='{"kind":"ended"}')
    good, _ = begun(store)
    for batch_id in (bad, good):
        with store.transaction() as connection:
            store.join(connection).seal_batch(batch_id)
    batching.sweep_batches(store)
    assert told(store, good) == ["sealed", "ready"]
    assert row_of(store, bad).outcome is None
    assert "upkeep failed" in caplog.text


def test_members_whose_worker_is_lost_end_their_batch_like_any(store):
    batch_id, leases = begun(store, 2, sealed=True)
    sql(store, "UPDATE {p}job SET losses = 2")
    leases = [lease._replace(losses=2) for lease in leases]
    close_worker(store)
    assert len(sweep(store)) == len(leases)
    assert told(store, batch_id) == ["sealed", "failed"]


def test_deadlines_of_several_members_end_their_batches_together(store):
    ids = [begun(store)[0] for _ in range(3)]
    for batch_id in ids:
        insert(store, *jobs(4, batch_id=batch_id, deadline=60 * 1_000_000, delay=600 * 1_000_000))
        batches_of(store).seal(batch_id)
    store.shift_clock(61 * 1_000_000)
    assert sum(together(*[lambda: upkeep.expire_deadlines(store)] * 3)) == 12
    batching.sweep_batches(store)  # who passed rows over may have looked before the others ended
    assert [told(store, batch_id) for batch_id in ids] == [["sealed", "failed"]] * 3


def test_an_end_that_does_not_wait_leaves_a_batch_in_another_hand_to_upkeep(postgres, postgres_url):
    batch_id, [lease] = begun(postgres, 1, sealed=True)
    with closing(open_store(postgres_url)) as other, other.begin() as holder:
        assert holder.lock_batches([batch_id]) == [batch_id]
        with postgres.begin() as unit:
            assert unit.lock_batches([batch_id], wait=False) == []
            batching.complete_batches(unit, [batch_id], wait=False)
    finish(postgres, lease)
    assert told(postgres, batch_id) == ["sealed", "ready"]


# -- what the database itself refuses ------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        "outcome = 'done', outcome_at = 1",
        "outcome = 'ready'",
        "outcome_at = 1",
        "expired_at = 1",
        "generation = 0",
        "previous = 'partial'",
        "being_pruned = true",
    ],
)
def test_what_makes_no_sense_is_refused_by_the_database(store, change):
    begun(store)
    with pytest.raises(Exception, match=r"(?i)constraint|check"):
        sql(store, f"UPDATE {{p}}batch_progress SET {change}")  # noqa: S608


def test_a_batch_has_one_outcome_per_generation(store):
    batch_id, _ = begun(store, sealed=True)
    with store.begin() as unit:
        assert not unit.complete_batch(batch_id, 1, "failed")
        assert unit.reopen_batch(batch_id) == 2
        assert unit.reopen_batch(batch_id) is None
        assert not unit.complete_batch(batch_id, 1, "failed")
        assert unit.complete_batch(batch_id, 2, "failed")
    assert (row_of(store, batch_id).outcome, row_of(store, batch_id).previous) == (
        "failed",
        "ready",
    )


# -- retention -----------------------------------------------------------------------------------
def prune(store, keep=3600.0):
    return batching.prune_batches(store, keep)


def test_members_leave_together_with_their_batch_and_leave_a_record(store):
    batch_id, leases = begun(store, 3, sealed=True)
    finish(store, leases[:2])
    finish(store, leases[2], FATAL)
    store.shift_clock(HOUR - 60_000_000)
    with store.begin() as unit:
        assert unit.prune_jobs("succeeded", unit.now(), 100, kind=None, except_kinds=[]) == []
    assert prune(store) == 0
    store.shift_clock(120_000_000)
    assert prune(store) == 4
    assert row_of(store, batch_id) is None
    assert sql(store, "SELECT count(*) FROM {p}job") == [(0,)]
    assert sql(
        store, "SELECT state, count, first_id FROM {p}pruned WHERE kind = 'mulligan.batch'"
    ) == [("partial", 1, batch_id)]
    assert prune(store) == 0


def test_a_batch_that_expires_stays_for_as_long_after_that(store):
    batch_id, _ = begun(store, sealed=True, expires_in=2 * 3600)
    store.shift_clock(HOUR + 60_000_000)
    assert prune(store) == 0
    store.shift_clock(HOUR)
    batching.sweep_batches(store)
    assert prune(store) == 0
    store.shift_clock(HOUR + 60_000_000)
    assert prune(store) == 1
    assert row_of(store, batch_id) is None


def test_an_unfinished_batch_stays(store):
    batch_id, _ = begun(store, 1, sealed=True)
    begun(store)
    store.shift_clock(100 * HOUR)
    assert prune(store) == 0
    assert row_of(store, batch_id) is not None


def test_a_large_batch_leaves_in_steps_and_meanwhile_nothing_of_it_begins_again(store, batches):
    batch_id, leases = begun(store, 5, sealed=True)
    finish(store, leases, FATAL)
    store.shift_clock(2 * HOUR)
    with store.begin() as unit:
        batch, records = unit.prune_batch(unit.now() - HOUR, 2)
        assert (batch.id, batch.being_pruned, sum(record.jobs for record in records)) == (
            batch_id,
            True,
            2,
        )
    with pytest.raises(BatchExpired, match="retention"):
        batches.retry_failed(batch_id)
    assert prune(store) == 4
    assert row_of(store, batch_id) is None


def test_a_name_that_older_versions_took_for_a_batch_harms_nobody(store):
    (lease,) = take_one(store, batch_id="spring")
    finish(store, lease, FATAL)
    assert get(store, lease.id).state == "dead"
    with store.read() as unit:
        assert unit.get_batch("spring") is None


def take_one(store, **changes):
    open_worker(store)
    return take(store, insert(store, a_job(**changes))[0].id)


# -- the price -----------------------------------------------------------------------------------
def test_jobs_without_a_batch_ask_nothing_about_batches(store, monkeypatch):
    open_worker(store)
    leases = take(store, *[one.id for one in insert(store, *jobs(5))])
    asked = []
    for name in ("lock_batches", "list_completable_batches", "get_batch"):
        monkeypatch.setattr(
            f"mulligan.storage.batch_queries.SqlBatchQueries.{name}",
            lambda *_, name=name, **__: asked.append(name),
        )
    finish(store, leases[:3], RETURNED)
    finish(store, leases[3:], FATAL)
    assert asked == []


@pytest.mark.parametrize(
    ("verb", "index"),
    [
        ("list_completable_batches", "job_for_batch"),
        ("count_batch_members", "job_for_batch"),
        ("lock_batch_members", "job_for_batch"),
        ("find_batch_members_by_key", "job_for_key"),
        ("list_batches_to_complete", "batch_for_sweep"),
        ("list_batches_to_expire", "batch_for_expiry"),
        ("list_prunable_batches", "batch_for_retention"),
        ("list_batch_events", "event_for_batch"),
    ],
)
def test_each_question_has_its_index(store, verb, index):
    begun(store, 3)
    with store.begin() as unit:
        lists = {name: unit.array_param(["x"]) for name in ("ids", "keys", "states")}
    said = {**lists, "now": 1, "id": "x", "batch_id": "x", "limit": 5, "before": 5}
    dialect = "postgres" if is_postgres(store) else "sqlite"
    statement = load_statement(verb, dialect, prefix(store))
    with store.transaction() as connection:
        if dialect == "postgres":
            connection.execute("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN" if dialect == "postgres" else "EXPLAIN QUERY PLAN"
        found = connection.execute(f"{explain} {statement}", said).fetchall()
    assert index in str(found)


def test_sealed_is_said_by_the_one_who_asks_twice(store, batches):
    batch_id, _ = begun(store)
    answers = together(*[lambda: sealed(batches, batch_id)] * 6)
    assert sorted(answers) == ["BATCH_SEALED"] * 5 + ["ready"]
    assert told(store, batch_id) == ["sealed", "ready"]


def sealed(batches, batch_id):
    try:
        return str(batches.seal(batch_id).state)
    except BatchSealed as refused:
        return refused.code
