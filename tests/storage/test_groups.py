"""Storage of failure groups: filled when a job dies, and fast with many dead jobs."""

from __future__ import annotations

import pytest

from mulligan.core.attempt import Cls, Ended, Outcome
from mulligan.failures.queries import FailureQueries
from mulligan.failures.service import Failures
from mulligan.jobs.queries import SearchQueries
from mulligan.worker.queries import RetentionQueries
from support.builders import make_failure
from support.store import FATAL, enqueue, is_postgres, run_once, sql

MANY = """
INSERT INTO {p}job (id, kind, queue, lane, run_at, created_at, payload, state, attempt, token, finished_at, error,
                    died_code, died_class, died_group)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
SELECT 'j' || CAST(i AS TEXT), 'render', 'default', 'default|render||0', 0, 0, '{}', 'dead', 1, 1, 1 + i,
       '{"code":"C' || CAST(i % 3 AS TEXT) || '","class":"unknown","message":"m"}', 'C' || CAST(i % 3 AS TEXT),
       'unknown', 'v2-' || CAST(i % 3 AS TEXT)
FROM n
"""


def failure(name, code="BROKEN"):
    return Outcome(Ended.FAILED, failure=make_failure(Cls.PERMANENT, code, fingerprint=name))


def test_ten_thousand_dead_jobs_with_three_causes_are_three_groups(store):
    sql(store, MANY)
    api = Failures(lambda: store)
    groups = api.groups()
    assert {group.fingerprint: group.count for group in groups} == {
        "v2-0": 3334,
        "v2-1": 3334,
        "v2-2": 3333,
    }
    with store.read() as tx:
        for group in groups:
            assert SearchQueries(tx).count_jobs({"group": group.fingerprint}, 10_000) == group.count


def test_counting_a_group_stops_at_ten_thousand_and_says_so(store):
    sql(store, MANY)
    sql(store, "UPDATE {p}job SET died_group = 'v2-0'")
    (group,) = Failures(lambda: store).groups()
    assert (group.count, group.capped) == (10_000, True)
    assert group.first_seen.timestamp() == pytest.approx(
        1e-6
    )  # of all jobs, not only of the counted ones


def test_a_job_that_died_without_a_fingerprint_is_grouped_by_its_code(store):
    run_once(store, FATAL)
    run_once(store, failure("v2-known"))
    with store.read() as tx:
        assert sorted(name for name, _ in FailureQueries(tx).list_groups(None, 10)) == [
            "code-BROKEN",
            "v2-known",
        ]


def test_only_dead_jobs_have_a_cause(store):
    run_once(store, failure("v2-1"))
    enqueue(store)
    found = sql(store, "SELECT state, died_code, died_class, died_group FROM {p}job ORDER BY state")
    assert found == [("dead", "BROKEN", "permanent", "v2-1"), ("queued", None, None, None)]
    with pytest.raises(Exception, match=r"(?i)check"):
        sql(store, "UPDATE {p}job SET died_code = 'X' WHERE state = 'queued'")


def test_old_states_of_groups_without_dead_jobs_are_deleted(store):
    api = Failures(lambda: store)
    gone, there = run_once(store, failure("v2-gone")), run_once(store, failure("v2-there"))
    for name in ("v2-gone", "v2-there"):
        api.resolve(name)
    sql(store, "DELETE FROM {p}job WHERE id = :id", {"id": gone})
    with store.begin() as tx:
        assert RetentionQueries(tx).delete_old_group_states(0) == 0
        assert RetentionQueries(tx).delete_old_group_states(tx.now() + 1) == 1
        assert list(FailureQueries(tx).list_group_states("*")) == ["v2-there"]
    assert there


def test_the_plans_of_groups_read_indexes_and_no_whole_table(store):
    if is_postgres(store):
        pytest.skip("PostgreSQL plans by what is in the table")
    from mulligan.jobs.filter import build_conditions
    from mulligan.storage.statements import load_statement

    params = {
        "before": "~",
        "floor": "",
        "limit": 5,
        "cap": 5,
        "hours": 336,
        "now": 0,
        "at_time": 0,
    }
    params |= {"name": "g", "names": '["g"]'}
    wheres = [
        {"state": "dead"},
        {"group": "g"},
        {"code": "C"},
        {"class": "timeout"},
        {"group": "g", "owner": "acme"},
    ]
    dead = [{"state": "dead"}, {"state": "dead", "owner": "o"}]
    for verb in (
        "list_jobs",
        "count_jobs",
        "list_group_deaths",
        "get_group_death_times",
        "get_group_samples",
    ):
        for where in wheres if verb in {"list_jobs", "count_jobs"} else dead:
            conditions = build_conditions(where)
            text = load_statement(verb, "sqlite", "mulligan_", matching=conditions.text("sqlite"))
            plan = " ".join(
                row[3]
                for row in sql(store, f"EXPLAIN QUERY PLAN {text}", conditions.params | params)
            )
            assert "mulligan_job_for_" in plan, (verb, where, plan)
            assert "SCAN mulligan_job" not in plan, (verb, where, plan)
            assert "TEMP B-TREE FOR ORDER BY" not in plan, (verb, where, plan)
