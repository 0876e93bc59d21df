"""Compute the outcome of a batch from its members."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mulligan.core.errors import Refused
from mulligan.core.job import State

UNFINISHED = frozenset({State.QUEUED, State.RUNNING, State.PARKED})
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")
ROUNDING_MARGIN = 1e-9  # 10 % of 30 is 3 despite floating point


class BatchState(StrEnum):
    """State of a batch: processing, then an outcome, then possibly expired."""

    PROCESSING = "processing"
    READY = "ready"
    PARTIAL = "partial"
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Members by state. `missed` counts must-have members that are dead or cancelled."""

    queued: int = 0
    running: int = 0
    parked: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    missed: int = 0

    @property
    def total(self) -> int:
        return self.ended + self.unfinished

    @property
    def unfinished(self) -> int:
        return self.queued + self.running + self.parked

    @property
    def ended(self) -> int:
        return self.succeeded + self.dead + self.cancelled

    @property
    def share(self) -> float:
        """Share of members that have ended, 0 to 1. An empty batch counts as ended."""
        return self.ended / self.total if self.total else 1.0


def count_members(members: Iterable[tuple[str, bool, int]]) -> BatchCounts:
    """Sum up rows of (state, must_have, count)."""
    counts = dict.fromkeys((*(state.value for state in State), "missed"), 0)
    for state, must_have, count in members:
        counts[state] += count
        if must_have and state in {State.DEAD, State.CANCELLED}:
            counts["missed"] += count
    return BatchCounts(**counts)


def compute_outcome(counts: BatchCounts, tolerance: str) -> BatchState:
    """Return the outcome. Cancelled members do not count, except must-haves."""
    if counts.unfinished:
        return BatchState.PROCESSING
    if not counts.total:
        return BatchState.READY
    if counts.missed or not counts.succeeded:
        return BatchState.FAILED
    if is_tolerated(counts.dead, counts.succeeded + counts.dead, tolerance):
        return BatchState.READY
    return BatchState.PARTIAL


def is_tolerated(deaths: int, members: int, tolerance: str) -> bool:
    """Return whether so many of the members may die."""
    return deaths <= _allowed_deaths(tolerance, members) + ROUNDING_MARGIN


def has_recovered(before: str | None, now: str) -> bool:
    """Return whether a batch that was partial or failed is ready now."""
    return now == BatchState.READY and before in {BatchState.PARTIAL, BatchState.FAILED}


def displayed_state(outcome: str | None, *, expired: bool) -> BatchState:
    """Return the state that people see."""
    if expired:
        return BatchState.EXPIRED
    return BatchState(outcome or BatchState.PROCESSING)


def check_tolerance(value: Any) -> str:
    """Return a tolerance as stored: a count (3) or a share of uncancelled members (0.1, "10%")."""
    if isinstance(value, str):
        percent = _SHARE.fullmatch(value.strip())
        if percent:
            return _format_share(float(percent[1]) / 100, value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return _format_share(value, value)
    raise Refused(_bad_tolerance(value))


def _format_share(share: float, value: Any) -> str:
    if not 0 <= share <= 1:
        raise Refused(_bad_tolerance(value))
    return f"{share * 100:.10g}%"


def _bad_tolerance(value: Any) -> str:
    return (
        "tolerance is how many members may die: "
        f'a count (3) or a share (0.1, "10%"), not {value!r:.80}'
    )


def _allowed_deaths(tolerance: str, members: int) -> float:
    percent = _SHARE.fullmatch(tolerance)
    if percent:
        return float(percent[1]) / 100 * members
    return float(tolerance)
