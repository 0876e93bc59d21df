"""Jobs that succeed at once: their attempt is told by the job's row, and nobody sees a difference."""

from __future__ import annotations

from random import Random

from mulligan.core.attempt import Ending
from mulligan.core.durations import SECOND
from mulligan.storage.history_queries import InsightScope
from mulligan.worker.settle import settle
from support.store import (
    FAILED,
    POLICIES,
    RETURNED,
    attempts,
    claim,
    enqueue,
    finish,
    get,
    once_more,
    open_worker,
    running,
    sql,
    story,
)


def rows(store):
    return sql(store, "SELECT count(*) FROM {p}attempt")[0][0]


def test_it_has_an_attempt_and_no_row_for_it(store):
    lease = running(store, owner="acme")
    finish(store, lease)
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


def test_who_succeeds_later_has_a_row_for_each_attempt(store):
    lease = running(store)
    finish(store, lease, FAILED)
    finish(store, once_more(store, lease.id))
    assert [(one.token, one.verb) for one in attempts(store, lease.id)] == [
        (1, "retry"),
        (2, "succeed"),
    ]
    assert rows(store) == 2


def test_many_are_found_together_with_others(store):
    open_worker(store)
    enqueue(store, 20)
    leases = claim(store, 20)
    finish(store, leases[:15])
    finish(store, leases[15:], FAILED)
    ids = [lease.id for lease in leases]
    with store.read() as unit:
        latest, every = unit.get_latest_attempts(ids), unit.list_attempts_of_jobs(ids)
        failed = unit.get_previous_attempts(ids)
    assert {job_id: one.verb for job_id, one in latest.items()} == dict(
        zip(ids, ["succeed"] * 15 + ["retry"] * 5, strict=True)
    )
    assert [one.job_id for one in every] == ids
    assert [*failed] == ids[15:]
    assert rows(store) == 5


def test_an_ending_that_is_written_twice_is_known(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    finish(store, leases)
    before = sql(store, "SELECT * FROM {p}job ORDER BY id")
    for some in (leases, leases[:1]):
        with store.begin() as unit:
            verdicts = settle(
                unit,
                [Ending(lease, RETURNED, 3) for lease in some],
                POLICIES,
                unit.now(),
                Random(7),
            )
        assert all(verdict.decision is not None for verdict in verdicts)
    assert sql(store, "SELECT * FROM {p}job ORDER BY id") == before
    assert [event.type for event in story(store, leases[0].id)] == [
        "job.queued",
        "job.started",
        "job.succeeded",
    ]


def test_an_ending_of_somebody_else_after_it_is_refused(store):
    lease = running(store)
    finish(store, lease)
    (verdict,) = finish(store, lease._replace(worker="w2"))
    assert verdict.decision is None
    assert [one.worker for one in attempts(store, lease.id)] == ["w1"]


def test_its_token_stays_what_it_was_when_tokens_are_lifted(store):
    lease = running(store)
    finish(store, lease)
    with store.begin() as unit:
        unit.raise_tokens(1000)
    assert [one.token for one in attempts(store, lease.id)] == [1]


def test_it_is_counted_as_such_also_when_tokens_are_lifted(store):
    finish(store, running(store))
    asked = InsightScope(
        low="", since=0, age_step=SECOND, kind=None, queue=None, jobs=100, attempts=100, rows=100
    )
    counted = []
    for _ in range(2):
        with store.begin() as unit:
            counted.append([(one.ended, one.attempts) for one in unit.count_insight(asked).ended])
            unit.raise_tokens(1000)
    assert counted == [[("returned", 1)]] * 2


def test_it_leaves_with_its_job(store):
    lease = running(store)
    finish(store, lease)
    with store.begin() as unit:
        assert unit.prune_jobs("succeeded", unit.now() + 1, 10, kind=None, except_kinds=())
    assert attempts(store, lease.id) == []
