"""Build what is written for a settled attempt: its row, and the data of its event as JSON text.

Event data contains only the public part of a failure.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from mulligan.core.attempt import Decision, Ended, Ending, Failure, Ground, Lease, Outcome, Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Lane, State
from mulligan.core.json import encode
from mulligan.core.lifecycle import EVENTS
from mulligan.core.waits import NEVER, RequestedWait
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import EffectivePolicy
from mulligan.retries.step_counts import has_step_counts
from mulligan.worker.queries import Settlement

_CHARGED = frozenset({Verb.RETRY, Verb.DIE, Verb.UNDO})
_FIRST_OF_ATTEMPT = Settlement._fields.index("ended")
_NO_ATTEMPT = tuple(
    Settlement._field_defaults[name] for name in Settlement._fields[_FIRST_OF_ATTEMPT:]
)


# --- Settlement row: the attempt, and the new columns of its job ---


def settlement_row(
    ending: Ending, decision: Decision, policies: EffectivePolicies, now: Micros, actor: str
) -> Settlement:
    """Return the row that settles an ending."""
    lease = ending.lease
    state = decision.state
    # Tuples in the order of `Settlement`: arguments take two to three times as long.
    columns = (
        lease,
        lease.id,
        lease.worker,
        lease.token,
        state,
        EVENTS[decision.verb],
        encode(_event_fields(ending, decision, policies)),
        decision.result,
        frees_unique_key(lease.unique_cover, state),
    )
    if decision.ground is Ground.RETURNED and _is_in_job_row(lease, decision, actor):
        return Settlement._make(columns + _NO_ATTEMPT)
    return Settlement._make(columns + _attempt_columns(ending, decision, policies, now, actor))


def _is_in_job_row(lease: Lease, decision: Decision, actor: str) -> bool:
    """True if the job's row will contain everything about this success: it needs no other row."""
    if lease.token > 1 or decision.cost:
        return False
    return decision.settings is None and actor in {"", lease.worker}


def _attempt_columns(
    ending: Ending, decision: Decision, policies: EffectivePolicies, now: Micros, actor: str
) -> tuple[Any, ...]:
    """Return the columns of a settlement from `ended` on."""
    lease = ending.lease
    state, failure = decision.state, decision.failure
    failure_columns: tuple[str | None, ...] = (None,) * 7
    if failure is not None:
        failure_columns = (
            failure.code,
            failure.cls,
            failure.rule,
            failure.public,
            encode(failure.evidence),
            encode(failure.private),
            failure.fingerprint,
        )
    return (
        ending.outcome.ended,
        decision.verb,
        actor or lease.worker,
        decision.failures,
        decision.reason,
        decision.run_at if state is State.QUEUED else None,
        decision.counts,
        *failure_columns,
        _judged(ending, decision, policies, now),
        lease.cancel_reason is not None,
        decision.losses,
        decision.snoozes,
        decision.alone,
        json.dumps(public_error(failure)) if state is State.DEAD else None,
        json.dumps(decision.choices) if state is State.PARKED else None,
        decision.cost,
        decision.settings,
        *(_new_lane(lease, decision, policies) if decision.then else (None, None)),
    )


def _new_lane(
    lease: Lease, decision: Decision, policies: EffectivePolicies
) -> tuple[str | None, str | None]:
    """Return the queue to which an escalation moves the job and its lane there; else None."""
    queue = decision.then.get("queue") if decision.then else None
    if queue is None or decision.state in {State.DEAD, State.PARKED}:
        return None, None
    # The new queue may be fair or not.
    share = policies.fairness_key(queue, lease.owner)
    lane = Lane(queue, lease.kind, lease.uses, decision.failures > 0, share)
    return queue, lane.key


def frees_unique_key(cover: str | None, state: State) -> bool:
    """True if a move to `state` leaves the states in which the unique key is reserved."""
    return cover is not None and state.value not in cover.split(",")


def _judged(
    ending: Ending, decision: Decision, policies: EffectivePolicies, now: Micros
) -> str | None:
    """Return the `judged` column: how the verdict came about, and what changes next time.

    None for most successes. A success stores no ground: it can only have returned.
    """
    failure = decision.failure
    judgement: dict[str, Any] = {} if failure is None else {**failure.judged}
    if decision.verb is not Verb.SUCCEED:
        judgement["ground"] = decision.ground
        if decision.retry_count:
            judgement["retry_count"] = decision.retry_count
    if decision.verb is Verb.DIE and decision.failures > ending.lease.failures:
        judgement["fatal"] = True  # charged, and no retry follows
    if failure is not None and failure.terms:
        judgement["terms"] = {**failure.terms}
    if ending.outcome.failure is not None:
        shadow = policies.shadow_for_job(ending.lease)
        if shadow is not None:
            judgement["shadow_policy"] = _shadow_decision(ending, shadow, now)
    if decision.then:
        judgement["then"] = {**decision.then}
    judgement |= _judge_call(ending.outcome)
    return encode(judgement) if judgement else None


def _judge_call(outcome: Outcome) -> dict[str, Any]:
    """Return what is stored about the call of the handler."""
    judgement: dict[str, Any] = {}
    if outcome.skipped:
        judgement["skipped"] = True
    if outcome.unused_steps:
        judgement["unused_steps"] = [*outcome.unused_steps]
    if outcome.ended is Ended.RELEASED and not outcome.interrupted:
        judgement["unstarted"] = True  # claimed, and returned before its code was called
    return judgement


def _shadow_decision(ending: Ending, policy: EffectivePolicy, now: Micros) -> dict[str, Any]:
    """Return what the policy in shadow mode would have decided.

    It draws from its own random source, so that it does not change the real decision.
    """
    decision = decide(ending.lease, ending.outcome, policy, now, Random(ending.lease.token))
    shadow: dict[str, Any] = {"verb": decision.verb.value, "reason": decision.reason}
    if decision.run_at is not None:
        shadow["wait"] = round((decision.run_at - now) / SECOND, 1)
    return shadow


# --- Event data ---


def _event_fields(
    ending: Ending, decision: Decision, policies: EffectivePolicies
) -> dict[str, Any]:
    lease = ending.lease
    fields: dict[str, Any] = {"kind": lease.kind, "queue": lease.queue}
    if decision.reason:
        fields["reason"] = decision.reason
    if ending.duration_ms is not None:
        fields["duration_ms"] = ending.duration_ms
    if decision.verb is not Verb.SUCCEED:
        fields = _add_failure(fields, ending, decision, policies)
    if decision.verb is Verb.WAIT:
        _add_wait(fields, ending.outcome.wait)
    if decision.skipped:
        fields["skipped"] = True
    # What observability/event_counts.py counts besides the kind of ending.
    fields["retries"] = lease.failures
    if lease.uses:
        fields["uses"] = lease.uses
    if decision.cost:
        fields["cost"] = decision.cost
    # Last, so that it is found without parsing the JSON.
    wait = lease.started_at - lease.run_at
    fields["wait_ms"] = wait // 1000 if wait > 0 else 0
    return fields


def _add_failure(
    fields: dict[str, Any], ending: Ending, decision: Decision, policies: EffectivePolicies
) -> dict[str, Any]:
    """Add what an event tells of an attempt that did not succeed."""
    lease = ending.lease
    if decision.run_at not in {None, NEVER} and decision.state is State.QUEUED:
        fields["next_retry_at"] = decision.run_at
    if decision.failure is not None:
        fields = public_error(decision.failure) | fields
    if decision.verb in _CHARGED or decision.failures != lease.failures:
        fields["failures"] = decision.failures
        # Failures of a step with its own policy are in the total, but do not count for the job.
        if not has_step_counts(decision.counts):
            fields["max_retries"] = policies.for_job(lease).max_retries
    if ending.outcome.ended is Ended.LOST and decision.verb is not Verb.STOP:
        fields["losses"] = decision.losses
        fields["max_losses"] = policies.for_job(lease).max_losses
        fields["alone"] = decision.alone
    parked_by_failure = decision.state is State.PARKED and decision.failure is not None
    if decision.state is State.DEAD or parked_by_failure:
        fields["group"] = failure_group(decision.failure)
        terms = decision.failure.terms if decision.failure is not None else {}
        fields |= {name: terms[name] for name in ("runbook", "alarm") if name in terms}
    return fields


def _add_wait(fields: dict[str, Any], wait: RequestedWait | None) -> None:
    if wait is not None:
        fields |= {"step": wait.name, "for": wait.kind}


def failure_group(failure: Failure | None) -> str:
    """Return the failure group of a dead job: its fingerprint, or its code without one."""
    if failure is None:
        return "code-UNKNOWN"
    return failure.fingerprint or f"code-{failure.code}"


def public_error(failure: Failure | None) -> dict[str, Any]:
    """Return what owners may see of a failure. Evidence never replaces the other fields."""
    if failure is None:
        return {"code": "UNKNOWN", "class": "unknown", "message": "", "rule": ""}
    error = {
        "code": failure.code,
        "class": failure.cls.value,
        "message": failure.public,
        "rule": failure.rule,
    }
    return {**error, **failure.evidence, **error} if failure.evidence else error


def stale_event(ending: Ending, actor: str) -> NewEvent:
    """Return the event of an ending that was refused because its lease was taken over."""
    lease = ending.lease
    return NewEvent(
        EventType.JOB_STALE_REFUSED,
        job_id=lease.id,
        batch_id=lease.batch_id,
        owner=lease.owner,
        attempt=lease.attempt,
        token=lease.token,
        actor=actor or lease.worker,
        data={"kind": lease.kind, "ended": ending.outcome.ended.value, "worker": lease.worker},
    )
