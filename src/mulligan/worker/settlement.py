"""Build what is written for a settled attempt: its row, and the data of its event as JSON text.

Event data contains only the public part of a failure. Most endings differ in a number or two, so
their texts are composed from cached parts instead of being encoded each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

from mulligan.core.attempt import Cls, Decision, Ended, Ending, Failure, Ground, Lease, Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType
from mulligan.core.job import Lane, State
from mulligan.core.json import encode as _encode
from mulligan.core.lifecycle import TERMINAL, event_for
from mulligan.failures.facts import PrivateTemplate
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Settlement

# Value of each enum member. Until Python 3.12 `.value` is a function call; a row needs six.
ENUM_VALUES: dict[str, str] = {
    member: member.value for enum in (State, Verb, Ended, Cls, EventType) for member in enum
}
_CHARGED = frozenset({Verb.RETRY, Verb.DIE})


# --- Event data ---


def event_data(ending: Ending, decision: Decision, policies: EffectivePolicies) -> str:
    """Return the data of an ending's event as JSON text."""
    shared = shared_retry_data(ending.lease, decision, policies)
    if shared is None:
        return encode_object(_event_fields(ending, decision, policies))
    return join_retry_data(ending, decision.reason, shared)


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
        fields |= public_error(decision.failure)
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
    fields["wait_ms"] = wait_ms(lease)


def success_data(ending: Ending, reason: str) -> str:
    """Return the event data of an attempt that returned. Equal texts are cached."""
    lease = ending.lease
    if lease.uses or lease.failures:
        return f"{_retry_data_start(ending, reason)}{_retry_data_end(lease)}"
    return _short_success_data(
        lease.kind,
        lease.queue,
        reason,
        ending.duration_ms,
        (lease.started_at - lease.run_at) // 1000,
    )


@lru_cache(maxsize=4096)
def _short_success_data(
    kind: str, queue: str, reason: str, duration_ms: int | None, waited_ms: int
) -> str:
    start = _data_head(kind, queue, reason)
    if duration_ms is not None:
        start = f'{start},"duration_ms":{duration_ms}'
    return f'{start},"wait_ms":{max(0, waited_ms)}}}'


def shared_retry_data(lease: Lease, decision: Decision, policies: EffectivePolicies) -> str | None:
    """Return the middle part of a retry's event data, equal for equal failures.

    None: the ending is not a simple retry and its data must be encoded as a whole.
    """
    failure = decision.failure
    if decision.verb is not Verb.RETRY or failure is None or failure.evidence or decision.cost:
        return None
    error = _error_data(failure.code, ENUM_VALUES[failure.cls], failure.public, failure.rule)
    max_retries = policies.for_job(lease).max_retries
    counts = f'"failures":{decision.failures},"max_retries":{max_retries}'
    return f',"next_retry_at":{decision.run_at},{error},{counts}'


def join_retry_data(ending: Ending, reason: str, shared: str) -> str:
    """Return the whole event data of a retry from its shared middle part."""
    return f"{_retry_data_start(ending, reason)}{shared}{_retry_data_end(ending.lease)}"


def retry_data_parts(lease: Lease, reason: str, shared: str) -> tuple[str, str]:
    """Return the text before the duration, and the text between duration and wait."""
    return (
        f'{_data_head(lease.kind, lease.queue, reason)},"duration_ms":',
        f"{shared}{_data_before_wait(lease)}",
    )


def _retry_data_start(ending: Ending, reason: str) -> str:
    head = _data_head(ending.lease.kind, ending.lease.queue, reason)
    if ending.duration_ms is None:
        return head
    return f'{head},"duration_ms":{ending.duration_ms}'


def _retry_data_end(lease: Lease) -> str:
    return f"{_data_before_wait(lease)}{wait_ms(lease)}}}"


def _data_before_wait(lease: Lease) -> str:
    failed = f',"failed_before":{lease.failures}' if lease.failures else ""
    uses = f',"uses":{_encode(lease.uses)}' if lease.uses else ""
    return f'{failed}{uses},"wait_ms":'


def wait_ms(lease: Lease) -> int:
    """Return how many milliseconds the job was due before this attempt started."""
    wait = lease.started_at - lease.run_at
    return wait // 1000 if wait > 0 else 0


@lru_cache(maxsize=1024)
def _data_head(kind: str, queue: str, reason: str) -> str:
    return _encode({"kind": kind, "queue": queue, "reason": reason})[:-1]


@lru_cache(maxsize=1024)
def _error_data(code: str, cls: str, public: str, rule: str) -> str:
    return _encode({"code": code, "class": cls, "message": public, "rule": rule})[1:-1]


def failure_group(failure: Failure | None) -> str:
    """Return the failure group of a dead job: its fingerprint, or its code without one."""
    if failure is None:
        return "code-UNKNOWN"
    return failure.fingerprint or f"code-{failure.code}"


def public_error(failure: Failure | None) -> dict[str, Any]:
    """Return the part of a failure that owners may see."""
    if failure is None:
        return {"code": "UNKNOWN", "class": "unknown", "message": "", "rule": ""}
    return {
        "code": failure.code,
        "class": failure.cls.value,
        "message": failure.public,
        "rule": failure.rule,
        **failure.evidence,
    }


def encode_object(value: Mapping[str, Any]) -> str:
    """Encode a mapping as JSON text."""
    return _encode(value) if value else "{}"


# --- Settlement row: the attempt, and the new columns of its job ---


def settlement_row(
    ending: Ending, decision: Decision, policies: EffectivePolicies, now: Micros, actor: str
) -> Settlement:
    """Return the row that settles an ending."""
    lease = ending.lease
    failure = decision.failure
    state = decision.state
    failure_columns = _NO_FAILURE if failure is None else _failure_columns(failure, ending.message)
    shadow = None if failure is None else _shadow_decision(ending, policies, now)
    queue = decision.then.get("queue") if decision.then else None
    return Settlement(  # positional: keyword arguments take three times as long
        lease.id,
        lease.worker,
        lease.token,
        lease.cancel_reason is not None,  # cancel_known
        ENUM_VALUES[state],
        decision.run_at if state is State.QUEUED else None,
        decision.failures,
        decision.losses,
        decision.snoozes,
        decision.alone,
        decision.result,
        json.dumps(public_error(failure)) if state is State.DEAD else None,
        json.dumps(decision.choices) if state is State.PARKED else None,
        decision.reason,
        state in TERMINAL,  # finished
        lease.unique_cover is not None and frees_unique_key(lease.unique_cover, state),
        decision.cost,
        lease.generation,
        lease.attempt,
        actor or lease.worker,  # settled_by
        lease.started_at,
        ENUM_VALUES[ending.outcome.ended],
        ENUM_VALUES[decision.verb],
        *failure_columns,
        ENUM_VALUES[event_for(decision.verb)],
        lease.owner,
        lease.batch_id,
        event_data(ending, decision, policies),
        decision.counts,
        decision.settings,
        _judgement(decision, shadow),
        queue,
        None if queue is None else _lane_in(queue, lease, decision, policies),
    )


_FailureColumns = tuple[
    str | None, str | None, str | None, str | None, str | None, str | None, str | None
]
_NO_FAILURE: _FailureColumns = (None, None, None, None, None, None, None)


def _failure_columns(failure: Failure, message: str | None) -> _FailureColumns:
    """Return the columns from `code` to `fingerprint`."""
    return (
        failure.code,
        ENUM_VALUES[failure.cls],
        failure.rule,
        failure.public,
        encode_object(failure.evidence),
        encode_private(failure, message),
        failure.fingerprint,
    )


def encode_private(failure: Failure, message: str | None) -> str:
    """Encode the private part of a failure. `message` completes a shared template."""
    private = failure.private
    if message is not None and isinstance(private, PrivateTemplate):
        return private.render_json(message)
    return encode_object(private)


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


def _judgement(decision: Decision, shadow: Mapping[str, Any] | None) -> str | None:
    """Return the `judged` column: how the verdict came about, and what changes next time.

    None for most successes, which have nothing to record.
    """
    failure = decision.failure
    if failure is not None and shadow is None and not _has_extras(failure, decision):
        return _judgement_without_extras(failure.judged, decision)
    judgement: dict[str, Any] = {} if failure is None else dict(failure.judged)
    judgement |= _ground_fields(decision.verb, decision.ground, decision.retry_count)
    if failure is not None and failure.terms:
        judgement["terms"] = dict(failure.terms)
    if shadow is not None:
        judgement["shadow_policy"] = shadow
    if decision.then:
        judgement["then"] = dict(decision.then)
    if decision.skipped:
        judgement["skipped"] = True
    return _encode(judgement) if judgement else None


def _has_extras(failure: Failure, decision: Decision) -> bool:
    return bool(failure.terms or decision.then or decision.skipped)


def _judgement_without_extras(judged: Mapping[str, Any], decision: Decision) -> str:
    """Encode what most failures have: the version of the rule table, the ground and the count."""
    table = judged.get("table")
    if len(judged) == 1 and type(table) is str:
        return _table_judgement(table, decision.verb, decision.ground, decision.retry_count)
    fields = _ground_fields(decision.verb, decision.ground, decision.retry_count)
    return _encode({**judged, **fields})


@lru_cache(maxsize=256)
def _table_judgement(table: str, verb: Verb, ground: Ground, retry_count: str) -> str:
    return _encode({"table": table, **_ground_fields(verb, ground, retry_count)})


def _ground_fields(verb: Verb, ground: Ground, retry_count: str) -> dict[str, str]:
    """Return what is stored of a ground. A success stores none: it can only have returned."""
    if verb is Verb.SUCCEED:
        return {}
    fields = {"ground": ground.value}
    if retry_count:
        fields["retry_count"] = retry_count
    return fields


def _lane_in(queue: str, lease: Lease, decision: Decision, policies: EffectivePolicies) -> str:
    """Return the job's lane after a move to another queue, which may be fair or not."""
    share = policies.fairness_key(queue, lease.owner)
    return Lane(queue, lease.kind, lease.uses, decision.failures > 0, share).key


def frees_unique_key(cover: str | None, state: State) -> bool:
    """True if a move to `state` leaves the states in which the unique key is reserved."""
    return cover is not None and state.value not in cover.split(",")
