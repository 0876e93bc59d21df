"""Batches under concurrency: one outcome per generation, and no deadlock."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from random import Random

import pytest

from mulligan.batches import completion as batching
from mulligan.batches.queries import BatchQueries
from mulligan.batches.service import Batches, new_batch
from mulligan.config import read_settings
from mulligan.core.errors import BatchExpired, BatchSealed, NothingFailed
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.jobs.service import Jobs
from mulligan.storage import open_store
from mulligan.storage.statements import load_statement
from mulligan.worker import upkeep
from mulligan.worker.queries import WorkerQueries
from support.store import (
    FATAL,
    HOUR,
    RETURNED,
    BackgroundCall,
    a_job,
    claim_by_id,
    close_worker,
    get,
    insert,
    is_postgres,
    is_waiting_for_lock,
    jobs,
    open_worker,
    prefix,
    run_concurrently,
    save_checkpoint,
    settle_leases,
    settle_orphans,
    sql,
)
from support.waiting import until

UNTIL = 3.0  # seconds a caller's transaction stays open


@pytest.fixture
def batches(store):
    return batches_of(store)


def batches_of(store):
    return Batches(lambda: store, Jobs(lambda: store, lambda: read_settings(environ={})))


def begun(store, members=0, *, sealed=False, **options):
    """Begin a batch with running members."""
    batches = batches_of(store)
    new = new_batch(
        "spring", "", options.pop("tolerance", 0), options.pop("expires_in", None), None
    )
    batch = batches.begin(new._replace(**options))
    with suppress(Exception):
        open_worker(store)
    leases = []
    if members:
        new = jobs(members, batch_id=batch.id)
        insert(store, *new)
        leases = claim_by_id(store, *[job.id for job in new])
    if sealed:
        batches.seal(batch.id)
    return batch.id, leases


def batch_event_types(store, batch_id):
    with store.read() as tx:
        return [
            event.type.removeprefix("batch.")
            for event in BatchQueries(tx).list_batch_events(batch_id)
        ]


def row_of(store, batch_id):
    with store.read() as tx:
        return BatchQueries(tx).get_batch(batch_id)


# --- Concurrent endings ---
def two_last_members_at_once(store, times):
    for _ in range(times):
        batch_id, (one, other) = begun(store, 2, sealed=True)
        run_concurrently(
            lambda lease=one: settle_leases(store, lease),
            lambda lease=other: settle_leases(store, lease, FATAL),
        )
        assert batch_event_types(store, batch_id) == ["sealed", "partial"]


@pytest.mark.seed("000-59")
def test_two_members_that_end_last_at_once_produce_one_outcome(store):
    two_last_members_at_once(store, 20)


@pytest.mark.seed("000-59")
@pytest.mark.slow
def test_two_members_that_end_last_at_once_two_hundred_times(store):
    two_last_members_at_once(store, 200)


def test_the_last_member_and_the_seal_at_once_produce_one_outcome(store, batches):
    for _ in range(20):
        batch_id, [lease] = begun(store, 1)
        run_concurrently(
            lambda lease=lease: settle_leases(store, lease),
            lambda batch_id=batch_id: batches.seal(batch_id),
        )
        assert batch_event_types(store, batch_id) == ["sealed", "ready"]


def test_many_members_of_many_batches_produce_one_outcome_each(store):
    made = [begun(store, 8, sealed=True) for _ in range(6)]
    leases = [lease for _, found in made for lease in found]
    Random(7).shuffle(leases)
    parts = [leases[n::8] for n in range(8)]
    run_concurrently(*[lambda part=part: settle_leases(store, part) for part in parts])
    for batch_id, _ in made:
        assert batch_event_types(store, batch_id) == ["sealed", "ready"]


def test_concurrent_retries_and_settlements_do_not_deadlock(store, batches):
    for _ in range(5):
        batch_id, leases = begun(store, 16, sealed=True)
        settle_leases(store, leases[:8], FATAL)
        presses = [lambda batch_id=batch_id: pressed(batches, batch_id)] * 4
        run_concurrently(
            *presses,
            *[
                lambda n=n, found=leases: settle_leases(store, found[8 + n :: 2], FATAL)
                for n in range(2)
            ],
        )
        pressed(batches, batch_id)
        while waiting := queued(store, batch_id):
            settle_leases(store, claim_by_id(store, *waiting))
        names, row = batch_event_types(store, batch_id), row_of(store, batch_id)
        assert names.count("reopened") == row.generation - 1
        assert (
            len([name for name in names if name in {"ready", "partial", "failed"}])
            == row.generation
        )
        assert row.outcome == "ready"


def queued(store, batch_id):
    with store.read() as tx:
        return [
            job.id
            for job in SearchQueries(tx).list_jobs(
                {"batch_id": batch_id, "state": "queued"}, 100, None
            )
        ]


def pressed(batches, batch_id):
    with suppress(NothingFailed):
        batches.retry_failed(batch_id)


def test_a_concurrent_cancel_and_settlements_produce_one_outcome(store, batches):
    for _ in range(10):
        batch_id, leases = begun(store, 4, sealed=True)
        works = [lambda lease=lease: settle_leases(store, lease) for lease in leases]
        run_concurrently(*works, lambda batch_id=batch_id: cancelled(batches, batch_id))
        names = batch_event_types(store, batch_id)
        assert [name for name in names if name not in {"sealed", "cancelled"}] == [
            "ready"
        ] or not ended(store, batch_id)


def cancelled(batches, batch_id):
    with suppress(Exception):
        batches.cancel(batch_id)


def ended(store, batch_id):
    with store.read() as tx:
        return not SearchQueries(tx).list_jobs({"batch_id": batch_id, "state": "running"}, 1, None)


# --- Adding members delays no others ---
def settle_while_a_caller_adds(store, store_url, seconds):
    """End jobs while a caller's transaction adds members. A blocked ending would wait for ever: the
    caller commits only afterwards.
    """
    batch_id, leases = begun(store, 5)
    others = claim_by_id(store, *[one.id for one in insert(store, *jobs(5))])
    with closing(open_store(store_url)) as caller, caller.transaction() as connection:
        tx = caller.join(connection)
        assert BatchQueries(tx).get_batch_for_share(batch_id) is not None
        JobQueries(tx).insert_jobs(jobs(50, batch_id=batch_id), announce=False)
        ends = time.monotonic() + seconds
        for lease in (*leases, *others):
            settle_leases(store, lease)
        waiting = BackgroundCall(lambda: batches_of(store).seal(batch_id))
        until(lambda: is_waiting_for_lock(store), 10, "the seal waits for who adds")
        while time.monotonic() < ends:
            (more,) = claim_by_id(store, insert(store, a_job())[0].id)
            settle_leases(store, more)
    waiting.result()
    assert batch_event_types(store, batch_id) == ["sealed"]


def test_an_open_transaction_that_adds_members_blocks_no_settlement(postgres, postgres_url):
    settle_while_a_caller_adds(postgres, postgres_url, UNTIL)


@pytest.mark.slow
def test_a_transaction_that_adds_members_for_twenty_seconds_blocks_no_settlement(
    postgres, postgres_url
):
    settle_while_a_caller_adds(postgres, postgres_url, 20.0)


def test_upkeep_does_not_wait_for_transactions_that_add_members(postgres, postgres_url):
    batch_id, _ = begun(postgres, expires_in=60)
    postgres.shift_clock(61 * 1_000_000)
    with closing(open_store(postgres_url)) as caller, caller.transaction() as connection:
        assert BatchQueries(caller.join(connection)).get_batch_for_share(batch_id) is not None
        BackgroundCall(lambda: batching.sweep_batches(postgres)).result(10)
        assert row_of(postgres, batch_id).sealed_at is None
    batching.sweep_batches(postgres)
    assert batch_event_types(postgres, batch_id) == ["sealed", "ready", "expired"]


def test_a_running_member_cannot_end_before_the_members_it_adds_are_committed(
    postgres, postgres_url
):
    batch_id, [lease] = begun(postgres, 1, sealed=True)
    with closing(open_store(postgres_url)) as caller:
        with caller.transaction() as connection:
            tx = caller.join(connection)
            assert BatchQueries(tx).holds_lease(lease.id, lease.worker, lease.token, batch_id)
            with postgres.begin() as other:  # the running attempt can still write
                assert save_checkpoint(other, lease, "half", "1")
                WorkerQueries(other).update_progress(
                    lease.worker, [(lease.id, lease.token, 0.5, "half")]
                )
            ending = BackgroundCall(lambda: settle_leases(postgres, lease))
            until(lambda: is_waiting_for_lock(postgres), 10, "its end waits")
            (child,) = JobQueries(tx).insert_jobs(jobs(1, batch_id=batch_id), announce=False)
        ending.result()
    assert row_of(postgres, batch_id).outcome is None
    settle_leases(postgres, claim_by_id(postgres, child.id))
    assert batch_event_types(postgres, batch_id) == ["sealed", "ready"]


# --- Upkeep ---
def test_upkeep_completes_a_missed_batch_once(store):
    batch_id, [lease] = begun(store, 1, sealed=True)
    settle_leases(store, lease)
    sql(store, "UPDATE {p}batch_progress SET outcome = NULL, outcome_at = NULL")
    sql(store, "DELETE FROM {p}event WHERE type = 'batch.ready'")
    run_concurrently(*[lambda: batching.sweep_batches(store)] * 4)
    assert batch_event_types(store, batch_id) == ["sealed", "ready"]
    assert batching.sweep_batches(store) == 0


def test_a_failing_batch_does_not_stop_upkeep_of_others(store, caplog):
    bad, _ = begun(store, on_complete='{"kind":"ended"}')
    good, _ = begun(store)
    for batch_id in (bad, good):
        with store.transaction() as connection:
            BatchQueries(store.join(connection)).seal_batch(batch_id)
    batching.sweep_batches(store)
    assert batch_event_types(store, good) == ["sealed", "ready"]
    assert row_of(store, bad).outcome is None
    assert "upkeep failed" in caplog.text


def test_members_of_a_lost_worker_complete_their_batch(store):
    batch_id, leases = begun(store, 2, sealed=True)
    sql(store, "UPDATE {p}job SET losses = 2")
    leases = [lease._replace(losses=2) for lease in leases]
    close_worker(store)
    assert len(settle_orphans(store)) == len(leases)
    assert batch_event_types(store, batch_id) == ["sealed", "failed"]


def test_passed_deadlines_of_members_complete_their_batches(store):
    ids = [begun(store)[0] for _ in range(3)]
    for batch_id in ids:
        insert(store, *jobs(4, batch_id=batch_id, deadline=60 * 1_000_000, delay=600 * 1_000_000))
        batches_of(store).seal(batch_id)
    store.shift_clock(61 * 1_000_000)
    assert sum(run_concurrently(*[lambda: upkeep.expire_deadlines(store)] * 3)) == 12
    batching.sweep_batches(store)  # a worker that skipped locked rows may have looked too early
    assert [batch_event_types(store, batch_id) for batch_id in ids] == [["sealed", "failed"]] * 3


def test_completion_without_waiting_leaves_a_locked_batch_to_upkeep(postgres, postgres_url):
    batch_id, [lease] = begun(postgres, 1, sealed=True)
    with closing(open_store(postgres_url)) as other, other.begin() as holder:
        assert BatchQueries(holder).lock_batches([batch_id]) == [batch_id]
        with postgres.begin() as tx:
            assert BatchQueries(tx).lock_batches([batch_id], wait=False) == []
            batching.complete_batches(tx, [batch_id], wait=False)
    settle_leases(postgres, lease)
    assert batch_event_types(postgres, batch_id) == ["sealed", "ready"]


# --- Constraints of the database ---
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
def test_impossible_batch_rows_are_refused(store, change):
    begun(store)
    with pytest.raises(Exception, match=r"(?i)constraint|check"):
        sql(store, f"UPDATE {{p}}batch_progress SET {change}")  # noqa: S608


def test_a_batch_has_one_outcome_per_generation(store):
    batch_id, _ = begun(store, sealed=True)
    with store.begin() as tx:
        assert not BatchQueries(tx).complete_batch(batch_id, 1, "failed")
        assert BatchQueries(tx).reopen_batch(batch_id) == 2
        assert BatchQueries(tx).reopen_batch(batch_id) is None
        assert not BatchQueries(tx).complete_batch(batch_id, 1, "failed")
        assert BatchQueries(tx).complete_batch(batch_id, 2, "failed")
    assert (row_of(store, batch_id).outcome, row_of(store, batch_id).previous) == (
        "failed",
        "ready",
    )


# --- Retention ---
def prune(store, keep=3600.0):
    return batching.prune_batches(store, keep)


def test_members_are_pruned_with_their_batch_and_recorded(store):
    batch_id, leases = begun(store, 3, sealed=True)
    settle_leases(store, leases[:2])
    settle_leases(store, leases[2], FATAL)
    store.shift_clock(HOUR - 60_000_000)
    with store.begin() as tx:
        assert (
            JobQueries(tx).prune_jobs("succeeded", tx.now(), 100, kind=None, except_kinds=[]) == []
        )
    assert prune(store) == 0
    store.shift_clock(120_000_000)
    assert prune(store) == 4
    assert row_of(store, batch_id) is None
    assert sql(store, "SELECT count(*) FROM {p}job") == [(0,)]
    assert sql(
        store, "SELECT state, count, first_id FROM {p}pruned WHERE kind = 'mulligan.batch'"
    ) == [("partial", 1, batch_id)]
    assert prune(store) == 0


def test_an_expired_batch_is_pruned_only_after_its_retention(store):
    batch_id, _ = begun(store, sealed=True, expires_in=2 * 3600)
    store.shift_clock(HOUR + 60_000_000)
    assert prune(store) == 0
    store.shift_clock(HOUR)
    batching.sweep_batches(store)
    assert prune(store) == 0
    store.shift_clock(HOUR + 60_000_000)
    assert prune(store) == 1
    assert row_of(store, batch_id) is None


def test_an_unfinished_batch_is_not_pruned(store):
    batch_id, _ = begun(store, 1, sealed=True)
    begun(store)
    store.shift_clock(100 * HOUR)
    assert prune(store) == 0
    assert row_of(store, batch_id) is not None


def test_a_large_batch_is_pruned_in_steps_and_cannot_be_retried_meanwhile(store, batches):
    batch_id, leases = begun(store, 5, sealed=True)
    settle_leases(store, leases, FATAL)
    store.shift_clock(2 * HOUR)
    with store.begin() as tx:
        batch, records = BatchQueries(tx).prune_batch(tx.now() - HOUR, 2)
        assert (batch.id, batch.being_pruned, sum(record.jobs for record in records)) == (
            batch_id,
            True,
            2,
        )
    with pytest.raises(BatchExpired, match="retention"):
        batches.retry_failed(batch_id)
    assert prune(store) == 4
    assert row_of(store, batch_id) is None


def test_a_batch_id_without_a_batch_does_no_harm(store):
    (lease,) = take_one(store, batch_id="spring")
    settle_leases(store, lease, FATAL)
    assert get(store, lease.id).state == "dead"
    with store.read() as tx:
        assert BatchQueries(tx).get_batch("spring") is None


def take_one(store, **changes):
    open_worker(store)
    return claim_by_id(store, insert(store, a_job(**changes))[0].id)


# --- Cost ---
def test_jobs_without_a_batch_run_no_batch_statements(store, monkeypatch):
    open_worker(store)
    leases = claim_by_id(store, *[one.id for one in insert(store, *jobs(5))])
    called = []
    for name in ("lock_batches", "list_completable_batches", "get_batch"):
        monkeypatch.setattr(
            f"mulligan.batches.queries.BatchQueries.{name}",
            lambda *_, name=name, **__: called.append(name),
        )
    settle_leases(store, leases[:3], RETURNED)
    settle_leases(store, leases[3:], FATAL)
    assert called == []


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
def test_each_batch_statement_uses_its_index(store, verb, index):
    begun(store, 3)
    with store.begin() as tx:
        lists = {name: tx.array_param(["x"]) for name in ("ids", "keys", "states")}
    options = {**lists, "now": 1, "id": "x", "batch_id": "x", "limit": 5, "before": 5}
    dialect = "postgres" if is_postgres(store) else "sqlite"
    statement = load_statement(verb, dialect, prefix(store))
    with store.transaction() as connection:
        if dialect == "postgres":
            connection.execute("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN" if dialect == "postgres" else "EXPLAIN QUERY PLAN"
        found = connection.execute(f"{explain} {statement}", options).fetchall()
    assert index in str(found)


def test_the_sealed_event_is_written_once(store, batches):
    batch_id, _ = begun(store)
    answers = run_concurrently(*[lambda: sealed(batches, batch_id)] * 6)
    assert sorted(answers) == ["BATCH_SEALED"] * 5 + ["ready"]
    assert batch_event_types(store, batch_id) == ["sealed", "ready"]


def sealed(batches, batch_id):
    try:
        return str(batches.seal(batch_id).state)
    except BatchSealed as refused:
        return refused.code
