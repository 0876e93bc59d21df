"""Enqueue: rows of its own, all or nothing, in the caller's transaction if there is one."""

from __future__ import annotations

import json

import psycopg
import pytest

from mulligan.core.durations import SECOND
from mulligan.core.errors import ConnectionRefused, UniqueMismatch
from mulligan.core.ids import new_id
from mulligan.jobs import repair as recover
from mulligan.storage import open_store
from mulligan.storage import sql as statements
from mulligan.worker import upkeep
from support.store import (
    HOUR,
    a_job,
    all_rows,
    claim,
    enqueue,
    get,
    insert,
    is_postgres,
    jobs,
    now,
    open_worker,
    running,
    sql,
    story,
    told,
    undone,
    unique_job,
)


def test_a_job_is_stored_as_it_was_given(store):
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
    assert answer == (job.id, True, row.run_at, row.created_at)
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


# What may be said of a job, each with another value than the job before has: alike in a set or not, it must be kept.
SAID = {
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


KEPT = """
SELECT kind, queue, owner, priority, lane, uses, max_retries, policy, timeout, trace, payload, must_have,
       run_at - created_at, run_at, deadline_at - created_at, deadline_span
FROM {p}job WHERE id = :id
"""


def kept_of(store, job_id):
    return sql(store, KEPT, {"id": job_id})[0]


@pytest.mark.parametrize("count", [2, 12], ids=["few", "many"])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", SAID)
def test_in_a_set_each_job_is_stored_as_if_it_were_alone(store, name, alike, count):
    said = {name: SAID[name]}
    new = [a_job(payload=str(n), **(said if alike or n % 2 else {})) for n in range(count)]
    answers = insert(store, *new)
    for n, (job, answer) in enumerate(zip(new, answers, strict=True)):
        (alone,) = insert(store, job._replace(id=new_id()))
        ours, twin = kept_of(store, job.id), kept_of(store, alone.id)
        assert ours[:12] == twin[:12]
        assert (ours[13] == SAID["run_at"]) is (name == "run_at" and (alike or n % 2 == 1))
        assert name == "run_at" or ours[12] == twin[12]
        assert ours[14:] == twin[14:]
        row = get(store, job.id)
        assert answer == (job.id, True, row.run_at, row.created_at)


def test_a_due_job_is_hinted_once_for_its_queue_and_a_later_one_is_not(postgres, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as ear:
        ear.execute('LISTEN "mulligan_mulligan"')

        def heard(*new):
            with postgres.single_statement() as unit:
                unit.insert_jobs(new, announce=True)
            return sorted(note.payload for note in ear.notifies(timeout=0.2))

        assert heard(a_job(queue="fast")) == ["fast"]
        assert heard(a_job(delay=HOUR)) == []
        assert heard(unique_job("k", queue="slow")) == ["slow"]
        assert heard(*jobs(2, queue="fast"), a_job(delay=HOUR)) == ["fast"]
        assert heard(*jobs(20, queue="fast"), a_job(queue="slow")) == ["fast", "slow"]
        assert heard(*jobs(20, delay=HOUR)) == []


@pytest.mark.parametrize(
    ("given", "lies_ahead"),
    [({"delay": 90 * SECOND}, 90 * SECOND), ({"delay": 0}, 0), ({}, 0)],
)
def test_a_delay_counts_from_the_clock_of_the_store(store, given, lies_ahead):
    (job_id,) = enqueue(store, **given)
    row = get(store, job_id)
    assert row.run_at - row.created_at == lies_ahead


def test_an_absolute_time_is_kept_to_the_microsecond(store):
    at = now(store) + 5 * HOUR + 1
    (job_id,) = enqueue(store, run_at=at)
    assert get(store, job_id).run_at == at


def test_a_deadline_is_a_length_from_now_or_a_moment(store):
    (length,) = enqueue(store, deadline=HOUR)
    at = now(store) + 2 * HOUR
    (moment,) = enqueue(store, deadline_at=at)
    assert get(store, length).deadline_at == get(store, length).created_at + HOUR
    assert get(store, moment).deadline_at == at


@pytest.mark.parametrize(
    "value",
    ["nul \x00 inside", "lone \ud800 surrogate", "\u202eright to left", "é" * 100_000, "\\u0000"],
)
def test_a_payload_comes_back_as_it_went_in(store, value):
    (job_id,) = enqueue(store, payload=json.dumps({"text": value}))
    assert json.loads(get(store, job_id).payload) == {"text": value}


def test_nothing_of_a_call_is_written_when_one_job_is_refused(store):
    insert(store, unique_job("k", payload="1", unique_exact=True))
    with pytest.raises(UniqueMismatch):
        insert(store, *jobs(3), unique_job("k", payload="2", unique_exact=True))
    assert len(all_rows(store)) == 1


def test_nothing_is_written_either_when_the_caller_goes_on_after_the_refusal(store):
    insert(store, unique_job("k", payload="1", unique_exact=True))
    with store.transaction() as connection:
        unit = store.join(connection)
        mine = unit.insert_jobs([a_job()], announce=False)
        with pytest.raises(UniqueMismatch):
            unit.insert_jobs([*jobs(3), unique_job("k", payload="2", unique_exact=True)], announce=False)
    assert [row.id for row in all_rows(store)][1:] == [mine[0].id]


GIVEN = {
    "one": [a_job()],
    "many": jobs(3),
    "keyed": [unique_job("k")],
    "many, keyed": [unique_job("k"), *jobs(3)],
}


@pytest.mark.parametrize("new", GIVEN.values(), ids=GIVEN)
def test_what_the_caller_rolls_back_was_never_there(store, new):
    with undone(store.transaction()) as connection:
        store.join(connection).insert_jobs(new, announce=False)
    assert all_rows(store) == []


def test_what_the_caller_commits_is_there_and_was_not_before(store):
    with store.transaction() as connection:
        store.join(connection).insert_jobs(jobs(3), announce=False)
        assert all_rows(store) == []
    assert len(all_rows(store)) == 3


def test_a_callers_transaction_writes_no_event_and_upkeep_adds_it_once(store):
    with store.transaction() as connection:
        (answer,) = store.join(connection).insert_jobs([a_job()], announce=False)
    assert told(store, answer.id) == []
    with store.begin() as unit:
        assert unit.announce_jobs(100) == 1
        assert unit.announce_jobs(100) == 0
    (queued,) = story(store, answer.id)
    row = get(store, answer.id)
    assert (queued.type, queued.at, queued.owner) == ("job.queued", row.created_at, "acme")
    assert queued.data == {"kind": "render", "queue": "default", "run_at": row.run_at}


def test_announcing_goes_in_small_steps(store):
    insert(store, *jobs(25), announce=False)
    with store.begin() as unit:
        assert [unit.announce_jobs(10) for _ in range(4)] == [10, 10, 5, 0]


def test_a_claim_announces_before_it_starts_also_behind_many_silent_jobs(store):
    open_worker(store)
    insert(store, *jobs(50, delay=HOUR), announce=False)
    (job,) = insert(store, a_job(), announce=False)
    assert [lease.id for lease in claim(store)] == [job.id]
    with store.begin() as unit:
        unit.announce_jobs(1000)
    assert told(store, job.id) == ["queued", "started"]


@pytest.mark.parametrize("verb", ["cancel", "expire"])
def test_a_move_of_a_silent_job_is_told_after_its_beginning(store, verb):
    """Its story would begin with the end, and whoever reads the log would believe that it waits."""
    (job,) = insert(store, a_job(deadline=1), announce=False)
    if verb == "cancel":
        recover.cancel(store, job.id, actor="ann")
    else:
        store.shift_clock(HOUR)
        upkeep.expire_deadlines(store)
    with store.begin() as unit:
        assert unit.announce_jobs(100) == 0
    assert told(store, job.id) == ["queued", "cancelled" if verb == "cancel" else "died"]


def test_an_insert_of_our_own_announces_at_once(store):
    (job_id,) = enqueue(store)
    assert told(store, job_id) == ["queued"]
    with store.begin() as unit:
        assert unit.announce_jobs(10) == 0


def test_callers_can_be_spared_the_hint(store_url, store):
    quiet = open_store(store_url, notify_callers=False)
    with quiet.transaction() as connection:
        quiet.join(connection).insert_jobs(jobs(2), announce=False)
    quiet.close()
    assert len(all_rows(store)) == 2


@pytest.mark.parametrize("connection", [None, object(), "a connection"])
def test_a_connection_we_cannot_share_is_refused(store, connection):
    with pytest.raises(ConnectionRefused, match=r"app\.transaction"):
        store.join(connection)


def test_the_jobs_of_a_caller_can_be_claimed_as_soon_as_they_are_committed(store):
    open_worker(store)
    with store.transaction() as connection:
        (answer,) = store.join(connection).insert_jobs([a_job()], announce=False)
        if is_postgres(store):  # on SQLite the caller holds the only pen
            assert claim(store) == []
    assert [lease.id for lease in claim(store)] == [answer.id]


@pytest.mark.parametrize(
    "verb",
    [
        lambda unit, text: (
            unit.write_events([]) or unit.update_progress("w1", [(unit.list_leases("w1")[0].id, 1, 0.5, text)])
        ),
        lambda unit, text: unit.request_cancel(unit.list_leases("w1")[0].id, 1, text),
        lambda unit, text: unit.save_checkpoint(unit.list_leases("w1")[0].id, "w1", 1, text, text),
        lambda unit, text: unit.get_job(text),
        lambda unit, text: unit.list_jobs({"owner": text}, 5, None),
        lambda unit, text: unit.find_jobs(text),
        lambda unit, text: unit.store_manifest("m", text, text, text),
    ],
    ids=["progress", "cancel", "checkpoint", "get", "list", "find", "manifest"],
)
@pytest.mark.parametrize("text", ["nul \x00 inside", "lone \udfff surrogate"])
def test_text_no_database_takes_does_not_stop_a_verb(store, verb, text):
    running(store)
    with store.begin() as unit:
        verb(unit, text)


def test_counting_stops_at_its_cap_and_reads_the_same_filter_as_a_page(store):
    enqueue(store, 3, kind="render")
    enqueue(store, 2, kind="mail")
    store.shift_clock(3600 * 1_000_000)
    enqueue(store, 1, kind="mail")
    with store.read() as unit:
        assert [unit.count_jobs({}, cap) for cap in (10, 4)] == [6, 4]
        for where in (
            {"kind": "mail"},
            {"kind": "mail", "since": str(60 * 1_000_000)},
            {"state": "dead"},
        ):
            assert unit.count_jobs(where, 10) == len(unit.list_jobs(where, 10, None))
        assert len(unit.list_jobs({"since": str(60 * 1_000_000)}, 10, None)) == 1


def test_the_statement_of_a_lone_insert_is_made_once_whatever_is_said_of_the_job(
    sqlite, monkeypatch
):
    insert(sqlite, a_job(owner="first"))
    made, real = [], statements._with_defaults
    monkeypatch.setattr(statements, "_with_defaults", lambda *given: made.append(given) or real(*given))
    for n in range(5):
        with sqlite.begin() as unit:
            unit.insert_unconstrained(
                [a_job(owner=f"o{n}", trace=f"00-{n:032x}-{n:016x}-01")], announce=True
            )
    assert len(made) <= 1
