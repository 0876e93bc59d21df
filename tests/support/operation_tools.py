"""Short words for what the tests of operations do all the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mulligan import Kind, Mulligan, State
from mulligan.core.event import Event
from mulligan.operations.rules import ItemCounts

CAUSES = {"moov": "BAD_FILE", "gateway": "GW_5XX", "disk": "DISK_FULL"}
AT_ONCE: dict[str, Any] = {"steps": ["rest"], "rate": 1000}


def feed(kind: Kind[..., Any], cause: str, jobs: int, **options: Any) -> list[str]:
    made = kind.options(**options).enqueue_many([{"cause": cause, "n": n} for n in range(jobs)])
    return [job.id for job in made]


def told(app: Mulligan, prefix: str = "operation.") -> list[Event]:
    with app.store.read() as unit:
        return [event for event in unit.events_after(0, 10_000) if event.type.startswith(prefix)]


def truth(app: Mulligan, operation: str) -> ItemCounts:
    """The tallies as the items themselves say."""
    counts = dict.fromkeys(ItemCounts._fields, 0)
    for item in app.operations.items(operation):
        counts["size"] += 1
        counts[item.outcome or item.state] += 1
    return ItemCounts(**counts)


def states(app: Mulligan, ids: Sequence[str]) -> list[State]:
    return [app.jobs.get(job_id).state for job_id in ids]
