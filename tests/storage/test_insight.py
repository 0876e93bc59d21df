"""Insight counts: correct on both databases, within their limits."""

from __future__ import annotations

from collections import Counter

import pytest

from mulligan.core.attempt import Cls, Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.ids import first_id, new_id
from mulligan.insight.queries import InsightQueries, InsightScope
from mulligan.jobs import repair as recover
from mulligan.storage.statements import load_statement
from support.builders import make_failure
from support.history import DAY, insert_finished_jobs
from support.store import (
    CANCELLED,
    FATAL,
    LOST,
    RETURNED,
    SNOOZED,
    claim_by_id,
    claim_new_job,
    claim_when_due,
    enqueue,
    is_postgres,
    migrated,
    now,
    open_worker,
    settle_leases,
    sql,
)

TIMED_OUT = Outcome(Ended.FAILED, failure=make_failure(Cls.TIMEOUT, "GW_TIMEOUT"), cost=0.5)


@pytest.fixture
def store(store_url):
    with migrated(store_url) as store:
        open_worker(store)
        yield store


def scope(store, **changes):
    defaults = {
        "low": "",
        "since": now(store) - 7 * DAY,
        "age_step": DAY,
        "kind": None,
        "queue": None,
        "jobs": 1000,
        "attempts": 1000,
        "rows": 1000,
    }
    return InsightScope(**(defaults | changes))


def counted(store, **changes):
    with store.read() as tx:
        return InsightQueries(tx).count_insight(scope(store, **changes))


def lived(store, *outcomes, **changes):
    """Insert a job whose attempts ended with these outcomes."""
    first, *rest = outcomes
    lease = claim_new_job(store, **changes)
    settle_leases(store, lease, first)
    for outcome in rest:
        settle_leases(store, claim_when_due(store, lease.id), outcome)
    return lease.id


def test_every_generation_is_counted_by_its_outcome(store):
    lived(store, RETURNED)
    lived(store, TIMED_OUT, RETURNED, uses="gateway")
    lived(store, TIMED_OUT, SNOOZED, TIMED_OUT, LOST, RETURNED)
    lived(store, TIMED_OUT, FATAL)
    lived(store, CANCELLED)
    enqueue(store, 2)
    found = counted(store)
    assert {(row.state, row.cls): row.jobs for row in found.jobs} == {
        ("succeeded", ""): 3,
        ("dead", "permanent"): 1,
        ("cancelled", ""): 1,
        ("queued", ""): 2,
    }
    assert {row.ended: row.attempts for row in found.ended} == {
        "returned": 3,
        "failed": 5,
        "snoozed": 1,
        "lost": 1,
        "cancelled": 1,
    }
    trials = {
        (row.cls, row.code, row.uses, row.k): (row.trials, row.successes) for row in found.trials
    }
    assert trials == {
        ("timeout", "GW_TIMEOUT", "", 2): (2, 0),
        ("timeout", "GW_TIMEOUT", "", 3): (1, 1),
        ("timeout", "GW_TIMEOUT", "gateway", 2): (1, 1),
    }
    failures = {
        (row.cls, row.rule, row.verb, row.k): (row.failures, row.cost) for row in found.failures
    }
    assert failures == {
        ("timeout", "test.rule", "retry", 1): (3, 1.5),
        ("timeout", "test.rule", "retry", 2): (1, 0.5),
        ("permanent", "test.rule", "die", 2): (1, 0.0),
    }
    (code,) = found.codes
    assert (code.cls, code.code, code.jobs) == ("timeout", "GW_TIMEOUT", 3)
    lives = Counter()
    for row in found.generations:
        lives[row.cls, row.outcome, row.retried, row.hopeless, row.ms is None] += row.jobs
    assert lives == {
        ("", "succeeded", False, False, True): 1,
        ("timeout", "succeeded", True, False, False): 2,
        ("timeout", "dead", True, True, False): 1,
        ("", "cancelled", False, False, True): 1,
    }
    assert not found.truncated


def test_a_manual_retry_does_not_change_the_count_of_the_first_generation(store):
    job = lived(store, FATAL)
    recover.retry(store, job, actor="kim")
    settle_leases(store, claim_by_id(store, job)[0], RETURNED)
    never = lived(store, FATAL)
    recover.retry(store, never, actor="kim")
    found = counted(store)
    assert [(row.outcome, row.jobs) for row in found.generations] == [("dead", 2)]
    assert [tuple(row) for row in found.manual_retries] == [
        ("permanent", "BROKEN", "test.rule", 1, 1)
    ]


def test_a_manual_retry_that_succeeds_after_a_day_is_not_counted(store):
    job = lived(store, FATAL)
    store.shift_clock(2 * DAY)
    recover.retry(store, job, actor="kim")
    settle_leases(store, claim_by_id(store, job)[0], RETURNED)
    assert [(row.tries, row.successes) for row in counted(store).manual_retries] == [(1, 0)]


def test_only_the_requested_kind_queue_and_time_are_counted(store):
    lived(store, RETURNED, kind="mail", queue="slow")
    lived(store, RETURNED, kind="mulligan.delivery")
    lived(store, RETURNED)
    for changes, jobs in (
        ({}, 2),
        ({"kind": "mail"}, 1),
        ({"queue": "slow"}, 1),
        ({"kind": "x"}, 0),
    ):
        found = counted(store, **changes)
        assert (
            sum(row.jobs for row in found.jobs) == sum(row.attempts for row in found.ended) == jobs
        )
    store.shift_clock(8 * DAY)
    assert counted(store).jobs == []


def test_beyond_the_limit_the_newest_are_counted(store):
    ids = [lived(store, TIMED_OUT, RETURNED) for _ in range(5)]
    assert not counted(store, jobs=5, attempts=10).truncated
    few = counted(store, jobs=2)
    assert few.truncated
    assert sum(row.jobs for row in few.jobs) == 2
    assert sum(row.attempts for row in few.ended) == 4
    tight = counted(store, attempts=5)
    assert tight.truncated
    assert sum(row.jobs for row in tight.jobs) == 2, (
        "of a job either all attempts are counted, or none"
    )
    assert counted(store, rows=1).truncated
    assert len(ids) == 5


def test_durations_are_rounded_to_three_digits(store):
    job = lived(store, TIMED_OUT)
    store.shift_clock(123_456 * SECOND)
    settle_leases(store, claim_when_due(store, job), RETURNED)
    (row,) = counted(store).generations
    assert row.ms % 1_000_000 == 0
    assert 123_000_000 <= row.ms <= 124_000_000


def test_an_id_bounds_the_time_of_its_job():
    made = new_id()
    assert first_id(0) < made < first_id(2**47)
    assert len(first_id(1)) == len(made)


# --- No more is read than was scope for ---
@pytest.fixture
def crowded(store):
    """Ten thousand old attempts in addition to the counted ones."""
    insert_finished_jobs(store, 6000, now=now(store), private=50)
    if is_postgres(store):
        sql(store, "ANALYZE {p}job")
        sql(store, "ANALYZE {p}attempt")
    return store


VERBS = ("insight_attempts", "insight_generations", "insight_manual_retries", "insight_jobs")


def test_on_sqlite_every_step_uses_an_index(sqlite_url):
    with migrated(sqlite_url) as store, store.read() as tx:
        params = {
            "after": "0",
            "since": 0,
            "kind": None,
            "queue": None,
            "now": 1,
            "age_step": 1,
            "limit": 1,
        }
        for verb in VERBS:
            plan = [
                row[3]
                for row in tx._handle.execute(
                    "EXPLAIN QUERY PLAN " + load_statement(verb, "sqlite", "mulligan_"), params
                )
            ]
            index = (
                "mulligan_job_for_retried"
                if verb == "insight_manual_retries"
                else "sqlite_autoindex_mulligan_job_1"
            )
            assert any(
                f"SEARCH mulligan_job USING INDEX {index} (id>?)" in step for step in plan
            ), plan
            assert not [
                step for step in plan if step.startswith(("SCAN mulligan_", "SCAN attempt"))
            ], plan


def test_only_the_newest_of_many_jobs_are_read(crowded):
    found = counted(crowded, jobs=100, attempts=180)
    assert sum(row.jobs for row in found.jobs) == 100
    if not is_postgres(crowded):
        return
    with crowded.begin() as tx:
        before = rows_read(tx)
        InsightQueries(tx).count_insight(scope(crowded, jobs=100, attempts=180))
        assert rows_read(tx) - before < 4000


def rows_read(tx):
    statement = (
        "SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables "
        "WHERE relname IN ('job', 'attempt')"
    )
    return tx._connection.execute(statement).fetchone()[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_thousand_attempts_are_counted_within_their_bounds(store):
    insert_finished_jobs(store, 111_112, now=now(store))
    found = counted(store, jobs=100_000, attempts=100_000, rows=20_000)
    assert found.truncated
    assert 99_990 <= sum(row.attempts for row in found.ended) <= 100_000
    all_ = counted(store, jobs=200_000, attempts=300_000, rows=20_000)
    assert not all_.truncated
    assert sum(row.attempts for row in all_.ended) == 200_000
