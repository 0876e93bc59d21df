"""Enqueue: all or nothing, in the transaction of the caller if there is one."""

from __future__ import annotations

import json

import psycopg
import pytest

from mulligan.core.durations import SECOND
from mulligan.core.errors import ConnectionRefused, UniqueMismatch
from mulligan.core.ids import new_id
from mulligan.events.queries import EventQueries
from mulligan.jobs import repair as recover
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.storage import open_store, statements
from mulligan.worker import upkeep
from mulligan.worker.queries import WorkerQueries
from support.store import (
    HOUR,
    a_job,
    all_rows,
    claim,
    claim_new_job,
    enqueue,
    event_types,
    get,
    insert,
    is_postgres,
    job_events,
    jobs,
    now,
    open_worker,
    rolled_back,
    save_checkpoint,
    sql,
    unique_job,
)


def test_a_job_is_stored_unchanged(store):
    job = a_job(
        kind="mail",
        queue="fast",
        owner="acme",
        priority=-3,
        uses="bucket,smtp",
        max_retries=7,
        policy="{}",
        timeout=9,
    )
    (answer,) = insert(store, job)
    row = get(store, job.id)
    assert answer == (job.id, True, row.created_at)
    assert job.due_at(answer.created_at) == row.run_at
    assert (row.kind, row.queue, row.owner, row.priority, row.uses) == (
        "mail",
        "fast",
        "acme",
        -3,
        "bucket,smtp",
    )
    assert (row.state, row.generation, row.attempt, row.token, row.max_retries) == (
        "queued",
        1,
        0,
        0,
        7,
    )
    assert row.run_at == row.created_at


def test_thousands_in_one_call_keep_their_order(store):
    new = jobs(5000)
    assert [one.id for one in insert(store, *new)] == [job.id for job in new]
    assert [row.id for row in all_rows(store)] == [job.id for job in new]
    open_worker(store)
    assert [lease.payload for lease in claim(store, 500)] == [job.payload for job in new[:500]]


# Options of a job, each with a non-default value: equal in a set or not, they must be stored.
OPTIONS = {
    "kind": "mail",
    "queue": "fast",
    "owner": 'a\x1fb, "c" \\ {d}',
    "priority": 3,
    "uses": "smtp",
    "delay": HOUR,
    "run_at": 4_000_000_000_000_000,
    "max_retries": 0,
    "policy": '{"max_retries":1}',
    "timeout": 7 * SECOND,
    "deadline": 2 * HOUR,
    "share": "s1",
    "trace": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
}


STORED_QUERY = """
SELECT kind, queue, owner, priority, lane, uses, max_retries, policy, timeout, trace, payload, must_have,
       run_at - created_at, run_at, deadline_at - created_at, deadline_span
FROM {p}job WHERE id = :id
"""


def stored_row(store, job_id):
    return sql(store, STORED_QUERY, {"id": job_id})[0]


@pytest.mark.parametrize("count", [2, 12], ids=["few", "many"])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_bulk_insert_stores_each_job_like_a_single_insert(store, name, equal, count):
    options = {name: OPTIONS[name]}
    new = [a_job(payload=str(n), **(options if equal or n % 2 else {})) for n in range(count)]
    answers = insert(store, *new)
    for n, (job, answer) in enumerate(zip(new, answers, strict=True)):
        (alone,) = insert(store, job._replace(id=new_id()))
        ours, twin = stored_row(store, job.id), stored_row(store, alone.id)
        assert ours[:12] == twin[:12]
        assert (ours[13] == OPTIONS["run_at"]) is (name == "run_at" and (equal or n % 2 == 1))
        assert name == "run_at" or ours[12] == twin[12]
        assert ours[14:] == twin[14:]
        row = get(store, job.id)
        assert answer == (job.id, True, row.created_at)
        assert job.due_at(answer.created_at) == row.run_at


def test_due_jobs_notify_their_queue_once_and_later_ones_do_not(postgres, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute('LISTEN "mulligan_mulligan"')

        def notified_queues(*new):
            with postgres.single_statement() as tx:
                JobQueries(tx).insert_jobs(new, announce=True)
            return sorted(note.payload for note in listener.notifies(timeout=0.2))

        assert notified_queues(a_job(queue="fast")) == ["fast"]
        assert notified_queues(a_job(delay=HOUR)) == []
        assert notified_queues(unique_job("k", queue="slow")) == ["slow"]
        assert notified_queues(*jobs(2, queue="fast"), a_job(delay=HOUR)) == ["fast"]
        assert notified_queues(*jobs(20, queue="fast"), a_job(queue="slow")) == ["fast", "slow"]
        assert notified_queues(*jobs(20, delay=HOUR)) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"delay": 90 * SECOND}, 90 * SECOND), ({"delay": 0}, 0), ({}, 0)],
)
def test_a_delay_starts_at_the_databases_clock(store, options, expected):
    (job_id,) = enqueue(store, **options)
    row = get(store, job_id)
    assert row.run_at - row.created_at == expected


def test_an_absolute_time_is_stored_to_the_microsecond(store):
    at = now(store) + 5 * HOUR + 1
    (job_id,) = enqueue(store, run_at=at)
    assert get(store, job_id).run_at == at


def test_a_deadline_is_a_duration_or_a_time(store):
    (length,) = enqueue(store, deadline=HOUR)
    at = now(store) + 2 * HOUR
    (moment,) = enqueue(store, deadline_at=at)
    assert get(store, length).deadline_at == get(store, length).created_at + HOUR
    assert get(store, moment).deadline_at == at


@pytest.mark.parametrize(
    "value",
    ["nul \x00 inside", "lone \ud800 surrogate", "\u202eright to left", "é" * 100_000, "\\u0000"],
)
def test_a_payload_is_read_back_unchanged(store, value):
    (job_id,) = enqueue(store, payload=json.dumps({"text": value}))
    assert json.loads(get(store, job_id).payload) == {"text": value}


def test_nothing_of_a_call_is_written_when_one_job_is_refused(store):
    insert(store, unique_job("k", payload="1", unique_exact=True))
    with pytest.raises(UniqueMismatch):
        insert(store, *jobs(3), unique_job("k", payload="2", unique_exact=True))
    assert len(all_rows(store)) == 1


def test_nothing_is_written_if_the_caller_continues_after_a_refusal(store):
    insert(store, unique_job("k", payload="1", unique_exact=True))
    with store.transaction() as connection:
        tx = store.join(connection)
        mine = JobQueries(tx).insert_jobs([a_job()], announce=False)
        with pytest.raises(UniqueMismatch):
            JobQueries(tx).insert_jobs(
                [*jobs(3), unique_job("k", payload="2", unique_exact=True)], announce=False
            )
    assert [row.id for row in all_rows(store)][1:] == [mine[0].id]


INVALID = {
    "one": [a_job()],
    "many": jobs(3),
    "keyed": [unique_job("k")],
    "many, keyed": [unique_job("k"), *jobs(3)],
}


@pytest.mark.parametrize("new", INVALID.values(), ids=INVALID)
def test_a_job_is_rolled_back_with_the_callers_transaction(store, new):
    with rolled_back(store.transaction()) as connection:
        JobQueries(store.join(connection)).insert_jobs(new, announce=False)
    assert all_rows(store) == []


def test_a_job_is_visible_once_the_callers_transaction_commits(store):
    with store.transaction() as connection:
        JobQueries(store.join(connection)).insert_jobs(jobs(3), announce=False)
        assert all_rows(store) == []
    assert len(all_rows(store)) == 3


def test_upkeep_writes_the_missing_event_of_a_callers_job_once(store):
    with store.transaction() as connection:
        (answer,) = JobQueries(store.join(connection)).insert_jobs([a_job()], announce=False)
    assert event_types(store, answer.id) == []
    with store.begin() as tx:
        assert JobQueries(tx).announce_jobs(100) == 1
        assert JobQueries(tx).announce_jobs(100) == 0
    (queued,) = job_events(store, answer.id)
    row = get(store, answer.id)
    assert (queued.type, queued.at, queued.owner) == ("job.queued", row.created_at, "acme")
    assert queued.data == {"kind": "render", "queue": "default", "run_at": row.run_at}


def test_missing_events_are_written_in_small_steps(store):
    insert(store, *jobs(25), announce=False)
    with store.begin() as tx:
        assert [JobQueries(tx).announce_jobs(10) for _ in range(4)] == [10, 10, 5, 0]


def test_a_claim_writes_the_missing_queued_event_first(store):
    open_worker(store)
    insert(store, *jobs(50, delay=HOUR), announce=False)
    (job,) = insert(store, a_job(), announce=False)
    assert [lease.id for lease in claim(store)] == [job.id]
    with store.begin() as tx:
        JobQueries(tx).announce_jobs(1000)
    assert event_types(store, job.id) == ["queued", "started"]


@pytest.mark.parametrize("verb", ["cancel", "expire"])
def test_a_move_of_an_unannounced_job_writes_its_queued_event_first(store, verb):
    """Otherwise its events would start with the end, and readers would think that it waits."""
    (job,) = insert(store, a_job(deadline=1), announce=False)
    if verb == "cancel":
        recover.cancel(store, job.id, actor="ann")
    else:
        store.shift_clock(HOUR)
        upkeep.expire_deadlines(store)
    with store.begin() as tx:
        assert JobQueries(tx).announce_jobs(100) == 0
    assert event_types(store, job.id) == ["queued", "cancelled" if verb == "cancel" else "died"]


def test_an_insert_in_our_own_transaction_writes_its_event_at_once(store):
    (job_id,) = enqueue(store)
    assert event_types(store, job_id) == ["queued"]
    with store.begin() as tx:
        assert JobQueries(tx).announce_jobs(10) == 0


def test_notifications_from_callers_can_be_disabled(store_url, store):
    quiet = open_store(store_url, notify_callers=False)
    with quiet.transaction() as connection:
        JobQueries(quiet.join(connection)).insert_jobs(jobs(2), announce=False)
    quiet.close()
    assert len(all_rows(store)) == 2


@pytest.mark.parametrize("connection", [None, object(), "a connection"])
def test_an_unusable_connection_is_refused(store, connection):
    with pytest.raises(ConnectionRefused, match=r"app\.transaction"):
        store.join(connection)


def test_a_callers_jobs_can_be_claimed_after_the_commit(store):
    open_worker(store)
    with store.transaction() as connection:
        (answer,) = JobQueries(store.join(connection)).insert_jobs([a_job()], announce=False)
        if is_postgres(store):  # on SQLite the caller holds the write lock
            assert claim(store) == []
    assert [lease.id for lease in claim(store)] == [answer.id]


@pytest.mark.parametrize(
    "verb",
    [
        lambda tx, text: (
            EventQueries(tx).write_events([])
            or WorkerQueries(tx).update_progress(
                "w1", [(WorkerQueries(tx).list_leases("w1")[0].id, 1, 0.5, text)]
            )
        ),
        lambda tx, text: JobQueries(tx).request_cancel(
            WorkerQueries(tx).list_leases("w1")[0].id, 1, text
        ),
        lambda tx, text: save_checkpoint(tx, WorkerQueries(tx).list_leases("w1")[0], text, text),
        lambda tx, text: JobQueries(tx).get_job(text),
        lambda tx, text: SearchQueries(tx).list_jobs({"owner": text}, 5, None),
        lambda tx, text: JobQueries(tx).find_jobs(text),
        lambda tx, text: ManifestQueries(tx).store_manifest("m", text, text, text),
    ],
    ids=["progress", "cancel", "checkpoint", "get", "list", "find", "manifest"],
)
@pytest.mark.parametrize("text", ["nul \x00 inside", "lone \udfff surrogate"])
def test_unstorable_text_does_not_stop_a_statement(store, verb, text):
    claim_new_job(store)
    with store.begin() as tx:
        verb(tx, text)


def test_counting_stops_at_its_cap_and_uses_the_filter_of_a_page(store):
    enqueue(store, 3, kind="render")
    enqueue(store, 2, kind="mail")
    store.shift_clock(3600 * 1_000_000)
    enqueue(store, 1, kind="mail")
    with store.read() as tx:
        assert [SearchQueries(tx).count_jobs({}, cap) for cap in (10, 4)] == [6, 4]
        for where in (
            {"kind": "mail"},
            {"kind": "mail", "since": str(60 * 1_000_000)},
            {"state": "dead"},
        ):
            assert SearchQueries(tx).count_jobs(where, 10) == len(
                SearchQueries(tx).list_jobs(where, 10, None)
            )
        assert len(SearchQueries(tx).list_jobs({"since": str(60 * 1_000_000)}, 10, None)) == 1


def test_jobs_of_any_options_are_inserted_by_one_statement(sqlite):
    insert(sqlite, a_job(owner="first"))
    insert(sqlite, *jobs(2))
    loaded = statements.load_statement.cache_info().misses
    for n in range(5):
        insert(sqlite, a_job(owner=f"o{n}", trace=f"00-{n:032x}-{n:016x}-01", delay=n))
        insert(sqlite, *jobs(2), unique_job(f"k{n}"))
    assert statements.load_statement.cache_info().misses == loaded
