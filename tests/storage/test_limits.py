"""Limits of the fleet: never exceeded, whichever worker claims."""

from __future__ import annotations

from collections import Counter

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Limit, LimitRow
from mulligan.guards.limits import NO_LIMIT, owner_share
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import DependencySpec, Manifest, QueueSpec
from mulligan.worker.claim import Claimer
from support.store import (
    FAILED,
    HOUR,
    KINDS,
    BackgroundCall,
    a_job,
    claim,
    enqueue,
    insert,
    jobs,
    now,
    open_worker,
    policies,
    run_concurrently,
    settle_leases,
    sql,
)


@pytest.fixture(autouse=True)
def _worker(store):
    open_worker(store)


def limit(store, key="default", concurrency=None, rate=None, *, scope="queue", until=None):
    with store.begin() as tx:
        GuardQueries(tx).set_limit(LimitRow(scope, key, concurrency, rate, tx.now(), until, "", ""))


def declare(store, *queues, dependencies=()):
    manifest = Manifest(
        "app",
        "",
        {},
        {spec.name: spec for spec in queues},
        {spec.key: spec for spec in dependencies},
    )
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest(
            manifest.id, manifest.app, manifest.release, manifest.to_json()
        )


def whole(store, free):
    with store.begin() as tx:
        return Claimer("w1", KINDS).claim(tx, free)


# --- Concurrency ---
def test_the_concurrency_limit_is_never_exceeded(store):
    limit(store, concurrency=3)
    enqueue(store, 10)
    leases = claim(store, 10)
    assert len(leases) == 3
    assert claim(store, 10) == []
    settle_leases(store, leases[:2])
    assert len(claim(store, 10)) == 2


def test_other_queues_are_not_limited_and_keep_their_order(store):
    limit(store, concurrency=1)
    enqueue(store, 3)
    other = enqueue(store, 3, queue="other")
    assert sorted(lease.queue for lease in claim(store, 10)) == [
        "default",
        "other",
        "other",
        "other",
    ]
    assert other


def test_many_jobs_of_a_full_queue_delay_no_other_queue(store):
    limit(store, concurrency=1)
    enqueue(store, 200)
    other = enqueue(store, 4, queue="other")
    leases = claim(store, 5)
    assert Counter(lease.queue for lease in leases) == {"default": 1, "other": 4}
    settle_leases(store, leases[:1])
    assert len(other) == len(claim(store, 5)) + 3


@pytest.mark.parametrize("once", [False, True], ids=["in a transaction", "each statement alone"])
def test_many_workers_at_once_never_exceed_the_limit(store, once):
    limit(store, concurrency=5)
    enqueue(store, 60)
    workers = [open_worker(store, f"worker {n}") for n in range(6)]
    counts = []

    def drain(worker):
        claimer, done = Claimer(worker, KINDS), 0
        for _ in range(200):
            with store.single_statement() if once else store.begin() as tx:
                leases = claimer.claim(tx, 4).leases
            with store.read() as tx:
                counts.append(sum(count for _, _, count in GuardQueries(tx).count_running()))
            if leases:
                settle_leases(store, leases)
                done += len(leases)
            elif not sql(store, "SELECT 1 FROM {p}job WHERE state = 'queued' LIMIT 1"):
                return done
        return done

    assert sum(run_concurrently(*[lambda w=w: drain(w) for w in workers])) == 60
    assert 0 < max(counts) <= 5


def test_a_dependency_is_limited_over_all_queues_and_kinds(store):
    limit(store, "gpu", 2, scope="dependency")
    insert(
        store, *jobs(3, uses="gpu"), *jobs(3, uses="cpu,gpu", queue="other", kind="mail"), *jobs(2)
    )
    assert Counter("gpu" in lease.uses for lease in claim(store, 10)) == {True: 2, False: 2}


def test_a_job_starts_only_if_all_its_limits_allow_it(store):
    limit(store, "gpu", 5, scope="dependency")
    limit(store, "default", 1)
    insert(store, *jobs(3, uses="gpu"), *jobs(3, uses="gpu", queue="other"))
    assert Counter(lease.queue for lease in claim(store, 10)) == {"default": 1, "other": 3}


def test_a_concurrency_of_one_runs_one_job_at_a_time(store):
    declare(store, dependencies=[DependencySpec("disk", max_concurrency=1)])
    enqueue(store, 3, uses="disk")
    for _ in range(3):
        (lease,) = claim(store, 10)
        assert claim(store, 10) == []
        settle_leases(store, lease)


def test_retries_count_against_limits_and_are_not_starved(store):
    limit(store, concurrency=1)
    quick = policies(base_delay=0)
    (failing,) = enqueue(store)
    settle_leases(store, claim(store), FAILED, policies=quick)
    enqueue(store, 30)
    claimer, counts = Claimer("w1", KINDS), []
    for _ in range(20):
        (lease,) = claim(store, 5, claimer=claimer)
        counts.append(lease.id)
        settle_leases(store, lease)
    assert failing in counts


# --- Rate ---
def test_a_rate_allows_a_burst_of_one_second_and_then_refills(store):
    limit(store, rate=4.0)
    enqueue(store, 20)
    assert len(claim(store, 20)) == 4
    assert claim(store, 20) == []
    store.shift_clock(SECOND // 2)
    assert len(claim(store, 20)) in {2, 3}  # the test takes time itself
    store.shift_clock(HOUR)
    assert len(claim(store, 20)) == 4


def test_a_used_up_rate_reports_the_next_start(store):
    limit(store, rate=0.01)
    enqueue(store, 2)
    first = whole(store, 5)
    assert len(first.leases) == 1
    later = whole(store, 5)
    assert later.leases == []
    assert 98 * SECOND < later.next_due - later.now <= 100 * SECOND + 1
    store.shift_clock(later.next_due - now(store) + 1)
    assert len(claim(store, 5)) == 1


def test_a_clock_set_back_does_not_stop_a_rate(store):
    limit(store, rate=10.0)
    enqueue(store, 40)
    assert len(claim(store, 40)) == 10
    store.shift_clock(-24 * HOUR)
    sql(store, "UPDATE {p}job SET run_at = 0 WHERE state = 'queued'")
    claim(store, 40)
    store.shift_clock(SECOND)
    assert len(claim(store, 40)) >= 9


def test_many_workers_share_one_rate(store):
    limit(store, rate=0.001)
    enqueue(store, 40)
    workers = [open_worker(store, f"worker {n}") for n in range(6)]
    taken = run_concurrently(*[lambda w=w: claim(store, 5, worker=w) for w in workers])
    assert sum(map(len, taken)) == 1


# --- Declared and set by operators ---
def test_an_operators_limit_overrides_the_declared_one(store):
    declare(store, QueueSpec("default", concurrency=1))
    enqueue(store, 9)
    assert len(claim(store, 9)) == 1
    limit(store, concurrency=4)
    assert len(claim(store, 9)) == 3
    limit(store, concurrency=NO_LIMIT)
    assert len(claim(store, 9)) == 5


def test_an_operators_limit_ends_at_its_time(store):
    declare(store, QueueSpec("default", concurrency=2))
    limit(store, concurrency=1, until=now(store) + HOUR)
    enqueue(store, 9)
    assert len(claim(store, 9)) == 1
    store.shift_clock(2 * HOUR)
    assert len(claim(store, 9)) == 1  # the declared two are running


def test_a_declared_limit_expires_a_day_after_its_last_use(store):
    declare(store, QueueSpec("default", concurrency=1))
    store.shift_clock(25 * HOUR)
    enqueue(store, 9)
    assert len(claim(store, 9)) == 9


def test_the_newer_of_two_declared_limits_wins(store):
    declare(store, QueueSpec("default", concurrency=1))
    store.shift_clock(SECOND)
    declare(store, QueueSpec("default", concurrency=3))
    enqueue(store, 9)
    assert len(claim(store, 9)) == 3


def test_a_workers_own_limits_hold_after_the_clock_has_jumped(store):
    claimer = Claimer("w1", KINDS, app_limits={("queue", "default"): Limit(concurrency=1)})
    declare(store, QueueSpec("default", concurrency=1))
    enqueue(store, 9)
    assert len(claim(store, 9, claimer=claimer)) == 1
    store.shift_clock(72 * HOUR)
    assert claim(store, 9, claimer=claimer) == []


def test_after_a_rollback_the_limits_of_the_older_active_release_win(
    store,
):
    declare(store, QueueSpec("default", concurrency=3))
    store.shift_clock(SECOND)
    declare(store, QueueSpec("default", concurrency=1))
    store.shift_clock(HOUR)
    declare(store, QueueSpec("default", concurrency=3))
    enqueue(store, 9)
    assert len(claim(store, 9)) == 3


# --- Fairness ---
def shared_job(owner, **changes):
    return a_job(owner=owner, share=owner_share(owner), **changes)


def test_in_a_fair_queue_owners_take_turns(store):
    insert(store, *[shared_job("whale") for _ in range(200)])
    insert(store, *[shared_job(owner) for owner in ("minnow", "shrimp") for _ in range(5)])
    assert Counter(lease.owner for lease in claim(store, 9)) == {
        "whale": 3,
        "minnow": 3,
        "shrimp": 3,
    }


def test_turns_continue_over_many_small_claims(store):
    insert(
        store, *[shared_job("whale") for _ in range(50)], *[shared_job("minnow") for _ in range(5)]
    )
    claimer, order = Claimer("w1", KINDS), []
    for _ in range(10):
        (lease,) = claim(store, 1, claimer=claimer)
        order.append(lease.owner)
        settle_leases(store, lease)
    assert Counter(order) == {"whale": 5, "minnow": 5}


def test_a_retry_keeps_its_share(store):
    quick = policies(base_delay=0)
    insert(store, *[shared_job("whale") for _ in range(3)])
    settle_leases(store, claim(store, 3), FAILED, policies=quick)
    with store.read() as tx:
        (lane,) = {lane for lane, _, _ in GuardQueries(tx).read_claim_state().lanes}
    assert lane == f"default|render||{owner_share('whale')}|1"


def test_a_fair_queue_can_be_limited_too(store):
    limit(store, concurrency=4)
    insert(
        store, *[shared_job("whale") for _ in range(50)], *[shared_job("minnow") for _ in range(5)]
    )
    assert Counter(lease.owner for lease in claim(store, 20)) == {"whale": 2, "minnow": 2}


# --- Effect on others ---
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_locked_token_bucket_stops_only_what_it_limits(store):
    limit(store, concurrency=5)
    open_worker(store, "w2")
    enqueue(store, 3)
    assert len(claim(store)) == 1
    with store.begin() as tx:
        assert len(Claimer("w1", KINDS).claim(tx, 1).leases) == 1  # and stops there
        free = enqueue(store, 2, queue="other")

        def turn():
            with store.single_statement() as mine:
                return Claimer("w2", KINDS).claim(mine, 5)

        claimed = BackgroundCall(turn).result()
        assert sorted(lease.id for lease in claimed.leases) == sorted(free)
        assert 0 < claimed.next_due - claimed.now < SECOND, "it comes back soon"
        held = tx._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert held == ("10s",), "and the server lets nobody hold it for long"
    assert len(claim(store, 5, worker="w2")) == 1


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_unlimited_jobs_do_not_wait_for_locked_buckets(store):
    limit(store, concurrency=2)
    open_worker(store, "w2")
    enqueue(store, 2)
    with store.begin() as tx:
        assert len(Claimer("w1", KINDS).claim(tx, 2).leases) == 2  # and holds its token bucket
        free = enqueue(store, 3, queue="other")
        other = BackgroundCall(
            lambda: claim(store, 5, worker="w2", claimer=Claimer("w2", KINDS, frozenset({"other"})))
        )
        assert [lease.id for lease in other.result()] == free
