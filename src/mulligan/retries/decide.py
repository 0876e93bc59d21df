"""Decide what follows from an outcome. Pure; every decision has a ground and a sentence.

The counters and who pays: `failures` for what the handler did (against max_retries), `losses` for a process that
died under it (against max_losses), `snoozes`. What is given back or held costs nothing.

Failures are counted in total, by class and by code. Three limits stand side by side, and all must allow a retry: the
total against max_retries, the class against its own, the code against the one its rule names. A backoff or a ladder
goes on with the count of what it was said for: a rule's with its code, a class's with the class, any other with the
total.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from mulligan.core import lifecycle
from mulligan.core.attempt import Cls, Decision, Ended, Failure, Lease, Outcome, Verb
from mulligan.core.job import SECOND, Micros, State
from mulligan.failures import codes as ends
from mulligan.retries import reasons
from mulligan.retries.backoff import LONGEST, Rng, delay
from mulligan.retries.limits import (
    NO_TERMS,
    Charge,
    Counts,
    RuleTerms,
    read_counts,
    refused,
    refused_by_total,
    switched_off,
    terms_of,
)
from mulligan.retries.policy import AnyBackoff, EffectivePolicy, Then, escalate, in_words, step_of
from mulligan.retries.reasons import Reason

HOLD_DEFAULT = 60 * SECOND
HOLD_LEAST = SECOND  # a hold is uncharged: without a floor a handler could spin for ever
HOLD_MOST = 3600 * SECOND
SNOOZE_LEAST = SECOND  # for the same reason
_LONGEST = int(LONGEST) * SECOND
HINT_LEAST, HINT_MOST = (
    1.0,
    86_400.0,
)  # seconds: what is shorter is over before all have heard of it
SPARED_MOST = 3  # a job that brings its dependency down itself must end some day


class DecisionInput(NamedTuple):
    """Everything a rule may look at."""

    lease: Lease
    outcome: Outcome
    policy: EffectivePolicy
    now: Micros
    rng: Rng
    spared: Reason | None = None  # why the failure is not charged


def decide(
    lease: Lease,
    outcome: Outcome,
    policy: EffectivePolicy,
    now: Micros,
    rng: Rng,
    *,
    down: str = "",
    held: str = "",
) -> Decision:
    """The only place that knows what an ending means for the job.

    `down`: a dependency that is to blame for it. `held`: its kind, if that is held for what it failed of.
    """
    if outcome.ended == Ended.RETURNED:
        return returned(lease, outcome)
    case = DecisionInput(lease, outcome, policy, now, rng, _sparing(down, held))
    if lease.cancel_reason is not None:
        return _move(
            case, Verb.STOP, reasons.stop_requested(lease.cancel_reason), failure=outcome.failure
        )
    return _promised(_RULES[outcome.ended](case))


def _promised(decision: Decision) -> Decision:
    """Only of a job that goes on may its sentence say so."""
    failure = decision.failure
    if (
        failure is None
        or decision.state is not State.QUEUED
        or not (promise := terms_of(failure).promise)
    ):
        return decision
    return decision._replace(failure=replace(failure, public=f"{failure.public} {promise}"))


def _sparing(down: str, held: str) -> Reason | None:
    """Return why this failure is not charged, or None if it is."""
    if down:
        return reasons.dependency_down(down)
    return reasons.kind_held(held) if held else None


def returned(lease: Lease, outcome: Outcome) -> Decision:
    """If the handler finished first, its result stands, also against a request to stop."""
    if (
        outcome.result == "null"
        and not (outcome.cost or outcome.skipped or lease.alone)
        and lease.cancel_reason is None
    ):
        return _just_returned(
            lease.failures, lease.losses, lease.snoozes, lease.counts, lease.settings
        )
    reason = _success(lease, outcome)
    return Decision(
        Verb.SUCCEED,
        State.SUCCEEDED,
        reason.ground,
        reason.text,
        None,  # run_at
        lease.failures,
        max(0, lease.losses - 1) if lease.alone else lease.losses,
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


def _success(lease: Lease, outcome: Outcome) -> Reason:
    stop_requested = lease.cancel_reason is not None
    if outcome.skipped:
        return reasons.skipped(stop_requested=stop_requested)
    return reasons.RETURNED_BEFORE_STOP if stop_requested else reasons.RETURNED


@lru_cache(maxsize=256)
def _just_returned(
    failures: int, losses: int, snoozes: int, counts: str | None, settings: str | None
) -> Decision:
    """Build the decision for a handler that returned None; cached, because most attempts do."""
    return Decision(
        Verb.SUCCEED,
        State.SUCCEEDED,
        *reasons.RETURNED[:2],
        failures=failures,
        losses=losses,
        snoozes=snoozes,
        result="null",
        counts=counts,
        settings=settings,
    )


def _cancelled(case: DecisionInput) -> Decision:
    return _move(
        case, Verb.STOP, reasons.cancelled(case.outcome.reason), failure=case.outcome.failure
    )


def _parked(case: DecisionInput) -> Decision:
    return _move(case, Verb.PARK, reasons.parked(case.outcome.reason), failure=case.outcome.failure)


def _released(case: DecisionInput) -> Decision:
    reason = reasons.released(case.outcome.reason)
    decision = _move(case, Verb.GIVE_BACK, reason, failure=case.outcome.failure)
    return _requeue(
        case, decision._replace(alone=case.outcome.alone or case.lease.alone), _asked_for(case, 0)
    )


def _refused(case: DecisionInput) -> Decision:
    """Its handler was not called: nothing is charged, and nothing would change by itself."""
    failure = case.outcome.failure or ends.retry_refused("")
    return _move(case, Verb.DIE, reasons.manual_retry_refused(failure.public), failure=failure)


def _lost(case: DecisionInput) -> Decision:
    losses, most = case.lease.losses + 1, case.policy.max_losses
    failure = case.outcome.failure or ends.process_died()
    if losses > most:
        reason = reasons.max_losses(losses, most, failure.public)
        return _move(case, Verb.DIE, reason, failure=failure, losses=losses)
    decision = _move(
        case, Verb.LOSE, reasons.lost(losses, most), failure=failure, losses=losses
    )._replace(alone=True)
    if (
        failure.cls is Cls.RESOURCE
    ):  # the kernel's word that it was too large: the same again would end the same
        charge = Charge(failure, terms_of(failure), case.lease.failures, _counts(case))
        decision = _with_step(case, decision, _next_step(case.policy, charge, more=losses))
    return _requeue(case, decision, case.now)


def _snoozed(case: DecisionInput) -> Decision:
    snoozes, most = case.lease.snoozes + 1, case.policy.max_snoozes
    if most is not None and snoozes > most:
        failure = ends.snooze_limit(most)
        return _move(case, Verb.DIE, reasons.max_snoozes(most), failure=failure, snoozes=snoozes)
    run_at = max(_asked_for(case, 0), case.now + SNOOZE_LEAST)
    reason = reasons.snoozed(_wait_until(case, run_at), case.outcome.reason)
    return _requeue(case, _move(case, Verb.SNOOZE, reason, snoozes=snoozes), run_at)


def _held(case: DecisionInput) -> Decision:
    dependency = case.outcome.dependency
    if dependency not in case.lease.uses.split(",") or not dependency:
        failure = ends.hold_unknown_dependency(dependency, case.lease.uses)
        return _failed(
            case._replace(outcome=case.outcome._replace(ended=Ended.FAILED, failure=failure))
        )
    until = _asked_for(case, HOLD_DEFAULT)
    until = min(max(until, case.now + HOLD_LEAST), case.now + HOLD_MOST)
    reason = reasons.held(dependency, _wait_until(case, until), case.outcome.reason)
    decision = _move(case, Verb.HOLD, reason)._replace(hold=(dependency, until, reason.text))
    return _requeue(case, decision, case.now)


def _counts(case: DecisionInput) -> Counts:
    """Of this generation so far. Where an age is limited, with the time in which it could not be tried."""
    counts = read_counts(case.lease.counts)
    return counts._replace(waited=counts.waited + _waited(case))


def _waited(case: DecisionInput) -> Micros:
    lease = case.lease
    return (
        0
        if case.policy.max_age is None or lease.attempt <= 1
        else max(0, lease.started_at - lease.run_at)
    )


def _retry(case: DecisionInput) -> Decision:
    """Asked for by the handler, so no class has a say: only the total counts, and what nothing widens."""
    failure = case.outcome.failure or ends.retry_requested(case.outcome.reason)
    charge = Charge(failure, NO_TERMS, case.lease.failures + 1, _counts(case))
    refusal = switched_off(case.policy, failure) or refused_by_total(case.policy, charge)
    if refusal is not None:
        return _die(case, refusal, charge)
    drawn = _micros(delay(case.policy.backoff, case.lease.failures, case.rng))
    run_at = _asked_for(case, drawn)
    count = f"{charge.failures} of {case.policy.max_retries}"
    reason = reasons.retry_requested(count, _wait_until(case, run_at), case.outcome.reason)
    return _try_again(case, run_at, reason, charge, step_of(case.policy.then, charge.failures))


def _failed(case: DecisionInput) -> Decision:
    failure = case.outcome.failure or ends.unreported()
    spared = None if case.outcome.final else _spared(case, failure)
    if spared is not None:
        return spared
    known = _known(case, failure)
    charge = Charge(failure, *known.charge[1:])
    refusal = reasons.FINAL if case.outcome.final else known.refusal
    if refusal is not None:
        return _teach(case, _die(case, refusal, charge), failure)
    run_at = case.now + _micros(_wait(case, known, failure.retry_after))
    reason = reasons.retry(known.retry_count, _wait_until(case, run_at), failure.cls)
    return _teach(case, _try_again(case, run_at, reason, charge, known.step), failure)


class _Known(NamedTuple):
    """What all failures alike have in common: everything but the draw, the moment and their own words."""

    charge: Charge
    refusal: Reason | None
    retry_count: str
    backoff: AnyBackoff
    before: int
    step: Then | None


def _known(case: DecisionInput, failure: Failure) -> _Known:
    lease, said = (
        case.lease,
        (failure.code, failure.cls, failure.rule, bool(failure.retryable), bool(failure.terms)),
    )
    return _of_alike(
        case.policy, lease.failures + 1, lease.counts, _waited(case), terms_of(failure), *said
    )


@lru_cache(maxsize=1024)
def _of_alike(  # noqa: PLR0913, PLR0917 - all that is asked of a failure, and nothing else
    policy: EffectivePolicy,
    failures: int,
    counts: str | None,
    waited: Micros,
    terms: RuleTerms,
    code: str,
    cls: Cls,
    rule: str,
    retryable: bool,  # noqa: FBT001 - a key of a cache
    has_terms: bool,  # noqa: FBT001 - the same
) -> _Known:
    failure = Failure(code, cls, "", rule, retryable, terms={"some": True} if has_terms else {})
    before = read_counts(counts)
    after = before._replace(waited=before.waited + waited).plus(failure)
    charge = Charge(failure, terms, failures, after, after.to_json())
    return _Known(
        charge,
        refused(policy, charge),
        _count(policy, charge),
        *backoff_of(policy, charge),
        _next_step(policy, charge),
    )


def _teach(case: DecisionInput, decision: Decision, failure: Failure) -> Decision:
    """Who is told to come back later tells all others that use the same: each would only be told again."""
    until = _hinted(case, failure) if failure.cls is Cls.RATE_LIMITED else None
    if until is None:
        return decision
    return decision._replace(
        hold=(case.lease.uses, until, reasons.rate_limited_for(_wait_until(case, until)))
    )


def _hinted(case: DecisionInput, failure: Failure) -> Micros | None:
    """When the one dependency of this job wants to be called again; None: it did not say, or there are several."""
    hint, key = failure.retry_after, case.lease.uses
    if not key or "," in key or hint is None or not hint >= HINT_LEAST:
        return None
    return case.now + _micros(min(hint, HINT_MOST))


def _spared(case: DecisionInput, failure: Failure) -> Decision | None:
    """An outage, or a quota that comes back, costs nothing but patience; None: it is this job's own, it has been
    spared often enough, or nothing may run twice.
    """
    reset = _hinted(case, failure) if failure.cls is Cls.QUOTA else None
    if case.spared is None and reset is None:
        return None
    counts = _counts(case)
    if counts.spared >= SPARED_MOST or switched_off(case.policy, failure) is not None:
        return None
    reason = case.spared or reasons.quota_used_up(case.lease.uses)
    decision = _move(case, Verb.HOLD, reason, failure=failure)
    hold = None if reset is None else (case.lease.uses, reset, reasons.QUOTA_GATE)
    counts = counts._replace(spared=counts.spared + 1)
    return _requeue(case, decision._replace(counts=counts.to_json(), hold=hold), case.now)


def _count(policy: EffectivePolicy, charge: Charge) -> str:
    """Format the number of this retry: `2 of 5`, or with tighter limits `2 of 5 (1 of 1 for its class)`."""
    cap, own = policy.cap_for(charge.failure.cls), charge.terms.max_retries
    if cap is None and own is None:
        return f"{charge.failures} of {policy.max_retries}"
    tighter = [
        f"{count} of {limit} for its {what}"
        for what, count, limit in (("class", charge.of_class, cap), ("code", charge.of_code, own))
        if limit is not None and limit < policy.max_retries
    ]
    beside = f" ({', '.join(tighter)})" if tighter else ""
    return f"{charge.failures} of {policy.max_retries}{beside}"


def _try_again(
    case: DecisionInput, run_at: Micros, reason: Reason, charge: Charge, step: Then | None
) -> Decision:
    """A counted retry, unless it would come too late for `max_age`."""
    age = case.policy.max_age
    if (
        age is not None
        and run_at > case.lease.first_started_at + _micros(age) + charge.counts.waited
    ):
        return _die(case, reasons.max_age(age), charge)
    decision = _move(case, Verb.RETRY, reason, failure=charge.failure, charge=charge, run_at=run_at)
    return _requeue(case, _with_step(case, decision, step), run_at)


def _die(case: DecisionInput, reason: Reason, charge: Charge) -> Decision:
    return _move(case, Verb.DIE, reason, failure=charge.failure, charge=charge)


def _next_step(policy: EffectivePolicy, charge: Charge, more: int = 0) -> Then | None:
    """The most specific ladder, and how far up it this failure leads; `more`: losses, which no count holds."""
    own = policy.by_class[charge.failure.cls]
    if charge.terms.then and own.then_from != "job":
        return step_of(charge.terms.then, charge.of_code + more)
    return step_of(own.then, (charge.of_class if own.then_of_class else charge.failures) + more)


def _with_step(case: DecisionInput, decision: Decision, step: Then | None) -> Decision:
    if step is None:
        return decision
    settings, then = escalate(case.lease, step)
    reason = f"{decision.reason}; {in_words(then)}" if then else decision.reason
    return decision._replace(reason=reason, settings=settings, then=then or None)


def _wait(case: DecisionInput, known: _Known, hint: float | None) -> float:
    """A server's hint is a floor, and spread: or all who heard it come back in the same instant."""
    drawn = delay(known.backoff, known.before, case.rng)
    if hint is None or not math.isfinite(hint) or hint <= 0 or not known.charge.terms.wait_for_hint:
        return drawn
    return max(drawn, hint) + case.rng.uniform(0, min(0.1 * hint, 60.0))


def backoff_of(policy: EffectivePolicy, charge: Charge) -> tuple[AnyBackoff, int]:
    """Job, then rule, then kind, queue, system; and how many came before this one of what it was said for."""
    own = policy.by_class[charge.failure.cls]
    if charge.terms.backoff is not None and own.backoff_from != "job":
        return charge.terms.backoff, charge.of_code - 1
    return own.backoff, (charge.of_class if own.backoff_of_class else charge.failures) - 1


def _asked_for(case: DecisionInput, otherwise: Micros) -> Micros:
    """The moment the handler named, not before now and not beyond what can be stored."""
    if case.outcome.until is not None:
        return min(max(case.outcome.until, case.now), case.now + _LONGEST)
    wait = otherwise if case.outcome.after is None else case.outcome.after
    return case.now + min(max(wait, 0), _LONGEST)


def _micros(seconds: float) -> Micros:
    return round(min(max(seconds, 0.0), LONGEST) * SECOND)


def _wait_until(case: DecisionInput, at: Micros) -> float:
    """Return the seconds from now until `at`."""
    return (at - case.now) / SECOND


def _requeue(case: DecisionInput, decision: Decision, run_at: Micros) -> Decision:
    """Back to the queue at that moment, unless the deadline comes first."""
    deadline = case.lease.deadline_at
    if deadline is None or run_at <= deadline:
        return decision if decision.run_at == run_at else decision._replace(run_at=run_at)
    failure = ends.deadline_passed(decision.failure or case.outcome.ended)
    reason = reasons.deadline(decision.reason)
    return decision._replace(
        verb=Verb.DIE,
        state=State.DEAD,
        ground=reason.ground,
        reason=reason.text,
        run_at=None,
        failure=failure,
        alone=False,
        hold=None,
        settings=case.lease.settings,
        then=None,
        retry_count="",
    )


def _move(
    case: DecisionInput,
    verb: Verb,
    reason: Reason,
    *,
    failure: Failure | None = None,
    losses: int | None = None,
    snoozes: int | None = None,
    charge: Charge | None = None,
    run_at: Micros | None = None,
) -> Decision:
    """The decision for a move, with the counters of the lease where no new ones are given."""
    lease, outcome = case.lease, case.outcome
    return Decision(  # by position: by name it costs twice as much
        verb,
        lifecycle.move(verb, State.RUNNING),
        reason.ground,
        reason.text,
        run_at,
        lease.failures if charge is None else charge.failures,
        _losses(lease, outcome) if losses is None else losses,
        lease.snoozes if snoozes is None else snoozes,
        outcome.alone,
        None,  # result
        failure,
        outcome.choices if verb is Verb.PARK else (),
        None,  # hold
        outcome.cost,
        lease.counts if charge is None else charge.written or charge.counts.to_json(),
        lease.settings,
        None,  # then
        False,  # skipped
        reason.retry_count,
    )


def _losses(lease: Lease, outcome: Outcome) -> int:
    """Who survives alone gets a loss back: the death it was charged for was not its own."""
    if not lease.alone or outcome.ended in {Ended.LOST, Ended.RELEASED}:
        return lease.losses
    return max(0, lease.losses - 1)


_RULES: dict[Ended, Callable[[DecisionInput], Decision]] = {
    Ended.FAILED: _failed,
    Ended.RETRY: _retry,
    Ended.SNOOZED: _snoozed,
    Ended.PARKED: _parked,
    Ended.HELD: _held,
    Ended.CANCELLED: _cancelled,
    Ended.LOST: _lost,
    Ended.RELEASED: _released,
    Ended.REFUSED: _refused,
}
