"""Moves by hand: every edge of the lifecycle table, nobody's move twice, and each with its actor and reason."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from random import Random

import pytest

from mulligan.core.attempt import Ending, Verb
from mulligan.core.durations import SECOND
from mulligan.core.errors import IllegalMove, NotFound, Refused, UniqueTaken
from mulligan.core.job import State
from mulligan.core.lifecycle import EVENTS, MOVES
from mulligan.events.queries import EventQueries
from mulligan.guards.queries import GuardQueries
from mulligan.jobs import repair
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.repair import ManualRetry
from mulligan.worker import upkeep
from mulligan.worker.queries import LeaseQueries
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    CANCELLED,
    FAILED,
    FATAL,
    HELD,
    HOUR,
    LOST,
    PARKED,
    POLICIES,
    RELEASED,
    RETURNED,
    SNOOZED,
    BackgroundCall,
    attempts,
    claim,
    claim_by_id,
    claim_new_job,
    claim_when_due,
    close_worker,
    enqueue,
    event_types,
    get,
    insert,
    is_waiting_for_lock,
    job_events,
    migrated,
    now,
    open_worker,
    rolled_back,
    run_concurrently,
    run_once,
    settle_leases,
    settle_orphans,
    sql,
    state_of,
    unique_job,
)
from support.waiting import until


@pytest.fixture
def store(store_url):
    with migrated(store_url) as opened:
        yield opened


IN_STATE = {
    State.QUEUED: lambda store, **given: enqueue(store, **given)[0],
    State.RUNNING: lambda store, **given: claim_new_job(store, **given).id,
    State.SUCCEEDED: lambda store, **given: run_once(store, RETURNED, **given),
    State.DEAD: lambda store, **given: run_once(store, FATAL, **given),
    State.CANCELLED: lambda store, **given: run_once(store, CANCELLED, **given),
    State.PARKED: lambda store, **given: run_once(store, PARKED, **given),
}
BY_HAND = {
    Verb.CANCEL: lambda store, job_id: repair.cancel(store, job_id, actor="ann", reason="because"),
    Verb.RELEASE: lambda store, job_id: repair.release(
        store, job_id, actor="ann", reason="because"
    ),
    Verb.RETRY_BY_HAND: lambda store, job_id: repair.retry(
        store, job_id, actor="ann", reason="because"
    ),
    Verb.DISCARD: lambda store, job_id: repair.discard(
        store, job_id, actor="ann", reason="because"
    ),
}
EDGES = [pair for pair in itertools.product(BY_HAND, State) if pair != (Verb.CANCEL, State.RUNNING)]


@pytest.mark.parametrize(
    ("verb", "start"), EDGES, ids=[f"{verb} from {start}" for verb, start in EDGES]
)
def test_exactly_the_moves_of_the_lifecycle_table_are_possible(store, verb, start):
    job_id = IN_STATE[start](store)
    before, history = get(store, job_id), event_types(store, job_id)
    target = MOVES.get((verb, start))
    if target is None:
        with pytest.raises(IllegalMove, match=f"the job is {start}"):
            BY_HAND[verb](store, job_id)
        assert get(store, job_id) == before
        assert event_types(store, job_id) == history
        return
    row = BY_HAND[verb](store, job_id)
    assert row == get(store, job_id)
    assert (row.state, row.reason) == (target, "because")
    assert row.token == before.token
    assert row.generation == before.generation + (verb is Verb.RETRY_BY_HAND)
    assert (row.result, row.error, row.choices, row.cancel_reason) == (None, None, None, None)
    event = job_events(store, job_id)[-1]
    assert (event.type, event.actor, event.data["reason"]) == (EVENTS[verb], "ann", "because")
    assert event.data["from"] == start
    assert len(job_events(store, job_id)) == len(history) + 1


EXPIRE = [(state, MOVES.get((Verb.EXPIRE, state))) for state in State]


@pytest.mark.parametrize(("start", "target"), EXPIRE, ids=[state for state, _ in EXPIRE])
def test_a_deadline_ends_only_waiting_jobs(store, start, target):
    job_id = IN_STATE[start](store, deadline=HOUR)
    before = get(store, job_id)
    store.shift_clock(2 * HOUR)
    assert upkeep.expire_deadlines(store) == (target is not None)
    row = get(store, job_id)
    assert row.state == (target or start)
    if target is None:
        assert row == before
    else:
        assert json.loads(row.error)["code"] == "DEADLINE_PASSED"
        assert upkeep.expire_deadlines(store) == 0


def test_deadlines_are_processed_in_small_steps(store):
    enqueue(store, 450, deadline=HOUR)
    store.shift_clock(2 * HOUR)
    assert [upkeep.expire_deadlines(store) for _ in range(4)] == [200, 200, 50, 0]


def test_a_job_of_an_unknown_kind_dies_with_its_code_after_a_while(store):
    (known,) = enqueue(store)
    (strange,) = enqueue(store, kind="strange")
    open_worker(store, kinds='["render"]')
    assert upkeep.expire_unknown_kinds(store, 600) == 0
    store.shift_clock(601 * SECOND)
    assert upkeep.expire_unknown_kinds(store, 600) == 1
    assert json.loads(get(store, strange).error)["code"] == "KIND_UNKNOWN"
    assert state_of(store, known) == "queued"


# -- retry ---------------------------------------------------------------------------------------
def test_a_manual_retry_begins_a_new_generation_and_keeps_the_history(store):
    lease = claim_new_job(store, max_retries=1)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id), FAILED)
    assert get(store, lease.id).state == "dead"
    row = repair.retry(
        store, lease.id, actor="ann", request=ManualRetry(overrides={"max_retries": 5})
    )
    assert (row.generation, row.attempt, row.token, row.failures, row.max_retries) == (
        2,
        0,
        2,
        0,
        5,
    )
    assert row.first_started_at is None
    again = claim_by_id(store, lease.id)[0]
    assert (again.generation, again.attempt, again.token) == (2, 1, 3)
    settle_leases(store, again)
    assert [(one.generation, one.attempt, one.token) for one in attempts(store, lease.id)] == [
        (1, 1, 1),
        (1, 2, 2),
        (2, 1, 3),
    ]


def test_a_retry_is_due_at_once_and_in_the_lane_of_fresh_work(store):
    job_id = run_once(store, FATAL, delay=0)
    sql(store, "UPDATE {p}job SET run_at = run_at + 1000000000000 WHERE id = :id", {"id": job_id})
    repair.retry(store, job_id, actor="ann")
    assert sql(store, "SELECT lane FROM {p}job") == [("default|render||0",)]
    assert [lease.id for lease in claim(store)] == [job_id]


def test_a_retry_restarts_the_deadline(store):
    (job_id,) = enqueue(store, deadline=HOUR)
    store.shift_clock(10 * HOUR)
    upkeep.expire_deadlines(store)
    row = repair.retry(store, job_id, actor="ann")
    assert row.deadline_at == pytest.approx(now(store) + HOUR, abs=10 * SECOND)
    assert upkeep.expire_deadlines(store) == 0


def test_a_release_keeps_the_deadline(store):
    job_id = run_once(store, PARKED, deadline=HOUR)
    before = get(store, job_id).deadline_at
    assert repair.release(store, job_id, actor="ann").deadline_at == before


@pytest.mark.seed("004-34")
def test_twenty_concurrent_retries_make_one_generation(store):
    job_id = run_once(store, FATAL)

    def press():
        try:
            return repair.retry(store, job_id, actor="ann").generation
        except IllegalMove:
            return None

    assert sorted(run_concurrently(*[press for _ in range(20)]), key=str) == [2] + [None] * 19
    assert get(store, job_id).generation == 2
    assert event_types(store, job_id).count("retried") == 1  # 004-34


def test_an_unknown_override_is_named(store):
    job_id = run_once(store, FATAL)
    with pytest.raises(Refused, match="cannot override colour"):
        repair.retry(store, job_id, actor="ann", request=ManualRetry(overrides={"colour": "red"}))


@pytest.mark.parametrize("verb", BY_HAND.values(), ids=BY_HAND)
def test_an_unknown_job_is_not_found(store, verb):
    with pytest.raises(NotFound, match="no-such-job"):
        verb(store, "no-such-job")


# -- release and discard -------------------------------------------------------------------------
def test_a_release_passes_the_choice_to_the_handler(store):
    job_id = run_once(store, PARKED)
    assert json.loads(get(store, job_id).choices) == ["us", "them"]
    repair.release(store, job_id, actor="ann", choice="them", reason="they broke it")
    (lease,) = claim_by_id(store, job_id)
    assert lease.choice == "them"
    assert job_events(store, job_id)[-2].data["choice"] == "them"


def test_a_choice_lasts_through_retries_until_the_next_one(store):
    job_id = run_once(store, PARKED)
    repair.release(store, job_id, actor="ann", choice="them")
    settle_leases(store, claim_by_id(store, job_id), FAILED)
    lease = claim_when_due(store, job_id)
    assert lease.choice == "them"
    settle_leases(store, lease, PARKED)
    repair.release(store, job_id, actor="ann")
    assert claim_by_id(store, job_id)[0].choice is None


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_a_discard_needs_a_reason(store, reason):
    job_id = run_once(store, FATAL)
    with pytest.raises(Refused, match="reason"):
        repair.discard(store, job_id, actor="ann", reason=reason)
    assert state_of(store, job_id) == "dead"


# -- cancel --------------------------------------------------------------------------------------
def test_a_running_job_is_asked_to_stop_and_cancelled_once_its_code_has_stopped(store):
    lease = claim_new_job(store)
    row = repair.cancel(store, lease.id, actor="ann", reason="wrong file")
    assert (row.state, row.cancel_reason) == ("running", "wrong file")
    repair.cancel(store, lease.id, actor="bob", reason="me too")
    settle_leases(store, lease, FAILED)
    assert state_of(store, lease.id) == "cancelled"
    assert event_types(store, lease.id) == ["queued", "started", "cancel_requested", "cancelled"]


def test_a_cancelled_job_is_never_claimed(store):
    open_worker(store)
    ids = enqueue(store, 3)
    repair.cancel(store, ids[0], actor="ann")
    assert [lease.id for lease in claim(store, 5)] == ids[1:]


def test_a_cancel_that_meets_a_claim_asks_the_running_job_to_stop(postgres_url):
    with migrated(postgres_url) as store:
        open_worker(store)
        (job_id,) = enqueue(store)
        with store.begin() as tx:
            LeaseQueries(tx).claim_jobs("w1", [job_id], 1)
            pressed = BackgroundCall(
                lambda: repair.cancel(store, job_id, actor="ann", reason="wrong file")
            )
            until(
                lambda: pressed.done or is_waiting_for_lock(store),
                what="the cancel meets the claim",
            )
        assert pressed.result().cancel_reason == "wrong file"


# -- keys ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("start", [State.DEAD, State.CANCELLED])
def test_a_job_whose_key_is_taken_cannot_be_retried(store, start):
    first = IN_STATE[start](store, job=unique_job("k"))
    second = unique_job("k")
    insert(store, second)
    before = get(store, first)
    with pytest.raises(UniqueTaken, match=first):
        repair.retry(store, first, actor="ann")
    assert get(store, first) == before
    assert event_types(store, first).count("retried") == 0
    repair.cancel(store, second.id, actor="ann")
    assert repair.retry(store, first, actor="ann").unique_hash == second.unique_hash


def test_a_retry_reserves_the_key_again(store):
    first = run_once(store, FATAL, job=unique_job("k"))
    repair.retry(store, first, actor="ann")
    assert insert(store, unique_job("k"))[0].id == first


def test_one_taken_key_does_not_stop_other_moves(store):
    first, neighbour = run_once(store, FATAL, job=unique_job("k")), run_once(store, FATAL)
    insert(store, unique_job("k"))
    with store.begin() as tx:
        for job_id in (first, neighbour):
            row = JobQueries(tx).get_job(job_id)
            move = repair._build_move(tx, row, Verb.RETRY_BY_HAND, State.QUEUED, "")
            if job_id == first:
                with pytest.raises(UniqueTaken):
                    JobQueries(tx).move_job(move)
            else:
                assert JobQueries(tx).move_job(move)
    assert (state_of(store, first), state_of(store, neighbour)) == ("dead", "queued")


def test_another_constraint_error_is_not_reported_as_a_taken_key(store):
    job_id = run_once(store, FATAL)
    with store.read() as tx:
        move = repair._build_move(
            tx, JobQueries(tx).get_job(job_id), Verb.DISCARD, State.CANCELLED, ""
        )
    with pytest.raises(Exception, match="job_sound"), store.begin() as tx:
        JobQueries(tx).move_job(move._replace(error="{}"))
    assert state_of(store, job_id) == "dead"


@pytest.mark.seed("004-34")
def test_a_move_is_rolled_back_with_its_transaction(store):
    job_id = run_once(store, FATAL)
    with store.read() as tx:
        move = repair._build_move(
            tx, JobQueries(tx).get_job(job_id), Verb.RETRY_BY_HAND, State.QUEUED, ""
        )
    with rolled_back(store.begin()) as tx:
        assert JobQueries(tx).move_job(move)
    assert state_of(store, job_id) == "dead"  # 004-34


# -- who comes too late --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change", [{"token": 7}, {"generation": 7}, {"from_state": "parked"}], ids=str
)
def test_a_move_requires_the_job_as_it_was_read(store, change):
    job_id = run_once(store, FATAL)
    before = get(store, job_id)
    with store.begin() as tx:
        move = repair._build_move(
            tx, JobQueries(tx).get_job(job_id), Verb.RETRY_BY_HAND, State.QUEUED, ""
        )
        assert not JobQueries(tx).move_job(move._replace(**change))
    assert get(store, job_id) == before


def test_concurrent_moves_leave_a_legal_history(store):
    ids = [run_once(store, PARKED) for _ in range(12)]

    def press(verb):
        for job_id in Random(verb).sample(ids, len(ids)):
            with suppress(IllegalMove):
                BY_HAND[verb](store, job_id)

    run_concurrently(*[lambda verb=verb: press(verb) for verb in BY_HAND])
    legal = {}
    for (verb, start), end in MOVES.items():
        legal.setdefault((str(start), str(EVENTS[verb])), str(end))
    for job_id in ids:
        state = "parked"
        for event in job_events(store, job_id)[3:]:
            state = legal[state, event.type]
        assert state == state_of(store, job_id)


def test_a_stale_worker_cannot_undo_what_a_person_did(store):
    lease = claim_new_job(store)
    close_worker(store)
    settle_orphans(store)
    repair.cancel(store, lease.id, actor="ann")
    settle_leases(store, lease, RETURNED)
    assert state_of(store, lease.id) == "cancelled"
    assert event_types(store, lease.id)[-2:] == ["cancelled", "stale_refused"]


# -- holds ---------------------------------------------------------------------------------------
def holding(store, leases, actor=""):
    with store.begin() as tx:
        return settle(
            tx,
            [Ending(lease, HELD) for lease in leases],
            SettleContext(POLICIES, tx.now(), Random(7), actor),
        )


def closed(store):
    with store.read() as tx:
        return [gate.key for gate in GuardQueries(tx).list_gates()]


def test_a_hold_closes_the_dependency_in_the_transaction_of_its_job(store):
    lease = claim_new_job(store, uses="bucket")
    holding(store, [lease])
    assert closed(store) == ["bucket"]
    assert state_of(store, lease.id) == "queued"


def test_a_hold_of_a_lost_lease_closes_nothing(store):
    lease = claim_new_job(store, uses="bucket")
    close_worker(store)
    settle_orphans(store)
    holding(store, [lease])
    assert closed(store) == []


def test_a_hold_of_a_job_that_is_to_be_cancelled_closes_nothing(store):
    lease = claim_new_job(store, uses="bucket")
    repair.cancel(store, lease.id, actor="ann")
    holding(store, [lease])
    assert state_of(store, lease.id) == "cancelled"
    assert closed(store) == []


def test_a_hold_settled_twice_writes_one_event(store):
    lease = claim_new_job(store, uses="bucket")
    holding(store, [lease])
    holding(store, [lease])
    with store.read() as tx:
        assert [event.type for event in EventQueries(tx).list_events_after(0, 100)].count(
            "dependency.opened"
        ) == 1


@pytest.mark.parametrize("outcome", [SNOOZED, RELEASED, LOST], ids=["snoozed", "released", "lost"])
def test_a_job_returned_to_the_queue_can_be_cancelled(store, outcome):
    job_id = run_once(store, outcome)
    assert repair.cancel(store, job_id, actor="ann").state == "cancelled"
