"""What the event of an ending tells: the public half only, as text.

Most endings are alike but for a number or two, so most of a text is made once and kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any

from mulligan.core.attempt import Cls, Decision, Ended, Ending, Failure, Ground, Lease, Verb
from mulligan.core.event import EventType
from mulligan.core.job import SECOND, Lane, Micros, State
from mulligan.core.json import encode as _encode
from mulligan.core.lifecycle import TERMINAL, event_for
from mulligan.failures.facts import Wording
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Settlement

if TYPE_CHECKING:
    from mulligan.retries.effective import EffectivePolicies


# Until Python 3.12 `value` is a function's work, and a row asks for six of them.
TEXT: dict[str, str] = {
    one: one.value for names in (State, Verb, Ended, Cls, EventType) for one in names
}


def _news(ending: Ending, decision: Decision, layers: EffectivePolicies) -> dict[str, Any]:
    """The data of the event: the public half only."""
    news: dict[str, Any] = {"kind": ending.lease.kind, "queue": ending.lease.queue}
    if decision.reason:
        news["reason"] = decision.reason
    if ending.duration_ms is not None:
        news["duration_ms"] = ending.duration_ms
    if decision.run_at is not None and decision.state is State.QUEUED:
        news["next_retry_at"] = decision.run_at
    if decision.failure is not None:
        news |= error_of(decision.failure)
    if decision.verb in _CHARGED:
        news |= {"failures": decision.failures, "max_retries": layers.of(ending.lease).max_retries}
    if ending.outcome.ended is Ended.LOST and decision.verb is not Verb.STOP:
        news |= {"losses": decision.losses, "max_losses": layers.of(ending.lease).max_losses}
    if decision.state is State.DEAD or (
        decision.state is State.PARKED and decision.failure is not None
    ):
        news["group"] = group_of(decision.failure)
    if decision.skipped:
        news["skipped"] = True
    _measured(news, ending.lease, decision)
    return news


def data_of(ending: Ending, decision: Decision, layers: EffectivePolicies) -> str:
    """`_news` as text; most of those that come here are failures that are tried again."""
    told = middle(ending.lease, decision, layers)
    if told is None:
        return as_json(_news(ending, decision, layers))
    return around(ending, decision.reason, told)


def around(ending: Ending, reason: str, told: str) -> str:
    """That text, of which `told` is the middle."""
    return f"{beginning(ending, reason)}{told}{end(ending.lease)}"


def middle(lease: Lease, decision: Decision, layers: EffectivePolicies) -> str | None:
    """The middle of that text, the same for failures alike; None: it is none of those."""
    failure = decision.failure
    if decision.verb is not Verb.RETRY or failure is None or failure.evidence or decision.cost:
        return None
    error = _error(failure.code, TEXT[failure.cls], failure.public, failure.rule)
    counted = f'"failures":{decision.failures},"max_retries":{layers.of(lease).max_retries}'
    return f',"next_retry_at":{decision.run_at},{error},{counted}'


def short(ending: Ending, reason: str) -> str:
    """The same text of an attempt that just returned: most events are of these, and many at once are the same."""
    lease = ending.lease
    if lease.uses or lease.failures:
        return f"{beginning(ending, reason)}{end(lease)}"
    return _shortest(
        lease.kind,
        lease.queue,
        reason,
        ending.duration_ms,
        (lease.started_at - lease.run_at) // 1000,
    )


@lru_cache(maxsize=4096)
def _shortest(kind: str, queue: str, reason: str, took: int | None, waited: int) -> str:
    head = _head(kind, queue, reason)
    began = head if took is None else f'{head},"duration_ms":{took}'
    return f'{began},"wait_ms":{max(0, waited)}}}'


def beginning(ending: Ending, reason: str) -> str:
    lease, took = ending.lease, ending.duration_ms
    head = _head(lease.kind, lease.queue, reason)
    return head if took is None else f'{head},"duration_ms":{took}'


def end(lease: Lease) -> str:
    return f"{_before_wait(lease)}{waited(lease)}}}"


def _before_wait(lease: Lease) -> str:
    failed = f',"failed_before":{lease.failures}' if lease.failures else ""
    uses = f',"uses":{_encode(lease.uses)}' if lease.uses else ""
    return f'{failed}{uses},"wait_ms":'


def waited(lease: Lease) -> int:
    """For how many milliseconds."""
    wait = lease.started_at - lease.run_at
    return wait // 1000 if wait > 0 else 0


def parts(lease: Lease, reason: str, told: str) -> tuple[str, str]:
    """What stands in `around` before the duration, and between it and the wait: the same of all that fail alike."""
    return (
        f'{_head(lease.kind, lease.queue, reason)},"duration_ms":',
        f"{told}{_before_wait(lease)}",
    )


@lru_cache(maxsize=1024)
def _head(kind: str, queue: str, reason: str) -> str:
    return _encode({"kind": kind, "queue": queue, "reason": reason})[:-1]


@lru_cache(maxsize=1024)
def _error(code: str, cls: str, public: str, rule: str) -> str:
    return _encode({"code": code, "class": cls, "message": public, "rule": rule})[1:-1]


_CHARGED = frozenset({Verb.RETRY, Verb.DIE})


def group_of(failure: Failure | None) -> str:
    """As the column of a dead job has it."""
    if failure is None:
        return "code-UNKNOWN"
    return failure.fingerprint or f"code-{failure.code}"


def _measured(news: dict[str, Any], lease: Lease, decision: Decision) -> None:
    """What is counted of an attempt beside how it ended; see observability/event_counts.py."""
    if lease.failures:
        news["failed_before"] = lease.failures
    if lease.uses:
        news["uses"] = lease.uses
    if decision.cost:
        news["cost"] = decision.cost
    news["wait_ms"] = (
        max(0, lease.started_at - lease.run_at) // 1000
    )  # last: there it is found without a parser


def error_of(failure: Failure | None) -> dict[str, Any]:
    """The public half of a failure."""
    if failure is None:
        return {"code": "UNKNOWN", "class": "unknown", "message": "", "rule": ""}
    return {
        "code": failure.code,
        "class": failure.cls.value,
        "message": failure.public,
        "rule": failure.rule,
        **failure.evidence,
    }


def as_json(value: Mapping[str, Any]) -> str:
    return _encode(value) if value else "{}"


# What is written of an ending: its attempt, and the new columns of its job.


def row_of(
    ending: Ending, decision: Decision, layers: EffectivePolicies, now: Micros, actor: str
) -> Settlement:
    lease, failure, state = ending.lease, decision.failure, decision.state
    told = _NOTHING if failure is None else _columns(failure, ending.words)
    queue = decision.then.get("queue") if decision.then else None
    return Settlement(  # by position: by name it costs three times as much
        lease.id,
        lease.worker,
        lease.token,
        lease.cancel_reason is not None,  # saw_cancel
        TEXT[state],
        decision.run_at if state is State.QUEUED else None,
        decision.failures,
        decision.losses,
        decision.snoozes,
        decision.alone,
        decision.result,
        json.dumps(error_of(failure)) if state is State.DEAD else None,
        json.dumps(decision.choices) if state is State.PARKED else None,
        decision.reason,
        state in TERMINAL,  # finished
        lease.unique_cover is not None and frees_key(lease.unique_cover, state),
        decision.cost,
        lease.generation,
        lease.attempt,
        actor or lease.worker,  # settled_by
        lease.started_at,
        TEXT[ending.outcome.ended],
        TEXT[decision.verb],
        *told,
        TEXT[event_for(decision.verb)],
        lease.owner,
        lease.batch_id,
        data_of(ending, decision, layers),
        decision.counts,
        decision.settings,
        _judged(decision, None if failure is None else _would(ending, layers, now)),
        queue,
        None if queue is None else _lane(lease, decision, queue, layers),
    )


_Columns = tuple[str | None, str | None, str | None, str | None, str | None, str | None, str | None]
_NOTHING: _Columns = (None, None, None, None, None, None, None)


def _columns(failure: Failure, words: str | None) -> _Columns:
    """From `code` to `fingerprint`."""
    return (
        failure.code,
        TEXT[failure.cls],
        failure.rule,
        failure.public,
        as_json(failure.evidence),
        private_of(failure, words),
        failure.fingerprint,
    )


def private_of(failure: Failure, words: str | None) -> str:
    private = failure.private
    return (
        private.text(words)
        if words is not None and isinstance(private, Wording)
        else as_json(private)
    )


def _would(ending: Ending, layers: EffectivePolicies, now: Micros) -> dict[str, Any] | None:
    """What the policy in shadow would have decided; it draws from a source of its own, so that it disturbs nothing."""
    policy = layers.shadow(ending.lease) if ending.outcome.failure is not None else None
    if policy is None:
        return None
    would = decide(ending.lease, ending.outcome, policy, now, Random(ending.lease.token))
    wait = {} if would.run_at is None else {"wait": round((would.run_at - now) / SECOND, 1)}
    return {"verb": would.verb.value, "reason": would.reason, **wait}


def _judged(decision: Decision, would: Mapping[str, Any] | None) -> str | None:
    """How the verdict came about, and how the next attempt differs; of most attempts there is nothing to say."""
    failure = decision.failure
    if (
        failure is not None
        and would is None
        and not (failure.terms or decision.then or decision.skipped)
    ):
        return _without_extras(failure.judged, decision)
    said: dict[str, Any] = {} if failure is None else dict(failure.judged)
    said |= _grounds(decision.verb, decision.ground, decision.retry_count)
    if failure is not None and failure.terms:
        said["terms"] = dict(failure.terms)
    if would is not None:
        said["shadow_policy"] = would
    if decision.then:
        said["then"] = dict(decision.then)
    if decision.skipped:
        said["skipped"] = True
    return _encode(said) if said else None


def _without_extras(judged: Mapping[str, Any], decision: Decision) -> str:
    """Encode what most failures have: the version of the rule table, the ground and the count."""
    table = judged.get("table")
    if len(judged) == 1 and type(table) is str:
        return _encoded(table, decision.verb, decision.ground, decision.retry_count)
    return _encode({**judged, **_grounds(decision.verb, decision.ground, decision.retry_count)})


@lru_cache(maxsize=256)
def _encoded(table: str, verb: Verb, ground: Ground, retry_count: str) -> str:
    return _encode({"table": table, **_grounds(verb, ground, retry_count)})


def _grounds(verb: Verb, ground: Ground, retry_count: str) -> dict[str, str]:
    """Return what is stored of a ground; a success has no other than that it returned."""
    if verb is Verb.SUCCEED:
        return {}
    known = {"ground": ground.value}
    return {**known, "retry_count": retry_count} if retry_count else known


def _lane(lease: Lease, decision: Decision, queue: str, layers: EffectivePolicies) -> str:
    """In another queue: owners may take turns there, or not any more."""
    return Lane(
        queue, lease.kind, lease.uses, decision.failures > 0, layers.share(queue, lease.owner)
    ).key


def frees_key(cover: str | None, state: State) -> bool:
    """A move out of the covered states frees the unique key in the same statement."""
    return cover is not None and state.value not in cover.split(",")
