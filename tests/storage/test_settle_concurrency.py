"""Settlements that meet other transactions: locks, sweeps, cancellations, isolation levels."""

from __future__ import annotations

from contextlib import closing
from random import Random

import psycopg
import pytest

from mulligan.core.attempt import Ending
from mulligan.jobs.queries import JobQueries
from mulligan.storage import open_store
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.settle import SettleContext, settle
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
    settle_leases,
    settle_orphans,
)
from support.waiting import until

OUTCOMES = {"returned": RETURNED, "failed": FAILED}
STATES = {"returned": "succeeded", "failed": "queued"}
EVENTS = {"returned": "job.succeeded", "failed": "job.retry_scheduled"}


def settle_some(tx, leases, outcome):
    endings = [Ending(lease, outcome, 3) for lease in leases]
    return settle(tx, endings, SettleContext(POLICIES, tx.now(), Random(7)))


def claimed(store, many):
    open_worker(store)
    enqueue(store, many)
    return claim(store, many)


def change(tx, lease, how):
    if how == "cancel requested":
        assert JobQueries(tx).request_cancel(lease.id, lease.token, "no longer wanted")
    elif how == "ended":
        settle_some(tx, [lease], FAILED)
    else:
        WorkerQueries(tx).update_progress("w1", [(lease.id, lease.token, 0.5, "half")])


@pytest.mark.parametrize("many", [1, 12])
@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize(
    ("how", "verb"),
    [("cancel requested", "decided again"), ("ended", "retry"), ("progress", "as decided")],
)
def test_a_locked_row_is_waited_for_and_checked_again(postgres, how, verb, name, many):
    leases = claimed(postgres, many)
    first = leases[0]
    with postgres.begin() as tx:
        change(tx, first, how)
        ending = BackgroundCall(lambda: settle_leases(postgres, leases, OUTCOMES[name]))
        until(lambda: is_waiting_for_lock(postgres))
    ending.result()
    (attempt,) = attempts(postgres, first.id)
    expected = {
        "decided again": "succeed" if name == "returned" else "stop",
        "as decided": "succeed" if name == "returned" else "retry",
    }
    assert attempt.verb == expected.get(verb, verb)
    states = {get(postgres, lease.id).state for lease in leases[1:]}
    assert states == ({STATES[name]} if many > 1 else set())


def test_progress_before_the_settlement_makes_no_difference(store):
    lease = claim_new_job(store)
    with store.begin() as tx:
        WorkerQueries(tx).update_progress("w1", [(lease.id, lease.token, 0.5, "half")])
    settle_leases(store, lease)
    assert get(store, lease.id).state == "succeeded"
    assert event_types(store, lease.id) == ["queued", "started", "succeeded"]


@pytest.mark.parametrize("name", OUTCOMES)
def test_many_threads_with_overlapping_endings_and_a_sweep_write_each_once(store, name):
    leases = claimed(store, 300)

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            settle_leases(store, rng.sample(leases, 120), OUTCOMES[name])

    run_concurrently(
        *[lambda seed=seed: flush(seed) for seed in range(4)], lambda: settle_orphans(store)
    )
    settle_leases(store, leases, OUTCOMES[name])
    assert {get(store, lease.id).state for lease in leases} == {STATES[name]}
    assert sum(len(attempts(store, lease.id)) for lease in leases) == 300
    assert [event[2] for event in read_event_table(store)].count(EVENTS[name]) == 300


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_concurrent_sweep_and_settlement_write_one_ending_each(store, name):
    leases = claimed(store, 60)
    close_worker(store)
    run_concurrently(
        lambda: [settle_leases(store, lease, OUTCOMES[name]) for lease in leases[:30]],
        lambda: settle_leases(store, leases[30:], OUTCOMES[name]),
        lambda: settle_orphans(store),
    )
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        assert (get(store, lease.id).state, attempt.ended) in {
            (STATES[name], name),
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
            ending = BackgroundCall(lambda: settle_leases(store, leases))
            until(lambda: is_waiting_for_lock(store))
        assert all(verdict.decision is not None for verdict in ending.result())
        assert {get(store, lease.id).state for lease in leases} == {"succeeded"}
