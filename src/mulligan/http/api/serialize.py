"""Things as JSON, by who asks: the private half, names of hosts and what people noted are for operators."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, cast

from mulligan.batches.rules import BatchCounts
from mulligan.core.event import OURSELVES, Event, for_owners
from mulligan.core.job import AttemptRow, Job, Micros, to_datetime
from mulligan.core.statistics import Share
from mulligan.failures.redact import scrub
from mulligan.failures.service import FailureGroup
from mulligan.operations.request import OperationPreview
from mulligan.operations.service import Operation

Plain = dict[str, Any]

NAMES = {"cls": "class"}  # which Python cannot call so
ALSO: Mapping[type, tuple[str, ...]] = {  # what they know beside their fields
    BatchCounts: ("total", "ended"),
    FailureGroup: ("message", "recovered_share"),
    Operation: ("under_way", "untouched"),
    OperationPreview: ("retried", "recovered", "chance"),
    Share: ("value",),
}
NOT_OF_ATTEMPTS = frozenset({"private", "judged", "worker", "settled_by"})


def job_shape(job: Job, *, private: bool) -> Plain:
    shape: Plain = plain(job)
    if not private:
        shape["payload"], shape["result"] = masked(job.payload), masked(job.result)
    return shape


def attempt_shape(attempt: AttemptRow, *, private: bool) -> Plain:
    shape = {
        name: value
        for name, value in attempt._asdict().items()
        if private or name not in NOT_OF_ATTEMPTS
    }
    for name in ("started_at", "ended_at", "next_run_at"):
        shape[name] = at(shape[name])
    for name in {"evidence", "private", "judged"} & set(shape):
        shape[name] = json.loads(shape[name] or "{}")
    return {NAMES.get(name, name): value for name, value in shape.items()}


def event_shape(event: Event, *, private: bool) -> Plain:
    data = dict(event.data) if private else for_owners(event.data)
    shape = {**event._asdict(), "at": at(event.at), "data": data}
    return shape if private else {**shape, "actor": _kind_of(event.actor)}


def _kind_of(actor: str) -> str:
    """That somebody did it, not who: `cli`, `key`, `python`; of a worker nothing."""
    word = actor.partition(":")[0]
    return word if actor in OURSELVES or word in {"cli", "key", "python"} else ""


def masked(value: Any) -> Any:
    """Without what looks like a secret, by its name or by its shape."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = scrub(json.dumps(value, ensure_ascii=False), 1 << 22)
    try:
        return json.loads(text)
    except ValueError:  # what was hidden has taken a quote along
        return text


def at(moment: Micros | None) -> str | None:
    return None if moment is None else to_datetime(moment).isoformat()


ATOMS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """A value of ours as JSON has it; what begins with an underscore is nobody's business."""
    if (
        type(value) in ATOMS
    ):  # most are, and to ask what else it may be takes longer than all the rest
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if names := shown_of(cast("Hashable", type(value))):
        return {NAMES.get(name, name): plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return value


@cache
def shown_of(kind: Any) -> tuple[str, ...]:
    """The names under which a value of ours is shown; of anything else none."""
    if is_dataclass(kind):
        own = tuple(one.name for one in fields(kind) if not one.name.startswith("_"))
    else:
        own = getattr(kind, "_fields", ())
    return (*own, *ALSO.get(kind, ()))
