"""Does a payload fit what a worker has said of its kind? By names alone: values are the handler's to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def misfit(schema: Mapping[str, Any], given: Iterable[str]) -> str:
    """What is missing and what is too many, in one sentence; nothing if it fits or nobody knows."""
    if not schema:
        return ""
    names, takes = set(given), list(schema.get("properties", {}))
    missing = [name for name in schema.get("required", []) if name not in names]
    surplus = [] if schema.get("additionalProperties") else sorted(names.difference(takes))
    faults = [f"{word} {', '.join(found)}" for word, found in (("lacks", missing), ("does not take", surplus)) if found]
    return f"{' and '.join(faults)}; it takes {', '.join(takes) or 'nothing'}" if faults else ""
