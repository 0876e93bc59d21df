"""What travels between supervisor and runner, as lists a JSON encoder likes.

to a runner     ["run", [[seq, lease, memory], …]]   ["stop", seq]   ["recall", seq]   ["drain"]   ["kept", request, ok]
from a runner   ["settings", values]   ["ready", manifest]   ["broken", why]   ["ended", [[seq, …outcome], …]]
                ["progress", [[seq, fraction, text], …]]   ["keep", request, seq, name, value]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.job import Cls, Ended, Failure, Lease, Memory, Outcome

STOPPED = "stopped"  # the code stopped because it was asked to; the supervisor knows why it asked


def work_to_wire(seq: int, lease: Lease, memory: Memory | None) -> list[Any]:
    return [seq, list(lease), None if memory is None else [dict(memory.checkpoints), memory.previous]]


def work_from_wire(item: list[Any]) -> tuple[int, Lease, Memory]:
    seq, lease, memory = item
    return seq, Lease._make(lease), Memory({}, None) if memory is None else Memory(*memory)


def outcome_to_wire(seq: int, outcome: Outcome, duration_ms: int) -> list[Any]:
    if outcome.ended is Ended.RETURNED:
        skipped = [True] if outcome.skipped else []
        return [seq, Ended.RETURNED.value, duration_ms, outcome.cost, outcome.result, *skipped]
    return [
        seq,
        outcome.ended.value,
        duration_ms,
        outcome.cost,
        failure_to_wire(outcome.failure),
        outcome.after,
        outcome.until,
        outcome.reason,
        list(outcome.choices),
        outcome.dependency,
        outcome.final,
    ]


def stopped_to_wire(seq: int, duration_ms: int, cost: float) -> list[Any]:
    return [seq, STOPPED, duration_ms, cost]


def outcome_from_wire(item: list[Any]) -> Outcome:
    _, ended, _, cost, *rest = item
    if ended == Ended.RETURNED:
        return Outcome(Ended.RETURNED, result=rest[0], cost=cost, skipped=len(rest) > 1)
    failure, after, until, reason, choices, dependency, final = rest
    return Outcome(
        Ended(ended),
        failure=failure_from_wire(failure),
        after=after,
        until=until,
        reason=reason,
        choices=tuple(choices),
        dependency=dependency,
        final=final,
        cost=cost,
    )


def failure_to_wire(failure: Failure | None) -> list[Any] | None:
    if failure is None:
        return None
    return [
        failure.code,
        failure.cls.value,
        failure.public,
        failure.rule,
        failure.retryable,
        failure.retry_after,
        plain(failure.evidence),
        plain(failure.private),
        failure.fingerprint,
        plain(failure.terms),
        plain(failure.judged),
    ]


def failure_from_wire(item: list[Any] | None) -> Failure | None:
    if item is None:
        return None
    code, cls, *rest = item
    return Failure(code, Cls(cls), *rest)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)
