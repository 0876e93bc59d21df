"""Successes settled by row location in their individual transaction, with the same fence."""

from __future__ import annotations

from contextlib import closing
from random import Random

import psycopg
import pytest

from mulligan.core.attempt import Ending, Lease
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.storage import open_store
from mulligan.worker.fast.grouped_endings import GroupedEndings
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.settle import finish_simple, settle
from support.store import (
    FAILED,
    POLICIES,
    RETURNED,
    BackgroundCall,
    attempts,
    claim,
    claim_new_job,
    close_worker,
    enqueue,
    event_types,
    get,
    is_waiting_for_lock,
    open_worker,
    read_event_table,
    run_concurrently,
    settle_orphans,
)
from support.waiting import until


def finished(store, leases, outcome=RETURNED):
    """Settle successes. Return the fences of those written, and of the others."""
    found = [leases] if isinstance(leases, Lease) else leases
    with store.single_statement() as tx:
        written = finish_simple(
            tx,
            [Ending(lease, outcome, 3) for lease in found],
            GroupedEndings(POLICIES, tx.now(), Random(7)),
        )
    assert written.retried == []
    return fences(written.returned), {ending.lease.fence for ending in written.rest}


def fences(leases):
    return {lease.fence for lease in leases}


@pytest.mark.parametrize("many", [1, 3, 40])
def test_successes_by_location_write_what_settle_writes(store, many):
    open_worker(store)
    enqueue(store, 2 * many)
    leases = claim(store, 2 * many)
    assert finished(store, leases[:many]) == (fences(leases[:many]), set())
    with store.begin() as tx:
        settle(
            tx,
            [Ending(lease, RETURNED, 3) for lease in leases[many:]],
            POLICIES,
            tx.now(),
            Random(7),
        )
    one, other = (get(store, lease.id) for lease in (leases[0], leases[-1]))
    individual = {"id", "created_at", "run_at", "payload", "finished_at"}
    assert {k: v for k, v in one._asdict().items() if k not in individual} == {
        k: v for k, v in other._asdict().items() if k not in individual
    }
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        assert (attempt.verb, attempt.worker, attempt.token, attempt.ended_at) == (
            "succeed",
            "w1",
            lease.token,
            get(store, lease.id).finished_at,
        )
        assert event_types(store, lease.id) == ["queued", "started", "succeeded"]


def test_failures_are_left_to_settle(store):
    lease = claim_new_job(store)
    assert finished(store, lease, FAILED) == (set(), {lease.fence})
    assert get(store, lease.id).state == "running"


@pytest.mark.parametrize("many", [1, 40])
def test_successes_whose_fence_may_fail_are_left_to_settle(store, many):
    open_worker(store)
    enqueue(store, many + 3)
    cancelled, other, ended, *leases = claim(store, many + 3)
    with store.begin() as tx:
        assert JobQueries(tx).request_cancel(cancelled.id, cancelled.token, "no longer wanted")
    other = other._replace(token=other.token + 1)
    finished(store, ended)
    written, rest = finished(store, [cancelled, *leases, other, ended])
    if written:  # a store may write none
        assert (written, rest) == (fences(leases), fences([cancelled, other, ended]))
    assert get(store, cancelled.id).state == get(store, other.id).state == "running"
    assert len(attempts(store, ended.id)) == 1


def test_a_row_that_has_moved_is_settled_by_the_general_form(store):
    lease = claim_new_job(store)
    with store.begin() as tx:
        WorkerQueries(tx).update_progress("w1", [(lease.id, lease.token, 0.5, "half")])
    _, rest = finished(store, lease)
    with store.begin() as tx:
        endings = [Ending(lease, RETURNED, 3)] if rest else []
        settle(tx, endings, POLICIES, tx.now(), Random(7))
    assert get(store, lease.id).state == "succeeded"
    assert event_types(store, lease.id) == ["queued", "started", "succeeded"]


def test_another_row_at_the_location_is_not_changed(store):
    open_worker(store)
    enqueue(store, 2)
    one, other = claim(store, 2)
    finished(store, one._replace(row_location=other.row_location))
    assert get(store, other.id).state == "running"
    assert attempts(store, other.id) == []


@pytest.mark.parametrize("place", [None, "(4294967295,65535)", "(0,0)"])
def test_a_location_without_a_row_changes_nothing(store, place):
    lease = claim_new_job(store)
    written, rest = finished(store, lease._replace(row_location=place))
    assert (lease.fence in written) == (get(store, lease.id).state == "succeeded")
    assert written | rest == {lease.fence}


def moved(tx, lease, how):
    if how == "cancel requested":
        assert JobQueries(tx).request_cancel(lease.id, lease.token, "no longer wanted")
    elif how == "ended":
        settle(tx, [Ending(lease, FAILED, 3)], POLICIES, tx.now(), Random(7))
    else:
        WorkerQueries(tx).update_progress("w1", [(lease.id, lease.token, 0.5, "half")])


@pytest.mark.parametrize("how", ["cancel requested", "ended", "progress"])
def test_a_locked_row_is_waited_for_and_checked_again(store, how):
    if not store.concurrent_writers:
        pytest.skip("SQLite has one writer")
    lease = claim_new_job(store)
    with store.begin() as tx:
        moved(tx, lease, how)
        ending = BackgroundCall(lambda: finished(store, lease))
        until(lambda: is_waiting_for_lock(store))
    written, _ = ending.result()
    state, ends = get(store, lease.id).state, [one.verb for one in attempts(store, lease.id)]
    if how == "ended":
        assert (written, state, ends) == (set(), "queued", ["retry"])
    elif how == "cancel requested":
        assert (written, state, ends) == (set(), "running", [])
    else:  # some server versions follow the row to its new location
        assert (bool(written), state) in {(True, "succeeded"), (False, "running")}


def test_many_threads_with_overlapping_successes_and_a_sweep_write_each_once(store):
    open_worker(store)
    enqueue(store, 300)
    leases = claim(store, 300)

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            _, rest = finished(store, rng.sample(leases, 120))
            with store.begin() as tx:
                left = [Ending(lease, RETURNED, 3) for lease in leases if lease.fence in rest]
                settle(tx, left, POLICIES, tx.now(), rng)

    run_concurrently(
        *[lambda seed=seed: flush(seed) for seed in range(4)], lambda: settle_orphans(store)
    )
    finished(store, leases)
    with store.read() as tx:
        assert dict(SearchQueries(tx).count_jobs_by_state(1000))["succeeded"] == 300
    assert sum(len(attempts(store, lease.id)) for lease in leases) == 300
    assert [event[2] for event in read_event_table(store)].count("job.succeeded") == 300


def test_a_concurrent_sweep_and_settlement_write_one_ending(store):
    leases = [claim_new_job(store) for _ in range(30)]
    close_worker(store)
    run_concurrently(
        lambda: [finished(store, lease) for lease in leases], lambda: settle_orphans(store)
    )
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        assert (get(store, lease.id).state, attempt.ended) in {
            ("succeeded", "returned"),
            ("queued", "lost"),
        }


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_default_isolation_makes_no_difference(ready_postgres_url, level):
    with psycopg.connect(ready_postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'"
        )
    with closing(open_store(ready_postgres_url)) as store:
        leases = [claim_new_job(store) for _ in range(3)]
        with store.begin() as tx:
            WorkerQueries(tx).update_progress("w1", [(leases[0].id, leases[0].token, 0.5, "half")])
            ending = BackgroundCall(lambda: finished(store, leases))
            until(lambda: is_waiting_for_lock(store))
        written, rest = ending.result()
    assert written | rest == fences(leases)
