"""Schedules in the database: one cursor, and one job per slot, with concurrent workers."""

from __future__ import annotations

import json

import pytest

from mulligan.config import Settings, WorkerSection
from mulligan.core.durations import SECOND
from mulligan.core.job import Lane
from mulligan.events.queries import EventQueries
from mulligan.guards.limits import owner_share
from mulligan.manifest.declared import publish_manifest
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import KindSpec, Manifest, QueueSpec, ScheduleSpec
from mulligan.schedules.chore import Scheduler, load_timetable
from mulligan.schedules.queries import ScheduleQueries, ScheduleRow
from mulligan.worker import upkeep
from support.store import (
    HOUR,
    BackgroundCall,
    all_rows,
    get,
    job_events,
    migrated,
    now,
    rolled_back,
    run_concurrently,
    sql,
)

DAY = 24 * HOUR
WORKER = WorkerSection(lease=30, heartbeat=5, sweep=5)


def declare(store, *specs, app="jobs:app", kinds=("render",)):
    manifest = Manifest(
        app,
        "",
        {kind: KindSpec(kind) for kind in kinds},
        schedules={spec.name: spec for spec in specs},
    )
    with store.begin() as tx:
        publish_manifest(tx, manifest)
    return manifest


def every_second(**options):
    return ScheduleSpec("tick", "* * * * * *", "render", **options)


def fire(store, *, ahead=False):
    return Scheduler(store, WORKER).fire(ahead=ahead)


def slots(store):
    return sql(store, "SELECT slot, job_id FROM {p}slot ORDER BY slot")


def rows(store):
    with store.read() as tx:
        return ScheduleQueries(tx).list_schedules()


def skips(store):
    with store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type == "schedule.skipped"
        ]


# --- Statements ---
def test_a_schedule_starts_when_it_is_first_declared(store):
    with store.begin() as tx:
        begun = ScheduleQueries(tx).declare_schedule("nightly", "0 3 * * *", "UTC")
        assert ScheduleQueries(tx).declare_schedule("nightly", "0 4 * * *", "UTC") is None
    assert rows(store) == [begun]
    assert abs(begun.cursor - now(store)) < 10 * SECOND


def test_a_cursor_is_moved_by_compare_and_set(store):
    with store.begin() as tx:
        begun = ScheduleQueries(tx).declare_schedule("nightly", "0 3 * * *", "UTC")
        moved = begun._replace(cursor=begun.cursor + 5)
        assert ScheduleQueries(tx).advance_schedule(moved, from_cursor=begun.cursor)
        assert not ScheduleQueries(tx).advance_schedule(
            moved._replace(cursor=begun.cursor + 9), from_cursor=begun.cursor
        )
        assert not ScheduleQueries(tx).advance_schedule(
            moved._replace(name="other"), from_cursor=begun.cursor
        )
    assert rows(store)[0].cursor == begun.cursor + 5


def test_a_slot_gets_one_job(store):
    with store.begin() as tx:
        assert ScheduleQueries(tx).claim_slots("nightly", {7: "a", 8: "b"}) == {7, 8}
        assert ScheduleQueries(tx).claim_slots("nightly", {8: "c", 9: "d"}) == {9}
        assert ScheduleQueries(tx).claim_slots("weekly", {8: "e"}) == {8}
    assert sql(store, "SELECT job_id FROM {p}slot ORDER BY schedule, slot") == [
        ("a",),
        ("b",),
        ("d",),
        ("e",),
    ]
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql(store, "INSERT INTO {p}slot VALUES ('nightly', 8, 'z')")


# --- Fire ---
def test_a_new_schedule_fires_no_past_slots(store):
    declare(store, every_second())
    assert fire(store) == 0
    assert len(rows(store)) == 1
    assert all_rows(store) == []


def test_slots_are_inserted_up_to_two_sweeps_ahead(store):
    declare(store, every_second())
    made = fire(store, ahead=True)
    assert 5 <= made <= 10
    due = [row.run_at for row in all_rows(store)]
    assert sorted(due) == [slot for slot, _ in slots(store)]
    assert min(due) > rows(store)[0].declared_at
    assert max(due) <= now(store) + 10 * SECOND
    assert [row.run_at % SECOND for row in all_rows(store)] == [0] * made


def test_a_job_records_its_schedule_and_slot(store):
    declare(store, every_second(owner="acme"))
    fire(store, ahead=True)
    slot, job_id = slots(store)[0]
    [queued] = job_events(store, job_id)
    assert (queued.type, queued.actor, queued.owner) == ("job.queued", "schedule", "acme")
    assert queued.data == {
        "kind": "render",
        "queue": "default",
        "run_at": slot,
        "schedule": "tick",
        "slot_at": slot,
    }
    assert upkeep.announce_inserted(store) == 0


def test_a_slot_and_its_job_are_inserted_atomically(store, monkeypatch):
    declare(store, every_second())
    fire(store)
    store.shift_clock(3 * SECOND)
    before = rows(store)
    with monkeypatch.context() as broken:
        broken.setattr("mulligan.schedules.chore.queued_event", lambda *_: 1 / 0)
        assert fire(store) == 0
    assert (rows(store), slots(store), all_rows(store)) == (before, [], [])
    assert fire(store) == len(all_rows(store)) == len(slots(store)) >= 3


def test_concurrent_workers_create_one_job_per_slot(store, store_url):
    declare(
        store,
        every_second(missed="all"),
        ScheduleSpec("twin", "*/2 * * * * *", "render", missed="all"),
    )
    fire(store)
    with migrated(store_url) as other:
        for _ in range(4):
            store.shift_clock(61 * SECOND)
            run_concurrently(
                *[lambda where=where: fire(where) for where in (store, other, store, other)]
            )
    found = sql(store, "SELECT schedule, slot, job_id FROM {p}slot ORDER BY schedule, slot")
    assert sorted(job_id for _, _, job_id in found) == sorted(row.id for row in all_rows(store))
    for name, step in (("tick", 1), ("twin", 2)):
        mine = [slot for schedule, slot, _ in found if schedule == name]
        assert mine == list(range(mine[0], mine[-1] + 1, step * SECOND))
        assert len(mine) >= 240 // step
    assert skips(store) == []


def test_missed_slots_are_caught_up_in_bounded_steps(store):
    declare(store, every_second(missed="all"))
    fire(store)
    store.shift_clock(HOUR)
    assert fire(store) == 1000
    assert len(slots(store)) == 1000
    [event] = skips(store)
    first_slot = slots(store)[0][0]
    assert event.data["last"] == first_slot - SECOND
    assert event.data["count"] == (first_slot - event.data["first"]) // SECOND >= 2600
    assert (event.data["schedule"], event.actor) == ("tick", "schedule")


def test_a_locked_schedule_is_skipped(postgres):
    declare(postgres, every_second())
    fire(postgres)
    [row] = rows(postgres)
    postgres.shift_clock(3 * SECOND)
    with rolled_back(postgres.begin()) as tx:
        assert ScheduleQueries(tx).advance_schedule(
            row._replace(cursor=row.cursor + SECOND), from_cursor=row.cursor
        )
        assert BackgroundCall(lambda: fire(postgres)).result(5) == 0
    assert fire(postgres) >= 3


def test_the_server_ends_a_hanging_transaction_that_locks_a_schedule(postgres):
    declare(postgres, every_second())
    fire(postgres)
    [row] = rows(postgres)
    with postgres.begin() as tx:
        assert ScheduleQueries(tx).advance_schedule(row, from_cursor=row.cursor)
        limit = tx._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert limit == ("10s",)
    with postgres.begin() as tx:
        assert tx._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == (
            "0",
        )


# --- Clock changes ---
@pytest.mark.parametrize("back", [30 * SECOND, HOUR, 3 * DAY])
def test_a_clock_that_is_set_back_creates_no_slot_twice(store, back):
    declare(store, every_second())
    fire(store)
    store.shift_clock(20 * SECOND)
    fire(store)
    made = slots(store)
    assert len(made) >= 20
    store.shift_clock(-back)
    declare(store, every_second())
    fire(store)
    store.shift_clock(back)
    declare(store, every_second())
    fire(store)
    assert slots(store)[: len(made)] == made
    assert len({job_id for _, job_id in slots(store)}) == len(slots(store)) == len(all_rows(store))


def test_a_clock_that_was_years_ahead_does_not_stop_a_schedule_for_years(store):
    declare(store, every_second())
    fire(store)
    store.shift_clock(4 * 365 * DAY)
    declare(store, every_second())
    assert fire(store) == 1
    store.shift_clock(-4 * 365 * DAY)
    declare(store, every_second())
    fire(store)
    store.shift_clock(3 * SECOND)
    assert fire(store) >= 3


# --- Competing declarations ---
def held(store):
    with store.read() as tx:
        return {name: spec.cron for name, spec in load_timetable(tx).schedules.items()}


def test_the_newest_manifest_wins(store):
    declare(store, ScheduleSpec("nightly", "0 3 * * *", "render"))
    store.shift_clock(SECOND)
    declare(store, ScheduleSpec("nightly", "0 4 * * *", "render"))
    assert held(store) == {"nightly": "0 4 * * *"}


def test_an_undeclared_schedule_stops_after_a_day_and_is_deleted_after_a_month(store):
    declare(store, ScheduleSpec("nightly", "0 3 * * *", "render"))
    fire(store)
    store.shift_clock(DAY + SECOND)
    assert held(store) == {}
    assert fire(store) == 0
    upkeep.prune(store, Settings(), {})
    assert [row.name for row in rows(store)] == ["nightly"]
    store.shift_clock(30 * DAY)
    upkeep.prune(store, Settings(), {})
    assert rows(store) == []


def test_a_declared_schedule_is_kept_however_rarely_it_fires(store):
    yearly = ScheduleSpec("yearly", "0 0 1 1 *", "render", missed="skip")
    declare(store, yearly)
    fire(store)
    for _ in range(3):
        store.shift_clock(29 * DAY)
        declare(store, yearly)
        fire(store)
        upkeep.prune(store, Settings(), {})
    assert [row.name for row in rows(store)] == ["yearly"]


def test_a_removed_schedule_stops_once_the_old_workers_are_gone(store):
    declare(store, every_second())
    declare(store)
    assert held(store) == {"tick": "* * * * * *"}
    store.shift_clock(11 * 60 * SECOND)
    declare(store)
    assert held(store) == {}


# --- Removed and declared again ---
HOURLY = ScheduleSpec("hourly", "0 * * * *", "render", missed="all")


def test_a_schedule_declared_again_after_days_starts_now(store):
    declare(store, HOURLY)
    fire(store)
    for _ in range(5):
        store.shift_clock(DAY)
        declare(store)
        fire(store)
    declare(store, HOURLY)
    assert fire(store) == 0
    assert skips(store) == []
    store.shift_clock(HOUR)
    declare(store, HOURLY)
    assert fire(store) == 1


def test_a_schedule_declared_again_by_another_release_starts_now(store):
    declare(store, HOURLY)
    fire(store)
    store.shift_clock(DAY)
    declare(store)
    store.shift_clock(DAY)
    declare(store, HOURLY, kinds=("render", "mail"))
    assert fire(store) == 0


def test_slots_without_a_worker_are_missed_even_after_a_change(store):
    declare(store)
    store.shift_clock(HOUR)
    declare(store, HOURLY)
    fire(store)
    store.shift_clock(2 * DAY)
    declare(store, app="other:app")
    store.shift_clock(DAY)
    declare(store, HOURLY, kinds=("render", "mail"))
    assert fire(store) == 72


def test_a_release_that_was_rolled_back_at_once_costs_no_slot(store):
    store.shift_clock(
        HOUR - now(store) % HOUR + 60 * SECOND
    )  # a minute past the hour: five more minutes pass no slot
    declare(store, HOURLY)
    fire(store)
    store.shift_clock(5 * 60 * SECOND)
    declare(store)
    store.shift_clock(3 * HOUR)
    declare(store, HOURLY)
    assert fire(store) == 3


def test_older_and_newer_manifest_formats_are_read(store):
    old = json.dumps({"app": "old", "release": "", "kinds": []})
    new = {
        "app": "new",
        "release": "",
        "kinds": [],
        "moods": 1,
        "schedules": [{"name": "a", "cron": "0 3 * * *", "kind": "render", "mood": "blue"}],
    }
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest("1", "old", "", old)
        ManifestQueries(tx).store_manifest("2", "new", "", json.dumps(new))
    assert held(store) == {"a": "0 3 * * *"}


def test_a_changed_expression_starts_now_without_catching_up(store):
    declare(store, ScheduleSpec("tick", "0 0 1 1 *", "render", missed="all"))
    fire(store)
    store.shift_clock(HOUR)
    declare(store, every_second(missed="all"))
    assert fire(store) == 0
    assert [(row.cron, row.timezone) for row in rows(store)] == [("* * * * * *", "UTC")]
    store.shift_clock(3 * SECOND)
    changed = rows(store)[0].cursor
    assert fire(store) >= 3
    assert 0 < slots(store)[0][0] - changed <= SECOND
    assert skips(store) == []


def test_a_failing_schedule_does_not_stop_others_and_is_logged_once(store, caplog):
    declare(
        store,
        every_second(),
        ScheduleSpec("adrift", "* * * * *", "render", timezone="Mars/Olympus"),
    )
    keeper = Scheduler(store, WORKER)
    for _ in range(3):
        keeper.fire(ahead=False)
        store.shift_clock(2 * SECOND)
    assert len(slots(store)) >= 2
    assert len([record for record in caplog.records if "adrift" in record.message]) == 1
    for payload in ("{}", '{"n": 1}', '{"n": 2}'):
        changed = ScheduleSpec("adrift", "* * * * *", "render", payload, timezone="Mars/Olympus")
        declare(store, changed)
        keeper.fire(ahead=False)
    assert len(keeper._logged_errors) == 1, "memory does not grow with the errors"


def test_the_job_inherits_options_of_its_kind(store):
    manifest = Manifest(
        "a",
        "",
        {"render": KindSpec("render", queue="gpu", priority=3, uses="bucket")},
        schedules={
            "plain": ScheduleSpec("plain", "* * * * * *", "render", payload='{"n":1}'),
            "own": ScheduleSpec(
                "own",
                "* * * * * *",
                "render",
                queue="slow",
                priority=-1,
                uses="",
                deadline=HOUR,
                max_retries=0,
            ),
        },
    )
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest(manifest.id, "a", "", manifest.to_json())
    fire(store)
    store.shift_clock(SECOND)
    fire(store)
    with store.read() as tx:
        last = ScheduleQueries(tx).get_last_slots()
    inherited, overridden = (get(store, last[name][1]) for name in ("plain", "own"))
    assert (inherited.queue, inherited.priority, inherited.uses, inherited.payload) == (
        "gpu",
        3,
        "bucket",
        '{"n":1}',
    )
    assert (overridden.queue, overridden.priority, overridden.uses, overridden.max_retries) == (
        "slow",
        -1,
        "",
        0,
    )
    assert 0 <= overridden.deadline_at - overridden.run_at - HOUR < 5 * SECOND


def test_in_a_fair_queue_the_job_of_a_slot_has_its_owners_share(store):
    manifest = Manifest(
        "a",
        "",
        {"render": KindSpec("render")},
        {"default": QueueSpec("default", fair=True)},
        {},
        {"tick": every_second(owner="acme")},
    )
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest(manifest.id, "a", "", manifest.to_json())
    fire(store, ahead=True)
    assert {Lane.parse(lane).share for (lane,) in sql(store, "SELECT lane FROM {p}job")} == {
        owner_share("acme")
    }


# --- Retention ---
def test_slots_are_pruned_with_the_events(store):
    declare(store, every_second())
    fire(store)
    store.shift_clock(20 * SECOND)
    fire(store)
    before = slots(store)
    keep = Settings.model_validate({"retention": {"events": 10}})
    upkeep.prune(store, keep, {})
    left = slots(store)
    assert left == before[-len(left) :]
    assert 1 <= len(left) <= 11
    assert [type(row) for row in rows(store)] == [ScheduleRow]
