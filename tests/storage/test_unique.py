"""Unique keys: one job per key in covered states, under any race."""

from __future__ import annotations

import threading
from random import Random

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.errors import UniqueMismatch, UniqueRace
from mulligan.core.job import State
from mulligan.jobs.queries import JobQueries
from mulligan.worker.queries import WorkerQueries
from support.store import (
    FATAL,
    PARKED,
    RETURNED,
    BackgroundCall,
    a_job,
    all_rows,
    claim,
    claim_new_job,
    close_worker,
    get,
    insert,
    is_postgres,
    is_waiting_for_lock,
    open_worker,
    run_concurrently,
    run_once,
    settle_leases,
    unique_job,
)
from support.waiting import until


def test_a_second_job_with_the_same_key_gets_the_first_jobs_id(store):
    first, twin = unique_job("k"), unique_job("k")
    assert insert(store, first)[0].fresh
    assert insert(store, twin)[0][:2] == (first.id, False)
    assert [row.id for row in all_rows(store)] == [first.id]


def test_the_same_key_of_another_owner_or_kind_is_another_key(store):
    new = [unique_job("k"), unique_job("k", owner="beta"), unique_job("k", kind="mail")]
    assert all(one.fresh for one in insert(store, *new))


def test_jobs_without_a_key_are_never_deduplicated(store):
    assert all(one.fresh for one in insert(store, a_job(), a_job()))


def test_equal_keys_within_one_call_become_the_first_job(store):
    new = [unique_job("a"), unique_job("b"), unique_job("a"), a_job(), unique_job("b")]
    answers = insert(store, *new)
    a, b, without_key = new[0].id, new[1].id, new[3].id
    assert [one.id for one in answers] == [a, b, a, without_key, b]
    assert [one.fresh for one in answers] == [True, True, False, True, False]


def test_an_explicit_key_with_another_payload_is_refused_naming_the_job(store):
    first = unique_job("k", payload="1", unique_exact=True)
    insert(store, first)
    assert insert(store, unique_job("k", payload="1", unique_exact=True))[0].id == first.id
    with pytest.raises(UniqueMismatch, match=first.id):
        insert(store, unique_job("k", payload="2", unique_exact=True))
    assert len(all_rows(store)) == 1


def test_a_derived_key_with_another_payload_returns_the_first(store):
    first = unique_job("k", payload="1")
    insert(store, first)
    assert insert(store, unique_job("k", payload="2"))[0].id == first.id


def test_a_key_is_free_again_when_its_time_is_up(store):
    first, second = unique_job("k", unique_for=60 * SECOND), unique_job("k", unique_for=60 * SECOND)
    insert(store, first)
    store.shift_clock(59 * SECOND)
    assert insert(store, unique_job("k"))[0].id == first.id
    store.shift_clock(2 * SECOND)
    assert insert(store, second)[0][:2] == (second.id, True)
    assert get(store, first.id).unique_hash is None
    assert insert(store, unique_job("k"))[0].id == second.id


COVERED = [
    (RETURNED, State.SUCCEEDED, False),
    (PARKED, State.PARKED, False),
    (FATAL, State.DEAD, True),
]


@pytest.mark.parametrize(("outcome", "state", "free"), COVERED, ids=["succeeded", "parked", "dead"])
def test_a_key_is_held_in_covered_states_and_released_by_leaving_them(store, outcome, state, free):
    first = run_once(store, outcome, job=unique_job("k"))
    assert get(store, first).state == state
    assert insert(store, unique_job("k"))[0].fresh is free
    assert get(store, first).unique_key == "k"


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_key_is_held_while_the_job_waits_or_runs(store, state):
    first = unique_job("k")
    insert(store, first)
    open_worker(store)
    if state == "running":
        claim(store)
    assert get(store, first.id).state == state
    assert insert(store, unique_job("k"))[0].id == first.id


def test_fewer_covered_states_release_the_key_earlier(store):
    run_once(store, RETURNED, job=unique_job("k", cover=(State.QUEUED, State.RUNNING)))
    assert insert(store, unique_job("k"))[0].fresh


def test_the_key_of_a_job_of_a_lost_worker_is_held_until_it_is_dead(store):
    """A key that a crash left behind in a running job must not block later jobs for ever (oban 364)."""
    lease = claim_new_job(store, job=unique_job("k"))
    close_worker(store)
    with store.begin() as tx:
        (orphan,) = WorkerQueries(tx).list_orphans(10)
    settle_leases(store, orphan, FATAL)
    assert get(store, lease.id).state == "dead"
    assert insert(store, unique_job("k"))[0].fresh


def test_twenty_threads_with_one_key_get_one_job(store):
    answers = run_concurrently(*[lambda: insert(store, unique_job("k"))[0] for _ in range(20)])
    (row,) = all_rows(store)
    assert {one.id for one in answers} == {row.id}
    assert [one.fresh for one in answers].count(True) == 1


def test_threads_with_the_same_keys_in_different_orders_do_not_deadlock(store):
    for turn in range(6):
        keys = [f"{turn} {i}" for i in range(200)]
        bulks = [
            [unique_job(key) for key in Random(seed).sample(keys, len(keys))] for seed in range(6)
        ]
        answers = run_concurrently(
            *[lambda bulk=bulk: sorted(one.id for one in insert(store, *bulk)) for bulk in bulks]
        )
        assert all(one == answers[0] for one in answers)
        assert len(set(answers[0])) == len(keys)


def test_if_the_first_insert_rolls_back_the_second_gets_a_job(store):
    """Skipping because another transaction holds the key, which then rolls back, would leave no job."""
    inserted, decided = threading.Event(), threading.Event()

    def winner() -> None:
        with store.transaction() as connection:
            JobQueries(store.join(connection)).insert_jobs([unique_job("k")], announce=False)
            inserted.set()
            assert decided.wait(30)
            raise KeyboardInterrupt

    first = BackgroundCall(winner)
    assert inserted.wait(30)
    second = BackgroundCall(lambda: insert(store, unique_job("k"))[0])
    if is_postgres(store):
        until(lambda: is_waiting_for_lock(store), what="the loser waits for the key")
    decided.set()
    with pytest.raises(KeyboardInterrupt):
        first.result()
    answer = second.result()
    assert answer.fresh
    assert [row.id for row in all_rows(store)] == [answer.id]


def test_if_four_of_five_callers_roll_back_one_job_is_left(store):
    def caller(commits: bool) -> None:
        try:
            with store.transaction() as connection:
                JobQueries(store.join(connection)).insert_jobs([unique_job("k")], announce=False)
                if not commits:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    run_concurrently(
        *[lambda commits=commits: caller(commits) for commits in (False, False, True, False, False)]
    )
    assert len(all_rows(store)) == 1


def test_a_caller_whose_snapshot_cannot_see_the_holder_gets_an_error(postgres):
    with postgres.transaction() as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        insert(postgres, unique_job("k"))
        with pytest.raises(UniqueRace, match="READ COMMITTED"), connection.transaction():
            JobQueries(postgres.join(connection)).insert_jobs([unique_job("k")], announce=False)
        connection.execute("SELECT 'the caller decides what to do now'")


def test_our_own_transactions_see_the_holder_at_any_default_isolation(postgres_url, postgres):
    with postgres.transaction() as connection:
        name = connection.execute("SELECT current_database()").fetchone()[0]
        connection.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation TO 'repeatable read'"
        )
    postgres.close()
    answers = run_concurrently(*[lambda: insert(postgres, unique_job("k"))[0] for _ in range(8)])
    assert len({one.id for one in answers}) == 1
