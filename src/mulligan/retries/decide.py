"""Decide what an outcome means for its job. Pure; every decision has a ground and a sentence.

Three counters have separate limits: `failures` counts what the handler did (max_retries), `losses`
counts processes that died under it (max_losses), `snoozes` counts its own delays. An attempt that
was released or held is not charged.

Failures are counted in total, by class and by code. A retry must be within three limits: the total
within max_retries, the class within its own limit, the code within the limit of its rule. A backoff
or an escalation advances with the count of its origin: of a rule with the code, of a class with the
class, any other with the total.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mulligan.core.attempt import Cls, Decision, Ended, Failure, Lease, Outcome, Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import State, is_name
from mulligan.core.lifecycle import MOVES
from mulligan.core.waits import NEVER, WaitKind
from mulligan.failures import codes
from mulligan.retries import reasons
from mulligan.retries.backoff import MAX_WAIT_SECONDS, Rng
from mulligan.retries.limits import (
    NO_TERMS,
    ChargedFailure,
    FailureCounts,
    RetryTerms,
    cached_retry_terms,
    check_max_retries,
    check_switches,
    next_step,
    parse_counts,
    read_terms,
)
from mulligan.retries.policy import (
    EffectivePolicy,
    Then,
    describe_escalation,
    escalate,
    select_step,
)
from mulligan.retries.reasons import Reason
from mulligan.retries.step_counts import has_step_counts, read_counters
from mulligan.retries.undo import LEAVE, UndoCause, end_settings, must_undo, read_cause, undo_first

DEFAULT_HOLD = 60 * SECOND
MIN_HOLD = SECOND  # a hold is not charged: without a minimum a handler could repeat it without end
MAX_HOLD = 3600 * SECOND
MIN_SNOOZE = SECOND  # a snooze may be unlimited: without a minimum it could repeat without end
MAX_WAIT = int(MAX_WAIT_SECONDS) * SECOND
MIN_HINT_SECONDS = 1.0  # a shorter hint has passed before other workers know of it
MAX_HINT_SECONDS = 86_400.0
HINT_JITTER = 0.1  # share of a server's hint that is added at random
MAX_HINT_JITTER = 60.0  # seconds
GIVE_BACK_LIMIT = 86_400 * SECOND  # after this, what its worker cannot run is a failure
MIN_GIVE_BACK = SECOND
MAX_GIVE_BACK = 300 * SECOND
MAX_UNCHARGED_FAILURES = 3  # a job that itself breaks its dependency must not run for ever


class DecisionInput(NamedTuple):
    """Everything that a decision depends on."""

    lease: Lease
    outcome: Outcome
    policy: EffectivePolicy
    now: Micros
    rng: Rng
    uncharged: Reason | None = None  # why the failure is not charged
    other_release: str = ""  # a release that accepts the payload


def decide(
    lease: Lease,
    outcome: Outcome,
    policy: EffectivePolicy,
    now: Micros,
    rng: Rng,
    *,
    dependency_down: str = "",
    kind_held: str = "",
    other_release: str = "",
) -> Decision:
    """Return what happens to the job of a finished attempt. No other code decides this.

    `dependency_down` is the key of an unavailable dependency that caused the failure. `kind_held`
    is the job's kind, if it is on hold for the same cause as this failure. `other_release` is a
    release that accepts the payload which this worker's release refused.
    """
    if lease.settings is not None:
        cause = read_cause(lease.settings)
        if cause is not None:
            return _decide_undo(DecisionInput(lease, outcome, policy, now, rng), cause)
    if outcome.ended == Ended.RETURNED:
        return decide_success(lease, outcome)
    uncharged = None
    if dependency_down:
        uncharged = reasons.dependency_down(dependency_down)
    elif kind_held:
        uncharged = reasons.kind_held(kind_held)
    now = _not_before_start(now, lease)
    case = DecisionInput(lease, outcome, policy, now, rng, uncharged, other_release)
    if lease.cancel_reason is not None:
        reason = reasons.stop_requested(lease.cancel_reason)
        decision = _make_decision(case, Verb.STOP, reason, failure=outcome.failure)
    else:
        decision = _decide_by_counters(case)
    if lease.settings is not None and decision.verb in _ENDS and must_undo(lease.settings):
        return undo_first(decision, now)._replace(state=State.QUEUED)
    if decision.state is State.QUEUED and decision.failure is not None and decision.failure.terms:
        return _add_promise(decision, decision.failure)
    return decision


_ENDS = frozenset({Verb.DIE, Verb.STOP})


def _decide_undo(case: DecisionInput, cause: UndoCause) -> Decision:
    """Decide about an attempt that undid the steps of a job. A failed undo parks it."""
    outcome = case.outcome
    if outcome.ended == Ended.RETURNED:
        reason = Reason(cause.ground, f"{cause.reason}; {outcome.reason or 'steps undone'}")
        decision = _make_decision(case, cause.verb, reason, failure=cause.failure)
        return decision._replace(settings=end_settings(case.lease.settings))
    # A request to stop does not stop the undo: the job is cancelled once its steps are undone.
    case = case._replace(lease=case.lease._replace(cancel_reason=None))
    decision = _decide_by_counters(case)
    if decision.verb not in _ENDS:
        return decision
    reason = reasons.undo_failed(decision.reason)
    parked = _make_decision(case, Verb.PARK, reason, failure=decision.failure)
    return parked._replace(
        choices=(reasons.RUN_AGAIN, LEAVE), failures=decision.failures, losses=0, counts=None
    )


def _decide_by_counters(case: DecisionInput) -> Decision:
    """Decide with the counters that a failure is charged to: of its step, or of the job.

    A step with a policy of its own is decided like a job of its own.
    """
    lease, step = case.lease, case.outcome.step
    if step is None and not has_step_counts(lease.counts):
        return _RULES[case.outcome.ended](case)
    charged_step = step.name if step is not None and step.policy is not None else ""
    counters = read_counters(lease.failures, lease.counts, charged_step)
    charged = lease._replace(failures=counters.failures, counts=counters.counts)
    decision = _RULES[case.outcome.ended](case._replace(lease=charged))
    failures, counts = counters.merge(decision.failures, decision.counts)
    decision = decision._replace(failures=failures, counts=counts)
    if step is None or decision.failure is None:
        return decision
    return decision._replace(reason=reasons.in_step(step.name, decision.reason))


def _not_before_start(now: Micros, lease: Lease) -> Micros:
    """Correct a worker's estimate of the time that lags behind the claim.

    A longer lag is no estimate: the clock was set back.
    """
    if 0 < lease.started_at - now < SECOND:
        return lease.started_at
    return now


def _add_promise(decision: Decision, failure: Failure) -> Decision:
    """Append the promise of the rule to the public message of a job that is queued again."""
    promise = read_terms(failure).promise
    if not promise:
        return decision
    return decision._replace(failure=replace(failure, public=f"{failure.public} {promise}"))


# --- Success ---


def decide_success(lease: Lease, outcome: Outcome) -> Decision:
    """Decide about a handler that returned. Its result stands even if a stop was requested."""
    reason = _success_reason(lease, outcome)
    losses = _refund_loss(lease) if lease.alone else lease.losses
    return Decision(  # positional: keyword arguments take twice as long
        Verb.SUCCEED,
        State.SUCCEEDED,
        reason.ground,
        reason.text,
        None,  # run_at
        lease.failures,
        losses,
        lease.snoozes,
        False,  # alone
        outcome.result,
        None,  # failure
        (),  # choices
        None,  # hold
        outcome.cost,
        lease.counts,
        lease.settings,
        None,  # then
        outcome.skipped,
    )


def _success_reason(lease: Lease, outcome: Outcome) -> Reason:
    stop_requested = lease.cancel_reason is not None
    if outcome.skipped:
        return reasons.skipped(stop_requested=stop_requested)
    if stop_requested:
        return reasons.RETURNED_BEFORE_STOP
    return reasons.RETURNED


# --- One rule for each way to end ---


def _decide_cancelled(case: DecisionInput) -> Decision:
    reason = reasons.cancelled(case.outcome.reason)
    return _make_decision(case, Verb.STOP, reason, failure=case.outcome.failure)


def _decide_parked(case: DecisionInput) -> Decision:
    reason = reasons.parked(case.outcome.reason)
    return _make_decision(case, Verb.PARK, reason, failure=case.outcome.failure)


def _park_unknown_fate(case: DecisionInput, ended: str, failure: Failure | None) -> Decision:
    """Let a person decide about a handler with once=True that was called and did not report."""
    reason = reasons.fate_unknown(ended)
    was_lost = case.outcome.ended is Ended.LOST
    losses = case.lease.losses + was_lost
    decision = _make_decision(case, Verb.PARK, reason, failure=failure, losses=losses)
    choices = (reasons.RUN_AGAIN, reasons.IT_HAPPENED)
    return decision._replace(choices=choices, alone=was_lost or decision.alone)


def _decide_released(case: DecisionInput) -> Decision:
    if case.policy.once and case.outcome.interrupted:
        ended = f"stopped while it ran ({case.outcome.reason or 'released'})"
        return _park_unknown_fate(case, ended, case.outcome.failure)
    reason = reasons.released(case.outcome.reason)
    decision = _make_decision(case, Verb.GIVE_BACK, reason, failure=case.outcome.failure)
    decision = decision._replace(alone=case.outcome.alone or case.lease.alone)
    return _requeue(case, decision, _requested_time(case, 0))


def _decide_refused(case: DecisionInput) -> Decision:
    """Decide about a manual retry that can_retry= refused. The handler was not called."""
    failure = case.outcome.failure or codes.retry_refused("")
    reason = reasons.manual_retry_refused(failure.public)
    return _make_decision(case, Verb.DIE, reason, failure=failure)


def _decide_lost(case: DecisionInput) -> Decision:
    losses = case.lease.losses + 1
    limit = case.policy.max_losses
    failure = case.outcome.failure or codes.process_died(case.lease.kind)
    if case.policy.once:
        return _park_unknown_fate(case, "lost while it ran", failure)
    if losses > limit:
        reason = reasons.max_losses(losses, limit, failure.public)
        return _make_decision(case, Verb.DIE, reason, failure=failure, losses=losses)
    reason = reasons.lost(losses, limit, alone=case.outcome.suspect)
    decision = _make_decision(case, Verb.LOSE, reason, failure=failure, losses=losses)
    decision = decision._replace(alone=case.outcome.suspect)
    if failure.cls is Cls.RESOURCE:
        # The kernel reported that the process was too large. With the same limits the next
        # attempt would die too, so a loss climbs the escalation as a failure does.
        charge = ChargedFailure(
            failure, read_terms(failure), case.lease.failures, _current_counts(case)
        )
        step = next_step(case.policy, charge, losses=losses)
        if step is not None:
            decision = _apply_step(case, decision, step)
    return _requeue(case, decision, case.now)


def _decide_snoozed(case: DecisionInput) -> Decision:
    snoozes = case.lease.snoozes + 1
    limit = case.policy.max_snoozes
    if limit is not None and snoozes > limit:
        failure = codes.snooze_limit(limit)
        reason = reasons.max_snoozes(limit)
        return _make_decision(case, Verb.DIE, reason, failure=failure, snoozes=snoozes)
    run_at = max(_requested_time(case, 0), case.now + MIN_SNOOZE)
    reason = reasons.snoozed(_seconds_until(case, run_at), case.outcome.reason)
    decision = _make_decision(case, Verb.SNOOZE, reason, snoozes=snoozes)
    if is_name(case.outcome.queue):  # checked where the handler runs, which is not trusted
        decision = _apply_step(case, decision, Then(queue=case.outcome.queue))
    return _requeue(case, decision, run_at)


def _decide_waiting(case: DecisionInput) -> Decision:
    """Decide about a handler that waits without a slot. A wait is never charged."""
    wait = case.outcome.wait
    if wait is None:  # a runner sent an incomplete outcome
        return _decide_failed(case._replace(outcome=case.outcome._replace(ended=Ended.FAILED)))
    if wait.kind == WaitKind.SLEEP:
        run_at = _requested_time(case, 0)
        reason = reasons.sleeping(wait.name, _seconds_until(case, run_at))
        return _requeue(case, _make_decision(case, Verb.WAIT, reason), run_at)
    has_limit = case.outcome.until is not None or case.outcome.after is not None
    run_at = _requested_time(case, 0) if has_limit else NEVER
    seconds = _seconds_until(case, run_at) if has_limit else None
    reason = reasons.waiting(case.outcome.reason or wait.name, seconds)
    # Not `_requeue`: what the job waits for may come before its deadline.
    return _make_decision(case, Verb.WAIT, reason, run_at=run_at)


def _decide_held(case: DecisionInput) -> Decision:
    dependency = case.outcome.dependency
    if not dependency or dependency not in case.lease.uses.split(","):
        failure = codes.hold_unknown_dependency(dependency, case.lease.uses)
        outcome = case.outcome._replace(ended=Ended.FAILED, failure=failure)
        return _decide_failed(case._replace(outcome=outcome))
    until = _requested_time(case, DEFAULT_HOLD)
    until = min(max(until, case.now + MIN_HOLD), case.now + MAX_HOLD)
    reason = reasons.held(dependency, _seconds_until(case, until), case.outcome.reason)
    decision = _make_decision(case, Verb.HOLD, reason)
    # The gate has its own time and name: only why it is closed is its reason.
    why = case.outcome.reason or reasons.HANDLER_GATE
    decision = decision._replace(hold=(dependency, until, why))
    return _requeue(case, decision, case.now)


def _decide_retry(case: DecisionInput) -> Decision:
    """Decide about a handler that returned Retry: only the total limit and the switches apply."""
    policy = case.policy
    failure = case.outcome.failure or codes.retry_requested(case.outcome.reason)
    charge = ChargedFailure(failure, NO_TERMS, case.lease.failures + 1, _current_counts(case))
    refusal = check_switches(policy, failure) or check_max_retries(policy, charge)
    if refusal is not None:
        return _die(case, refusal, charge)
    backoff = _to_micros(policy.backoff.delay(case.lease.failures, case.rng))
    run_at = _requested_time(case, backoff)
    count = f"{charge.failures} of {policy.max_retries}"
    outcome = case.outcome
    wait = _seconds_until(case, run_at)
    reason = reasons.retry_requested(count, wait, outcome.reason, outcome.host)
    return _schedule_retry(case, run_at, reason, charge, select_step(policy.then, charge.failures))


def _decide_failed(case: DecisionInput) -> Decision:
    failure = case.outcome.failure or codes.unreported()
    if not case.outcome.final:
        uncharged = _give_back(case, failure) or _hold_uncharged(case, failure)
        if uncharged is not None:
            return uncharged
    terms = _retry_terms(case, failure)
    shared = terms.charge
    charge = ChargedFailure(
        failure, shared.terms, shared.failures, shared.counts, shared.counts_json
    )
    refusal = _final_reason(case.outcome) if case.outcome.final else terms.refusal
    if refusal is not None:
        return _hold_rate_limited(case, _die(case, refusal, charge), failure)
    hint = failure.retry_after if terms.charge.terms.wait_for_hint else None
    run_at = case.now + _to_micros(_draw_wait(case, terms, hint))
    wait = _seconds_until(case, run_at)
    reason = reasons.retry(terms.retry_count, wait, failure.cls, hint)
    decision = _schedule_retry(case, run_at, reason, charge, terms.step)
    return _hold_rate_limited(case, decision, failure)


def _final_reason(outcome: Outcome) -> Reason:
    """Return why a failure is final, whatever its policy says."""
    return reasons.host_gave_up(outcome.host) if outcome.host else reasons.FINAL


def _retry_terms(case: DecisionInput, failure: Failure) -> RetryTerms:
    lease = case.lease
    return cached_retry_terms(
        case.policy,
        lease.failures + 1,
        lease.counts,
        _time_waited(case),
        read_terms(failure) if failure.terms else NO_TERMS,
        failure.code,
        failure.cls,
        failure.rule,
        bool(failure.retryable),
        bool(failure.terms),
    )


# --- Failures: holds ---


def _hold_rate_limited(case: DecisionInput, decision: Decision, failure: Failure) -> Decision:
    """Hold the dependency of a rate-limited job, so that other jobs do not run into the limit."""
    if failure.cls is not Cls.RATE_LIMITED:
        return decision
    until = _hinted_time(case, failure)
    if until is None:
        return decision
    reason = reasons.rate_limited_for(_seconds_until(case, until))
    return decision._replace(hold=(_blamed_uses(case), until, reason))


def _hinted_time(case: DecisionInput, failure: Failure) -> Micros | None:
    """Return when the dependency asked to be called again.

    None if it gave no hint, or if the job or step uses several: it is unknown which one did.
    """
    hint = failure.retry_after
    uses = _blamed_uses(case)
    if not uses or "," in uses or hint is None or not hint >= MIN_HINT_SECONDS:
        return None
    return case.now + _to_micros(min(hint, MAX_HINT_SECONDS))


def _blamed_uses(case: DecisionInput) -> str:
    """Return the dependencies that may have caused the failure: of its step, else of the job."""
    step = case.outcome.step
    return step.uses if step is not None and step.uses else case.lease.uses


def _hold_uncharged(case: DecisionInput, failure: Failure) -> Decision | None:
    """Requeue the job without charge after an outage or a used-up quota.

    None if the job itself caused the failure, was not charged too often, or may not be retried.
    """
    quota_reset = _hinted_time(case, failure) if failure.cls is Cls.QUOTA else None
    if case.uncharged is None and quota_reset is None:
        return None
    if case.policy.max_retries == 0:
        return None  # the handler has started, and an automatic second run is not allowed
    counts = _current_counts(case)
    if counts.uncharged >= MAX_UNCHARGED_FAILURES:
        return None
    if check_switches(case.policy, failure) is not None:
        return None
    reason = case.uncharged or reasons.quota_used_up(_blamed_uses(case))
    hold = None
    if quota_reset is not None:
        hold = (_blamed_uses(case), quota_reset, reasons.QUOTA_GATE)
    counts = counts._replace(uncharged=counts.uncharged + 1)
    decision = _make_decision(case, Verb.HOLD, reason, failure=failure)
    return _requeue(case, decision._replace(counts=counts.to_json(), hold=hold), case.now)


# --- Failures: not the job's ---


def _give_back(case: DecisionInput, failure: Failure) -> Decision | None:
    """Requeue the job without charge if its worker could not run it and another one may.

    Each wait is a tenth of the time since the first attempt. None: the failure is the job's, or
    the limit has passed.
    """
    reason = _give_back_reason(case, failure)
    elapsed = case.now - case.lease.first_started_at
    if reason is None or elapsed > GIVE_BACK_LIMIT:
        return None
    if check_switches(case.policy, failure) is not None:
        return None
    decision = _make_decision(
        case, Verb.GIVE_BACK, reason, failure=failure, losses=case.lease.losses
    )
    wait = min(max(elapsed // 10, MIN_GIVE_BACK), MAX_GIVE_BACK)
    return _requeue(case, decision._replace(alone=case.lease.alone), case.now + wait)


def _give_back_reason(case: DecisionInput, failure: Failure) -> Reason | None:
    if case.other_release:
        return reasons.other_release(case.other_release)
    # The handler has started: without retries it must not run again.
    if failure.origin in codes.SYSTEM_ERROR_RULES and case.policy.max_retries > 0:
        return reasons.system_error(failure.code)
    return None


# --- Counters ---


def _current_counts(case: DecisionInput) -> FailureCounts:
    """Return the counts of this generation, including the time the job could not run."""
    counts = parse_counts(case.lease.counts)
    return counts._replace(waited=counts.waited + _time_waited(case))


def _time_waited(case: DecisionInput) -> Micros:
    """Return how long the job was due before it started; only counted under a max_age."""
    lease = case.lease
    if case.policy.max_age is None or lease.attempt <= 1:
        return 0
    return max(0, lease.started_at - lease.run_at)


def _refund_loss(lease: Lease) -> int:
    """Return the losses of a job that survived alone in its process: one less.

    It did not cause the death that it was charged for.
    """
    return max(0, lease.losses - 1)


# --- Times ---


def _draw_wait(case: DecisionInput, terms: RetryTerms, hint: float | None) -> float:
    """Return the seconds before the retry. A server's hint is the minimum.

    Jitter is added to the hint: otherwise all jobs that received it would return at once.
    """
    drawn = terms.backoff.delay(terms.backoff_index, case.rng)
    if hint is None or not math.isfinite(hint) or hint <= 0:
        return drawn
    max_jitter = min(HINT_JITTER * hint, MAX_HINT_JITTER)
    return max(drawn, hint) + case.rng.uniform(0, max_jitter)


def _requested_time(case: DecisionInput, default_delay: Micros) -> Micros:
    """Return the time that the handler requested, between now and the latest storable time."""
    if case.outcome.until is not None:
        return min(max(case.outcome.until, case.now), case.now + MAX_WAIT)
    delay = default_delay if case.outcome.after is None else case.outcome.after
    return case.now + min(max(delay, 0), MAX_WAIT)


def _to_micros(seconds: float) -> Micros:
    return round(min(max(seconds, 0.0), MAX_WAIT_SECONDS) * SECOND)


def _seconds_until(case: DecisionInput, at: Micros) -> float:
    return (at - case.now) / SECOND


# --- Decisions ---


def _schedule_retry(
    case: DecisionInput, run_at: Micros, reason: Reason, charge: ChargedFailure, step: Then | None
) -> Decision:
    """Queue a counted retry, or end the job if the retry would start after `max_age`."""
    max_age = case.policy.max_age
    if max_age is not None:
        latest = case.lease.first_started_at + _to_micros(max_age) + charge.counts.waited
        if run_at > latest:
            return _die(case, reasons.max_age(max_age), charge)
    decision = _make_decision(
        case, Verb.RETRY, reason, failure=charge.failure, charge=charge, run_at=run_at
    )
    if step is not None:
        decision = _apply_step(case, decision, step)
    return _requeue(case, decision, run_at)


def _die(case: DecisionInput, reason: Reason, charge: ChargedFailure) -> Decision:
    return _make_decision(case, Verb.DIE, reason, failure=charge.failure, charge=charge)


def _apply_step(case: DecisionInput, decision: Decision, step: Then) -> Decision:
    settings, changes = escalate(case.lease, step)
    if not changes:
        return decision._replace(settings=settings)
    reason = f"{decision.reason}; {describe_escalation(changes)}"
    return decision._replace(reason=reason, settings=settings, then=changes)


def _requeue(case: DecisionInput, decision: Decision, run_at: Micros) -> Decision:
    """Queue the job again at `run_at`, or end it if its deadline comes first."""
    deadline = case.lease.deadline_at
    if deadline is None or run_at <= deadline:
        return decision if decision.run_at == run_at else decision._replace(run_at=run_at)
    reason = reasons.deadline(decision.reason)
    return decision._replace(
        verb=Verb.DIE,
        state=State.DEAD,
        ground=reason.ground,
        reason=reason.text,
        run_at=None,
        failure=codes.deadline_passed(decision.failure or case.outcome.ended),
        alone=False,
        hold=None,
        settings=case.lease.settings,
        then=None,
        retry_count="",
    )


def _make_decision(
    case: DecisionInput,
    verb: Verb,
    reason: Reason,
    *,
    failure: Failure | None = None,
    losses: int | None = None,
    snoozes: int | None = None,
    charge: ChargedFailure | None = None,
    run_at: Micros | None = None,
) -> Decision:
    """Build a decision. Counters that are not passed stay as in the lease."""
    lease, outcome = case.lease, case.outcome
    if charge is None:
        failures = lease.failures
        counts = lease.counts
    else:
        failures = charge.failures
        counts = charge.counts_json or charge.counts.to_json()
    if losses is None:
        losses = lease.losses
        if lease.alone and outcome.ended not in {Ended.LOST, Ended.RELEASED}:
            losses = _refund_loss(lease)
    if snoozes is None:
        snoozes = lease.snoozes
    choices = outcome.choices if verb is Verb.PARK else ()
    # Positional: keyword arguments make this call twice as slow, and it runs for every failure.
    return Decision(
        verb,
        MOVES[verb, State.RUNNING],
        reason.ground,
        reason.text,
        run_at,
        failures,
        losses,
        snoozes,
        outcome.alone,
        None,  # result
        failure,
        choices,
        None,  # hold
        outcome.cost,
        counts,
        lease.settings,
        None,  # then
        False,  # skipped
        reason.retry_count,
    )


_RULES: dict[Ended, Callable[[DecisionInput], Decision]] = {
    Ended.FAILED: _decide_failed,
    Ended.RETRY: _decide_retry,
    Ended.SNOOZED: _decide_snoozed,
    Ended.WAITING: _decide_waiting,
    Ended.PARKED: _decide_parked,
    Ended.HELD: _decide_held,
    Ended.CANCELLED: _decide_cancelled,
    Ended.LOST: _decide_lost,
    Ended.RELEASED: _decide_released,
    Ended.REFUSED: _decide_refused,
}
