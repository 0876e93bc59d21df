"""Attempts that just returned, written in a transaction of their own: the same door, the same fence, fewer steps."""

from __future__ import annotations

from contextlib import closing
from random import Random

import psycopg
import pytest

from mulligan.core.attempt import Ending, Lease
from mulligan.storage import open_store
from mulligan.worker.fast.grouped_endings import GroupedEndings
from mulligan.worker.settle import finish_simple, settle
from support.store import (
    FAILED,
    POLICIES,
    RETURNED,
    Background,
    attempts,
    claim,
    close_worker,
    enqueue,
    get,
    log_of,
    open_worker,
    running,
    sweep,
    together,
    told,
    waits_for_a_lock,
)
from support.waiting import until


def finished(store, leases, outcome=RETURNED):
    """The fences of those that were written, and of those that were left."""
    found = [leases] if isinstance(leases, Lease) else leases
    with store.single_statement() as unit:
        written = finish_simple(
            unit,
            [Ending(lease, outcome, 3) for lease in found],
            GroupedEndings(POLICIES, unit.now(), Random(7)),
        )
    assert written.retried == []
    return fences(written.returned), {ending.lease.fence for ending in written.rest}


def fences(leases):
    return {lease.fence for lease in leases}


@pytest.mark.parametrize("many", [1, 3, 40])
def test_they_leave_the_same_as_by_settle(store, many):
    open_worker(store)
    enqueue(store, 2 * many)
    leases = claim(store, 2 * many)
    assert finished(store, leases[:many]) == (fences(leases[:many]), set())
    with store.begin() as unit:
        settle(
            unit,
            [Ending(lease, RETURNED, 3) for lease in leases[many:]],
            POLICIES,
            unit.now(),
            Random(7),
        )
    one, other = (get(store, lease.id) for lease in (leases[0], leases[-1]))
    own = {"id", "created_at", "run_at", "payload", "finished_at"}
    assert {k: v for k, v in one._asdict().items() if k not in own} == {
        k: v for k, v in other._asdict().items() if k not in own
    }
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        assert (attempt.verb, attempt.worker, attempt.token, attempt.ended_at) == (
            "succeed",
            "w1",
            lease.token,
            get(store, lease.id).finished_at,
        )
        assert told(store, lease.id) == ["queued", "started", "succeeded"]


def test_what_failed_is_left(store):
    lease = running(store)
    assert finished(store, lease, FAILED) == (set(), {lease.fence})
    assert get(store, lease.id).state == "running"


@pytest.mark.parametrize("many", [1, 40])
def test_whose_fence_is_in_doubt_is_left(store, many):
    open_worker(store)
    enqueue(store, many + 3)
    asked, other, ended, *leases = claim(store, many + 3)
    with store.begin() as unit:
        assert unit.request_cancel(asked.id, asked.token, "no longer wanted")
    other = other._replace(token=other.token + 1)
    finished(store, ended)
    written, rest = finished(store, [asked, *leases, other, ended])
    if written:  # a store may as well write none
        assert (written, rest) == (fences(leases), fences([asked, other, ended]))
    assert get(store, asked.id).state == get(store, other.id).state == "running"
    assert len(attempts(store, ended.id)) == 1


def test_a_row_that_was_written_since_ends_all_the_same(store):
    lease = running(store)
    with store.begin() as unit:
        unit.update_progress("w1", [(lease.id, lease.token, 0.5, "half")])
    _, rest = finished(store, lease)
    with store.begin() as unit:
        endings = [Ending(lease, RETURNED, 3)] if rest else []
        settle(unit, endings, POLICIES, unit.now(), Random(7))
    assert get(store, lease.id).state == "succeeded"
    assert told(store, lease.id) == ["queued", "started", "succeeded"]


def test_a_row_that_lies_where_another_lay_is_left_alone(store):
    open_worker(store)
    enqueue(store, 2)
    one, other = claim(store, 2)
    finished(store, one._replace(row_location=other.row_location))
    assert get(store, other.id).state == "running"
    assert attempts(store, other.id) == []


@pytest.mark.parametrize("place", [None, "(4294967295,65535)", "(0,0)"])
def test_where_nothing_lies_nothing_is_written_and_nothing_fails(store, place):
    lease = running(store)
    written, rest = finished(store, lease._replace(row_location=place))
    assert (lease.fence in written) == (get(store, lease.id).state == "succeeded")
    assert written | rest == {lease.fence}


def moved(unit, lease, how):
    if how == "asked to stop":
        assert unit.request_cancel(lease.id, lease.token, "no longer wanted")
    elif how == "ended":
        settle(unit, [Ending(lease, FAILED, 3)], POLICIES, unit.now(), Random(7))
    else:
        unit.update_progress("w1", [(lease.id, lease.token, 0.5, "half")])


@pytest.mark.parametrize("how", ["asked to stop", "ended", "progress"])
def test_who_finds_a_row_in_another_hand_waits_and_then_believes_what_it_finds(store, how):
    if not store.concurrent_writers:
        pytest.skip("SQLite has one writer")
    lease = running(store)
    with store.begin() as unit:
        moved(unit, lease, how)
        ending = Background(lambda: finished(store, lease))
        until(lambda: waits_for_a_lock(store))
    written, _ = ending.answer()
    state, ends = get(store, lease.id).state, [one.verb for one in attempts(store, lease.id)]
    if how == "ended":
        assert (written, state, ends) == (set(), "queued", ["retry"])
    elif how == "asked to stop":
        assert (written, state, ends) == (set(), "running", [])
    else:  # by the server's age it may be followed to where it lies now
        assert (bool(written), state) in {(True, "succeeded"), (False, "running")}


def test_many_threads_that_finish_overlapping_sets_beside_a_sweep_write_each_once(store):
    open_worker(store)
    enqueue(store, 300)
    leases = claim(store, 300)

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            _, rest = finished(store, rng.sample(leases, 120))
            with store.begin() as unit:
                left = [Ending(lease, RETURNED, 3) for lease in leases if lease.fence in rest]
                settle(unit, left, POLICIES, unit.now(), rng)

    together(*[lambda seed=seed: flush(seed) for seed in range(4)], lambda: sweep(store))
    finished(store, leases)
    with store.read() as unit:
        assert dict(unit.count_jobs_by_state(1000))["succeeded"] == 300
    assert sum(len(attempts(store, lease.id)) for lease in leases) == 300
    assert [event[2] for event in log_of(store)].count("job.succeeded") == 300


def test_a_sweep_and_an_ending_at_once_make_one(store):
    leases = [running(store) for _ in range(30)]
    close_worker(store)
    together(lambda: [finished(store, lease) for lease in leases], lambda: sweep(store))
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        assert (get(store, lease.id).state, attempt.ended) in {
            ("succeeded", "returned"),
            ("queued", "lost"),
        }


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_default_of_the_database_makes_no_difference(ready_postgres_url, level):
    with psycopg.connect(ready_postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'"
        )
    with closing(open_store(ready_postgres_url)) as store:
        leases = [running(store) for _ in range(3)]
        with store.begin() as unit:
            unit.update_progress("w1", [(leases[0].id, leases[0].token, 0.5, "half")])
            ending = Background(lambda: finished(store, leases))
            until(lambda: waits_for_a_lock(store))
        written, rest = ending.answer()
    assert written | rest == fences(leases)
