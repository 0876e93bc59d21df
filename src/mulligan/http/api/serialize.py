"""Convert jobs, events and other values to JSON, with or without their private part."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, cast

from mulligan.batches.rules import BatchCounts
from mulligan.core.durations import Micros, to_datetime
from mulligan.core.event import SYSTEM_ACTORS, Event, owner_visible_data
from mulligan.core.job import AttemptRow, Job
from mulligan.core.statistics import Share
from mulligan.failures.redact import scrub
from mulligan.failures.service import FailureGroup
from mulligan.operations.request import OperationPreview
from mulligan.operations.service import Operation

JsonObject = dict[str, Any]

JSON_NAMES = {"cls": "class"}  # Python name → JSON name
# Properties that are part of the JSON form, in addition to the fields of the type.
COMPUTED_FIELDS: Mapping[type, tuple[str, ...]] = {
    BatchCounts: ("total", "ended"),
    FailureGroup: ("message", "recovered_share"),
    Operation: ("under_way", "untouched"),
    OperationPreview: ("retried", "recovered", "chance"),
    Share: ("value",),
}
PRIVATE_ATTEMPT_FIELDS = frozenset({"private", "judged", "worker", "settled_by"})


def job_to_json(job: Job, *, private: bool) -> JsonObject:
    """Convert a job. Without `private`, secrets in payload and result are masked."""
    document: JsonObject = to_json(job)
    if not private:
        document["payload"] = mask_secrets(job.payload)
        document["result"] = mask_secrets(job.result)
    return document


def attempt_to_json(attempt: AttemptRow, *, private: bool) -> JsonObject:
    """Convert an attempt. Without `private`, the private part and the worker are left out."""
    document = attempt._asdict()
    if not private:
        for name in PRIVATE_ATTEMPT_FIELDS:
            del document[name]
    for name in ("started_at", "ended_at", "next_run_at"):
        document[name] = iso_time(document[name])
    for name in {"evidence", "private", "judged"} & set(document):
        document[name] = json.loads(document[name] or "{}")
    return {JSON_NAMES.get(name, name): value for name, value in document.items()}


def event_to_json(event: Event, *, private: bool) -> JsonObject:
    """Convert an event. Without `private`, owners see neither actor names nor internal data."""
    document = {**event._asdict(), "at": iso_time(event.at)}
    if private:
        document["data"] = dict(event.data)
    else:
        document["data"] = owner_visible_data(event.data)
        document["actor"] = _public_actor(event.actor)
    return document


def _public_actor(actor: str) -> str:
    """Return the kind of an actor without its name: `cli`, `key`, `python`. Workers: nothing."""
    kind = actor.partition(":")[0]
    if actor in SYSTEM_ACTORS or kind in {"cli", "key", "python"}:
        return kind
    return ""


def mask_secrets(value: Any) -> Any:
    """Mask what looks like a secret, by its name or by its form."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = scrub(json.dumps(value, ensure_ascii=False), 1 << 22)
    try:
        return json.loads(text)
    except ValueError:  # a masked secret contained a quote
        return text


def iso_time(at: Micros | None) -> str | None:
    """Format a time of the database as ISO 8601."""
    return None if at is None else to_datetime(at).isoformat()


SCALARS = frozenset({str, int, float, bool, type(None)})


def to_json(value: Any) -> Any:
    """Convert a value to JSON types. Fields that begin with an underscore are left out."""
    # Check the common types first: the other checks take longer than the conversion itself.
    if type(value) in SCALARS:
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    names = json_fields(cast("Hashable", type(value)))
    if names:
        return {JSON_NAMES.get(name, name): to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item) for item in value]
    return value


@cache
def json_fields(kind: Any) -> tuple[str, ...]:
    """Return the attributes of a dataclass or named tuple that are part of its JSON form."""
    if is_dataclass(kind):
        names = tuple(field.name for field in fields(kind) if not field.name.startswith("_"))
    else:
        names = getattr(kind, "_fields", ())
    return (*names, *COMPUTED_FIELDS.get(kind, ()))
