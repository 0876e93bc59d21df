"""Claims that continue where the last one ended, among many short jobs of one or two lanes."""

from __future__ import annotations

import pytest

from mulligan.core.attempt import Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, LimitRow
from mulligan.guards.queries import GuardQueries
from mulligan.storage.base import ClaimPosition
from mulligan.worker import claim as claims
from mulligan.worker.claim import RESUME_FOR, Claimer
from support.store import (
    KINDS,
    close_worker,
    enqueue,
    event_types,
    is_postgres,
    now,
    open_worker,
    settle_leases,
    sql,
)

LANE = "default|render||0"


@pytest.fixture(autouse=True)
def _worker(store, monkeypatch):
    open_worker(store)
    monkeypatch.setattr(claims, "MIN_BULK_CLAIM", 5)


def taken(store, claimer, n):
    with store.single_statement() as tx:
        return [lease.id for lease in claimer.claim(tx, n).leases]


def claim_on(
    store, mark=0, *, worker="w1", lane=LANE, priority=0, since=None, until=None, limit=100
):
    """Claim from a position."""
    moment = now(store)
    where = ClaimPosition(lane, priority, mark, since or moment - SECOND, until or moment + SECOND)
    with store.single_statement() as tx:
        return [lease.id for lease in tx.claim_from_position(worker, where, limit)]


@pytest.fixture
def going(store):
    """Return a claimer after a full claim from a lane, and the jobs that still wait."""
    claimer = Claimer("w1", KINDS)
    ids = enqueue(store, 40)
    assert taken(store, claimer, 5) == ids[:5]
    assert claimer.claimed_all
    return claimer, ids[5:]


def test_it_claims_the_next_jobs_in_order(store, going):
    claimer, waiting = going
    assert taken(store, claimer, 20) == waiting[:20]
    assert taken(store, claimer, 20) == waiting[20:]
    assert taken(store, claimer, 20) == []


def test_its_leases_equal_those_of_other_claims(store):
    ids = enqueue(store, 3)
    assert claim_on(store, limit=2) == (ids[:2] if is_postgres(store) else [])
    if is_postgres(store):
        assert event_types(store, ids[0]) == ["queued", "started"]


def test_jobs_that_became_due_before_the_position_are_claimed_soon(store, going):
    claimer, waiting = going
    assert taken(store, claimer, 10) == waiting[:10]
    (early,) = enqueue(store, 1, run_at=now(store) - 60 * SECOND)
    store.shift_clock(RESUME_FOR + 1)
    assert taken(store, claimer, 10)[0] == early


def test_jobs_of_other_lanes_are_claimed_soon(store, going):
    claimer, waiting = going
    assert taken(store, claimer, 10) == waiting[:10]
    (urgent,) = enqueue(store, 1, priority=-9)
    store.shift_clock(RESUME_FOR + 1)
    assert urgent in taken(store, claimer, 10)


def test_if_its_lane_has_too_few_jobs_all_lanes_are_read_at_once(store, going):
    claimer, waiting = going
    (urgent,) = enqueue(store, 1, priority=-9)
    (other,) = enqueue(store, 1, queue="other")
    assert sorted(taken(store, claimer, 100)) == sorted([*waiting, urgent, other])


def test_a_claim_from_two_lanes_has_no_position(store, going):
    claimer, waiting = going
    others = enqueue(store, 20, queue="other", run_at=now(store) - SECOND)
    first = taken(store, claimer, 40)
    assert (len(first), claimer._resume_positions) == (40, ())
    assert sorted(first + taken(store, claimer, 40)) == sorted(waiting + others)


def test_with_a_closed_gate_no_position_is_kept(store, going):
    claimer, _ = going
    with store.begin() as tx:
        GuardQueries(tx).close_gate(
            Gate("queue", "elsewhere", tx.now(), None, "closed", "a person")
        )
    assert len(taken(store, claimer, 10)) == 10
    assert claimer.claimed_all
    assert claimer._resume_positions == ()


def test_after_a_small_claim_all_lanes_are_read_again(store, monkeypatch):
    monkeypatch.setattr(claims, "MIN_BULK_CLAIM", 6)
    claimer = Claimer("w1", KINDS)
    enqueue(store, 40)
    taken(store, claimer, 5)
    taken(store, claimer, 5)
    (urgent,) = enqueue(store, 1, priority=-9)
    assert urgent in taken(store, claimer, 5)


def test_a_paused_queue_stops_it_at_once(store, going):
    claimer, _ = going
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate("queue", "default", tx.now(), None, "closed", "a person"))
    assert taken(store, claimer, 10) == []


def test_an_operators_limit_stops_it_at_once(store, going):
    claimer, _ = going
    with store.begin() as tx:
        GuardQueries(tx).set_limit(LimitRow("queue", "default", 6, None, tx.now(), None, "", ""))
    assert len(taken(store, claimer, 10)) == 1


def test_a_closed_worker_stops_it_at_once(store, going):
    claimer, _ = going
    close_worker(store)
    assert taken(store, claimer, 10) == []


def test_an_outdated_position_claims_nothing(store):
    enqueue(store)
    moment = now(store)
    assert claim_on(store, since=moment - 9 * SECOND, until=moment - SECOND) == []
    assert claim_on(store, since=moment + 60 * SECOND, until=moment + 90 * SECOND) == []


def test_it_claims_only_due_jobs_of_its_lane_after_the_position(store):
    moment = now(store)
    for other in (
        {"queue": "other"},
        {"priority": 1},
        {"run_at": moment - SECOND},
        {"run_at": moment + 60 * SECOND},
    ):
        enqueue(store, 1, **other)
    (late,) = enqueue(store, 1)
    sql(store, "UPDATE {p}job SET deadline_at = 1 WHERE id = :id", {"id": late})
    assert claim_on(store, moment) == []


def test_released_jobs_are_claimed_soon(store, going):
    claimer, waiting = going
    with store.single_statement() as tx:
        leases = claimer.claim(tx, 10).leases
    settle_leases(store, leases, Outcome(Ended.RELEASED, reason="given back"))
    store.shift_clock(RESUME_FOR + 1)
    assert sorted(taken(store, claimer, 100)) == sorted(waiting)


# --- Fresh work and retries ---
AGAIN = "default|render||1"


def enqueue_retries(store, n, **options):
    ids = enqueue(store, n, **options)
    for job_id in ids:
        sql(
            store,
            "UPDATE {p}job SET lane = :lane, failures = 1 WHERE id = :id",
            {"lane": AGAIN, "id": job_id},
        )
    return ids


@pytest.fixture
def both(store):
    """Return a claimer with fresh jobs and younger retries, and both lists."""
    moment = now(store)
    fresh = enqueue(store, 60, run_at=moment - 2 * SECOND)
    return Claimer("w1", KINDS), fresh, enqueue_retries(store, 60, run_at=moment - SECOND)


def test_fresh_jobs_and_retries_are_claimed_by_their_shares(store, both):
    claimer, fresh, retries = both
    assert taken(store, claimer, 20) == fresh[:18] + retries[:2]
    assert [mark.lane for mark in claimer._resume_positions] == [LANE, AGAIN]
    assert taken(store, claimer, 25) == fresh[18:41] + retries[2:4]
    assert claimer.retry_credit == pytest.approx(0.5)
    assert taken(store, claimer, 5) == fresh[41:45] + retries[4:5]


def test_older_retries_get_the_larger_share(store):
    moment = now(store)
    fresh = enqueue(store, 60, run_at=moment - SECOND)
    retries = enqueue_retries(store, 60, run_at=moment - 2 * SECOND)
    claimer = Claimer("w1", KINDS)
    assert taken(store, claimer, 20) == fresh[:14] + retries[:6]
    assert taken(store, claimer, 20) == fresh[14:28] + retries[6:12]


def test_a_lane_fills_the_slots_that_the_other_leaves(store, both):
    claimer, fresh, retries = both
    assert taken(store, claimer, 50) == fresh[:45] + retries[:5]
    assert sorted(taken(store, claimer, 50)) == sorted(fresh[45:] + retries[5:40])
    (late,) = enqueue(store, 1)
    assert sorted(taken(store, claimer, 50)) == sorted([*retries[40:], late])
    assert taken(store, claimer, 50) == []


def test_unused_retry_slots_go_to_fresh_jobs(store):
    fresh = enqueue(store, 60, run_at=now(store) - SECOND)
    (retry,) = enqueue_retries(store, 1)
    claimer = Claimer("w1", KINDS)
    assert taken(store, claimer, 30) == [*fresh[:29], retry]
    assert taken(store, claimer, 30) == fresh[29:59]


def test_a_job_that_failed_meanwhile_is_in_the_next_claim(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    sql(store, "DELETE FROM {p}job WHERE state = 'queued' AND lane = :lane", {"lane": AGAIN})
    (again,) = enqueue_retries(store, 1)
    assert again in taken(store, claimer, 20)


def test_a_third_lane_is_claimed_soon(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    (urgent,) = enqueue(store, 1, priority=-9)
    store.shift_clock(RESUME_FOR + 1)
    assert urgent in taken(store, claimer, 20)
    assert claimer._resume_positions == ()


def test_a_paused_queue_stops_both_lanes_at_once(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate("queue", "default", tx.now(), None, "closed", "a person"))
    assert taken(store, claimer, 20) == []


def test_small_claims_reach_every_job(store, both, monkeypatch):
    monkeypatch.setattr(claims, "MIN_BULK_CLAIM", 100)
    claimer, fresh, retries = both
    assert taken(store, claimer, 20) == [*fresh[:9], retries[0], *fresh[9:18], retries[1]]
    assert claimer._resume_positions == ()
