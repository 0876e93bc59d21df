"""Constraints of the schema refuse impossible rows."""

from __future__ import annotations

from itertools import product

import pytest

from support.store import (
    FAILED,
    FATAL,
    PARKED,
    RETURNED,
    claim_new_job,
    enqueue,
    prefix,
    run_once,
    sql,
)

STARTS = {
    "queued": lambda store: enqueue(store)[0],
    "running": lambda store: claim_new_job(store).id,
    "succeeded": lambda store: run_once(store, RETURNED),
    "dead": lambda store: run_once(store, FATAL),
    "parked": lambda store: run_once(store, PARKED),
}

IMPOSSIBLE = [
    ("queued", "state = 'finished'", "job_sound"),
    ("queued", "state = 'running'", "job_sound"),
    ("queued", "worker = 'w1'", "job_sound"),
    ("running", "worker = NULL", "job_sound"),
    ("running", "state = 'queued'", "job_sound"),
    ("succeeded", "worker = 'w1'", "job_sound"),
    ("queued", "result = '1'", "job_sound"),
    ("running", "result = '1'", "job_sound"),
    ("dead", "result = '1'", "job_sound"),
    ("parked", "result = '1'", "job_sound"),
    ("queued", "error = '{}'", "job_sound"),
    ("succeeded", "error = '{}'", "job_sound"),
    ("dead", "error = NULL", "job_sound"),
    ("queued", "finished_at = 1", "job_sound"),
    ("running", "finished_at = 1", "job_sound"),
    ("parked", "finished_at = 1", "job_sound"),
    ("succeeded", "finished_at = NULL", "job_sound"),
    ("dead", "finished_at = NULL", "job_sound"),
    ("queued", "choices = '[]'", "job_sound"),
    ("dead", "choices = '[]'", "job_sound"),
    ("queued", "priority = 10", "job_priority"),
    ("queued", "priority = -10", "job_priority"),
    ("queued", "generation = 0", "job_counters"),
    ("queued", "attempt = -1", "job_counters"),
    ("queued", "attempt = 1", "job_counters"),
    ("running", "token = 0", "job_counters"),
    ("queued", "failures = -1", "job_counters"),
    ("queued", "losses = -1", "job_counters"),
    ("queued", "snoozes = -1", "job_counters"),
    ("succeeded", "died_code = 'X'", "(?i)check"),
    ("queued", "died_class = 'unknown'", "(?i)check"),
    ("running", "died_group = 'v2-1'", "(?i)check"),
    ("queued", "must_have = true", "must_have"),
    ("queued", "payload = NULL", "payload"),
    ("queued", "run_at = NULL", "run_at"),
    ("queued", "lane = NULL", "lane"),
]


@pytest.mark.seed("001-67", "001-69")
@pytest.mark.parametrize(
    ("start", "change", "why"),
    IMPOSSIBLE,
    ids=[f"{start}, {what}" for start, what, _ in IMPOSSIBLE],
)
def test_an_impossible_row_is_refused(store, start, change, why):
    job_id = STARTS[start](store)
    before = sql(store, "SELECT * FROM {p}job")
    with pytest.raises(Exception, match=why):  # 001-67: a result, 001-69: a worker in other states
        sql(store, f"UPDATE {{p}}job SET {change} WHERE id = :id", {"id": job_id})  # noqa: S608
    assert sql(store, "SELECT * FROM {p}job") == before


# By state: columns that must be set, and columns that may be set.
HAS = ("worker", "finished_at", "result", "error", "choices", "died_code")
SOUND = {
    "queued": ((), ()),
    "running": (("worker",), ()),
    "succeeded": (("finished_at",), ("result",)),
    "dead": (("finished_at", "error"), ("died_code",)),
    "cancelled": (("finished_at",), ()),
    "parked": ((), ("choices",)),
}


ONE = "'1'"  # valid as text and as number


def is_sound(state, has):
    if state not in SOUND:
        return False
    must, may = SOUND[state]
    return set(must) <= has <= {*must, *may}


def test_exactly_the_consistent_rows_are_accepted(store):
    enqueue(store)
    with store.transaction() as connection:
        for state, *present in product([*SOUND, "", "run", "Dead"], *[(False, True)] * len(HAS)):
            has = {name for name, there in zip(HAS, present, strict=True) if there}
            assignments = [f"{name} = {'NULL' if name not in has else ONE}" for name in HAS]
            change = f"UPDATE {prefix(store)}job SET state = '{state}', {', '.join(assignments)}"  # noqa: S608
            assert taken(connection, change) == is_sound(state, has), (state, has)


def taken(connection, change):
    connection.execute("SAVEPOINT trial")
    try:
        connection.execute(change)
    except Exception as refused:
        if "check" not in str(refused).lower():
            raise
        return False
    finally:
        connection.execute("ROLLBACK TO SAVEPOINT trial")
    return True


@pytest.mark.parametrize(
    "number", ["priority", "generation", "attempt", "failures", "losses", "snoozes"]
)
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1])
def test_constraints_hold_for_the_extreme_numbers_of_a_column(store, number, value):
    job_id = claim_new_job(store).id
    change = f"UPDATE {{p}}job SET {number} = {value} WHERE id = '{job_id}'"  # noqa: S608
    if value > 0 and number not in {"priority", "attempt"}:
        sql(store, change)
        return
    with pytest.raises(Exception, match=r"job_|out of range"):
        sql(store, change)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {p}attempt SELECT * FROM {p}attempt",
        "INSERT INTO {p}job SELECT * FROM {p}job",
        "INSERT INTO {p}gate (scope, key, since) VALUES ('weather', 'rain', 1)",
    ],
    ids=["an attempt twice", "a job twice", "a gate of no known scope"],
)
def test_an_impossible_record_is_refused(store, statement):
    run_once(store, FAILED)
    with pytest.raises(Exception, match=r"(?i)constraint"):
        sql(store, statement)


def test_two_holders_of_one_key_are_refused(store):
    first, second = enqueue(store, 2)
    sql(store, "UPDATE {p}job SET unique_hash = 'h' WHERE id = :id", {"id": first})
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql(store, "UPDATE {p}job SET unique_hash = 'h' WHERE id = :id", {"id": second})
