"""History leaves in small steps, with all that belongs to it, and leaves a record."""

from __future__ import annotations

import json

import pytest

from mulligan.config import RetentionSection, Settings
from mulligan.core.event import EventType, NewEvent
from mulligan.manifest.specs import KindSpec
from mulligan.worker import upkeep
from support.store import (
    CANCELLED,
    FAILED,
    FATAL,
    HOUR,
    PARKED,
    RETURNED,
    all_rows,
    claim,
    ended,
    enqueue,
    finish,
    insert,
    jobs,
    once_more,
    open_worker,
    running,
    sql,
    together,
    unique_job,
)

DAY = 24 * HOUR


def prune(store, state="succeeded", *, age=0, most=1000, kind=None, except_kinds=()):
    with store.begin() as unit:
        return unit.prune_jobs(
            state, unit.now() + 1 - age, most, kind=kind, except_kinds=list(except_kinds)
        )


def count(store, table):
    return sql(store, f"SELECT count(*) FROM {{p}}{table}")[0][0]  # noqa: S608


def test_a_finished_job_leaves_with_its_attempts_and_checkpoints(store):
    lease = running(store)
    with store.begin() as unit:
        unit.save_checkpoint(lease.id, "w1", 1, "page", "17")
    finish(store, lease, FAILED)
    finish(store, once_more(store, lease.id))
    assert (count(store, "attempt"), count(store, "checkpoint")) == (2, 1)
    prune(store)
    assert [count(store, table) for table in ("job", "attempt", "checkpoint")] == [0, 0, 0]


@pytest.mark.seed("004-29")
def test_what_is_pruned_leaves_one_record_and_one_event_for_each_kind_owner_and_code(store):
    dead = [ended(store, FATAL) for _ in range(3)]
    other = ended(store, FATAL, owner="beta")
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
    with store.read() as unit:
        told = [event for event in unit.list_events_after(0, 100) if event.type == "job.pruned"]
    assert sorted((event.owner, event.data["code"]) for event in told) == [
        ("acme", "BROKEN"),
        ("beta", "BROKEN"),
    ]


def test_nothing_leaves_before_its_time_or_from_another_state(store):
    kept = [ended(store, outcome) for outcome in (FATAL, CANCELLED, PARKED, RETURNED)]
    kept += enqueue(store)
    kept.append(running(store).id)
    assert prune(store, "succeeded", age=HOUR) == []
    assert sorted(row.id for row in all_rows(store)) == sorted(kept)


def test_a_step_is_bounded_and_takes_the_oldest_first(store):
    open_worker(store)
    ids = enqueue(store, 25)
    for job_id in ids:
        finish(store, [lease for lease in claim(store) if lease.id == job_id])
    assert sum(one.jobs for one in prune(store, most=10)) == 10
    assert [row.id for row in all_rows(store)] == ids[10:]
    assert [sum(one.jobs for one in prune(store, most=10)) for _ in range(3)] == [10, 5, 0]


def test_kinds_with_a_retention_of_their_own_are_left_to_it(store):
    ours, theirs = ended(store, RETURNED), ended(store, RETURNED, kind="mail")
    assert [one.kind for one in prune(store, except_kinds=["mail", "report"])] == ["render"]
    assert [row.id for row in all_rows(store)] == [theirs]
    assert prune(store, kind="render") == []
    assert [one.kind for one in prune(store, kind="mail")] == ["mail"]
    assert ours != theirs


def test_members_stay_as_long_as_their_batch(store):
    member = ended(store, RETURNED, batch_id="b1")
    assert prune(store) == []
    assert [row.id for row in all_rows(store)] == [member]


def test_a_key_is_free_once_its_result_is_gone(store):
    ended(store, RETURNED, job=unique_job("k"))
    assert not insert(store, unique_job("k"))[0].fresh
    prune(store)
    assert insert(store, unique_job("k"))[0].fresh


@pytest.mark.parametrize("text", ["nul \x00", "lone \ud800", "{}"])
def test_no_text_in_an_error_stops_the_pruning(store, text):
    job_id = ended(store, FATAL)
    error = json.dumps({"code": "BROKEN", "message": text})
    sql(store, "UPDATE {p}job SET error = :error WHERE id = :id", {"error": error, "id": job_id})
    (record,) = prune(store, "dead")
    assert record.code == "BROKEN"


def test_many_who_prune_at_once_remove_each_job_once(store):
    open_worker(store)
    enqueue(store, 200)
    finish(store, claim(store, 200))
    removed = together(*[lambda: sum(one.jobs for one in prune(store, most=40)) for _ in range(8)])
    assert sum(removed) == 200 - count(store, "job")
    assert sql(store, "SELECT sum(count) FROM {p}pruned")[0][0] == sum(removed)


@pytest.mark.seed("003-46")
def test_one_turn_of_upkeep_keeps_what_each_state_and_kind_is_worth(store):
    ids = {
        name: ended(store, outcome, kind=kind)
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


# -- events --------------------------------------------------------------------------------------
def test_events_leave_in_small_steps_the_oldest_first(store):
    with store.begin() as unit:
        unit.write_events([NewEvent(EventType.QUEUE_CHANGED, owner=str(n)) for n in range(10)])
    store.shift_clock(DAY)
    with store.begin() as unit:
        unit.write_events([NewEvent(EventType.QUEUE_CHANGED, owner="new")])
        before = unit.now() - HOUR
    with store.begin() as unit:
        assert unit.prune_events(before, 4) == 4
        assert [event.owner for event in unit.list_events_after(0, 100)] == [*"456789", "new"]
        assert [unit.prune_events(before, 4) for _ in range(3)] == [4, 2, 0]


def test_looking_for_old_events_does_not_read_all_the_young_ones(postgres):
    with postgres.begin() as unit:
        unit.insert_jobs(jobs(3000), announce=True)
    statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + statement_of("list_oldest_events")
    params = {"floor": 0, "limit": 100}
    with postgres.transaction() as connection:
        (plan,) = connection.execute(statement, params).fetchone()
    assert rows_read(plan[0]["Plan"], "event") <= 200


def statement_of(verb):
    from mulligan.storage.sql import load_statement

    return load_statement(verb, "postgres", '"mulligan".')


def rows_read(node, table):
    """How many rows the scans of a table looked at."""
    own = 0
    if node.get("Relation Name") == table and "Scan" in node["Node Type"]:
        own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return own + sum(rows_read(child, table) for child in node.get("Plans", []))


def test_records_of_what_was_pruned_leave_too(store):
    ended(store, FATAL)
    prune(store, "dead")
    with store.begin() as unit:
        unit.delete_prune_records(unit.now() - DAY)
    assert count(store, "pruned") == 1
    store.shift_clock(2 * DAY)
    with store.begin() as unit:
        unit.delete_prune_records(unit.now() - DAY)
    assert count(store, "pruned") == 0
