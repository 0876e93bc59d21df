"""Claims in one round trip with the state: only in the simplest case, and like any other claim."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Limit, LimitRow
from mulligan.guards.limits import NO_LIMIT
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import Manifest, QueueSpec
from mulligan.storage.base import UnlimitedLanes
from mulligan.worker.claim import DECLARED_LIMITS_TTL, MAX_UNLIMITED_LANES, Claimer
from support.store import (
    KINDS,
    a_job,
    close_worker,
    enqueue,
    event_types,
    insert,
    is_postgres,
    jobs,
    now,
    open_worker,
    settle_leases,
)

LANE = "default|render||0"


@pytest.fixture(autouse=True)
def _worker(store):
    open_worker(store)


@pytest.fixture
def claimer(store):
    """Return a claimer that has claimed from the lane before."""
    claimer = Claimer("w1", KINDS)
    warm(store, claimer)
    return claimer


def warm(store, claimer, **changes):
    enqueue(store, **changes)
    settle_leases(store, hinted(store, claimer))


def hinted(store, claimer, n=10):
    with store.single_statement() as tx:
        return claimer.claim(tx, n, hinted=True).leases


def claim_with_state(store, *, worker="w1", lanes=(LANE,), since=None, until=None, limit=10):
    """Claim together with reading the state."""
    moment = now(store)
    since, until = since or moment - SECOND, until or moment + SECOND
    with store.single_statement() as tx:
        look, leases = tx.read_state_and_claim(worker, UnlimitedLanes(lanes, since, until), limit)
    assert look.now >= moment
    return leases


def claim_one_with_state(store, *, worker="w1", lanes=(LANE,)):
    """Claim one job together with reading the state. Return the lanes and the lease."""
    moment = now(store)
    with store.single_statement() as tx:
        look, leases = tx.read_state_and_claim_one(
            worker, UnlimitedLanes(lanes, moment - SECOND, moment + SECOND)
        )
    return [(lane, priority) for lane, priority, at in look.lanes if at <= look.now], leases


def close(store, scope, key, until=None):
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate(scope, key, tx.now(), until, "closed", "a person"))


def limit(store, key, concurrency, until=None):
    with store.begin() as tx:
        GuardQueries(tx).set_limit(
            LimitRow("queue", key, concurrency, None, tx.now(), until, "", "")
        )


# --- Claims ---
def test_a_single_due_lane_is_claimed_in_one_round_trip_on_postgres(store):
    ids = enqueue(store, 12)
    leases = claim_with_state(store, limit=5)
    assert [lease.id for lease in leases] == (ids[:5] if is_postgres(store) else [])


def test_its_leases_equal_those_of_other_claims(store, claimer):
    insert(store, a_job(owner="ada", payload='{"a": "b"}', timeout=7, max_retries=3, policy="{}"))
    (lease,) = hinted(store, claimer)
    assert (lease.worker, lease.token, lease.attempt, lease.owner) == ("w1", 1, 1, "ada")
    assert (lease.payload, lease.timeout, lease.max_retries, lease.alone) == (
        '{"a": "b"}',
        7,
        3,
        False,
    )
    assert event_types(store, lease.id) == ["queued", "started"]
    settle_leases(store, lease)
    assert event_types(store, lease.id) == ["queued", "started", "succeeded"]


def test_the_state_equals_that_of_read_claim_state(store, claimer):
    enqueue(store, 3)
    later = enqueue(store, 1, run_at=now(store) + 60 * SECOND, queue="other")
    with store.single_statement() as tx:
        claimed = claimer.claim(tx, 2, hinted=True)
    assert (len(claimed.leases), claimed.more_due) == (2, True)
    assert now(store) < claimed.next_due <= now(store) + 60 * SECOND
    assert later


def test_a_callers_job_is_announced_when_it_is_claimed(store, claimer):
    (job,) = insert(store, a_job(), announce=False)
    (lease,) = hinted(store, claimer)
    assert event_types(store, lease.id) == ["queued", "started"]
    assert lease.id == job.id


def test_one_of_many_is_claimed_and_the_others_stay_due(store):
    ids = enqueue(store, 3)
    due, leases = claim_one_with_state(store)
    assert due == [(LANE, 0)]
    assert [lease.id for lease in leases] == (ids[:1] if is_postgres(store) else [])


def test_after_the_only_job_was_claimed_nothing_is_due(postgres):
    open_worker(postgres)
    (job_id,) = enqueue(postgres)
    due, (lease,) = claim_one_with_state(postgres)
    assert due == []
    assert (lease.id, lease.worker, lease.token, lease.attempt) == (job_id, "w1", 1, 1)
    assert event_types(postgres, job_id) == ["queued", "started"]


def test_after_the_only_due_job_the_lane_is_due_with_the_next(postgres):
    claimer = Claimer(open_worker(postgres), KINDS)
    warm(postgres, claimer)
    enqueue(postgres)
    later = now(postgres) + 60 * SECOND
    enqueue(postgres, run_at=later)
    with postgres.single_statement() as tx:
        claimed = claimer.claim(tx, 5, hinted=True)
    assert (len(claimed.leases), claimed.next_due) == (1, later)


def test_after_a_hint_all_free_slots_are_filled(store, claimer):
    ids = enqueue(store, 5)
    assert [lease.id for lease in hinted(store, claimer, 3)] == ids[:3]
    assert [lease.id for lease in hinted(store, claimer, 3)] == ids[3:]


# --- No claim ---
@pytest.mark.parametrize(
    ("scope", "key"), [("queue", "default"), ("kind", "render"), ("queue", "another")]
)
def test_nothing_is_claimed_while_a_gate_is_closed(store, scope, key):
    close(store, scope, key)
    enqueue(store)
    assert claim_with_state(store) == []
    assert claim_one_with_state(store) == ([(LANE, 0)], [])


def test_nothing_is_claimed_while_an_operators_limit_is_in_force(store):
    limit(store, "default", 1)
    enqueue(store)
    assert claim_with_state(store) == []


def test_nothing_is_claimed_after_a_dependencys_hold_because_of_its_ramp(store):
    close(store, "dependency", "gateway", until=now(store) + SECOND)
    store.shift_clock(2 * SECOND)
    enqueue(store)
    assert claim_with_state(store) == []


def test_expired_gates_and_limits_do_not_prevent_a_claim(store):
    close(store, "queue", "default", until=now(store) + SECOND)
    limit(store, "default", 1, until=now(store) + SECOND)
    store.shift_clock(2 * SECOND)
    enqueue(store, 3)
    assert len(claim_with_state(store)) == (3 if is_postgres(store) else 0)


@pytest.mark.parametrize(
    "other", [{"queue": "other"}, {"kind": "mail"}, {"priority": 1}, {"uses": "gpu"}]
)
def test_nothing_is_claimed_if_several_lanes_are_due(store, other):
    enqueue(store)
    enqueue(store, **other)
    assert claim_with_state(store) == []


def test_nothing_is_claimed_from_a_lane_that_may_be_limited(store):
    enqueue(store)
    assert claim_with_state(store, lanes=("default|mail||0",)) == []


def test_closed_and_unknown_workers_claim_nothing_in_one_round_trip(store):
    enqueue(store)
    assert claim_with_state(store, worker="nobody") == []
    close_worker(store)
    assert claim_with_state(store) == []
    assert claim_one_with_state(store)[1] == []


def test_outdated_knowledge_of_limits_claims_nothing(store):
    enqueue(store)
    moment = now(store)
    assert claim_with_state(store, since=moment - 9 * SECOND, until=moment - SECOND) == []
    assert claim_with_state(store, since=moment + 60 * SECOND, until=moment + 90 * SECOND) == []


# --- Knowledge of limits ---
def declare(store, *queues):
    manifest = Manifest("app", "", {}, {spec.name: spec for spec in queues}, {})
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest(
            manifest.id, manifest.app, manifest.release, manifest.to_json()
        )


def test_a_declared_limit_holds_as_soon_as_it_is_read(store, claimer):
    declare(store, QueueSpec("default", concurrency=1))
    store.shift_clock(DECLARED_LIMITS_TTL + SECOND)
    enqueue(store, 5)
    assert len(hinted(store, claimer)) == 1
    assert hinted(store, claimer) == []


def test_declared_limits_are_read_again_while_idle(store, claimer):
    learned = claimer._declared_at
    store.shift_clock(DECLARED_LIMITS_TTL - SECOND // 2)
    enqueue(store)
    assert len(hinted(store, claimer)) == 1
    assert claimer._declared_at == learned
    assert claims(store, claimer, 0) == []
    assert claimer._declared_at > learned


def test_a_lane_whose_limit_an_operator_removed_counts_as_limited(store):
    claimer = Claimer("w1", KINDS, app_limits={("queue", "default"): Limit(concurrency=1)})
    limit(store, "default", NO_LIMIT)
    enqueue(store, 3)
    assert len(hinted(store, claimer)) == 3
    with store.begin() as tx:
        assert GuardQueries(tx).clear_limit(("queue", "default"))
    enqueue(store, 3)
    assert hinted(store, claimer) == []


def test_a_removed_kind_is_not_claimed_any_more(store, claimer):
    claimer.kinds = frozenset({"mail"})
    enqueue(store)
    assert hinted(store, claimer) == []


def test_a_gate_that_closes_between_two_claims_is_respected(store, claimer):
    close(store, "kind", "render")
    enqueue(store)
    assert hinted(store, claimer) == []


def test_the_number_of_known_lanes_is_bounded(store, claimer):
    for n in range(MAX_UNLIMITED_LANES + 5):
        warm(store, claimer, queue=f"q{n}")
    assert len(claimer._unlimited) == MAX_UNLIMITED_LANES
    assert claimer._unlimited[0] == f"q{MAX_UNLIMITED_LANES + 4}|render||0"


def test_a_full_claim_is_continued(store, claimer):
    ids = enqueue(store, 25)
    taken = []
    while leases := claims(store, claimer, 10):
        taken += [lease.id for lease in leases]
        settle_leases(store, leases)
    assert taken == ids


def claims(store, claimer, n):
    with store.begin() as tx:
        return claimer.claim(tx, n).leases


def test_two_concurrent_claims_share_the_jobs_without_waiting(store, claimer):
    other = Claimer(open_worker(store, "w2"), KINDS)
    warm(store, other)
    insert(store, *jobs(20))
    with store.begin() as tx:
        mine = claimer.claim(tx, 8, hinted=True).leases
        if is_postgres(store):
            theirs = hinted(store, other, 8)
    if not is_postgres(store):
        theirs = hinted(store, other, 8)
    assert len({lease.id for lease in mine + theirs}) == 16
