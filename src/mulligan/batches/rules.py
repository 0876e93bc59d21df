"""What a batch came to. Computed from its members, at the moment when the last of them has ended."""

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
NEARLY = 1e-9  # a tenth of thirty is three, whatever floating point says


class BatchState(StrEnum):
    """Processing, then one of three outcomes, then perhaps expired."""

    PROCESSING = "processing"
    READY = "ready"
    PARTIAL = "partial"
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Members by state; `missed`: must-haves that are dead or cancelled."""

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
        """How much of it has ended, 0 to 1; of nothing, all."""
        return self.ended / self.total if self.total else 1.0


def counted(members: Iterable[tuple[str, bool, int]]) -> BatchCounts:
    """From (state, must-have, how many)."""
    found = dict.fromkeys((*(state.value for state in State), "missed"), 0)
    for state, must_have, count in members:
        found[state] += count
        if must_have and state in {State.DEAD, State.CANCELLED}:
            found["missed"] += count
    return BatchCounts(**found)


def reckoned(counts: BatchCounts, tolerance: str) -> BatchState:
    """The outcome. Cancelled members are left out of the reckoning: nobody wants them."""
    if counts.unfinished:
        return BatchState.PROCESSING
    if not counts.total:
        return BatchState.READY
    if counts.missed or not counts.succeeded:
        return BatchState.FAILED
    allowed = _allowed(tolerance, counts.succeeded + counts.dead)
    return BatchState.READY if counts.dead <= allowed + NEARLY else BatchState.PARTIAL


def recovered(before: str | None, now: str) -> bool:
    """Is all well that was not?"""
    return now == BatchState.READY and before in {BatchState.PARTIAL, BatchState.FAILED}


def shown(outcome: str | None, *, expired: bool) -> BatchState:
    """What people see."""
    return BatchState.EXPIRED if expired else BatchState(outcome or BatchState.PROCESSING)


def checked_tolerance(value: Any) -> str:
    """A count (3), or a share of those that were not cancelled: 0.1 or "10%"."""
    if isinstance(value, str) and (found := _SHARE.fullmatch(value.strip())):
        return _share(float(found[1]) / 100, value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return _share(value, value)
    raise Refused(_no_tolerance(value))


def _share(share: float, given: Any) -> str:
    if not 0 <= share <= 1:
        raise Refused(_no_tolerance(given))
    return f"{share * 100:.10g}%"


def _no_tolerance(value: Any) -> str:
    return f'tolerance is how many members may die: a count (3), or a share (0.1, "10%"), not {value!r:.80}'


def _allowed(tolerance: str, members: int) -> float:
    found = _SHARE.fullmatch(tolerance)
    return float(found[1]) / 100 * members if found else float(tolerance)
