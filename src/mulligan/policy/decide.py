"""What happens next: an outcome in, a decision out. Pure; every decision says why.

The counters and who pays: `failures` for what the handler did (against max_retries), `losses` for a process that
died under it (against max_losses), `snoozes`. What is given back or held costs nothing.

Only the total of failures is stored, so a class cap is compared with the total too: two transient failures and
one unknown make three, and an unknown cap of two ends it. That errs on the cautious side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mulligan.job import SECOND, Cls, Decision, Ended, Failure, Lease, Micros, Outcome, State, Verb
from mulligan.policy import ends, lifecycle
from mulligan.policy.backoff import LONGEST, Rng, delay
from mulligan.policy.codes import PROGRAMMING_ERROR
from mulligan.policy.phrase import duration
from mulligan.policy.retry import EffectivePolicy

HOLD_DEFAULT = 60 * SECOND
HOLD_LEAST = SECOND  # a hold is uncharged: without a floor a handler could spin for ever
HOLD_MOST = 3600 * SECOND
_LONGEST = int(LONGEST) * SECOND


class Case(NamedTuple):
    """Everything a rule may look at."""

    lease: Lease
    outcome: Outcome
    policy: EffectivePolicy
    now: Micros
    rng: Rng


def decide(lease: Lease, outcome: Outcome, policy: EffectivePolicy, now: Micros, rng: Rng) -> Decision:
    """The only place that knows what an ending means for the job."""
    if outcome.ended == Ended.RETURNED:
        return _returned(lease, outcome)
    case = Case(lease, outcome, policy, now, rng)
    if lease.cancel_reason is not None:
        return _move(case, Verb.STOP, _asked(lease.cancel_reason), failure=outcome.failure)
    return _RULES[outcome.ended](case)


def _returned(lease: Lease, outcome: Outcome) -> Decision:
    """If the handler finished first, its result stands, also against a request to stop."""
    return Decision(
        Verb.SUCCEED,
        State.SUCCEEDED,
        "returned" if lease.cancel_reason is None else "returned before it could be stopped",
        failures=lease.failures,
        losses=max(0, lease.losses - 1) if lease.alone else lease.losses,
        snoozes=lease.snoozes,
        result=outcome.result,
        cost=outcome.cost,
    )


def _asked(reason: str) -> str:
    return f"stopped on request: {reason}" if reason else "stopped on request"


def _cancelled(case: Case) -> Decision:
    return _move(case, Verb.STOP, case.outcome.reason or "cancelled by its handler", failure=case.outcome.failure)


def _parked(case: Case) -> Decision:
    reason = case.outcome.reason or "a person must decide"
    return _move(case, Verb.PARK, reason, failure=case.outcome.failure)


def _released(case: Case) -> Decision:
    reason = case.outcome.reason or "given back, not charged"
    decision = _move(case, Verb.GIVE_BACK, reason, failure=case.outcome.failure)
    return _requeue(case, replace(decision, alone=case.outcome.alone or case.lease.alone), _asked_for(case, 0))


def _lost(case: Case) -> Decision:
    losses, most = case.lease.losses + 1, case.policy.max_losses
    failure = case.outcome.failure or ends.process_died()
    if losses > most:
        reason = f"lost {losses} times, {most} allowed: {failure.public}"
        return _move(case, Verb.DIE, reason, failure=failure, losses=losses)
    reason = f"lost, {losses} of {most} allowed; the next attempt runs alone"
    decision = _move(case, Verb.LOSE, reason, failure=failure, losses=losses)
    return _requeue(case, replace(decision, alone=True), case.now)


def _snoozed(case: Case) -> Decision:
    snoozes, most = case.lease.snoozes + 1, case.policy.max_snoozes
    if most is not None and snoozes > most:
        return _move(case, Verb.DIE, f"{most} of {most} snoozes used", failure=ends.snooze_limit(most), snoozes=snoozes)
    run_at = _asked_for(case, 0)
    reason = _with(f"snoozed for {_until(case, run_at)}", case.outcome.reason)
    return _requeue(case, _move(case, Verb.SNOOZE, reason, snoozes=snoozes), run_at)


def _held(case: Case) -> Decision:
    dependency = case.outcome.dependency
    if dependency not in case.lease.uses.split(",") or not dependency:
        failure = ends.hold_unknown_dependency(dependency, case.lease.uses)
        return _failed(case._replace(outcome=replace(case.outcome, ended=Ended.FAILED, failure=failure)))
    until = _asked_for(case, HOLD_DEFAULT)
    until = min(max(until, case.now + HOLD_LEAST), case.now + HOLD_MOST)
    reason = _with(f"waits for {dependency}, held for {_until(case, until)}", case.outcome.reason)
    return _requeue(case, replace(_move(case, Verb.HOLD, reason), hold=(dependency, until)), case.now)


def _retry(case: Case) -> Decision:
    """Asked for by the handler, so no class has a say: only the total counts."""
    failure = case.outcome.failure or ends.retry_requested(case.outcome.reason)
    failures, most = case.lease.failures + 1, case.policy.max_retries
    refusal = _refused_by_count(case.policy, failures)
    if refusal:
        return _move(case, Verb.DIE, refusal, failure=failure, failures=failures)
    drawn = _micros(delay(case.policy.backoff, case.lease.failures, case.rng))
    run_at = _asked_for(case, drawn)
    reason = _with(f"retry {failures} of {most} in {_until(case, run_at)}: asked for", case.outcome.reason)
    return _try_again(case, run_at, reason, failure)


def _failed(case: Case) -> Decision:
    failure = case.outcome.failure or ends.unreported()
    failures = case.lease.failures + 1
    refusal = _refusal(case, failure, failures)
    if refusal:
        return _move(case, Verb.DIE, refusal, failure=failure, failures=failures)
    run_at = case.now + _micros(_wait(case, failure))
    most = case.policy.limit_for(failure.cls)
    return _try_again(case, run_at, f"retry {failures} of {most} in {_until(case, run_at)}: {failure.cls}", failure)


def _try_again(case: Case, run_at: Micros, reason: str, failure: Failure) -> Decision:
    """A counted retry, unless it would come too late for `max_age`."""
    failures, age = case.lease.failures + 1, case.policy.max_age
    if age is not None and run_at > case.lease.first_started_at + _micros(age):
        too_late = f"not retried: the next try would start later than max_age, {duration(age)} after the first start"
        return _move(case, Verb.DIE, too_late, failure=failure, failures=failures)
    return _requeue(case, _move(case, Verb.RETRY, reason, failure=failure, failures=failures), run_at)


def _refusal(case: Case, failure: Failure, failures: int) -> str:
    """Why this failure is not retried; empty if it is. Whether comes before how often."""
    policy = case.policy
    if case.outcome.final:
        return "not retried: the handler said it is final"
    if not failure.retryable and not _excused(policy, failure):
        return f"not retried: rule {failure.rule} says the class is {failure.cls}{_advice(failure)}"
    if policy.retry_unknown is False and failure.cls == Cls.UNKNOWN:
        return f"not retried: the class is unknown and the {policy.retry_unknown_from} says retry_unknown=False"
    return _refused_by_count(policy, failures) or _refused_by_class(policy, failure, failures)


def _excused(policy: EffectivePolicy, failure: Failure) -> bool:
    """`retry_unknown=True` also means: a KeyError of ours is no proof that it will always be one."""
    return policy.retry_unknown is True and failure.rule == PROGRAMMING_ERROR


def _advice(failure: Failure) -> str:
    if failure.rule == PROGRAMMING_ERROR:
        return "; to retry such errors, use Policy(retry_unknown=True)"
    if failure.rule.startswith("mulligan."):
        return ""  # our own verdict about a fact; no rule of theirs can change it
    return "; to retry it all the same, return Retry() from the handler"


def _refused_by_count(policy: EffectivePolicy, failures: int) -> str:
    if not policy.enabled:
        return "not retried: retries are switched off"
    most = policy.max_retries
    if failures <= most:
        return ""
    return f"{most} of {most} retries used" if most else f"not retried: the {policy.max_retries_from} allows none"


def _refused_by_class(policy: EffectivePolicy, failure: Failure, failures: int) -> str:
    cap = policy.cap_for(failure.cls)
    if cap is None or failures <= cap:
        return ""
    return f"{cap} of {cap} retries used that the {policy.cap_from(failure.cls)} allows for class {failure.cls}"


def _wait(case: Case, failure: Failure) -> float:
    """A server's hint is a floor, and spread: or all who heard it come back in the same instant."""
    drawn = delay(case.policy.backoff_for(failure.cls), case.lease.failures, case.rng)
    hint = failure.retry_after
    if hint is None or not math.isfinite(hint) or hint <= 0:
        return drawn
    return max(drawn, hint) + case.rng.uniform(0, min(0.1 * hint, 60.0))


def _asked_for(case: Case, otherwise: Micros) -> Micros:
    """The moment the handler named, not before now and not beyond what can be stored."""
    if case.outcome.until is not None:
        return min(max(case.outcome.until, case.now), case.now + _LONGEST)
    wait = otherwise if case.outcome.after is None else case.outcome.after
    return case.now + min(max(wait, 0), _LONGEST)


def _micros(seconds: float) -> Micros:
    return round(min(max(seconds, 0.0), LONGEST) * SECOND)


def _until(case: Case, at: Micros) -> str:
    return duration((at - case.now) / SECOND)


def _with(sentence: str, reason: str) -> str:
    return f"{sentence}: {reason}" if reason else sentence


def _requeue(case: Case, decision: Decision, run_at: Micros) -> Decision:
    """Back to the queue at that moment, unless the deadline comes first."""
    deadline = case.lease.deadline_at
    if deadline is None or run_at <= deadline:
        return replace(decision, run_at=run_at)
    failure = ends.deadline_passed(decision.failure or case.outcome.ended)
    reason = f"the deadline passes first ({decision.reason})"
    return replace(decision, verb=Verb.DIE, state=State.DEAD, reason=reason, failure=failure, alone=False, hold=None)


def _move(
    case: Case,
    verb: Verb,
    reason: str,
    *,
    failure: Failure | None = None,
    failures: int | None = None,
    losses: int | None = None,
    snoozes: int | None = None,
) -> Decision:
    """The decision for a move, with the counters of the lease where no new ones are given."""
    lease, outcome = case.lease, case.outcome
    return Decision(
        verb,
        lifecycle.move(verb, State.RUNNING),
        reason,
        failures=lease.failures if failures is None else failures,
        losses=_losses(lease, outcome) if losses is None else losses,
        snoozes=lease.snoozes if snoozes is None else snoozes,
        alone=outcome.alone,
        failure=failure,
        choices=outcome.choices if verb is Verb.PARK else (),
        cost=outcome.cost,
    )


def _losses(lease: Lease, outcome: Outcome) -> int:
    """Who survives alone gets a loss back: the death it was charged for was not its own."""
    survived = lease.alone and outcome.ended not in {Ended.LOST, Ended.RELEASED}
    return max(0, lease.losses - 1) if survived else lease.losses


_RULES: dict[Ended, Callable[[Case], Decision]] = {
    Ended.FAILED: _failed,
    Ended.RETRY: _retry,
    Ended.SNOOZED: _snoozed,
    Ended.PARKED: _parked,
    Ended.HELD: _held,
    Ended.CANCELLED: _cancelled,
    Ended.LOST: _lost,
    Ended.RELEASED: _released,
}
