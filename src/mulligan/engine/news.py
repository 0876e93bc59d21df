"""What the event of an ending tells: the public half only, as text.

Most endings are alike but for a number or two, so most of a text is made once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mulligan.core.attempt import Cls, Decision, Ended, Ending, Failure, Lease, Verb
from mulligan.event import EventType
from mulligan.job import State
from mulligan.plain_json import encode as _encode

if TYPE_CHECKING:
    from mulligan.engine.layers import Layers

# Until Python 3.12 `value` is a function's work, and a row asks for six of them.
TEXT: dict[str, str] = {one: one.value for names in (State, Verb, Ended, Cls, EventType) for one in names}


def _news(ending: Ending, decision: Decision, layers: Layers) -> dict[str, Any]:
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
    if decision.state is State.DEAD or (decision.state is State.PARKED and decision.failure is not None):
        news["group"] = group_of(decision.failure)
    if decision.skipped:
        news["skipped"] = True
    _measured(news, ending.lease, decision)
    return news


def data_of(ending: Ending, decision: Decision, layers: Layers) -> str:
    """`_news` as text; most of those that come here are failures that are tried again."""
    told = middle(ending.lease, decision, layers)
    if told is None:
        return as_json(_news(ending, decision, layers))
    return around(ending, decision.reason, told)


def around(ending: Ending, reason: str, told: str) -> str:
    """That text, of which `told` is the middle."""
    return f"{beginning(ending, reason)}{told}{end(ending.lease)}"


def middle(lease: Lease, decision: Decision, layers: Layers) -> str | None:
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
    return _shortest(lease.kind, lease.queue, reason, ending.duration_ms, (lease.started_at - lease.run_at) // 1000)


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
    return f'{_head(lease.kind, lease.queue, reason)},"duration_ms":', f"{told}{_before_wait(lease)}"


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
    """What is counted of an attempt beside how it ended; see observe/fold.py."""
    if lease.failures:
        news["failed_before"] = lease.failures
    if lease.uses:
        news["uses"] = lease.uses
    if decision.cost:
        news["cost"] = decision.cost
    news["wait_ms"] = max(0, lease.started_at - lease.run_at) // 1000  # last: there it is found without a parser


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
