"""Bundles: events of many jobs in one row, invisible to readers."""

from __future__ import annotations

import psycopg
import pytest

from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import BUNDLE_LIMIT, EventQueries, StatQueries
from mulligan.jobs.queries import JobQueries
from mulligan.storage.postgres_transaction import PostgresTransaction
from support.store import (
    FAILED,
    RETURNED,
    BackgroundCall,
    claim,
    enqueue,
    event_types,
    get,
    is_postgres,
    job_events,
    jobs,
    open_worker,
    read_event_table,
    rolled_back,
    run_concurrently,
    settle_leases,
    sql,
)

HOUR = 3_600_000_000
HOSTILE = 'a"b\\c\nd\te{"f":[1]}\u2028ü'


def rows_of(store, kind):
    """Return how many events each row of this type has; None: a single event."""
    query = "SELECT bundle FROM {p}event WHERE type = :kind ORDER BY id"
    return [row[0] for row in sql(store, query, {"kind": kind})]


def log(store, cursor=0, limit=100_000):
    with store.read() as tx:
        return EventQueries(tx).list_events_after(cursor, limit)


def ended(store, many, **options):
    """Enqueue, claim and settle jobs together."""
    open_worker(store)
    enqueue(store, many, **options)
    leases = claim(store, many)
    assert len(leases) == many
    settle_leases(store, leases, RETURNED)
    return leases


@pytest.mark.parametrize("kind", ["job.queued", "job.started", "job.succeeded"])
def test_events_of_many_jobs_at_once_are_one_row(store, kind):
    ended(store, 40)
    assert rows_of(store, kind) == [40]


def test_an_event_of_one_job_is_a_row(store):
    ended(store, 1)
    assert [rows_of(store, f"job.{kind}") for kind in ("queued", "started", "succeeded")] == [
        [None]
    ] * 3


def test_events_read_from_bundles_equal_single_events(store):
    [single] = ended(store, 1, payload='{"n":1}', owner=HOSTILE)
    bundled = ended(store, 12, payload='{"n":1}', owner=HOSTILE)

    def without_ids(lease):
        events = job_events(store, lease.id)
        assert {event.job_id for event in events} == {lease.id}
        finished_at = get(store, lease.id).finished_at
        times = [event.at for event in events]
        assert times == [lease.created_at, lease.started_at, finished_at]
        return [event._replace(id=0, at=0, job_id="", data=[*event.data]) for event in events]

    assert [without_ids(lease) for lease in bundled] == [without_ids(single)] * 12


def test_jobs_that_fail_together_keep_their_own_events(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    settle_leases(store, leases[:6], FAILED)
    settle_leases(store, leases[6:], RETURNED)
    for lease in leases[:6]:
        assert event_types(store, lease.id) == ["queued", "started", "retry_scheduled"]
    for lease in leases[6:]:
        assert event_types(store, lease.id) == ["queued", "started", "succeeded"]


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("owner = :value", "acme"),  # as in all jobs
        ("owner = :value", "ada"),
        ("owner = :value", HOSTILE),
        ("batch_id = :value", "b1"),
        ("run_at = run_at - :value", 5000),
    ],
)
def test_jobs_that_differ_in_one_column_keep_their_own_values(store, change, value):
    open_worker(store)
    ids = enqueue(store, 12)
    statement = "UPDATE {p}job SET CHANGE WHERE id < :middle".replace("CHANGE", change)
    sql(store, statement, {"value": value, "middle": ids[6]})
    check_events_have_the_columns_of_their_jobs(store, ids)


def test_jobs_of_which_some_failed_before_keep_their_own_values(store):
    open_worker(store)
    ids = enqueue(store, 12)
    settle_leases(store, claim(store, 4), FAILED)
    store.shift_clock(HOUR)
    check_events_have_the_columns_of_their_jobs(store, ids)


def check_events_have_the_columns_of_their_jobs(store, ids):
    """Claim and settle the jobs together, and compare their events with their rows."""
    leases = claim(store, 12)
    settle_leases(store, leases, RETURNED)
    rows = {job_id: get(store, job_id) for job_id in ids}
    found = [event for event in log(store) if event.type in {"job.started", "job.succeeded"}]
    assert {event.job_id for event in found} == set(ids)
    for event in found[-24:]:
        row = rows[event.job_id]
        assert (event.owner, event.batch_id, event.token, event.attempt) == (
            row.owner,
            row.batch_id,
            row.token,
            row.attempt,
        )
        if event.type == "job.succeeded":
            assert event.data["wait_ms"] == max(0, row.started_at - row.run_at) // 1000


def test_pages_of_any_size_read_every_event_once(store):
    ended(store, 30)
    with store.begin() as tx:
        EventQueries(tx).write_events([NewEvent(EventType.QUEUE_CHANGED, actor="ann")])
    enqueue(store, 7)
    whole = [event.id for event in log(store)]
    assert whole == [row[0] for row in read_event_table(store)]
    assert whole == [*range(whole[0], whole[-1] + 1)]
    for size in (1, 2, 7, 29, 31, 500):
        read, cursor = [], 0
        while page := log(store, cursor, size):
            assert len(page) <= size
            read += [event.id for event in page]
            cursor = read[-1]
        assert read == whole


def test_a_range_may_end_inside_a_bundle(store):
    """The dispatcher reads ranges of ids and must not skip the start of a bundle."""
    ended(store, 30)
    with store.read() as tx:
        top = EventQueries(tx).newest_event()
        read = [
            event.id
            for start in range(0, top, 7)
            for event in EventQueries(tx).list_events_of_types(
                ["job.started", "job.succeeded"], start, min(start + 7, top), 1000
            )
        ]
    assert read == [
        event.id for event in log(store) if event.type != "job.queued" and event.job_id is not None
    ]


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_counting_in_steps_counts_every_event_once(store, limit):
    ended(store, 30)
    counted = {"job.queued": 0, "job.succeeded": 0}
    with store.read() as tx:
        cursor, top = 0, EventQueries(tx).newest_event()
        while cursor < top:
            cursor, events = StatQueries(tx).list_events_to_count(cursor, limit)
            for _, kind, *rest in events:
                if kind in counted:
                    counted[kind] += rest[2] if len(rest) > 2 else 1
    assert counted == {"job.queued": 30, "job.succeeded": 30}


def test_a_bundle_has_at_most_a_thousand_events(store):
    enqueue(store, 2 * BUNDLE_LIMIT + 1)
    assert sorted(rows_of(store, "job.queued"), key=lambda n: n or 1) == [
        None,
        BUNDLE_LIMIT,
        BUNDLE_LIMIT,
    ]
    assert len(log(store)) == 2 * BUNDLE_LIMIT + 1


def test_concurrent_bundles_share_no_id(store):
    """On PostgreSQL concurrent writers draw ids in turns: a bundle ends where another begins."""
    run_concurrently(*[lambda: [enqueue(store, 50) for _ in range(6)] for _ in range(6)])
    ids = [event.id for event in log(store)]
    assert len(ids) == 1800
    assert ids == sorted(set(ids))
    assert {event.job_id for event in log(store)} == {
        row[0] for row in sql(store, "SELECT id FROM {p}job")
    }


def test_ids_of_a_pruned_bundle_are_not_reused(store):
    enqueue(store, 20)
    last = log(store)[-1].id
    sql(store, "DELETE FROM {p}event")
    enqueue(store, 20)
    assert log(store)[0].id > last


def test_a_rolled_back_bundle_leaves_no_events(store):
    with rolled_back(store.begin()) as tx:
        JobQueries(tx).insert_jobs(jobs(5), announce=True)
    assert log(store) == []


def test_a_reader_waits_for_a_bundle_that_is_still_being_written(store):
    if not is_postgres(store):
        pytest.skip("SQLite has one writer")
    enqueue(store, 20)
    read = log(store)[-1].id
    with store.begin() as tx:
        JobQueries(tx).insert_jobs(jobs(20), announce=True)
        BackgroundCall(lambda: enqueue(store, 20)).result()
        assert log(store, read) == []
    assert len(log(store, read)) == 40


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_reader_waits_even_for_the_first_event(store, autocommit):
    if not is_postgres(store):
        pytest.skip("SQLite has one writer")
    with psycopg.connect(store.dsn) as connection:
        JobQueries(PostgresTransaction(connection, store, autocommit=autocommit)).insert_jobs(
            jobs(1), announce=True
        )
        enqueue(store)
        with store.read() as tx:
            assert EventQueries(tx).newest_event() == 0
    assert len(log(store)) == 2


def test_a_single_remaining_event_is_not_bundled(store):
    ended(store, 1001)
    for kind in ("queued", "started", "succeeded"):
        assert {*rows_of(store, f"job.{kind}")} == {1000, None}
    ids = [event.id for event in log(store)]
    assert ids == list(range(1, len(ids) + 1))
