"""Find resolved causes of which a job died again, under a release that should have the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mulligan.core.durations import Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import ALL_OWNERS, FailureGroupRow
from mulligan.events.queries import EventQueries
from mulligan.failures.groups import CauseDeath
from mulligan.failures.queries import DeathsByCause, FailureQueries
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.rules import has_fix
from mulligan.storage.base import Transaction


def record_regressions(tx: Transaction, deaths: DeathsByCause) -> None:
    """Mark resolved groups that have regressed, once each, and write their events.

    Only for the worker that has locked the counting reader.
    """
    if not deaths:
        return
    queries = FailureQueries(tx)
    marks = queries.list_resolved_groups(list(deaths))
    if not marks:
        return
    first_seen = {row.name: row.first_at for row in ReleaseQueries(tx).list_releases()}
    events = []
    for mark in marks:
        death = find_regression(mark, deaths[mark.fingerprint], first_seen)
        if death is not None and queries.mark_regressed(mark, death.at):
            events.append(_regression_event(mark, death))
    EventQueries(tx).write_events(events)


def find_regression(
    mark: FailureGroupRow, deaths: Sequence[CauseDeath], first_seen: Mapping[str, Micros]
) -> CauseDeath | None:
    """Return the first death that contradicts a mark."""
    resolved_at = mark.resolved_at or mark.at
    for death in deaths:
        is_in_scope = mark.scope in (ALL_OWNERS, death.owner)
        is_later = death.at > resolved_at
        if (
            is_in_scope
            and is_later
            and has_fix(death.release, mark.in_release, resolved_at, first_seen)
        ):
            return death
    return None


def _regression_event(mark: FailureGroupRow, death: CauseDeath) -> NewEvent:
    data = {
        "fingerprint": mark.fingerprint,
        "group": mark.fingerprint,
        "kind": death.data.get("kind", ""),
        "code": death.data.get("code", ""),
        "class": death.data.get("class", ""),
        "message": death.data.get("message", ""),
        "job": death.job,
        "release": death.release,
        "in_release": mark.in_release,
        "resolved_at": mark.resolved_at or mark.at,
        "resolved_by": mark.actor,
        "note": mark.note,
    }
    return NewEvent(
        EventType.FAILURE_REGRESSED,
        owner="" if mark.scope == ALL_OWNERS else mark.scope,
        data={name: value for name, value in data.items() if value not in (None, "")},
    )
