"""Escalation: after a failure the next attempt may go to another queue, get more time or memory, or other settings.

What a step gives holds for all later attempts of the generation, until another step says otherwise. Stored beside the
job as JSON: `timeout` (microseconds), `memory_limit` (bytes), `settings` (what the handler reads), and `home`, the
queue it was enqueued for, once a step has moved it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.attempt import Lease
from mulligan.job import SECOND
from mulligan.policy.phrase import duration, size
from mulligan.policy.retry import Then

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Escalated(NamedTuple):
    """What the next attempts get; `then` is what changes now, empty when nothing does."""

    settings: str | None
    then: Mapping[str, Any]


def step_of(ladder: Sequence[Then], count: int) -> Then | None:
    """The step after the `count`th failure; the last one repeats."""
    return ladder[min(max(count, 1), len(ladder)) - 1] if ladder else None


def escalate(lease: Lease, step: Then) -> Escalated:
    before = given(lease.settings)
    after = {**before, **_limits(step)}
    if step.settings:
        after["settings"] = {**before.get("settings", {}), **step.settings}
    changed = {name: step.to_plain()[name] for name in _limits(step) if after[name] != before.get(name)}
    if after.get("settings") != before.get("settings"):
        changed["settings"] = dict(step.settings)
    if step.queue is not None and step.queue != lease.queue:
        changed["queue"] = step.queue
        after["home"] = before.get("home", lease.queue)
    return Escalated(_encode(after) if after else None, changed)


def _limits(step: Then) -> dict[str, int]:
    said = {
        "timeout": None if step.timeout is None else round(step.timeout * SECOND),
        "memory_limit": step.memory_limit,
    }
    return {name: value for name, value in said.items() if value is not None}


def given(settings: str | None) -> dict[str, Any]:
    """What is stored beside a job; what cannot be read is as if it had never been given."""
    try:
        said = json.loads(settings) if settings else {}
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def in_words(then: Mapping[str, Any]) -> str:
    """`the next attempt goes to queue big with 8 GB of memory`. Values of settings stay unsaid: they may be secret."""
    if not then:
        return ""
    extras = list(_extras(then))
    listed = " and ".join([", ".join(extras[:-1]), extras[-1]] if len(extras) > 1 else extras)
    if "queue" not in then:
        return f"the next attempt gets {listed}"
    return f"the next attempt goes to queue {then['queue']}{f' with {listed}' if listed else ''}"


def _extras(then: Mapping[str, Any]) -> Iterator[str]:
    if "memory_limit" in then:
        yield f"{size(then['memory_limit'])} of memory"
    if "timeout" in then:
        yield f"{duration(then['timeout'])} of time"
    if "settings" in then:
        yield f"other settings ({', '.join(sorted(then['settings']))})"
