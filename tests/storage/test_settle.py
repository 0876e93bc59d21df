"""Settle: the only way an attempt changes its job; fenced, once."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.queries import LeaseQueries, WorkerQueries
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    CANCELLED,
    FAILED,
    FATAL,
    HELD,
    LOST,
    PARKED,
    POLICIES,
    RELEASED,
    RETRY,
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
    is_waiting_for_lock,
    job_events,
    make_failure,
    open_worker,
    read_event_table,
    run_concurrently,
    save_checkpoint,
    settle_leases,
    settle_orphans,
    sql,
    unique_job,
)
from support.waiting import until

ENDINGS = {
    #             state        event              failures losses snoozes verb
    "returned": (RETURNED, "succeeded", "succeeded", (0, 0, 0), "succeed"),
    "failed": (FAILED, "queued", "retry_scheduled", (1, 0, 0), "retry"),
    "fatal": (FATAL, "dead", "died", (1, 0, 0), "die"),
    "retry": (RETRY, "queued", "retry_scheduled", (1, 0, 0), "retry"),
    "snoozed": (SNOOZED, "queued", "snoozed", (0, 0, 1), "snooze"),
    "parked": (PARKED, "parked", "parked", (0, 0, 0), "park"),
    "held": (HELD, "queued", "snoozed", (0, 0, 0), "hold"),
    "cancelled": (CANCELLED, "cancelled", "cancelled", (0, 0, 0), "stop"),
    "lost": (LOST, "queued", "lost", (0, 1, 0), "lose"),
    "released": (RELEASED, "queued", "released", (0, 0, 0), "give back"),
}


def everything(store):
    """Return all rows that a settlement could touch."""
    return [
        sql(store, f"SELECT * FROM {{p}}{table} ORDER BY 1, 2")  # noqa: S608
        for table in ("job", "attempt", "step", "gate")
    ]


@pytest.mark.parametrize(
    ("outcome", "state", "event", "counters", "verb"), ENDINGS.values(), ids=ENDINGS
)
def test_a_settlement_changes_the_job_and_writes_an_attempt_and_an_event(
    store, outcome, state, event, counters, verb
):
    lease = claim_new_job(store, uses="bucket", max_retries=5)
    (verdict,) = settle_leases(store, lease, outcome)
    row = get(store, lease.id)
    assert row.state == verdict.decision.state == state
    assert (row.failures, row.losses, row.snoozes) == counters
    assert (row.worker, row.token, row.attempt) == (None, 1, 1)
    assert row.result == (outcome.result if state == "succeeded" else None)
    assert (row.error is not None) == (state == "dead")
    assert (row.choices is not None) == (state == "parked")
    assert (row.finished_at is not None) == (state in {"succeeded", "dead", "cancelled"})
    assert event_types(store, lease.id) == ["queued", "started", event]
    (attempt,) = attempts(store, lease.id)
    assert (attempt.token, attempt.attempt, attempt.worker, attempt.verb) == (1, 1, "w1", verb)
    assert attempt.ended == outcome.ended
    assert attempt.started_at == lease.started_at <= attempt.ended_at
    assert attempt.next_run_at == (row.run_at if state == "queued" else None)
    last = job_events(store, lease.id)[-1]
    assert (last.attempt, last.token, last.owner) == (1, 1, "acme")


def test_a_failure_is_stored_with_its_attempt_and_with_a_dead_job(store):
    failure = make_failure(
        code="BOOM", evidence={"status": 503}, private={"trace": "secret \u0000"}, fingerprint="f1"
    )
    job = claim_new_job(store)
    settle_leases(store, job, Outcome(Ended.FAILED, failure=failure))
    (attempt,) = attempts(store, job.id)
    assert (attempt.code, attempt.cls, attempt.rule, attempt.fingerprint) == (
        "BOOM",
        "transient",
        "test.rule",
        "f1",
    )
    assert (json.loads(attempt.evidence), json.loads(attempt.private)) == (
        {"status": 503},
        {"trace": "secret \u0000"},
    )
    assert get(store, job.id).error is None
    settle_leases(
        store, claim_when_due(store, job.id), Outcome(Ended.FAILED, failure=failure, final=True)
    )
    assert json.loads(get(store, job.id).error)["code"] == "BOOM"
    assert all("secret" not in json.dumps(event.data) for event in job_events(store, job.id))


def test_costs_add_up(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, Outcome(Ended.FAILED, failure=make_failure(), cost=0.5))
    settle_leases(store, claim_when_due(store, lease.id), Outcome(Ended.RETURNED, cost=0.25))
    assert get(store, lease.id).cost == 0.75
    assert [attempt.cost for attempt in attempts(store, lease.id)] == [0.5, 0.25]


def test_the_first_start_is_kept_through_retries(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    again = claim_when_due(store, lease.id)
    assert again.first_started_at == lease.first_started_at < again.started_at


def test_unstorable_text_does_not_prevent_a_settlement(store):
    """Otherwise one such text would fail its whole transaction again and again."""
    first, second = claim_new_job(store), claim_new_job(store)
    bad = Outcome(Ended.SNOOZED, after=SECOND, reason="nul \x00, lone \udc00")
    with store.begin() as tx:
        settle(
            tx,
            [Ending(first, bad), Ending(second, RETURNED)],
            SettleContext(POLICIES, tx.now(), Random(7)),
        )
    assert [get(store, lease.id).state for lease in (first, second)] == ["queued", "succeeded"]
    assert get(store, first.id).reason.startswith("snoozed for 1 s: nul ")


# --- Fence ---
STALE = {
    "finish": lambda store, lease: settle_leases(store, lease, RETURNED),
    "fail": lambda store, lease: settle_leases(store, lease, FAILED),
    "die": lambda store, lease: settle_leases(store, lease, FATAL),
    "park": lambda store, lease: settle_leases(store, lease, PARKED),
    "release": lambda store, lease: settle_leases(store, lease, RELEASED),
    "snooze": lambda store, lease: settle_leases(store, lease, SNOOZED),
}
SILENT = {
    "progress": lambda tx, lease: WorkerQueries(tx).update_progress(
        lease.worker, [(lease.id, lease.token, 0.9, "stale")]
    ),
    "checkpoint": lambda tx, lease: save_checkpoint(tx, lease, "page", "stale"),
    "cancel": lambda tx, lease: JobQueries(tx).request_cancel(lease.id, lease.token, "stale"),
}
LATER = {
    "while it waits": lambda store, lease: None,
    "while a newer attempt runs": lambda store, lease: claim_when_due(store, lease.id, worker="w2"),
    "after a newer attempt has ended": lambda store, lease: settle_leases(
        store, claim_when_due(store, lease.id, worker="w2")
    ),
}


@pytest.fixture
def lost(store, request):
    """Return a lease whose worker was declared lost, and what happened since."""
    open_worker(store, "w2")
    lease = claim_new_job(store)
    close_worker(store)
    settle_orphans(store)
    LATER[request.param](store, lease)
    return lease


@pytest.mark.seed("000-33")
@pytest.mark.parametrize("lost", LATER, indirect=True)
@pytest.mark.parametrize("write", STALE.values(), ids=STALE)
def test_a_stale_settlement_changes_nothing_and_is_reported(store, lost, write):
    before = everything(store)
    (verdict,) = write(store, lost)
    assert verdict.decision is None
    assert everything(store) == before
    refused = job_events(store, lost.id)[-1]
    assert (refused.type, refused.token, refused.attempt) == ("job.stale_refused", 1, 1)


@pytest.mark.parametrize("lost", LATER, indirect=True)
@pytest.mark.parametrize("write", SILENT.values(), ids=SILENT)
def test_stale_progress_and_checkpoints_change_nothing(store, lost, write):
    before = everything(store)
    with store.begin() as tx:
        assert not write(tx, lost)
    assert everything(store) == before


WRONG = {
    "worker": {"worker": "w2"},
    "an older token": {"token": 0},
    "a token to come": {"token": 2},
    "job": {"id": "no-such-job"},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("write", STALE.values(), ids=STALE)
def test_a_settlement_needs_its_exact_lease(store, change, write):
    lease = claim_new_job(store)
    before = everything(store)
    assert write(store, lease._replace(**change))[0].decision is None
    assert everything(store) == before
    assert settle_leases(store, lease)[0].decision is not None


def test_a_stale_settlement_is_refused_without_affecting_the_current_one(store):
    """A supervisor that continues under a new id may settle both in one transaction."""
    lease = claim_new_job(store)
    open_worker(store, "w2")
    close_worker(store)
    settle_orphans(store)
    newer = claim_when_due(store, lease.id, worker="w2")
    with store.begin() as tx:
        endings = [Ending(lease, FATAL), Ending(newer, RETURNED)]
        verdicts = settle(tx, endings, SettleContext(POLICIES, tx.now(), Random(7)))
    assert {verdict.lease.token: verdict.decision is None for verdict in verdicts} == {
        1: True,
        2: False,
    }
    assert event_types(store, lease.id)[-2:] == ["succeeded", "stale_refused"]


# --- Repeated settlements ---
@pytest.mark.parametrize("outcome", [value[0] for value in ENDINGS.values()], ids=ENDINGS)
def test_a_repeated_settlement_is_already_settled(store, outcome):
    """If the response to a commit was lost, the same settlement is sent again."""
    lease = claim_new_job(store)
    settle_leases(store, lease, outcome)
    before, types_before = everything(store), event_types(store, lease.id)
    (verdict,) = settle_leases(store, lease, outcome)
    assert verdict.decision is not None
    assert everything(store) == before
    assert event_types(store, lease.id) == types_before


def test_a_repeated_settlement_does_not_affect_a_newer_attempt(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    newer = claim_when_due(store, lease.id)
    settle_leases(store, lease, FAILED)
    assert get(store, lease.id)[16:18] == ("w1", newer.token)
    assert len(attempts(store, lease.id)) == 1


def test_the_same_lease_twice_in_one_transaction_counts_once(store):
    lease = claim_new_job(store)
    settle_leases(store, [lease, lease], FAILED)
    assert get(store, lease.id).failures == 1
    assert event_types(store, lease.id) == ["queued", "started", "retry_scheduled"]


def test_many_threads_settling_overlapping_sets_in_any_order_write_each_once(store):
    open_worker(store)
    enqueue(store, 300)
    leases = claim(store, 300)

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            settle_leases(store, rng.sample(leases, 120), RETURNED)

    run_concurrently(*[lambda seed=seed: flush(seed) for seed in range(6)])
    settle_leases(store, leases, RETURNED)
    with store.read() as tx:
        assert dict(SearchQueries(tx).count_jobs_by_state(1000))["succeeded"] == 300
    assert sum(len(attempts(store, lease.id)) for lease in leases) == 300
    assert [event[2] for event in read_event_table(store)].count("job.succeeded") == 300


def test_two_concurrent_endings_of_one_lease_write_one(store):
    leases = [claim_new_job(store) for _ in range(30)]
    close_worker(store)
    run_concurrently(
        lambda: [settle_leases(store, lease, RETURNED) for lease in leases],
        lambda: settle_orphans(store),
    )
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        state = get(store, lease.id).state
        assert (state, attempt.ended) in {("succeeded", "returned"), ("queued", "lost")}
        late = ["lost", "stale_refused"] if state == "queued" else ["succeeded"]
        assert [
            name
            for name in event_types(store, lease.id)[2:]
            if name != "stale_refused" or state == "queued"
        ] == late


# --- Cancel ---
def ask(store, lease, reason="no longer wanted"):
    with store.begin() as tx:
        return JobQueries(tx).request_cancel(lease.id, lease.token, reason)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (FAILED, "cancelled"),
        (FATAL, "cancelled"),
        (SNOOZED, "cancelled"),
        (PARKED, "cancelled"),
        (LOST, "cancelled"),
        (RELEASED, "cancelled"),
        (CANCELLED, "cancelled"),
        (RETURNED, "succeeded"),
    ],
)
def test_a_cancel_request_after_the_decision_is_decided_again(store, outcome, state):
    lease = claim_new_job(store)
    assert ask(store, lease)
    (verdict,) = settle_leases(store, lease, outcome)
    assert verdict.decision.state == get(store, lease.id).state == state
    assert len(attempts(store, lease.id)) == 1
    assert len(event_types(store, lease.id)) == 3


def test_a_cancel_after_the_settlement_changes_nothing(store):
    lease = claim_new_job(store)
    settle_leases(store, lease)
    assert not ask(store, lease)
    assert get(store, lease.id).cancel_reason is None


def test_the_first_of_two_cancel_requests_wins(store):
    lease = claim_new_job(store)
    assert ask(store, lease, "first")
    assert not ask(store, lease, "second")
    with store.begin() as tx:
        assert WorkerQueries(tx).renew_worker("w1", draining=False).cancels == [
            (lease.id, 1, "first")
        ]


def test_a_repeated_redecided_settlement_is_already_settled(store):
    lease = claim_new_job(store)
    ask(store, lease)
    settle_leases(store, lease, FAILED)
    before = everything(store)
    settle_leases(store, lease, FAILED)
    assert everything(store) == before
    assert event_types(store, lease.id) == ["queued", "started", "cancelled"]


def test_concurrent_cancels_and_settlements_have_one_outcome(store):
    leases = [claim_new_job(store) for _ in range(40)]
    run_concurrently(
        lambda: [ask(store, lease) for lease in leases],
        lambda: [settle_leases(store, x, FAILED) for x in leases[::-1]],
    )
    for lease in leases:
        row = get(store, lease.id)
        assert row.state in {"queued", "cancelled"}
        assert (row.state == "cancelled") == (row.cancel_reason is not None)
        assert len(attempts(store, lease.id)) == 1


# --- Running attempts ---
def test_progress_keeps_the_last_value_and_writes_no_event(store):
    lease = claim_new_job(store)
    with store.begin() as tx:
        WorkerQueries(tx).update_progress("w1", [(lease.id, 1, 0.25, "a quarter")])
        WorkerQueries(tx).update_progress("w1", [(lease.id, 1, None, "still there")])
    row = get(store, lease.id)
    assert (row.progress, row.progress_message) == (0.25, "still there")
    assert event_types(store, lease.id) == ["queued", "started"]


def test_a_checkpoint_resets_losses(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, LOST)
    again = claim_when_due(store, lease.id)
    assert again.losses == 1
    with store.begin() as tx:
        assert save_checkpoint(tx, again, "page", "17")
    assert get(store, lease.id).losses == 0


def test_a_checkpoint_and_the_loss_of_its_lease_are_serialised(postgres):
    """Otherwise a checkpoint of the old attempt could appear within the new one."""
    lease = claim_new_job(postgres)
    with postgres.begin() as tx:
        assert save_checkpoint(tx, lease, "page", "17")
        loss = BackgroundCall(lambda: settle_leases(postgres, lease, LOST))
        until(
            lambda: loss.done or is_waiting_for_lock(postgres), what="the loss is settled or waits"
        )
        assert not loss.done
    assert loss.result()[0].decision is not None


# --- Keys ---
@pytest.mark.parametrize(
    ("outcome", "held"),
    [
        (RETURNED, True),
        (PARKED, True),
        (FAILED, True),
        (LOST, True),
        (FATAL, False),
        (CANCELLED, False),
    ],
)
def test_the_unique_key_is_released_by_leaving_its_covered_states(store, outcome, held):
    lease = claim_new_job(store, job=unique_job("k"))
    settle_leases(store, lease, outcome)
    assert (get(store, lease.id).unique_hash is not None) is held


def test_retries_and_uncharged_returns_go_to_different_lanes(store):
    failed, released = claim_new_job(store), claim_new_job(store)
    settle_leases(store, failed, FAILED)
    settle_leases(store, released, RELEASED)
    lanes = dict(sql(store, "SELECT id, lane FROM {p}job"))
    assert (lanes[failed.id], lanes[released.id]) == ("default|render||1", "default|render||0")


def test_single_and_bulk_settlements_share_plans(store):
    open_worker(store)
    for n in (1, 1, 1, 1, 1, 1, 1, 400, 1, 400, 3):
        ids = enqueue(store, n)
        assert len(settle_leases(store, claim_by_id(store, *ids))) == n
        assert {get(store, job_id).state for job_id in (ids[0], ids[-1])} == {"succeeded"}


# --- Equal settlements ---
def with_message(outcome, n):
    """Give a failure its own message."""
    if outcome.failure is None:
        return outcome
    return outcome._replace(
        failure=replace(outcome.failure, private={"message": f'job {n} \u20ac "said" \\ \n no'})
    )


def stored(store, job_id):
    """Return what is stored about a job, without ids and times."""
    row, (attempt,) = get(store, job_id), attempts(store, job_id)
    times = dict.fromkeys(("created_at", "run_at", "started_at", "first_started_at", "finished_at"))
    row = row._replace(id="", payload="", **times)
    return (
        row,
        attempt._replace(job_id="", started_at=0, ended_at=0, next_run_at=None),
        event_types(store, job_id),
    )


@pytest.mark.parametrize("outcome", [value[0] for value in ENDINGS.values()], ids=ENDINGS)
def test_equal_settlements_write_what_single_ones_write(store, outcome):
    policies = EffectivePolicies(RetrySection(jitter="none"), {})
    open_worker(store)
    ids = enqueue(store, 41)
    endings = [
        Ending(lease, with_message(outcome, 7 if n in {0, 40} else n))
        for n, lease in enumerate(claim_by_id(store, *ids))
    ]
    for some in (endings[:-1], endings[-1:]):
        with store.begin() as tx:
            settle(tx, some, SettleContext(policies, tx.now(), Random(7)))
    assert stored(store, ids[0]) == stored(store, ids[-1])
    for ending in endings:
        (attempt,) = attempts(store, ending.lease.id)
        assert attempt.started_at == ending.lease.started_at
        if ending.outcome.failure is not None:
            assert json.loads(attempt.private) == ending.outcome.failure.private


def test_a_lost_lease_and_a_cancel_request_among_equal_settlements_are_handled(store):
    open_worker(store)
    leases = claim_by_id(store, *enqueue(store, 40))
    ask(store, leases[3])
    leases[7] = leases[7]._replace(token=9)
    verdicts = {
        verdict.lease.id: verdict.decision for verdict in settle_leases(store, leases, FAILED)
    }
    assert (verdicts[leases[3].id].state, verdicts[leases[7].id]) == ("cancelled", None)
    states = [get(store, lease.id).state for lease in leases]
    assert [n for n, state in enumerate(states) if state != "queued"] == [3, 7]
    assert [len(attempts(store, lease.id)) for lease in leases] == [n != 7 for n in range(40)]


def test_equal_settlements_are_fenced_one_by_one(store):
    open_worker(store)
    leases = claim_by_id(store, *enqueue(store, 40))
    ask(store, leases[3])
    settle_leases(store, [leases[7]])
    verdicts = {
        verdict.lease.id: verdict.decision for verdict in settle_leases(store, leases, FAILED)
    }
    assert verdicts[leases[3].id].state == "cancelled"
    other = [lease._replace(worker="w2") for lease in leases]
    assert {verdict.decision for verdict in settle_leases(store, other, FAILED)} == {None}
    states = [get(store, lease.id).state for lease in leases]
    assert (states[3], states[7], {*states[:3], *states[4:7], *states[8:]}) == (
        "cancelled",
        "succeeded",
        {"queued"},
    )
    assert [len(attempts(store, lease.id)) for lease in leases] == [1] * 40


def test_settling_nothing_does_nothing(store):
    assert settle_leases(store, []) == []
    with store.begin() as tx:
        assert LeaseQueries(tx).settle([]) == []
