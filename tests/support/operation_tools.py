"""Helpers for tests of operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mulligan import Kind, Mulligan, State
from mulligan.core.event import Event
from mulligan.events.queries import EventQueries
from mulligan.operations.rules import ItemCounts

CAUSES = {"moov": "BAD_FILE", "gateway": "GW_5XX", "disk": "DISK_FULL"}
IN_ONE_STEP: dict[str, Any] = {"steps": ["rest"], "rate": 1000}


def enqueue_jobs(kind: Kind[..., Any], cause: str, jobs: int, **options: Any) -> list[str]:
    made = kind.options(**options).enqueue_many([{"cause": cause, "n": n} for n in range(jobs)])
    return [job.id for job in made]


def list_events(app: Mulligan, prefix: str = "operation.") -> list[Event]:
    with app.store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type.startswith(prefix)
        ]


def count_items(app: Mulligan, operation: str) -> ItemCounts:
    """Count the items of an operation by outcome, for comparison with its stored counts."""
    counts = dict.fromkeys(ItemCounts._fields, 0)
    for item in app.operations.items(operation):
        counts["size"] += 1
        counts[item.outcome or item.state] += 1
    return ItemCounts(**counts)


def states(app: Mulligan, ids: Sequence[str]) -> list[State]:
    return [app.jobs.get(job_id).state for job_id in ids]
