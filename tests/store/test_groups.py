"""Groups in the memory: filled when a job dies, many of them quickly, and for those that died before there were any."""

from __future__ import annotations

from contextlib import closing

import pytest

from mulligan.core.attempt import Cls, Ended, Outcome
from mulligan.engine.failures import Failures
from mulligan.policy.ends import deadline_passed, unknown_kind
from mulligan.store import migrate as migrations
from mulligan.store import open_store
from policy.builders import a_failure
from support.store import FATAL, ended, enqueue, is_postgres, sql

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
    return Outcome(Ended.FAILED, failure=a_failure(Cls.PERMANENT, code, fingerprint=name))


def test_ten_thousand_dead_jobs_with_three_causes_are_three_groups(store):
    sql(store, MANY)
    api = Failures(lambda: store)
    groups = api.groups()
    assert {group.fingerprint: group.count for group in groups} == {"v2-0": 3334, "v2-1": 3334, "v2-2": 3333}
    with store.read() as unit:
        for group in groups:
            assert unit.count_matching({"group": group.fingerprint}, 10_000) == group.count


def test_counting_a_group_stops_at_ten_thousand_and_says_so(store):
    sql(store, MANY)
    sql(store, "UPDATE {p}job SET died_group = 'v2-0'")
    (group,) = Failures(lambda: store).groups()
    assert (group.count, group.capped) == (10_000, True)
    assert group.first_seen.timestamp() == pytest.approx(1e-6)  # of all of them, not of those that were counted


def test_a_job_that_died_without_a_fingerprint_is_grouped_by_its_code(store):
    ended(store, FATAL)
    ended(store, failure("v2-known"))
    with store.read() as unit:
        assert sorted(name for name, _ in unit.group_names(None, 10)) == ["code-BROKEN", "v2-known"]


def test_only_the_dead_carry_what_they_died_of(store):
    ended(store, failure("v2-1"))
    enqueue(store)
    found = sql(store, "SELECT state, died_code, died_class, died_group FROM {p}job ORDER BY state")
    assert found == [("dead", "BROKEN", "permanent", "v2-1"), ("queued", None, None, None)]
    with pytest.raises(Exception, match=r"(?i)check"):
        sql(store, "UPDATE {p}job SET died_code = 'X' WHERE state = 'queued'")


def test_marks_of_groups_without_dead_jobs_are_forgotten_in_time(store):
    api = Failures(lambda: store)
    gone, there = ended(store, failure("v2-gone")), ended(store, failure("v2-there"))
    for name in ("v2-gone", "v2-there"):
        api.resolve(name)
    sql(store, "DELETE FROM {p}job WHERE id = :id", {"id": gone})
    with store.begin() as unit:
        assert unit.forget_marks(0) == 0
        assert unit.forget_marks(unit.now() + 1) == 1
        assert list(unit.marks("*")) == ["v2-there"]
    assert there


def test_jobs_that_died_before_the_step_are_grouped_by_it(empty_url, monkeypatch):
    """A database of the step before, with rows; those of the last attempt say of what a job died."""
    all_steps = migrations.steps
    monkeypatch.setattr(migrations, "steps", lambda *given: [s for s in all_steps(*given) if s.number <= 6])
    with closing(open_store(empty_url)) as old:
        old.migrate()
        for statement in OLD_ROWS:
            sql(old, statement)
    monkeypatch.setattr(migrations, "steps", all_steps)
    with closing(open_store(empty_url)) as store:
        assert store.migrate()[0] == "0007_groups"
        found = sql(store, "SELECT id, died_code, died_class, died_group FROM {p}job ORDER BY id")
        assert found == [
            ("a", "BAD_FILE", "invalid_input", "v2-abc"),
            ("b", "DEADLINE_PASSED", "permanent", deadline_passed().fingerprint),
            ("c", "KIND_UNKNOWN", "permanent", unknown_kind("x").fingerprint),
            ("d", "ODD", "unknown", "code-ODD"),
            ("e", None, None, None),
        ]
        assert {group.fingerprint for group in Failures(lambda: store).groups()} >= {"v2-abc", "code-ODD"}


_JOB = (
    "INSERT INTO {{p}}job (id, kind, queue, lane, run_at, created_at, payload, state, attempt, token, finished_at,"
    " error) VALUES ('{id}', 'k', 'q', 'q|k||0', 0, 0, '{{}}', '{state}', 1, {token}, 5, {error})"
)
_ATTEMPT = (
    "INSERT INTO {{p}}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at,"
    " ended, verb, code, cls, fingerprint)"
    " VALUES ('{id}', {token}, 1, 1, 'w', 'w', 0, 1, 'failed', '{verb}', '{code}', 'x', {name})"
)


def _dead(job_id, code, cls, token=1):
    return _JOB.format(id=job_id, state="dead", token=token, error=f"""'{{"code":"{code}","class":"{cls}"}}'""")


OLD_ROWS = [
    _dead("a", "BAD_FILE", "invalid_input", token=2),
    _ATTEMPT.format(id="a", token=1, verb="retry", code="GW", name="'v2-first'"),
    _ATTEMPT.format(id="a", token=2, verb="die", code="BAD_FILE", name="'v2-abc'"),
    _dead("b", "DEADLINE_PASSED", "permanent"),
    _ATTEMPT.format(id="b", token=1, verb="retry", code="GW", name="'v2-first'"),
    _dead("c", "KIND_UNKNOWN", "permanent"),
    _dead("d", "ODD", "unknown"),
    _ATTEMPT.format(id="d", token=1, verb="die", code="ODD", name="NULL"),
    _JOB.format(id="e", state="succeeded", token=1, error="NULL"),
]


def test_the_plans_of_groups_read_indexes_and_no_whole_table(store):
    if is_postgres(store):
        pytest.skip("PostgreSQL plans by what is in the table")
    from mulligan.store.matching import matching
    from mulligan.store.sql import load

    params = {"before": "~", "floor": "", "most": 5, "cap": 5, "hours": 336, "now": 0, "moment": 0}
    params |= {"name": "g", "names": '["g"]'}
    wheres = [{"state": "dead"}, {"group": "g"}, {"code": "C"}, {"class": "timeout"}, {"group": "g", "owner": "acme"}]
    dead = [{"state": "dead"}, {"state": "dead", "owner": "o"}]
    for verb in ("page", "count_matching", "group_deaths", "group_ends", "group_samples"):
        for where in wheres if verb in {"page", "count_matching"} else dead:
            asked = matching(where)
            text = load(verb, "sqlite", "mulligan_", shape=asked.shape)
            plan = " ".join(row[3] for row in sql(store, f"EXPLAIN QUERY PLAN {text}", asked.params | params))
            assert "mulligan_job_for_" in plan, (verb, where, plan)
            assert "SCAN mulligan_job" not in plan, (verb, where, plan)
            assert "TEMP B-TREE FOR ORDER BY" not in plan, (verb, where, plan)
