"""Workers: a lease is one row, renewed and judged by one clock, and closed for good."""

from __future__ import annotations

import json
import time
from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.durations import SECOND
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.worker import upkeep
from mulligan.worker.queries import LeaseQueries, RetentionQueries, WorkerQueries
from support.store import (
    HOUR,
    BackgroundCall,
    a_worker,
    attempts,
    claim,
    claim_new_job,
    close_worker,
    enqueue,
    event_types,
    get,
    now,
    open_worker,
    run_concurrently,
    settle_leases,
    settle_orphans,
    sql,
    worker_of,
)


def renew(store, worker="w1", *, draining=False):
    with store.begin() as tx:
        return WorkerQueries(tx).renew_worker(worker, draining=draining)


def expired(store, worker="w1"):
    with store.read() as tx:
        return WorkerQueries(tx).is_expired(
            next(row for row in WorkerQueries(tx).list_workers(closed=True) if row.id == worker)
        )


def test_a_worker_that_got_no_response_inserts_itself_again(store):
    """If the response was lost after the commit, the worker inserts itself again and finds its row."""
    open_worker(store)
    renewed = worker_of(store).renewed_at
    open_worker(store)
    assert worker_of(store).renewed_at == renewed
    with store.read() as tx:
        assert [event.type for event in EventQueries(tx).list_events_after(0, 10)] == [
            "worker.started"
        ]


def test_a_worker_is_stored_unchanged(store):
    with store.begin() as tx:
        at = tx.now()
    open_worker(
        store,
        "w1",
        host="ship",
        pid=7,
        kinds='["render"]',
        queues='["a"]',
        concurrency=3,
        release="r1",
    )
    row = worker_of(store)
    assert (row.host, row.pid, row.concurrency, row.release) == ("ship", 7, 3, "r1")
    assert (json.loads(row.kinds), json.loads(row.queues)) == (["render"], ["a"])
    assert row.started_at == row.renewed_at >= at
    assert row.closed_at is None
    with store.read() as tx:
        (started,) = EventQueries(tx).list_events_after(0, 10)
    assert (started.type, started.data["worker"]) == ("worker.started", "w1")


def test_a_renewal_updates_both_clocks_and_returns_cancel_requests(store):
    lease = claim_new_job(store)
    before = worker_of(store)
    with store.begin() as tx:
        JobQueries(tx).request_cancel(lease.id, lease.token, "no longer wanted")
    renewal = renew(store, draining=True)
    after = worker_of(store)
    assert renewal.alive
    assert renewal.cancels == [(lease.id, 1, "no longer wanted")]
    assert after.renewed_at > before.renewed_at
    assert after.renewed_mono > before.renewed_mono
    assert after.draining


def test_a_closed_row_is_never_renewed_and_never_closed_again(store):
    open_worker(store)
    assert close_worker(store, reason="gone")
    before = worker_of(store)
    assert not renew(store).alive
    assert not close_worker(store, reason="gone again")
    assert worker_of(store) == before
    assert before.close_reason == "gone"


def test_an_unknown_worker_is_not_alive(store):
    assert not renew(store, "nobody").alive


def test_the_id_of_a_closed_worker_is_not_used_again(store):
    open_worker(store)
    close_worker(store)
    open_worker(store)
    assert worker_of(store).closed_at is not None
    assert not renew(store).alive
    enqueue(store)
    assert claim(store) == []


def test_on_postgresql_the_database_clock_decides_about_leases(postgres):
    open_worker(postgres)
    assert not expired(postgres)
    postgres.shift_clock(29 * SECOND)
    assert not expired(postgres)
    postgres.shift_clock(2 * SECOND)
    assert expired(postgres)
    assert renew(postgres).alive
    assert not expired(postgres)


def test_on_sqlite_no_step_of_the_wall_clock_moves_a_lease(sqlite):
    open_worker(sqlite)
    for step in (HOUR, -3 * HOUR):
        sqlite.shift_clock(step)
        assert not expired(sqlite)


def test_on_sqlite_the_monotonic_clock_decides_about_leases(sqlite):
    mono = time.monotonic_ns() // 1000
    open_worker(sqlite, "just", renewed_mono=mono - 29 * SECOND)
    open_worker(sqlite, "over", renewed_mono=mono - 31 * SECOND)
    assert not expired(sqlite, "just")
    assert expired(sqlite, "over")


@pytest.mark.parametrize(
    "since", [{"boot_id": "another boot"}, {"renewed_mono": 2**60}], ids=["named", "seen"]
)
def test_on_sqlite_after_a_reboot_the_wall_clock_decides(sqlite, since):
    """Monotonic times of another boot mean nothing; a time ahead of ours is of another boot."""
    open_worker(sqlite, **since)
    assert not expired(sqlite)
    sqlite.shift_clock(31 * SECOND)
    assert expired(sqlite)


# --- Closing ---
def test_a_worker_that_has_renewed_meanwhile_is_not_closed(store):
    open_worker(store)
    renewed_at = worker_of(store).renewed_at
    renew(store)
    with store.begin() as tx:
        assert not WorkerQueries(tx).close_worker("w1", "no renewal", last_renewed=renewed_at)
        assert WorkerQueries(tx).close_worker(
            "w1", "no renewal", last_renewed=read_worker(tx).renewed_at
        )
    assert worker_of(store).closed_at is not None


def read_worker(tx):
    return next(row for row in WorkerQueries(tx).list_workers(closed=True) if row.id == "w1")


def test_a_concurrent_renewal_and_closing_never_both_succeed(store):
    for n in range(15):
        worker = open_worker(store, f"worker {n}")
        renewed_at = worker_of(store, worker).renewed_at

        def close(worker=worker, renewed_at=renewed_at):
            with store.begin() as tx:
                return WorkerQueries(tx).close_worker(worker, "no renewal", last_renewed=renewed_at)

        closed, renewal = run_concurrently(close, lambda worker=worker: renew(store, worker))
        assert closed != renewal.alive


def test_twenty_concurrent_sweeps_close_a_worker_once(store):
    open_worker(store)
    assert run_concurrently(*[lambda: close_worker(store) for _ in range(20)]).count(True) == 1


# --- Orphans ---
def test_orphans_are_running_jobs_whose_worker_is_closed_or_missing(store):
    for worker in ("alive", "closed", "missing"):
        open_worker(store, worker)
        enqueue(store)
        claim(store, worker=worker)
    close_worker(store, "closed")
    sql(store, "DELETE FROM {p}worker WHERE id = 'missing'")
    with store.read() as tx:
        orphans = WorkerQueries(tx).list_orphans(10)
        assert [lease.worker for lease in orphans] == ["closed", "missing"]
        assert len(WorkerQueries(tx).list_orphans(1)) == 1


def test_a_dead_worker_among_many_long_running_jobs_is_found_at_once(store):
    open_worker(store, "busy")
    enqueue(store, 2000)
    claim(store, 2000, worker="busy")
    lease = claim_new_job(store, worker="dead")
    close_worker(store, "dead")
    with store.read() as tx:
        assert [orphan.id for orphan in WorkerQueries(tx).list_orphans(10)] == [lease.id]


def test_many_sweepers_settle_each_orphan_once(store):
    open_worker(store)
    ids = enqueue(store, 200)
    claim(store, 200)
    close_worker(store)
    run_concurrently(*[lambda: settle_orphans(store) for _ in range(5)])
    for job_id in ids:
        assert (get(store, job_id).state, get(store, job_id).losses) == ("queued", 1)
        assert [attempt.ended for attempt in attempts(store, job_id)] == ["lost"]
    assert event_types(store, ids[0]) == ["queued", "started", "lost"]


def test_an_orphan_with_a_cancel_request_is_cancelled(store):
    lease = claim_new_job(store)
    with store.begin() as tx:
        JobQueries(tx).request_cancel(lease.id, 1, "no longer wanted")
    close_worker(store)
    settle_orphans(store)
    assert get(store, lease.id).state == "cancelled"


def test_closed_workers_are_deleted_once_they_have_no_running_job(store):
    for worker in ("idle", "busy", "alive"):
        open_worker(store, worker)
    enqueue(store)
    (lease,) = claim(store, worker="busy")
    for worker in ("idle", "busy"):
        close_worker(store, worker)
    with store.begin() as tx:
        assert RetentionQueries(tx).delete_closed_workers(tx.now() - HOUR) == 0
        assert RetentionQueries(tx).delete_closed_workers(tx.now() + 1) == 1
        assert {row.id for row in WorkerQueries(tx).list_workers(closed=True)} == {"busy", "alive"}
    settle_leases(store, lease)
    with store.begin() as tx:
        assert RetentionQueries(tx).delete_closed_workers(tx.now() + 1) == 1


def test_a_renewal_does_not_wait_for_claims_or_settlements(postgres):
    lease = claim_new_job(postgres)
    enqueue(postgres, 3)
    with postgres.begin() as tx:
        LeaseQueries(tx).claim_jobs(
            "w1", [row.id for row in SearchQueries(tx).list_jobs({"state": "queued"}, 9, None)], 9
        )
        WorkerQueries(tx).update_progress("w1", [(lease.id, 1, 0.5, "half")])
        assert BackgroundCall(lambda: renew(postgres)).result(10).alive


# --- Manifests ---
def test_manifests_are_stored_once_with_their_last_use(store):
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest("a", "app", "1", "{}")
    store.shift_clock(HOUR)
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest("b", "app", "2", "{}")
        ManifestQueries(tx).store_manifest("a", "app", "1", "{}")
        found = ManifestQueries(tx).list_manifests()
    assert [row[:3] for row in found] == [("b", "app", "2"), ("a", "app", "1")]
    assert found[1].published_at == pytest.approx(now(store), abs=60 * SECOND)


def test_a_lost_worker_is_reported_once_with_its_reason(store):
    open_worker(store, "w1", host="ship")
    sql(
        store,
        "UPDATE {p}worker SET renewed_at = renewed_at - 3600000000, renewed_mono = renewed_mono - 3600000000",
    )
    judge = upkeep.LossDetector("me", "this boot", lambda _: True)
    assert [
        row.id for row in upkeep.close_lost_workers(store, judge, RetrySection(), Random(1))
    ] == ["w1"]
    assert upkeep.close_lost_workers(store, judge, RetrySection(), Random(1)) == []
    with store.read() as tx:
        lost = [
            event
            for event in EventQueries(tx).list_events_after(0, 10)
            if event.type == "worker.lost"
        ]
    assert [event.data["reason"] for event in lost] == ["no renewal for 30 s"]


# --- Drain requests ---
def test_a_renewal_returns_a_drain_request(store):
    open_worker(store, "w1")
    open_worker(store, "w2")
    assert renew(store).drain is None
    with store.begin() as tx:
        assert WorkerQueries(tx).request_drain("w1", "cli:me: new release")
    assert (renew(store).drain, renew(store, "w2").drain) == ("cli:me: new release", None)
    assert worker_of(store).drain_reason == "cli:me: new release"


def test_a_stopped_worker_cannot_be_drained(store):
    open_worker(store, "w1")
    close_worker(store, "w1")
    with store.begin() as tx:
        assert not WorkerQueries(tx).request_drain("w1", "too late")
        assert not WorkerQueries(tx).request_drain("nobody", "never was")
    assert renew(store).drain is None


def test_running_jobs_are_counted_by_worker(store):
    claim_new_job(store, worker="w1")
    claim_new_job(store, worker="w2")
    claim_new_job(store, worker="w2")
    enqueue(store)
    with store.read() as tx:
        assert WorkerQueries(tx).count_running_by_worker() == {"w1": 1, "w2": 2}


def test_a_renewal_stores_the_memory_of_the_worker(store):
    with store.begin() as tx:
        WorkerQueries(tx).insert_worker(a_worker("w_big"))
        WorkerQueries(tx).renew_worker("w_big", draining=False, memory=5_000_000_000)
        (worker,) = WorkerQueries(tx).list_workers(closed=False)
    assert worker.memory == 5_000_000_000
