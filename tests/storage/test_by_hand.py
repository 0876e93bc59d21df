"""What people did: never changed, kept longer than the rest, found by who and when."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.event import SYSTEM_ACTORS, EventType, NewEvent
from mulligan.storage.access_queries import AuditFilter
from mulligan.storage.sql import load_statement
from support.store import HOUR, enqueue, migrated, now, sql, unique_job

DAY = 24 * HOUR


@pytest.fixture
def store(store_url):
    with migrated(store_url) as opened:
        yield opened


def tell(store, *actors, kind=EventType.QUEUE_CHANGED, owner="", job_id=None):
    with store.begin() as unit:
        unit.write_events(
            NewEvent(kind, actor=actor, owner=owner, job_id=job_id) for actor in actors
        )


def actors(store):
    with store.read() as unit:
        return [event.actor for event in unit.list_events_after(0, 1000)]


def deeds(store, *types, limit=100, **asked):
    with store.read() as unit:
        return [event.actor for event in unit.list_audit_events(AuditFilter(**asked), types, limit)]


@pytest.mark.security("S53")
@pytest.mark.parametrize("change", ["actor = 'bob'", "data = '{}'", "at = at + 1"])
def test_an_event_is_never_changed_afterwards(store, change):
    tell(store, "ann")
    with pytest.raises(Exception, match="events are never changed"):
        sql(store, f"UPDATE {{p}}event SET {change}")  # noqa: S608 - our own
    assert actors(store) == ["ann"]


def test_people_are_all_who_are_not_ourselves(store):
    tell(store, *sorted(SYSTEM_ACTORS))
    enqueue(store)
    tell(store, "w_1", kind=EventType.JOB_STALE_REFUSED)
    assert deeds(store) == []
    tell(store, "ann", "python")
    assert deeds(store) == ["python", "ann"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_statement_and_the_code_mean_the_same_people(dialect):
    statement = load_statement("list_audit_events", dialect, "")
    assert ", ".join(f"'{actor}'" for actor in sorted(SYSTEM_ACTORS)) in statement


def test_actions_are_found_by_who_when_what_and_whose(store):
    tell(store, "ann", owner="acme", job_id="j1")
    tell(store, "bob", kind=EventType.JOB_RETRIED)
    moment = now(store)
    store.shift_clock(HOUR)
    tell(store, "ann", kind=EventType.QUEUE_PAUSED)
    assert deeds(store) == ["ann", "bob", "ann"]
    assert deeds(store, actor="ann") == ["ann", "ann"]
    assert deeds(store, "job.retried", "queue.paused") == ["ann", "bob"]
    assert deeds(store, since=moment + SECOND) == ["ann"]
    assert deeds(store, until=moment + SECOND) == ["bob", "ann"]
    assert deeds(store, owner="acme") == deeds(store, job_id="j1") == ["ann"]
    assert deeds(store, limit=1) == ["ann"]
    with store.read() as unit:
        newest = unit.list_audit_events(AuditFilter(), (), 1)[0]
    assert deeds(store, before=newest.id) == ["bob", "ann"]


def test_what_people_did_outlives_the_rest(store):
    tell(store, "upkeep", "ann", "", "upkeep")
    store.shift_clock(2 * DAY)
    tell(store, "upkeep")
    with store.begin() as unit:
        assert unit.prune_events(unit.now() - DAY, 100) == 3
        assert unit.prune_audit_events(unit.now() - 3 * DAY, 100) == 0
    assert actors(store) == ["ann", "upkeep"]
    store.shift_clock(2 * DAY)
    with store.begin() as unit:
        assert unit.prune_audit_events(unit.now() - 3 * DAY, 100) == 1
    assert actors(store) == ["upkeep"]


def test_what_stays_behind_is_not_looked_at_again(store):
    tell(store, *["ann"] * 10, *["upkeep"] * 5)
    store.shift_clock(2 * DAY)
    with store.begin() as unit:
        before = unit.now() - DAY
        assert [unit.prune_events(before, 5) for _ in range(4)] == [0, 0, 5, 0]
    assert actors(store) == ["ann"] * 10


def test_two_who_prune_at_once_lose_nothing_and_go_back_nowhere(store):
    tell(store, "upkeep", "ann", "upkeep")
    store.shift_clock(2 * DAY)
    with store.begin() as unit:
        before = unit.now() - DAY
        unit.prune_events(before, 2)
        unit.rows("raise_pruned_event_id", floor="1")
        assert unit.prune_events(before, 100) == 1
    assert actors(store) == ["ann"]


def test_a_meter_of_an_owner_is_forgotten_once_it_is_full_again(store):
    with store.begin() as unit:
        unit.lock_token_buckets([("owner", "acme"), ("queue", "pdf")])
        unit.delete_old_token_buckets(unit.now())
    assert sql(store, "SELECT scope FROM {p}meter") == [("queue",)]


def test_whose_a_key_is(store):
    job = unique_job("k", unique_for=60 * SECOND)
    with store.begin() as unit:
        unit.insert_jobs([job], announce=True)
        assert unit.find_unique_holder(job.unique_hash) == job.id
        assert not unit.release_expired_key(job.unique_hash)
    store.shift_clock(61 * SECOND)
    with store.begin() as unit:
        assert unit.find_unique_holder(job.unique_hash) is None
        assert unit.release_expired_key(job.unique_hash)
        assert not unit.release_expired_key(job.unique_hash)


ASKED = {**AuditFilter()._asdict(), "all_types": True, "limit": 50}


def test_a_few_actions_are_found_among_many_events_without_reading_those(postgres_url):
    with migrated(postgres_url) as store:
        tell(store, *["schedule"] * 3000)
        tell(store, "ann", "bob")
        with store.transaction() as connection:
            connection.execute('ANALYZE "mulligan".event')
            statement = "EXPLAIN " + load_statement("list_audit_events", "postgres", '"mulligan".')
            plan = "\n".join(
                row[0] for row in connection.execute(statement, {**ASKED, "types": "{}"})
            )
        assert "event_for_audit" in plan


def test_the_same_on_sqlite(sqlite_url):
    with migrated(sqlite_url) as store:
        enqueue(store, 10)
        with store.transaction() as connection:
            statement = "EXPLAIN QUERY PLAN " + load_statement("list_audit_events", "sqlite", "mulligan_")
            plan = [str(row) for row in connection.execute(statement, {**ASKED, "types": "[]"})]
        assert any("event_for_audit" in line for line in plan), plan
