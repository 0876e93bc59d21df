"""Arguments of a job that people may change, as a form shows them and as what was typed is meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.engine.amend import hidden
from mulligan.engine.declared import stored_kinds
from mulligan.job import Job
from mulligan.store.base import Unit


class Field(NamedTuple):
    name: str
    text: str  # empty where it is not to be seen
    value: Any
    known: bool  # may be shown


def editable_fields(unit: Unit, job: Job) -> list[Field]:
    """What its kind calls editable."""
    spec = stored_kinds(unit).get(job.kind)
    payload = job.payload if isinstance(job.payload, Mapping) else {}
    return [] if spec is None else [_field(name, payload.get(name)) for name in spec.editable]


def _field(name: str, value: Any) -> Field:
    known = hidden(name, value) == value
    return Field(name, _shown(value) if known else "", value, known)


def _shown(value: Any) -> str:
    """A text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changed(fields: list[Field], said: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """What was typed otherwise than it was shown."""
    typed = [(one, said[prefix + one.name]) for one in fields if prefix + one.name in said]
    return {one.name: _meant(text, one.value) for one, text in typed if text != one.text}


def _meant(text: str, before: Any) -> Any:
    """Where a text was, a text; else JSON, and what is none is meant as the text it is."""
    if isinstance(before, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
