"""Successes: first attempts need no attempt row, and nothing else about them differs."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.jobs.queries import JobQueries
from mulligan.worker import settlement
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    POLICIES,
    attempts,
    claim,
    enqueue,
    event_types,
    get,
    job_events,
    open_worker,
    sql,
)

RESULT = '{"pages":3}'


def end(store, leases, outcome):
    with store.begin() as tx:
        return settle(
            tx,
            [Ending(lease, outcome, 12) for lease in leases],
            SettleContext(POLICIES, tx.now(), Random(1)),
        )


def write_all_attempts(monkeypatch):
    monkeypatch.setattr(settlement, "_is_in_job_row", lambda lease, decision, actor: False)


def picture(store, job_id):
    """Return what is stored about a job, without ids and times."""
    [row] = [row for row in sql(store, "SELECT * FROM {p}job") if job_id in row]
    [event] = [event for event in job_events(store, job_id) if event.type == "job.succeeded"]
    [attempt] = attempts(store, job_id)
    job = get(store, job_id)
    moments = {job.created_at, job.run_at, job.started_at, job.finished_at}
    data = {name: value for name, value in event.data.items() if name != "wait_ms"}
    attempts_without_worker = [
        value for value in row if value not in moments and value not in {job_id, "w1", None}
    ]  # without the worker
    events = (
        attempt.ended,
        attempt.verb,
        attempt.reason,
        attempt.worker,
        attempt.settled_by,
        attempt.code,
        attempt.evidence,
        attempt.private,
        attempt.judged,
        attempt.cost,
        attempt.next_run_at,
    )
    return (
        attempts_without_worker,
        events,
        data,
        [*event.data],
        (event.owner, event.batch_id, event.attempt, event.token, event.actor),
    )


@pytest.mark.parametrize("many", [1, 3, 40])
def test_a_success_without_an_attempt_row_reads_like_one_with_a_row(store, monkeypatch, many):
    open_worker(store)
    enqueue(store, 2 * many, payload='{"n":1}')
    short, long = (claim(store, many) for _ in range(2))
    end(store, short, Outcome(Ended.RETURNED, result=RESULT))
    write_all_attempts(monkeypatch)
    end(store, long, Outcome(Ended.RETURNED, result=RESULT))
    assert len(short) == len(long) == many
    assert {row[0] for row in sql(store, "SELECT job_id FROM {p}attempt")} == {
        lease.id for lease in long
    }
    assert [picture(store, lease.id) for lease in short] == [
        picture(store, lease.id) for lease in long
    ]
    for lease in short:
        assert (
            get(store, lease.id).finished_at
            == attempts(store, lease.id)[0].ended_at
            == job_events(store, lease.id)[-1].at
        )


def test_a_lost_lease_is_refused_without_affecting_the_others(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    stale = leases[5]._replace(token=leases[5].token + 1)
    verdicts = end(store, [*leases[:5], stale, *leases[6:]], Outcome(Ended.RETURNED, result=RESULT))
    assert [lease.id for lease, decision in verdicts if decision is None] == [stale.id]
    assert get(store, stale.id).state == "running"
    assert {get(store, lease.id).state for lease in leases if lease.id != stale.id} == {"succeeded"}
    assert event_types(store, stale.id)[-1] == "stale_refused"


def test_repeated_settlements_are_written_once(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    for _ in range(2):
        verdicts = end(store, leases, Outcome(Ended.RETURNED, result=RESULT))
        assert [decision.state for _, decision in verdicts] == ["succeeded"] * 12
    assert [len(attempts(store, lease.id)) for lease in leases] == [1] * 12
    assert [event_types(store, lease.id).count("succeeded") for lease in leases] == [1] * 12


def test_a_cancel_request_is_honoured_among_other_successes(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    with store.begin() as tx:
        assert JobQueries(tx).request_cancel(leases[3].id, leases[3].token, "enough")
    end(store, leases, Outcome(Ended.RETURNED, result=RESULT))
    assert get(store, leases[3].id).reason == "returned before it could be stopped"
    assert {get(store, lease.id).reason for lease in leases if lease is not leases[3]} == {
        "returned"
    }


def test_only_a_first_attempt_without_cost_or_cancellation_has_no_attempt_row(store):
    open_worker(store)
    enqueue(store, 5)
    simple, dear, cancelled, repeated, _ = claim(store, 5)
    returned = Outcome(Ended.RETURNED, result=RESULT)
    end(store, [simple], returned)
    end(store, [dear], Outcome(Ended.RETURNED, result=RESULT, cost=0.5))
    end(store, [cancelled._replace(cancel_reason="enough")], returned)
    end(store, [repeated], Outcome(Ended.RELEASED, reason="given back"))
    end(store, claim(store, 1), returned)
    found = sql(store, "SELECT job_id, token FROM {p}attempt WHERE verb = 'succeed'")
    assert sorted(found) == sorted([(dear.id, 1), (cancelled.id, 1), (repeated.id, 2)])
    assert get(store, dear.id).cost == 0.5


@pytest.mark.parametrize("results", [2, 30], ids=["two results", "each its own"])
def test_each_success_keeps_its_result_and_token(store, results):
    open_worker(store)
    enqueue(store, 30)
    end(store, claim(store, 10), Outcome(Ended.RELEASED, reason="given back"))
    leases = claim(store, 30)
    assert {lease.token for lease in leases} == {1, 2}
    endings = [
        Ending(lease, Outcome(Ended.RETURNED, result=str(n % results)), 12)
        for n, lease in enumerate(leases)
    ]
    with store.begin() as tx:
        settle(tx, endings, SettleContext(POLICIES, tx.now(), Random(1)))
    for n, lease in enumerate(leases):
        assert get(store, lease.id).result == str(n % results)
        last = max(attempts(store, lease.id), key=lambda attempt: attempt.token)
        assert (last.token, last.ended) == (lease.token, "returned")
