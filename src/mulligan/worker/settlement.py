"""Build what is written for a settled attempt: its row, and the data of its event as JSON text.

Event data contains only the public part of a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from mulligan.core.attempt import Decision, Ended, Ending, Failure, Ground, Lease, Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Lane, State
from mulligan.core.json import encode
from mulligan.core.lifecycle import TERMINAL, event_for
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.queries import Settlement

_CHARGED = frozenset({Verb.RETRY, Verb.DIE})


# --- Settlement row: the attempt, and the new columns of its job ---


def settlement_row(
    ending: Ending, decision: Decision, policies: EffectivePolicies, now: Micros, actor: str
) -> Settlement:
    """Return the row that settles an ending."""
    lease = ending.lease
    state = decision.state
    return Settlement(
        id=lease.id,
        worker=lease.worker,
        token=lease.token,
        cancel_known=lease.cancel_reason is not None,
        state=state.value,
        run_at=decision.run_at if state is State.QUEUED else None,
        failures=decision.failures,
        losses=decision.losses,
        snoozes=decision.snoozes,
        alone=decision.alone,
        result=decision.result,
        reason=decision.reason,
        finished=state in TERMINAL,
        succeeded_by=lease.worker if _is_in_job_row(lease, decision, actor) else None,
        release_key=frees_unique_key(lease.unique_cover, state),
        cost=decision.cost,
        counts=decision.counts,
        settings=decision.settings,
        generation=lease.generation,
        attempt=lease.attempt,
        settled_by=actor or lease.worker,
        started_at=lease.started_at,
        ended=ending.outcome.ended.value,
        verb=decision.verb.value,
        event=event_for(decision.verb).value,
        owner=lease.owner,
        batch_id=lease.batch_id,
        data=encode(_event_fields(ending, decision, policies)),
        **_failure_columns(ending, decision, policies, now),
        **_state_columns(lease, decision, policies),
    )


def _is_in_job_row(lease: Lease, decision: Decision, actor: str) -> bool:
    """True if the job's row will contain everything about this attempt: it needs no other row."""
    return (
        lease.token == 1
        and decision.ground is Ground.RETURNED
        and not decision.cost
        and actor in {"", lease.worker}
    )


def _failure_columns(
    ending: Ending, decision: Decision, policies: EffectivePolicies, now: Micros
) -> dict[str, Any]:
    """Return the columns of the failure, and of how the decision about it came about."""
    failure = decision.failure
    shadow = _shadow_decision(ending, policies, now)
    judgement = _judgement(decision, shadow)
    judged = encode(judgement) if judgement else None
    if failure is None:
        return {"judged": judged}
    return {
        "code": failure.code,
        "cls": failure.cls.value,
        "rule": failure.rule,
        "public": failure.public,
        "evidence": encode(failure.evidence),
        "private": encode(failure.private),
        "fingerprint": failure.fingerprint,
        "judged": judged,
    }


def _state_columns(
    lease: Lease, decision: Decision, policies: EffectivePolicies
) -> dict[str, str | None]:
    """Return the columns that only a dead, parked or moved job has."""
    if decision.state is State.DEAD:
        return {"error": json.dumps(public_error(decision.failure))}
    if decision.state is State.PARKED:
        return {"choices": json.dumps(decision.choices)}
    queue = decision.then.get("queue") if decision.then else None
    if queue is None:
        return {}
    # The new queue may be fair or not.
    share = policies.fairness_key(queue, lease.owner)
    lane = Lane(queue, lease.kind, lease.uses, decision.failures > 0, share)
    return {"queue": queue, "lane": lane.key}


def frees_unique_key(cover: str | None, state: State) -> bool:
    """True if a move to `state` leaves the states in which the unique key is reserved."""
    return cover is not None and state.value not in cover.split(",")


def _shadow_decision(
    ending: Ending, policies: EffectivePolicies, now: Micros
) -> dict[str, Any] | None:
    """Return what the policy in shadow mode would have decided; None if there is none.

    It draws from its own random source, so that it does not change the real decision.
    """
    if ending.outcome.failure is None:
        return None
    policy = policies.shadow_for_job(ending.lease)
    if policy is None:
        return None
    decision = decide(ending.lease, ending.outcome, policy, now, Random(ending.lease.token))
    shadow: dict[str, Any] = {"verb": decision.verb.value, "reason": decision.reason}
    if decision.run_at is not None:
        shadow["wait"] = round((decision.run_at - now) / SECOND, 1)
    return shadow


def _judgement(decision: Decision, shadow: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the `judged` column: how the verdict came about, and what changes next time.

    Empty for most successes. A success stores no ground: it can only have returned.
    """
    failure = decision.failure
    judgement: dict[str, Any] = {} if failure is None else {**failure.judged}
    if decision.verb is not Verb.SUCCEED:
        judgement["ground"] = decision.ground.value
        if decision.retry_count:
            judgement["retry_count"] = decision.retry_count
    if failure is not None and failure.terms:
        judgement["terms"] = {**failure.terms}
    if shadow is not None:
        judgement["shadow_policy"] = shadow
    if decision.then:
        judgement["then"] = {**decision.then}
    if decision.skipped:
        judgement["skipped"] = True
    return judgement


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
    if decision.run_at is not None and decision.state is State.QUEUED:
        fields["next_retry_at"] = decision.run_at
    if decision.failure is not None:
        fields = fields | public_error(decision.failure) | fields
    if decision.verb in _CHARGED:
        fields["failures"] = decision.failures
        fields["max_retries"] = policies.for_job(lease).max_retries
    if ending.outcome.ended is Ended.LOST and decision.verb is not Verb.STOP:
        fields["losses"] = decision.losses
        fields["max_losses"] = policies.for_job(lease).max_losses
    parked_by_failure = decision.state is State.PARKED and decision.failure is not None
    if decision.state is State.DEAD or parked_by_failure:
        fields["group"] = failure_group(decision.failure)
    if decision.skipped:
        fields["skipped"] = True
    _add_measures(fields, lease, decision)
    return fields


def _add_measures(fields: dict[str, Any], lease: Lease, decision: Decision) -> None:
    """Add what observability/event_counts.py counts besides the kind of ending."""
    if lease.failures:
        fields["failed_before"] = lease.failures
    if lease.uses:
        fields["uses"] = lease.uses
    if decision.cost:
        fields["cost"] = decision.cost
    # Last, so that it is found without parsing the JSON.
    fields["wait_ms"] = max(0, lease.started_at - lease.run_at) // 1000


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
