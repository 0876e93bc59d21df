"""A claim that goes on where the last one ended: only among many short jobs of one lane, or of fresh work and retries,
and only for a moment.
"""

from __future__ import annotations

import pytest

from mulligan.core.attempt import Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, LimitRow
from mulligan.storage.base import ClaimPosition
from mulligan.worker import claim as claims
from mulligan.worker.claim import RESUME_FOR, Claimer
from support.store import (
    KINDS,
    close_worker,
    enqueue,
    finish,
    is_postgres,
    now,
    open_worker,
    sql,
    told,
)

LANE = "default|render||0"


@pytest.fixture(autouse=True)
def _worker(store, monkeypatch):
    open_worker(store)
    monkeypatch.setattr(claims, "MIN_BULK_CLAIM", 5)


def taken(store, claimer, n):
    with store.single_statement() as unit:
        return [lease.id for lease in claimer.claim(unit, n).leases]


def goes_on(store, mark=0, *, worker="w1", lane=LANE, priority=0, since=None, until=None, most=100):
    """What it takes beyond a mark."""
    moment = now(store)
    where = ClaimPosition(lane, priority, mark, since or moment - SECOND, until or moment + SECOND)
    with store.single_statement() as unit:
        return [lease.id for lease in unit.claim_from_position(worker, where, most)]


@pytest.fixture
def going(store):
    """One that has taken all it wanted from a lane where much more waits; and what waits."""
    claimer = Claimer("w1", KINDS)
    ids = enqueue(store, 40)
    assert taken(store, claimer, 5) == ids[:5]
    assert claimer.claimed_all
    return claimer, ids[5:]


def test_it_takes_what_comes_next_in_its_order(store, going):
    claimer, waiting = going
    assert taken(store, claimer, 20) == waiting[:20]
    assert taken(store, claimer, 20) == waiting[20:]
    assert taken(store, claimer, 20) == []


def test_its_leases_are_leases_like_any_other(store):
    ids = enqueue(store, 3)
    assert goes_on(store, most=2) == (ids[:2] if is_postgres(store) else [])
    if is_postgres(store):
        assert told(store, ids[0]) == ["queued", "started"]


def test_what_came_to_wait_before_the_mark_is_seen_soon(store, going):
    claimer, waiting = going
    assert taken(store, claimer, 10) == waiting[:10]
    (early,) = enqueue(store, 1, run_at=now(store) - 60 * SECOND)
    store.shift_clock(RESUME_FOR + 1)
    assert taken(store, claimer, 10)[0] == early


def test_what_waits_elsewhere_is_seen_soon(store, going):
    claimer, waiting = going
    assert taken(store, claimer, 10) == waiting[:10]
    (urgent,) = enqueue(store, 1, priority=-9)
    store.shift_clock(RESUME_FOR + 1)
    assert urgent in taken(store, claimer, 10)


def test_where_its_lane_gives_less_than_is_wanted_everything_is_looked_at_at_once(store, going):
    claimer, waiting = going
    (urgent,) = enqueue(store, 1, priority=-9)
    (other,) = enqueue(store, 1, queue="other")
    assert sorted(taken(store, claimer, 100)) == sorted([*waiting, urgent, other])


def test_jobs_of_two_lanes_in_one_claim_leave_no_mark(store, going):
    claimer, waiting = going
    others = enqueue(store, 20, queue="other", run_at=now(store) - SECOND)
    first = taken(store, claimer, 40)
    assert (len(first), claimer._resume_positions) == (40, ())
    assert sorted(first + taken(store, claimer, 40)) == sorted(waiting + others)


def test_where_something_is_closed_no_mark_is_left_since_it_would_be_of_no_use(store, going):
    claimer, _ = going
    with store.begin() as unit:
        unit.close_gate(Gate("queue", "elsewhere", unit.now(), None, "closed", "a person"))
    assert len(taken(store, claimer, 10)) == 10
    assert claimer.claimed_all
    assert claimer._resume_positions == ()


def test_after_a_small_claim_everything_is_looked_at_again(store, monkeypatch):
    monkeypatch.setattr(claims, "MIN_BULK_CLAIM", 6)
    claimer = Claimer("w1", KINDS)
    enqueue(store, 40)
    taken(store, claimer, 5)
    taken(store, claimer, 5)
    (urgent,) = enqueue(store, 1, priority=-9)
    assert urgent in taken(store, claimer, 5)


def test_it_stops_at_once_where_a_queue_is_paused(store, going):
    claimer, _ = going
    with store.begin() as unit:
        unit.close_gate(Gate("queue", "default", unit.now(), None, "closed", "a person"))
    assert taken(store, claimer, 10) == []


def test_it_stops_at_once_where_an_operator_limits_something(store, going):
    claimer, _ = going
    with store.begin() as unit:
        unit.set_limit(LimitRow("queue", "default", 6, None, unit.now(), None, "", ""))
    assert len(taken(store, claimer, 10)) == 1


def test_it_stops_at_once_where_its_worker_was_closed(store, going):
    claimer, _ = going
    close_worker(store)
    assert taken(store, claimer, 10) == []


def test_nothing_by_what_was_seen_too_long_ago_or_before_the_clock_was_set_back(store):
    enqueue(store)
    moment = now(store)
    assert goes_on(store, since=moment - 9 * SECOND, until=moment - SECOND) == []
    assert goes_on(store, since=moment + 60 * SECOND, until=moment + 90 * SECOND) == []


def test_nothing_of_another_lane_or_before_the_mark_or_not_due_or_past_its_deadline(store):
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
    assert goes_on(store, moment) == []


def test_jobs_that_were_given_back_are_seen_soon(store, going):
    claimer, waiting = going
    with store.single_statement() as unit:
        leases = claimer.claim(unit, 10).leases
    finish(store, leases, Outcome(Ended.RELEASED, reason="given back"))
    store.shift_clock(RESUME_FOR + 1)
    assert sorted(taken(store, claimer, 100)) == sorted(waiting)


# -- fresh work and retries ----------------------------------------------------------------------
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
    """One who claims where fresh work and younger retries wait; and both."""
    moment = now(store)
    fresh = enqueue(store, 60, run_at=moment - 2 * SECOND)
    return Claimer("w1", KINDS), fresh, enqueue_retries(store, 60, run_at=moment - SECOND)


def test_fresh_work_and_retries_are_taken_by_their_shares(store, both):
    claimer, fresh, retries = both
    assert taken(store, claimer, 20) == fresh[:18] + retries[:2]
    assert [mark.lane for mark in claimer._resume_positions] == [LANE, AGAIN]
    assert taken(store, claimer, 25) == fresh[18:41] + retries[2:4]
    assert claimer.retry_credit == pytest.approx(0.5)
    assert taken(store, claimer, 5) == fresh[41:45] + retries[4:5]


def test_retries_that_are_older_have_the_larger_share(store):
    moment = now(store)
    fresh = enqueue(store, 60, run_at=moment - SECOND)
    retries = enqueue_retries(store, 60, run_at=moment - 2 * SECOND)
    claimer = Claimer("w1", KINDS)
    assert taken(store, claimer, 20) == fresh[:14] + retries[:6]
    assert taken(store, claimer, 20) == fresh[14:28] + retries[6:12]


def test_what_one_of_both_does_not_give_the_other_gives(store, both):
    claimer, fresh, retries = both
    assert taken(store, claimer, 50) == fresh[:45] + retries[:5]
    assert sorted(taken(store, claimer, 50)) == sorted(fresh[45:] + retries[5:40])
    (late,) = enqueue(store, 1)
    assert sorted(taken(store, claimer, 50)) == sorted([*retries[40:], late])
    assert taken(store, claimer, 50) == []


def test_few_retries_leave_their_places_to_fresh_work(store):
    fresh = enqueue(store, 60, run_at=now(store) - SECOND)
    (retry,) = enqueue_retries(store, 1)
    claimer = Claimer("w1", KINDS)
    assert taken(store, claimer, 30) == [*fresh[:29], retry]
    assert taken(store, claimer, 30) == fresh[29:59]


def test_what_failed_meanwhile_is_taken_by_the_next_claim(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    sql(store, "DELETE FROM {p}job WHERE state = 'queued' AND lane = :lane", {"lane": AGAIN})
    (again,) = enqueue_retries(store, 1)
    assert again in taken(store, claimer, 20)


def test_a_third_lane_is_seen_soon_beside_both(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    (urgent,) = enqueue(store, 1, priority=-9)
    store.shift_clock(RESUME_FOR + 1)
    assert urgent in taken(store, claimer, 20)
    assert claimer._resume_positions == ()


def test_both_stop_at_once_where_their_queue_is_paused(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    with store.begin() as unit:
        unit.close_gate(Gate("queue", "default", unit.now(), None, "closed", "a person"))
    assert taken(store, claimer, 20) == []


def test_in_a_small_claim_each_job_has_its_turn(store, both, monkeypatch):
    monkeypatch.setattr(claims, "MIN_BULK_CLAIM", 100)
    claimer, fresh, retries = both
    assert taken(store, claimer, 20) == [*fresh[:9], retries[0], *fresh[9:18], retries[1]]
    assert claimer._resume_positions == ()
