"""Jobs that succeed with their first attempt have no attempt row, which no reader notices."""

from __future__ import annotations

from random import Random

from mulligan.core.attempt import Ending
from mulligan.core.durations import SECOND
from mulligan.doctor.verify.queries import VerifyQueries
from mulligan.insight.queries import InsightQueries, InsightScope
from mulligan.jobs.queries import JobQueries
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    FAILED,
    POLICIES,
    RETURNED,
    attempts,
    claim,
    claim_new_job,
    claim_when_due,
    enqueue,
    get,
    job_events,
    open_worker,
    settle_leases,
    sql,
)


def rows(store):
    return sql(store, "SELECT count(*) FROM {p}attempt")[0][0]


def test_a_first_attempt_success_has_an_attempt_but_no_attempt_row(store):
    lease = claim_new_job(store, owner="acme")
    settle_leases(store, lease)
    (attempt,) = attempts(store, lease.id)
    job = get(store, lease.id)
    assert rows(store) == 0
    assert attempt._replace(cost=0) == type(attempt)(
        lease.id,
        1,
        1,
        1,
        "w1",
        "w1",
        lease.started_at,
        job.finished_at,
        "returned",
        "succeed",
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        "returned",
        0,
        None,
    )


def test_a_later_success_has_a_row_for_each_attempt(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id))
    assert [(one.token, one.verb) for one in attempts(store, lease.id)] == [
        (1, "retry"),
        (2, "succeed"),
    ]
    assert rows(store) == 2


def test_attempts_of_many_jobs_include_first_attempt_successes(store):
    open_worker(store)
    enqueue(store, 20)
    leases = claim(store, 20)
    settle_leases(store, leases[:15])
    settle_leases(store, leases[15:], FAILED)
    ids = [lease.id for lease in leases]
    with store.read() as tx:
        latest, every = (
            JobQueries(tx).get_latest_attempts(ids),
            VerifyQueries(tx).list_attempts_of_jobs(ids),
        )
        failed = WorkerQueries(tx).get_previous_attempts(ids)
    assert {job_id: one.verb for job_id, one in latest.items()} == dict(
        zip(ids, ["succeed"] * 15 + ["retry"] * 5, strict=True)
    )
    assert [one.job_id for one in every] == ids
    assert [*failed] == ids[15:]
    assert rows(store) == 5


def test_a_repeated_settlement_is_recognised(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    settle_leases(store, leases)
    before = sql(store, "SELECT * FROM {p}job ORDER BY id")
    for some in (leases, leases[:1]):
        with store.begin() as tx:
            verdicts = settle(
                tx,
                [Ending(lease, RETURNED, 3) for lease in some],
                SettleContext(POLICIES, tx.now(), Random(7)),
            )
        assert all(verdict.decision is not None for verdict in verdicts)
    assert sql(store, "SELECT * FROM {p}job ORDER BY id") == before
    assert [event.type for event in job_events(store, leases[0].id)] == [
        "job.queued",
        "job.started",
        "job.succeeded",
    ]


def test_a_settlement_by_another_worker_is_refused(store):
    lease = claim_new_job(store)
    settle_leases(store, lease)
    (verdict,) = settle_leases(store, lease._replace(worker="w2"))
    assert verdict.decision is None
    assert [one.worker for one in attempts(store, lease.id)] == ["w1"]


def test_raising_tokens_does_not_change_the_token_of_its_attempt(store):
    lease = claim_new_job(store)
    settle_leases(store, lease)
    with store.begin() as tx:
        WorkerQueries(tx).raise_tokens(1000)
    assert [one.token for one in attempts(store, lease.id)] == [1]


def test_insight_counts_it_after_tokens_were_raised(store):
    settle_leases(store, claim_new_job(store))
    scope = InsightScope(
        low="", since=0, age_step=SECOND, kind=None, queue=None, jobs=100, attempts=100, rows=100
    )
    counted = []
    for _ in range(2):
        with store.begin() as tx:
            counted.append(
                [(one.ended, one.attempts) for one in InsightQueries(tx).count_insight(scope).ended]
            )
            WorkerQueries(tx).raise_tokens(1000)
    assert counted == [[("returned", 1)]] * 2


def test_its_attempt_is_deleted_with_the_job(store):
    lease = claim_new_job(store)
    settle_leases(store, lease)
    with store.begin() as tx:
        assert JobQueries(tx).prune_jobs("succeeded", tx.now() + 1, 10, kind=None, except_kinds=())
    assert attempts(store, lease.id) == []
