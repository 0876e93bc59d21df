"""Limits as an operator says them, for a queue or a dependency: checked, merged with what was said before, written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from mulligan.engine.audit import limit_facts, shown_limit
from mulligan.engine.said import ended_at
from mulligan.errors import Moment, Refused
from mulligan.job import Guarded, LimitRow
from mulligan.policy.limits import MOST_RATE, NO_LIMIT, lasts, rate_of
from mulligan.store.base import Unit

ALERT = "alert"  # the actor of what alerts do by themselves
KEEP: Any = type("Keep", (), {"__repr__": lambda _: "as it is"})()  # not said: as it was set before


class Said(NamedTuple):
    """None: no limit, no end. Not given: as it was set."""

    concurrency: int | None = KEEP
    rate: float | str | None = KEEP
    until: Moment | None = KEEP
    reason: str = ""


def set_limit(unit: Unit, key: Guarded, said: Said, actor: str) -> dict[str, Any]:
    """What there is to tell about it."""
    now = unit.now()
    before = next((row for row in unit.limits() if row[:2] == key and lasts(row, now)), None)
    if before is not None and before.actor == ALERT != actor:
        before = None  # a person's word does not go on with what an alert has set for a while
    row = LimitRow(
        *key,
        _kept(said.concurrency, before and before.concurrency, checked_concurrency),
        _kept(said.rate, before and before.rate, checked_rate),
        now,
        (before and before.until) if said.until is KEEP else ended_at("until", said.until, now),
        said.reason,
        actor,
    )
    if row.concurrency is None and row.rate is None:
        message = f"{key[0]} {key[1]!r}: say concurrency=, rate= or both"
        raise Refused(message)
    unit.set_limit(row)
    after = shown_limit(row)
    return {**after, "reason": said.reason, "before": {} if before is None else shown_limit(before), "after": after}


def clear_limit(unit: Unit, key: Guarded, reason: str) -> dict[str, Any] | None:
    """What there is to tell about it; None: nothing was set."""
    before = limit_facts(unit, key, unit.now())
    if not unit.clear_limit(key):
        return None
    return {"cleared": True, "reason": reason, "before": before, "after": {}}


def _kept(said: Any, before: Any, checked: Callable[[Any], Any]) -> Any:
    """None lifts a limit, which is not the same as saying nothing."""
    if said is KEEP:
        return before
    return NO_LIMIT if said is None else checked(said)


def checked_concurrency(value: Any, name: str = "concurrency") -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < NO_LIMIT:
        message = f"{name} must be a whole number from 1, or None; to stop everything, pause: {value!r}"
        raise Refused(message)
    return value


def checked_rate(value: Any) -> float | None:
    """Starts per second."""
    if value is None:
        return None
    rate = rate_of(value) if isinstance(value, str) else value
    if (
        isinstance(rate, bool)
        or not isinstance(rate, int | float)
        or not math.isfinite(rate)
        or not 0 < rate <= MOST_RATE
    ):
        message = f'rate must be starts per second above 0, or a text like "5/s", "100/m", "2/h"; not {value!r}'
        raise Refused(message)
    return float(rate)
