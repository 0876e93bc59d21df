"""Settle: the only door, fenced, once, and never a word from somebody who lost the lease."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.settle import settle
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
    Background,
    attempts,
    claim,
    close_worker,
    enqueue,
    finish,
    get,
    log_of,
    make_failure,
    once_more,
    open_worker,
    running,
    sql,
    story,
    sweep,
    take,
    together,
    told,
    unique_job,
    waits_for_a_lock,
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
    """All that an ending could have touched."""
    return [
        sql(store, f"SELECT * FROM {{p}}{table} ORDER BY 1, 2")  # noqa: S608
        for table in ("job", "attempt", "checkpoint", "gate")
    ]


@pytest.mark.parametrize(
    ("outcome", "state", "event", "counters", "verb"), ENDINGS.values(), ids=ENDINGS
)
def test_an_ending_moves_the_job_and_leaves_an_attempt_and_an_event(
    store, outcome, state, event, counters, verb
):
    lease = running(store, uses="bucket", max_retries=5)
    (verdict,) = finish(store, lease, outcome)
    row = get(store, lease.id)
    assert row.state == verdict.decision.state == state
    assert (row.failures, row.losses, row.snoozes) == counters
    assert (row.worker, row.token, row.attempt) == (None, 1, 1)
    assert row.result == (outcome.result if state == "succeeded" else None)
    assert (row.error is not None) == (state == "dead")
    assert (row.choices is not None) == (state == "parked")
    assert (row.finished_at is not None) == (state in {"succeeded", "dead", "cancelled"})
    assert told(store, lease.id) == ["queued", "started", event]
    (attempt,) = attempts(store, lease.id)
    assert (attempt.token, attempt.attempt, attempt.worker, attempt.verb) == (1, 1, "w1", verb)
    assert attempt.ended == outcome.ended
    assert attempt.started_at == lease.started_at <= attempt.ended_at
    assert attempt.next_run_at == (row.run_at if state == "queued" else None)
    last = story(store, lease.id)[-1]
    assert (last.attempt, last.token, last.owner) == (1, 1, "acme")


def test_a_failure_is_kept_on_its_attempt_and_on_the_job_only_when_it_is_dead(store):
    failure = make_failure(
        code="BOOM", evidence={"status": 503}, private={"trace": "secret \u0000"}, fingerprint="f1"
    )
    job = running(store)
    finish(store, job, Outcome(Ended.FAILED, failure=failure))
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
    finish(store, once_more(store, job.id), Outcome(Ended.FAILED, failure=failure, final=True))
    assert json.loads(get(store, job.id).error)["code"] == "BOOM"
    assert all("secret" not in json.dumps(event.data) for event in story(store, job.id))


def test_costs_add_up(store):
    lease = running(store)
    finish(store, lease, Outcome(Ended.FAILED, failure=make_failure(), cost=0.5))
    finish(store, once_more(store, lease.id), Outcome(Ended.RETURNED, cost=0.25))
    assert get(store, lease.id).cost == 0.75
    assert [attempt.cost for attempt in attempts(store, lease.id)] == [0.5, 0.25]


def test_a_first_start_is_remembered_through_retries(store):
    lease = running(store)
    finish(store, lease, FAILED)
    again = once_more(store, lease.id)
    assert again.first_started_at == lease.first_started_at < again.started_at


def test_text_no_database_takes_does_not_keep_an_ending_out(store):
    """One such text would otherwise fail its whole flush, again and again."""
    first, second = running(store), running(store)
    bad = Outcome(Ended.SNOOZED, after=SECOND, reason="nul \x00, lone \udc00")
    with store.begin() as unit:
        settle(
            unit, [Ending(first, bad), Ending(second, RETURNED)], POLICIES, unit.now(), Random(7)
        )
    assert [get(store, lease.id).state for lease in (first, second)] == ["queued", "succeeded"]
    assert get(store, first.id).reason.startswith("snoozed for 1 s: nul ")


# -- the fence -----------------------------------------------------------------------------------
STALE = {
    "finish": lambda store, lease: finish(store, lease, RETURNED),
    "fail": lambda store, lease: finish(store, lease, FAILED),
    "die": lambda store, lease: finish(store, lease, FATAL),
    "park": lambda store, lease: finish(store, lease, PARKED),
    "release": lambda store, lease: finish(store, lease, RELEASED),
    "snooze": lambda store, lease: finish(store, lease, SNOOZED),
}
SILENT = {
    "progress": lambda unit, lease: unit.update_progress(
        lease.worker, [(lease.id, lease.token, 0.9, "stale")]
    ),
    "checkpoint": lambda unit, lease: unit.save_checkpoint(
        lease.id, lease.worker, lease.token, "page", "stale"
    ),
    "cancel": lambda unit, lease: unit.request_cancel(lease.id, lease.token, "stale"),
}
LATER = {
    "while it waits": lambda store, lease: None,
    "while a newer attempt runs": lambda store, lease: once_more(store, lease.id, worker="w2"),
    "after a newer attempt has ended": lambda store, lease: finish(
        store, once_more(store, lease.id, worker="w2")
    ),
}


@pytest.fixture
def lost(store, request):
    """A lease whose worker was declared dead, and what happened since."""
    open_worker(store, "w2")
    lease = running(store)
    close_worker(store)
    sweep(store)
    LATER[request.param](store, lease)
    return lease


@pytest.mark.seed("000-33")
@pytest.mark.parametrize("lost", LATER, indirect=True)
@pytest.mark.parametrize("write", STALE.values(), ids=STALE)
def test_a_stale_ending_changes_nothing_and_says_so(store, lost, write):
    before = everything(store)
    (verdict,) = write(store, lost)
    assert verdict.decision is None
    assert everything(store) == before
    refused = story(store, lost.id)[-1]
    assert (refused.type, refused.token, refused.attempt) == ("job.stale_refused", 1, 1)


@pytest.mark.parametrize("lost", LATER, indirect=True)
@pytest.mark.parametrize("write", SILENT.values(), ids=SILENT)
def test_a_stale_word_while_running_changes_nothing(store, lost, write):
    before = everything(store)
    with store.begin() as unit:
        assert not write(unit, lost)
    assert everything(store) == before


WRONG = {
    "worker": {"worker": "w2"},
    "an older token": {"token": 0},
    "a token to come": {"token": 2},
    "job": {"id": "no-such-job"},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("write", STALE.values(), ids=STALE)
def test_an_ending_needs_the_very_lease(store, change, write):
    lease = running(store)
    before = everything(store)
    assert write(store, lease._replace(**change))[0].decision is None
    assert everything(store) == before
    assert finish(store, lease)[0].decision is not None


def test_a_stale_ending_in_the_same_flush_as_the_current_one_is_refused_alone(store):
    """A supervisor that goes on under a new id may settle both in one flush."""
    lease = running(store)
    open_worker(store, "w2")
    close_worker(store)
    sweep(store)
    newer = once_more(store, lease.id, worker="w2")
    with store.begin() as unit:
        endings = [Ending(lease, FATAL), Ending(newer, RETURNED)]
        verdicts = settle(unit, endings, POLICIES, unit.now(), Random(7))
    assert {verdict.lease.token: verdict.decision is None for verdict in verdicts} == {
        1: True,
        2: False,
    }
    assert told(store, lease.id)[-2:] == ["succeeded", "stale_refused"]


# -- once ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", [value[0] for value in ENDINGS.values()], ids=ENDINGS)
def test_the_same_ending_repeated_is_already_settled(store, outcome):
    """Nobody knows whether a commit arrived whose answer was lost: so it is sent again as it is."""
    lease = running(store)
    finish(store, lease, outcome)
    before, told_before = everything(store), told(store, lease.id)
    (verdict,) = finish(store, lease, outcome)
    assert verdict.decision is not None
    assert everything(store) == before
    assert told(store, lease.id) == told_before


def test_the_same_ending_repeated_after_a_newer_attempt_began_leaves_that_alone(store):
    lease = running(store)
    finish(store, lease, FAILED)
    newer = once_more(store, lease.id)
    finish(store, lease, FAILED)
    assert get(store, lease.id)[16:18] == ("w1", newer.token)
    assert len(attempts(store, lease.id)) == 1


def test_the_same_lease_twice_in_one_flush_counts_once(store):
    lease = running(store)
    finish(store, [lease, lease], FAILED)
    assert get(store, lease.id).failures == 1
    assert told(store, lease.id) == ["queued", "started", "retry_scheduled"]


def test_many_threads_settling_overlapping_sets_in_any_order_write_each_once(store):
    open_worker(store)
    enqueue(store, 300)
    leases = claim(store, 300)

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            finish(store, rng.sample(leases, 120), RETURNED)

    together(*[lambda seed=seed: flush(seed) for seed in range(6)])
    finish(store, leases, RETURNED)
    with store.read() as unit:
        assert dict(unit.count_jobs_by_state(1000))["succeeded"] == 300
    assert sum(len(attempts(store, lease.id)) for lease in leases) == 300
    assert [event[2] for event in log_of(store)].count("job.succeeded") == 300


def test_two_different_endings_of_one_lease_at_once_make_one(store):
    leases = [running(store) for _ in range(30)]
    close_worker(store)
    together(lambda: [finish(store, lease, RETURNED) for lease in leases], lambda: sweep(store))
    for lease in leases:
        (attempt,) = attempts(store, lease.id)
        state = get(store, lease.id).state
        assert (state, attempt.ended) in {("succeeded", "returned"), ("queued", "lost")}
        late = ["lost", "stale_refused"] if state == "queued" else ["succeeded"]
        assert [
            name
            for name in told(store, lease.id)[2:]
            if name != "stale_refused" or state == "queued"
        ] == late


# -- cancel --------------------------------------------------------------------------------------
def ask(store, lease, reason="no longer wanted"):
    with store.begin() as unit:
        return unit.request_cancel(lease.id, lease.token, reason)


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
def test_a_cancel_asked_for_since_the_decision_is_decided_again(store, outcome, state):
    lease = running(store)
    assert ask(store, lease)
    (verdict,) = finish(store, lease, outcome)
    assert verdict.decision.state == get(store, lease.id).state == state
    assert len(attempts(store, lease.id)) == 1
    assert len(told(store, lease.id)) == 3


def test_a_cancel_after_the_result_came_first_finds_nothing_to_stop(store):
    lease = running(store)
    finish(store, lease)
    assert not ask(store, lease)
    assert get(store, lease.id).cancel_reason is None


def test_only_the_first_of_two_who_ask_is_heard(store):
    lease = running(store)
    assert ask(store, lease, "first")
    assert not ask(store, lease, "second")
    with store.begin() as unit:
        assert unit.renew_worker("w1", draining=False).cancels == [(lease.id, 1, "first")]


def test_a_redecided_ending_repeated_is_already_settled(store):
    lease = running(store)
    ask(store, lease)
    finish(store, lease, FAILED)
    before = everything(store)
    finish(store, lease, FAILED)
    assert everything(store) == before
    assert told(store, lease.id) == ["queued", "started", "cancelled"]


def test_cancels_and_endings_at_once_always_end_in_one_of_both(store):
    leases = [running(store) for _ in range(40)]
    together(
        lambda: [ask(store, lease) for lease in leases],
        lambda: [finish(store, x, FAILED) for x in leases[::-1]],
    )
    for lease in leases:
        row = get(store, lease.id)
        assert row.state in {"queued", "cancelled"}
        assert (row.state == "cancelled") == (row.cancel_reason is not None)
        assert len(attempts(store, lease.id)) == 1


# -- while it runs -------------------------------------------------------------------------------
def test_progress_is_the_last_word_and_no_event(store):
    lease = running(store)
    with store.begin() as unit:
        unit.update_progress("w1", [(lease.id, 1, 0.25, "a quarter")])
        unit.update_progress("w1", [(lease.id, 1, None, "still there")])
    row = get(store, lease.id)
    assert (row.progress, row.progress_message) == (0.25, "still there")
    assert told(store, lease.id) == ["queued", "started"]


def test_a_checkpoint_forgives_the_losses_so_far(store):
    lease = running(store)
    finish(store, lease, LOST)
    again = once_more(store, lease.id)
    assert again.losses == 1
    with store.begin() as unit:
        assert unit.save_checkpoint(lease.id, "w1", again.token, "page", "17")
    assert get(store, lease.id).losses == 0


def test_a_checkpoint_and_the_loss_of_its_lease_wait_for_each_other(postgres):
    """Or a checkpoint of the old attempt appears in the middle of the new one."""
    lease = running(postgres)
    with postgres.begin() as unit:
        assert unit.save_checkpoint(lease.id, "w1", 1, "page", "17")
        loss = Background(lambda: finish(postgres, lease, LOST))
        until(lambda: loss.done or waits_for_a_lock(postgres), what="the loss is settled or waits")
        assert not loss.done
    assert loss.answer()[0].decision is not None


# -- keys ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (RETURNED, True),
        (PARKED, True),
        (FAILED, True),
        (LOST, True),
        (FATAL, False),
        (CANCELLED, False),
    ],
)
def test_the_key_goes_with_the_move_that_leaves_its_cover(store, outcome, kept):
    lease = running(store, job=unique_job("k"))
    finish(store, lease, outcome)
    assert (get(store, lease.id).unique_hash is not None) is kept


def test_lanes_of_retries_and_of_uncharged_returns_differ(store):
    failed, released = running(store), running(store)
    finish(store, failed, FAILED)
    finish(store, released, RELEASED)
    lanes = dict(sql(store, "SELECT id, lane FROM {p}job"))
    assert (lanes[failed.id], lanes[released.id]) == ("default|render||1", "default|render||0")


def test_a_plan_for_one_serves_for_many_and_the_other_way_round(store):
    open_worker(store)
    for n in (1, 1, 1, 1, 1, 1, 1, 400, 1, 400, 3):
        ids = enqueue(store, n)
        assert len(finish(store, take(store, *ids))) == n
        assert {get(store, job_id).state for job_id in (ids[0], ids[-1])} == {"succeeded"}


# -- many alike ----------------------------------------------------------------------------------
def in_its_own_words(outcome, n):
    """The same failure, with a text that no other has."""
    if outcome.failure is None:
        return outcome
    return outcome._replace(
        failure=replace(outcome.failure, private={"message": f'job {n} \u20ac "said" \\ \n no'})
    )


def as_told(store, job_id):
    """What is written of one, without its name and its moments."""
    row, (attempt,) = get(store, job_id), attempts(store, job_id)
    times = dict.fromkeys(("created_at", "run_at", "started_at", "first_started_at", "finished_at"))
    row = row._replace(id="", payload="", **times)
    return (
        row,
        attempt._replace(job_id="", started_at=0, ended_at=0, next_run_at=None),
        told(store, job_id),
    )


@pytest.mark.parametrize("outcome", [value[0] for value in ENDINGS.values()], ids=ENDINGS)
def test_many_that_end_alike_are_written_as_each_alone_would_be(store, outcome):
    policies = EffectivePolicies(RetrySection(jitter="none"), {})
    open_worker(store)
    ids = enqueue(store, 41)
    endings = [
        Ending(lease, in_its_own_words(outcome, 7 if n in {0, 40} else n))
        for n, lease in enumerate(take(store, *ids))
    ]
    for some in (endings[:-1], endings[-1:]):
        with store.begin() as unit:
            settle(unit, some, policies, unit.now(), Random(7))
    assert as_told(store, ids[0]) == as_told(store, ids[-1])
    for ending in endings:
        (attempt,) = attempts(store, ending.lease.id)
        assert attempt.started_at == ending.lease.started_at
        if ending.outcome.failure is not None:
            assert json.loads(attempt.private) == ending.outcome.failure.private


def test_among_many_alike_one_that_lost_its_lease_and_one_that_is_to_stop_stand_alone(store):
    open_worker(store)
    leases = take(store, *enqueue(store, 40))
    ask(store, leases[3])
    leases[7] = leases[7]._replace(token=9)
    verdicts = {verdict.lease.id: verdict.decision for verdict in finish(store, leases, FAILED)}
    assert (verdicts[leases[3].id].state, verdicts[leases[7].id]) == ("cancelled", None)
    states = [get(store, lease.id).state for lease in leases]
    assert [n for n, state in enumerate(states) if state != "queued"] == [3, 7]
    assert [len(attempts(store, lease.id)) for lease in leases] == [n != 7 for n in range(40)]


def test_many_with_the_same_token_keep_their_fences_each(store):
    open_worker(store)
    leases = take(store, *enqueue(store, 40))
    ask(store, leases[3])
    finish(store, [leases[7]])
    verdicts = {verdict.lease.id: verdict.decision for verdict in finish(store, leases, FAILED)}
    assert verdicts[leases[3].id].state == "cancelled"
    other = [lease._replace(worker="w2") for lease in leases]
    assert {verdict.decision for verdict in finish(store, other, FAILED)} == {None}
    states = [get(store, lease.id).state for lease in leases]
    assert (states[3], states[7], {*states[:3], *states[4:7], *states[8:]}) == (
        "cancelled",
        "succeeded",
        {"queued"},
    )
    assert [len(attempts(store, lease.id)) for lease in leases] == [1] * 40


def test_settling_nothing_is_nothing(store):
    assert finish(store, []) == []
    with store.begin() as unit:
        assert unit.settle([]) == []
