"""A claim in one trip: only in the plainest case, and then as any other claim would have done it."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Limit, LimitRow
from mulligan.guards.limits import NO_LIMIT
from mulligan.manifest.specs import Manifest, QueueSpec
from mulligan.storage.base import UnlimitedLanes
from mulligan.worker.claim import DECLARED_LIMITS_TTL, MAX_UNLIMITED_LANES, Claimer
from support.store import (
    KINDS,
    a_job,
    close_worker,
    enqueue,
    finish,
    insert,
    is_postgres,
    jobs,
    now,
    open_worker,
    told,
)

LANE = "default|render||0"


@pytest.fixture(autouse=True)
def _worker(store):
    open_worker(store)


@pytest.fixture
def claimer(store):
    """One that has taken from the lane before, alone as it was."""
    claimer = Claimer("w1", KINDS)
    warm(store, claimer)
    return claimer


def warm(store, claimer, **changes):
    enqueue(store, **changes)
    finish(store, hinted(store, claimer))


def hinted(store, claimer, n=10):
    with store.single_statement() as unit:
        return claimer.claim(unit, n, hinted=True).leases


def at_once(store, *, worker="w1", plain=(LANE,), since=None, until=None, most=10):
    """What the first look alone takes."""
    moment = now(store)
    since, until = since or moment - SECOND, until or moment + SECOND
    with store.single_statement() as unit:
        look, leases = unit.read_state_and_claim(worker, UnlimitedLanes(plain, since, until), most)
    assert look.now >= moment
    return leases


def one_at_once(store, *, worker="w1", plain=(LANE,)):
    """What waits after one was taken with the look, and that one."""
    moment = now(store)
    with store.single_statement() as unit:
        look, leases = unit.read_state_and_claim_one(
            worker, UnlimitedLanes(plain, moment - SECOND, moment + SECOND)
        )
    return [(lane, priority) for lane, priority, at in look.lanes if at <= look.now], leases


def close(store, scope, key, until=None):
    with store.begin() as unit:
        unit.close_gate(Gate(scope, key, unit.now(), until, "closed", "a person"))


def limit(store, key, concurrency, until=None):
    with store.begin() as unit:
        unit.set_limit(LimitRow("queue", key, concurrency, None, unit.now(), until, "", ""))


# -- what is taken -------------------------------------------------------------------------------
def test_what_is_due_alone_is_taken_with_the_look_on_a_server(store):
    ids = enqueue(store, 12)
    leases = at_once(store, most=5)
    assert [lease.id for lease in leases] == (ids[:5] if is_postgres(store) else [])


def test_a_lease_of_one_trip_is_a_lease_like_any_other(store, claimer):
    insert(store, a_job(owner="ada", payload='{"a": "b"}', timeout=7, max_retries=3, policy="{}"))
    (lease,) = hinted(store, claimer)
    assert (lease.worker, lease.token, lease.attempt, lease.owner) == ("w1", 1, 1, "ada")
    assert (lease.payload, lease.timeout, lease.max_retries, lease.alone) == (
        '{"a": "b"}',
        7,
        3,
        False,
    )
    assert told(store, lease.id) == ["queued", "started"]
    finish(store, lease)
    assert told(store, lease.id) == ["queued", "started", "succeeded"]


def test_the_look_tells_what_it_would_have_told_alone(store, claimer):
    enqueue(store, 3)
    later = enqueue(store, 1, run_at=now(store) + 60 * SECOND, queue="other")
    with store.single_statement() as unit:
        claimed = claimer.claim(unit, 2, hinted=True)
    assert (len(claimed.leases), claimed.more_due) == (2, True)
    assert now(store) < claimed.next_due <= now(store) + 60 * SECOND
    assert later


def test_what_was_inserted_in_a_callers_transaction_is_told_when_it_is_taken(store, claimer):
    (job,) = insert(store, a_job(), announce=False)
    (lease,) = hinted(store, claimer)
    assert told(store, lease.id) == ["queued", "started"]
    assert lease.id == job.id


def test_one_of_many_is_taken_with_the_look_and_the_others_are_still_due(store):
    ids = enqueue(store, 3)
    due, leases = one_at_once(store)
    assert due == [(LANE, 0)]
    assert [lease.id for lease in leases] == (ids[:1] if is_postgres(store) else [])


def test_after_the_only_one_was_taken_with_the_look_nothing_is_due(postgres):
    open_worker(postgres)
    (job_id,) = enqueue(postgres)
    due, (lease,) = one_at_once(postgres)
    assert due == []
    assert (lease.id, lease.worker, lease.token, lease.attempt) == (job_id, "w1", 1, 1)
    assert told(postgres, job_id) == ["queued", "started"]


def test_after_the_only_one_that_is_due_the_lane_is_due_again_with_the_next(postgres):
    claimer = Claimer(open_worker(postgres), KINDS)
    warm(postgres, claimer)
    enqueue(postgres)
    later = now(postgres) + 60 * SECOND
    enqueue(postgres, run_at=later)
    with postgres.single_statement() as unit:
        claimed = claimer.claim(unit, 5, hinted=True)
    assert (len(claimed.leases), claimed.next_due) == (1, later)


def test_who_has_heard_of_something_takes_all_there_is_room_for(store, claimer):
    ids = enqueue(store, 5)
    assert [lease.id for lease in hinted(store, claimer, 3)] == ids[:3]
    assert [lease.id for lease in hinted(store, claimer, 3)] == ids[3:]


# -- what is not ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scope", "key"), [("queue", "default"), ("kind", "render"), ("queue", "another")]
)
def test_nothing_while_something_is_closed(store, scope, key):
    close(store, scope, key)
    enqueue(store)
    assert at_once(store) == []
    assert one_at_once(store) == ([(LANE, 0)], [])


def test_nothing_while_an_operator_limits_something(store):
    limit(store, "default", 1)
    enqueue(store)
    assert at_once(store) == []


def test_nothing_when_the_hold_of_a_dependency_has_just_ended_for_what_waits_comes_on_a_ramp(store):
    close(store, "dependency", "gateway", until=now(store) + SECOND)
    store.shift_clock(2 * SECOND)
    enqueue(store)
    assert at_once(store) == []


def test_what_was_closed_or_limited_once_is_in_nobodys_way(store):
    close(store, "queue", "default", until=now(store) + SECOND)
    limit(store, "default", 1, until=now(store) + SECOND)
    store.shift_clock(2 * SECOND)
    enqueue(store, 3)
    assert len(at_once(store)) == (3 if is_postgres(store) else 0)


@pytest.mark.parametrize(
    "other", [{"queue": "other"}, {"kind": "mail"}, {"priority": 1}, {"uses": "gpu"}]
)
def test_nothing_where_there_is_a_choice(store, other):
    enqueue(store)
    enqueue(store, **other)
    assert at_once(store) == []


def test_nothing_of_a_lane_that_is_not_known_to_be_plain(store):
    enqueue(store)
    assert at_once(store, plain=("default|mail||0",)) == []


def test_nothing_by_a_worker_that_is_closed_or_unknown(store):
    enqueue(store)
    assert at_once(store, worker="nobody") == []
    close_worker(store)
    assert at_once(store) == []
    assert one_at_once(store)[1] == []


def test_nothing_by_what_was_learned_too_long_ago_or_before_the_clock_was_set_back(store):
    enqueue(store)
    moment = now(store)
    assert at_once(store, since=moment - 9 * SECOND, until=moment - SECOND) == []
    assert at_once(store, since=moment + 60 * SECOND, until=moment + 90 * SECOND) == []


# -- what a worker knows -------------------------------------------------------------------------
def declare(store, *queues):
    manifest = Manifest("app", "", {}, {spec.name: spec for spec in queues}, {})
    with store.begin() as unit:
        unit.store_manifest(manifest.id, manifest.app, manifest.release, manifest.to_json())


def test_a_limit_that_code_declares_holds_as_soon_as_it_is_believed(store, claimer):
    declare(store, QueueSpec("default", concurrency=1))
    store.shift_clock(DECLARED_LIMITS_TTL + SECOND)
    enqueue(store, 5)
    assert len(hinted(store, claimer)) == 1
    assert hinted(store, claimer) == []


def test_what_code_declares_is_read_again_by_a_turn_for_which_nobody_waits(store, claimer):
    learned = claimer._declared_at
    store.shift_clock(DECLARED_LIMITS_TTL - SECOND // 2)
    enqueue(store)
    assert len(hinted(store, claimer)) == 1
    assert claimer._declared_at == learned
    assert claims(store, claimer, 0) == []
    assert claimer._declared_at > learned


def test_a_lane_that_only_an_operator_has_freed_of_its_limit_is_not_plain(store):
    claimer = Claimer("w1", KINDS, app_limits={("queue", "default"): Limit(concurrency=1)})
    limit(store, "default", NO_LIMIT)
    enqueue(store, 3)
    assert len(hinted(store, claimer)) == 3
    with store.begin() as unit:
        assert unit.clear_limit(("queue", "default"))
    enqueue(store, 3)
    assert hinted(store, claimer) == []


def test_a_kind_the_app_has_no_more_is_not_taken_though_it_was_before(store, claimer):
    claimer.kinds = frozenset({"mail"})
    enqueue(store)
    assert hinted(store, claimer) == []


def test_a_gate_that_closes_between_two_claims_is_respected(store, claimer):
    close(store, "kind", "render")
    enqueue(store)
    assert hinted(store, claimer) == []


def test_many_lanes_are_known_but_not_without_end(store, claimer):
    for n in range(MAX_UNLIMITED_LANES + 5):
        warm(store, claimer, queue=f"q{n}")
    assert len(claimer._unlimited) == MAX_UNLIMITED_LANES
    assert claimer._unlimited[0] == f"q{MAX_UNLIMITED_LANES + 4}|render||0"


def test_a_drain_goes_on_where_the_last_claim_was_full(store, claimer):
    ids = enqueue(store, 25)
    taken = []
    while leases := claims(store, claimer, 10):
        taken += [lease.id for lease in leases]
        finish(store, leases)
    assert taken == ids


def claims(store, claimer, n):
    with store.begin() as unit:
        return claimer.claim(unit, n).leases


def test_two_who_claim_in_one_trip_share_without_waiting(store, claimer):
    other = Claimer(open_worker(store, "w2"), KINDS)
    warm(store, other)
    insert(store, *jobs(20))
    with store.begin() as unit:
        mine = claimer.claim(unit, 8, hinted=True).leases
        if is_postgres(store):
            theirs = hinted(store, other, 8)
    if not is_postgres(store):
        theirs = hinted(store, other, 8)
    assert len({lease.id for lease in mine + theirs}) == 16
