"""Events that tell the same of many jobs are one row, and nobody who reads them can tell."""

from __future__ import annotations

import psycopg
import pytest

from mulligan.core.event import EventType, NewEvent
from mulligan.storage import event_bundles as bundles
from mulligan.storage.postgres_transaction import PostgresTransaction
from support.store import (
    FAILED,
    RETURNED,
    Background,
    claim,
    enqueue,
    finish,
    get,
    is_postgres,
    jobs,
    log_of,
    open_worker,
    sql,
    story,
    together,
    told,
    undone,
)

HOUR = 3_600_000_000
HOSTILE = 'a"b\\c\nd\te{"f":[1]}\u2028ü'


def rows_of(store, kind):
    return [
        row[0]
        for row in sql(
            store, "SELECT bundle FROM {p}event WHERE type = :kind ORDER BY id", {"kind": kind}
        )
    ]


def log(store, cursor=0, limit=100_000):
    with store.read() as unit:
        return unit.list_events_after(cursor, limit)


def ended(store, many, **options):
    """So many jobs that were enqueued, claimed and finished together."""
    open_worker(store)
    enqueue(store, many, **options)
    leases = claim(store, many)
    assert len(leases) == many
    finish(store, leases, RETURNED)
    return leases


@pytest.mark.parametrize("kind", ["job.queued", "job.started", "job.succeeded"])
def test_what_happens_to_many_at_once_is_one_row(store, kind):
    ended(store, 40)
    assert rows_of(store, kind) == [40]


def test_what_happens_to_one_is_a_row_of_its_own(store):
    ended(store, 1)
    assert [rows_of(store, f"job.{kind}") for kind in ("queued", "started", "succeeded")] == [
        [None]
    ] * 3


def test_a_story_from_bundles_is_that_of_a_job_alone(store):
    [alone] = ended(store, 1, payload='{"n":1}', owner=HOSTILE)
    crowd = ended(store, 12, payload='{"n":1}', owner=HOSTILE)

    def plain(lease):
        events = story(store, lease.id)
        assert {event.job_id for event in events} == {lease.id}
        assert [event.at for event in events] == [
            lease.created_at,
            lease.started_at,
            get(store, lease.id).finished_at,
        ]
        return [
            (
                event.type,
                event.owner,
                event.batch_id,
                event.attempt,
                event.token,
                event.actor,
                [*event.data],
            )
            for event in events
        ]

    assert [plain(lease) for lease in crowd] == [plain(alone)] * 12


def test_of_jobs_that_fail_together_each_has_its_own_story(store):
    open_worker(store)
    enqueue(store, 12)
    leases = claim(store, 12)
    finish(store, leases[:6], FAILED)
    finish(store, leases[6:], RETURNED)
    for lease in leases[:6]:
        assert told(store, lease.id) == ["queued", "started", "retry_scheduled"]
    for lease in leases[6:]:
        assert told(store, lease.id) == ["queued", "started", "succeeded"]


@pytest.mark.parametrize(
    "unlike",
    [
        {},
        {"owner": "ada"},
        {"owner": HOSTILE},
        {"batch": True},
        {"failed": True},
        {"texts": True},
    ],
)
def test_jobs_that_differ_in_this_are_told_of_as_what_they_are(store, unlike):
    """However a bundle's text was put together."""
    open_worker(store)
    ids = enqueue(store, 12)
    if "owner" in unlike:
        sql(
            store,
            "UPDATE {p}job SET owner = :owner WHERE id < :middle",
            {"middle": ids[6], **unlike},
        )
    if "batch" in unlike:
        sql(store, "UPDATE {p}job SET batch_id = 'b1' WHERE id < :middle", {"middle": ids[6]})
    if "failed" in unlike:
        finish(store, claim(store, 4), FAILED)
        store.shift_clock(HOUR)
    if "texts" in unlike:
        sql(
            store, "UPDATE {p}job SET run_at = run_at - 5000 WHERE id < :middle", {"middle": ids[6]}
        )
    leases = claim(store, 12)
    finish(store, leases, RETURNED)
    rows = {job_id: get(store, job_id) for job_id in ids}
    told = [event for event in log(store) if event.type in {"job.started", "job.succeeded"}]
    assert {event.job_id for event in told} == set(ids)
    for event in told[-24:]:
        row = rows[event.job_id]
        assert (event.owner, event.batch_id, event.token, event.attempt) == (
            row.owner,
            row.batch_id,
            row.token,
            row.attempt,
        )
        if event.type == "job.succeeded":
            assert event.data["wait_ms"] == max(0, row.started_at - row.run_at) // 1000


def test_the_log_is_read_in_pages_of_any_size_without_a_gap_or_a_double(store):
    ended(store, 30)
    with store.begin() as unit:
        unit.write_events([NewEvent(EventType.QUEUE_CHANGED, actor="ann")])
    enqueue(store, 7)
    whole = [event.id for event in log(store)]
    assert whole == [row[0] for row in log_of(store)]
    assert whole == [*range(whole[0], whole[-1] + 1)]
    for size in (1, 2, 7, 29, 31, 500):
        seen, cursor = [], 0
        while page := log(store, cursor, size):
            assert len(page) <= size
            seen += [event.id for event in page]
            cursor = seen[-1]
        assert seen == whole


def test_a_stretch_may_end_inside_a_bundle(store):
    """The dispatcher reads stretches of ids; one must not skip what lies at the beginning of a bundle."""
    ended(store, 30)
    with store.read() as unit:
        top = unit.newest_event()
        seen = [
            event.id
            for start in range(0, top, 7)
            for event in unit.list_events_of_types(
                ["job.started", "job.succeeded"], start, min(start + 7, top), 1000
            )
        ]
    assert seen == [
        event.id for event in log(store) if event.type != "job.queued" and event.job_id is not None
    ]


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_what_is_counted_is_every_event_once_wherever_a_turn_ends(store, most):
    ended(store, 30)
    counted = {"job.queued": 0, "job.succeeded": 0}
    with store.read() as unit:
        cursor, top = 0, unit.newest_event()
        while cursor < top:
            cursor, news = unit.list_events_to_count(cursor, most)
            for _, kind, *rest in news:
                if kind in counted:
                    counted[kind] += rest[2] if len(rest) > 2 else 1
    assert counted == {"job.queued": 30, "job.succeeded": 30}


def test_a_row_tells_of_no_more_than_a_thousand(store):
    enqueue(store, 2 * bundles.BUNDLE_LIMIT + 1)
    assert sorted(rows_of(store, "job.queued"), key=lambda n: n or 1) == [
        None,
        bundles.BUNDLE_LIMIT,
        bundles.BUNDLE_LIMIT,
    ]
    assert len(log(store)) == 2 * bundles.BUNDLE_LIMIT + 1


def test_sets_told_side_by_side_share_no_id(store):
    """On PostgreSQL ids of several who write at once are drawn in turns: a bundle ends where another begins."""
    together(*[lambda: [enqueue(store, 50) for _ in range(6)] for _ in range(6)])
    ids = [event.id for event in log(store)]
    assert len(ids) == 1800
    assert ids == sorted(set(ids))
    assert {event.job_id for event in log(store)} == {
        row[0] for row in sql(store, "SELECT id FROM {p}job")
    }


def test_ids_of_a_bundle_that_left_are_not_given_again(store):
    enqueue(store, 20)
    last = log(store)[-1].id
    sql(store, "DELETE FROM {p}event")
    enqueue(store, 20)
    assert log(store)[0].id > last


def test_a_bundle_that_is_rolled_back_tells_nothing(store):
    with undone(store.begin()) as unit:
        unit.insert_jobs(jobs(5), announce=True)
    assert log(store) == []


def test_a_reader_waits_for_a_bundle_that_is_still_being_written(store):
    if not is_postgres(store):
        pytest.skip("SQLite has one writer")
    enqueue(store, 20)
    seen = log(store)[-1].id
    with store.begin() as unit:
        unit.insert_jobs(jobs(20), announce=True)
        Background(lambda: enqueue(store, 20)).answer()
        assert log(store, seen) == []
    assert len(log(store, seen)) == 40


@pytest.mark.parametrize("autocommit", [False, True])
def test_not_even_the_very_first_event_is_passed_while_it_is_being_written(store, autocommit):
    if not is_postgres(store):
        pytest.skip("SQLite has one writer")
    with psycopg.connect(store.dsn) as connection:
        PostgresTransaction(connection, store, autocommit=autocommit).insert_jobs(jobs(1), announce=True)
        enqueue(store)
        with store.read() as unit:
            assert unit.newest_event() == 0
    assert len(log(store)) == 2


def test_what_is_left_of_many_and_is_one_is_told_as_one(store):
    ended(store, 1001)
    for kind in ("queued", "started", "succeeded"):
        assert {*rows_of(store, f"job.{kind}")} == {1000, None}
    ids = [event.id for event in log(store)]
    assert ids == list(range(1, len(ids) + 1))
