"""Retention: deletes in small steps, with all that belongs to a job, and records it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from mulligan.config import RetentionSection, Settings
from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.specs import KindSpec
from mulligan.worker import upkeep
from mulligan.worker.queries import RetentionQueries
from support.store import (
    CANCELLED,
    FAILED,
    FATAL,
    HOUR,
    PARKED,
    RETURNED,
    all_rows,
    claim,
    claim_new_job,
    claim_when_due,
    enqueue,
    insert,
    jobs,
    open_worker,
    run_concurrently,
    run_once,
    save_checkpoint,
    settle_leases,
    sql,
    unique_job,
)

DAY = 24 * HOUR


def prune(store, state="succeeded", *, age=0, limit=1000, kind=None, except_kinds=()):
    with store.begin() as tx:
        return JobQueries(tx).prune_jobs(
            state, tx.now() + 1 - age, limit, kind=kind, except_kinds=list(except_kinds)
        )


def count(store, table):
    return sql(store, f"SELECT count(*) FROM {{p}}{table}")[0][0]  # noqa: S608


def test_a_finished_job_is_pruned_with_its_attempts_and_checkpoints(store):
    lease = claim_new_job(store)
    with store.begin() as tx:
        save_checkpoint(tx, lease, "page", "17")
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id))
    assert (count(store, "attempt"), count(store, "step")) == (2, 1)
    prune(store)
    assert [count(store, table) for table in ("job", "attempt", "step")] == [0, 0, 0]


@pytest.mark.seed("004-29")
def test_pruned_jobs_leave_one_record_and_event_per_kind_owner_and_code(store):
    dead = [run_once(store, FATAL) for _ in range(3)]
    other = run_once(store, FATAL, owner="beta")
    records = prune(store, "dead")
    assert sorted(
        (one.owner, one.code, one.jobs, one.first_id, one.last_id) for one in records
    ) == [
        ("acme", "BROKEN", 3, dead[0], dead[-1]),
        ("beta", "BROKEN", 1, other, other),
    ]
    assert sorted(
        sql(store, "SELECT kind, state, owner, code, count, first_id FROM {p}pruned")
    ) == [
        ("render", "dead", "acme", "BROKEN", 3, dead[0]),
        ("render", "dead", "beta", "BROKEN", 1, other),
    ]
    with store.read() as tx:
        pruned_events = [
            event
            for event in EventQueries(tx).list_events_after(0, 100)
            if event.type == "job.pruned"
        ]
    assert sorted((event.owner, event.data["code"]) for event in pruned_events) == [
        ("acme", "BROKEN"),
        ("beta", "BROKEN"),
    ]


def test_only_old_jobs_of_the_state_are_pruned(store):
    remaining = [run_once(store, outcome) for outcome in (FATAL, CANCELLED, PARKED, RETURNED)]
    remaining += enqueue(store)
    remaining.append(claim_new_job(store).id)
    assert prune(store, "succeeded", age=HOUR) == []
    assert sorted(row.id for row in all_rows(store)) == sorted(remaining)


def test_a_step_is_bounded_and_prunes_the_oldest_first(store):
    open_worker(store)
    ids = enqueue(store, 25)
    for job_id in ids:
        settle_leases(store, [lease for lease in claim(store) if lease.id == job_id])
    assert sum(one.jobs for one in prune(store, limit=10)) == 10
    assert [row.id for row in all_rows(store)] == ids[10:]
    assert [sum(one.jobs for one in prune(store, limit=10)) for _ in range(3)] == [10, 5, 0]


def test_kinds_with_their_own_retention_are_excluded(store):
    ours, theirs = run_once(store, RETURNED), run_once(store, RETURNED, kind="mail")
    assert [one.kind for one in prune(store, except_kinds=["mail", "report"])] == ["render"]
    assert [row.id for row in all_rows(store)] == [theirs]
    assert prune(store, kind="render") == []
    assert [one.kind for one in prune(store, kind="mail")] == ["mail"]
    assert ours != theirs


def test_members_are_not_pruned_before_their_batch(store):
    member = run_once(store, RETURNED, batch_id="b1")
    assert prune(store) == []
    assert [row.id for row in all_rows(store)] == [member]


def test_a_unique_key_is_free_after_its_job_is_pruned(store):
    run_once(store, RETURNED, job=unique_job("k"))
    assert not insert(store, unique_job("k"))[0].fresh
    prune(store)
    assert insert(store, unique_job("k"))[0].fresh


@pytest.mark.parametrize("text", ["nul \x00", "lone \ud800", "{}"])
def test_hostile_error_text_does_not_stop_pruning(store, text):
    job_id = run_once(store, FATAL)
    error = json.dumps({"code": "BROKEN", "message": text})
    sql(store, "UPDATE {p}job SET error = :error WHERE id = :id", {"error": error, "id": job_id})
    (record,) = prune(store, "dead")
    assert record.code == "BROKEN"


def test_concurrent_pruning_deletes_each_job_once(store):
    open_worker(store)
    enqueue(store, 200)
    settle_leases(store, claim(store, 200))
    removed = run_concurrently(
        *[lambda: sum(one.jobs for one in prune(store, limit=40)) for _ in range(8)]
    )
    assert sum(removed) == 200 - count(store, "job")
    assert sql(store, "SELECT sum(count) FROM {p}pruned")[0][0] == sum(removed)


@pytest.mark.seed("003-46")
def test_upkeep_applies_the_retention_of_each_state_and_kind(store):
    ids = {
        name: run_once(store, outcome, kind=kind)
        for name, outcome, kind in [
            ("succeeded", RETURNED, "render"),
            ("dead", FATAL, "render"),
            ("cancelled", CANCELLED, "render"),
            ("short", RETURNED, "mail"),
            ("long", RETURNED, "report"),
        ]
    }
    kinds = {
        "mail": KindSpec("mail", retention=HOUR),
        "report": KindSpec("report", retention=400 * DAY),
        "render": KindSpec("render"),
    }
    settings = Settings(
        retention=RetentionSection(succeeded=7 * 86_400, dead=90 * 86_400, cancelled=30 * 86_400)
    )
    left = []
    for shift in (2 * HOUR, 8 * DAY, 23 * DAY, 60 * DAY, 400 * DAY):
        store.shift_clock(shift)
        upkeep.prune(store, settings, kinds)
        left.append(
            {name for name, job_id in ids.items() if job_id in {row.id for row in all_rows(store)}}
        )
    assert left == [
        {"succeeded", "dead", "cancelled", "long"},
        {"dead", "cancelled", "long"},
        {"dead", "long"},
        {"long"},
        set(),
    ]


def test_kinds_with_their_own_retention_do_not_slow_pruning_down(store, monkeypatch):
    """Each of them costs three transactions, not three for every 200 jobs of other kinds."""
    open_worker(store)
    enqueue(store, 1000)
    settle_leases(store, claim(store, 1000))
    store.shift_clock(100 * DAY)
    begun = Counter()
    begin = store.begin

    def counted():
        begun["transactions"] += 1
        return begin()

    monkeypatch.setattr(store, "begin", counted)
    kinds = {f"k{i}": KindSpec(f"k{i}", retention=HOUR) for i in range(20)}
    assert upkeep.prune(store, Settings(), kinds, lambda: False) >= 1000
    assert count(store, "job") == 0
    assert begun["transactions"] <= 3 * 22 + 1000 / upkeep.BATCH_SIZE + 3


# --- Events ---
def test_events_are_pruned_in_small_steps_oldest_first(store):
    with store.begin() as tx:
        EventQueries(tx).write_events(
            [NewEvent(EventType.QUEUE_CHANGED, owner=str(n)) for n in range(10)]
        )
    store.shift_clock(DAY)
    with store.begin() as tx:
        EventQueries(tx).write_events([NewEvent(EventType.QUEUE_CHANGED, owner="new")])
        before = tx.now() - HOUR
    with store.begin() as tx:
        assert EventQueries(tx).prune_events(before, 4) == 4
        assert [event.owner for event in EventQueries(tx).list_events_after(0, 100)] == [
            *"456789",
            "new",
        ]
        assert [EventQueries(tx).prune_events(before, 4) for _ in range(3)] == [4, 2, 0]


def test_pruning_does_not_read_all_recent_events(postgres):
    with postgres.begin() as tx:
        JobQueries(tx).insert_jobs(jobs(3000), announce=True)
    statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + statement_of("list_oldest_events")
    params = {"floor": 0, "limit": 100}
    with postgres.transaction() as connection:
        (plan,) = connection.execute(statement, params).fetchone()
    assert rows_read(plan[0]["Plan"], "event") <= 200


def statement_of(verb):
    from mulligan.storage.statements import load_statement

    return load_statement(verb, "postgres", '"mulligan".')


def rows_read(node, table):
    """Count the rows of a table that the scans of a plan read."""
    row_count = 0
    if node.get("Relation Name") == table and "Scan" in node["Node Type"]:
        row_count = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node[
            "Actual Loops"
        ]
    return row_count + sum(rows_read(child, table) for child in node.get("Plans", []))


def test_old_prune_records_are_deleted(store):
    run_once(store, FATAL)
    prune(store, "dead")
    with store.begin() as tx:
        RetentionQueries(tx).delete_prune_records(tx.now() - DAY)
    assert count(store, "pruned") == 1
    store.shift_clock(2 * DAY)
    with store.begin() as tx:
        RetentionQueries(tx).delete_prune_records(tx.now() - DAY)
    assert count(store, "pruned") == 0
