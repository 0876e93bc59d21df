"""Limits that an operator or an alert sets. They win over the limits that code declares."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, resolve_end
from mulligan.core.errors import (
    DurationOrTime,
    Refused,
)
from mulligan.core.job import LimitKey, LimitRow
from mulligan.events.service import limit_state, load_limit_state
from mulligan.guards.limits import MAX_RATE, NO_LIMIT, is_limit_active, parse_rate
from mulligan.guards.queries import GuardQueries
from mulligan.storage.base import Transaction

ALERT_ACTOR = "alert"  # actor of changes that an alert makes itself


class _Unchanged:
    """Type of the default that keeps a limit as it was set; None removes the limit."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Any = _Unchanged()


class LimitChange(NamedTuple):
    """New limits. None removes a limit or an end; UNCHANGED keeps it as it was set."""

    concurrency: int | None = UNCHANGED
    rate: float | str | None = UNCHANGED
    until: DurationOrTime | None = UNCHANGED
    reason: str = ""


def set_limit(tx: Transaction, key: LimitKey, change: LimitChange, actor: str) -> dict[str, Any]:
    """Set the limits of a queue or dependency. Return the data of its event."""
    now = tx.now()
    before = _find_limit(tx, key, now)
    if before is not None and before.actor == ALERT_ACTOR and actor != ALERT_ACTOR:
        before = None  # an operator's limit does not extend a temporary one that an alert set
    concurrency, rate, until = None, None, None
    if before is not None:
        concurrency, rate, until = before.concurrency, before.rate, before.until
    if change.concurrency is not UNCHANGED:
        concurrency = _or_no_limit(check_concurrency(change.concurrency))
    if change.rate is not UNCHANGED:
        rate = _or_no_limit(check_rate(change.rate))
    if change.until is not UNCHANGED:
        until = resolve_end("until", change.until, now)
    scope, name = key
    if concurrency is None and rate is None:
        message = f"{scope} {name!r}: pass concurrency=, rate= or both"
        raise Refused(message)
    row = LimitRow(scope, name, concurrency, rate, now, until, change.reason, actor)
    GuardQueries(tx).set_limit(row)
    state_before = {} if before is None else limit_state(before)
    state_after = limit_state(row)
    return {
        **state_after,
        "reason": change.reason,
        "before": state_before,
        "after": state_after,
    }


def _find_limit(tx: Transaction, key: LimitKey, now: Micros) -> LimitRow | None:
    for row in GuardQueries(tx).list_limits():
        if (row.scope, row.key) == key and is_limit_active(row, now):
            return row
    return None


def _or_no_limit(value: Any) -> Any:
    """Return NO_LIMIT for None: lifting a limit is stored, unlike not setting one."""
    return NO_LIMIT if value is None else value


def clear_limit(tx: Transaction, key: LimitKey, reason: str) -> dict[str, Any] | None:
    """Remove an operator's limits. Return the data of the event, or None if none were set."""
    before = load_limit_state(tx, key, tx.now())
    if not GuardQueries(tx).clear_limit(key):
        return None
    return {"cleared": True, "reason": reason, "before": before, "after": {}}


def check_concurrency(value: Any, name: str = "concurrency") -> int | None:
    """Return a concurrency limit; refuse anything but a whole number from 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < NO_LIMIT:
        message = (
            f"{name} must be a whole number of at least 1 or None, not {value!r}."
            " To stop all jobs, pause the queue."
        )
        raise Refused(message)
    return value


def check_rate(value: Any) -> float | None:
    """Return a rate limit in starts per second."""
    if value is None:
        return None
    rate = parse_rate(value) if isinstance(value, str) else value
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        rate = math.nan
    if not 0 < rate <= MAX_RATE:
        message = (
            "rate must be a number of starts per second above 0, or a text like"
            f' "5/s", "100/m" or "2/h"; not {value!r}'
        )
        raise Refused(message)
    return float(rate)
