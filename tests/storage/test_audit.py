"""Audit events: immutable, stored longer than others, found by actor and time."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.event import SYSTEM_ACTORS, EventType, NewEvent
from mulligan.events.queries import AuditFilter, EventQueries
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries
from mulligan.storage.statements import load_statement
from mulligan.worker.queries import RetentionQueries
from support.store import HOUR, enqueue, migrated, now, sql, unique_job

DAY = 24 * HOUR


@pytest.fixture
def store(store_url):
    with migrated(store_url) as opened:
        yield opened


def write_actions(store, *actors, kind=EventType.QUEUE_CHANGED, owner="", job_id=None):
    with store.begin() as tx:
        EventQueries(tx).write_events(
            NewEvent(kind, actor=actor, owner=owner, job_id=job_id) for actor in actors
        )


def actors(store):
    with store.read() as tx:
        return [event.actor for event in EventQueries(tx).list_events_after(0, 1000)]


def actors_of(store, *types, limit=100, **filters):
    with store.read() as tx:
        return [
            event.actor
            for event in EventQueries(tx).list_audit_events(AuditFilter(**filters), types, limit)
        ]


@pytest.mark.security("S53")
@pytest.mark.parametrize("change", ["actor = 'bob'", "data = '{}'", "at = at + 1"])
def test_an_event_is_never_changed_afterwards(store, change):
    write_actions(store, "ann")
    with pytest.raises(Exception, match="events are never changed"):
        sql(store, f"UPDATE {{p}}event SET {change}")  # noqa: S608 - our own
    assert actors(store) == ["ann"]


def test_actors_other_than_the_system_are_people(store):
    write_actions(store, *sorted(SYSTEM_ACTORS))
    enqueue(store)
    write_actions(store, "w_1", kind=EventType.JOB_STALE_REFUSED)
    assert actors_of(store) == []
    write_actions(store, "ann", "python")
    assert actors_of(store) == ["python", "ann"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_statement_excludes_exactly_the_system_actors(dialect):
    statement = load_statement("list_audit_events", dialect, "")
    assert ", ".join(f"'{actor}'" for actor in sorted(SYSTEM_ACTORS)) in statement


def test_actions_are_found_by_actor_time_type_and_owner(store):
    write_actions(store, "ann", owner="acme", job_id="j1")
    write_actions(store, "bob", kind=EventType.JOB_RETRIED)
    moment = now(store)
    store.shift_clock(HOUR)
    write_actions(store, "ann", kind=EventType.QUEUE_PAUSED)
    assert actors_of(store) == ["ann", "bob", "ann"]
    assert actors_of(store, actor="ann") == ["ann", "ann"]
    assert actors_of(store, "job.retried", "queue.paused") == ["ann", "bob"]
    assert actors_of(store, since=moment + SECOND) == ["ann"]
    assert actors_of(store, until=moment + SECOND) == ["bob", "ann"]
    assert actors_of(store, owner="acme") == actors_of(store, job_id="j1") == ["ann"]
    assert actors_of(store, limit=1) == ["ann"]
    with store.read() as tx:
        newest = EventQueries(tx).list_audit_events(AuditFilter(), (), 1)[0]
    assert actors_of(store, before=newest.id) == ["bob", "ann"]


def test_actions_of_people_outlive_other_events(store):
    write_actions(store, "upkeep", "ann", "", "upkeep")
    store.shift_clock(2 * DAY)
    write_actions(store, "upkeep")
    with store.begin() as tx:
        assert EventQueries(tx).prune_events(tx.now() - DAY, 100) == 3
        assert EventQueries(tx).prune_audit_events(tx.now() - 3 * DAY, 100) == 0
    assert actors(store) == ["ann", "upkeep"]
    store.shift_clock(2 * DAY)
    with store.begin() as tx:
        assert EventQueries(tx).prune_audit_events(tx.now() - 3 * DAY, 100) == 1
    assert actors(store) == ["upkeep"]


def test_pruning_does_not_examine_remaining_actions_again(store):
    write_actions(store, *["ann"] * 10, *["upkeep"] * 5)
    store.shift_clock(2 * DAY)
    with store.begin() as tx:
        before = tx.now() - DAY
        assert [EventQueries(tx).prune_events(before, 5) for _ in range(4)] == [0, 0, 5, 0]
    assert actors(store) == ["ann"] * 10


def test_concurrent_pruning_loses_nothing_and_never_moves_back(store):
    write_actions(store, "upkeep", "ann", "upkeep")
    store.shift_clock(2 * DAY)
    with store.begin() as tx:
        before = tx.now() - DAY
        EventQueries(tx).prune_events(before, 2)
        tx.rows("raise_pruned_event_id", floor="1")
        assert EventQueries(tx).prune_events(before, 100) == 1
    assert actors(store) == ["ann"]


def test_full_token_buckets_of_owners_are_deleted(store):
    with store.begin() as tx:
        GuardQueries(tx).lock_token_buckets([("owner", "acme"), ("queue", "pdf")])
        RetentionQueries(tx).delete_old_token_buckets(tx.now())
    assert sql(store, "SELECT scope FROM {p}meter") == [("queue",)]


def test_the_holder_of_a_unique_key_is_found(store):
    job = unique_job("k", unique_for=60 * SECOND)
    with store.begin() as tx:
        JobQueries(tx).insert_jobs([job], announce=True)
        assert JobQueries(tx).find_unique_holder(job.unique_hash) == job.id
        assert not JobQueries(tx).release_expired_key(job.unique_hash)
    store.shift_clock(61 * SECOND)
    with store.begin() as tx:
        assert JobQueries(tx).find_unique_holder(job.unique_hash) is None
        assert JobQueries(tx).release_expired_key(job.unique_hash)
        assert not JobQueries(tx).release_expired_key(job.unique_hash)


AUDIT_PARAMS = {**AuditFilter()._asdict(), "all_types": True, "limit": 50}


def test_few_actions_among_many_events_are_found_by_an_index_on_postgres(postgres_url):
    with migrated(postgres_url) as store:
        write_actions(store, *["schedule"] * 3000)
        write_actions(store, "ann", "bob")
        with store.transaction() as connection:
            connection.execute('ANALYZE "mulligan".event')
            statement = "EXPLAIN " + load_statement("list_audit_events", "postgres", '"mulligan".')
            plan = "\n".join(
                row[0] for row in connection.execute(statement, {**AUDIT_PARAMS, "types": "{}"})
            )
        assert "event_for_audit" in plan


def test_few_actions_among_many_events_are_found_by_an_index_on_sqlite(sqlite_url):
    with migrated(sqlite_url) as store:
        enqueue(store, 10)
        with store.transaction() as connection:
            statement = "EXPLAIN QUERY PLAN " + load_statement(
                "list_audit_events", "sqlite", "mulligan_"
            )
            plan = [
                str(row) for row in connection.execute(statement, {**AUDIT_PARAMS, "types": "[]"})
            ]
        assert any("event_for_audit" in line for line in plan), plan
