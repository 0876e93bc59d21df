"""`app.releases`: list releases, compare two of them, and hold one that fails more."""

from __future__ import annotations

import builtins
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from mulligan.core.durations import Micros, optional_datetime, resolve_end, to_datetime
from mulligan.core.errors import DurationOrTime, NotFound
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate
from mulligan.events.queries import EventQueries
from mulligan.failures.groups import CauseRow, parse_releases
from mulligan.failures.queries import FailureQueries
from mulligan.guards.lanes import RELEASE_SCOPE, hold_key, is_closed, parse_hold_key
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.specs import SYSTEM_PREFIX, check_name
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.rules import (
    FirstAttempts,
    ReleaseKindRow,
    ReleaseRow,
    ReleaseState,
    decide_test,
    evidence,
    judge_release,
)
from mulligan.storage.base import Store, Transaction

MAX_CAUSES = 500  # that a comparison examines
MAX_NAMED = 5  # releases that an error names


@dataclass(frozen=True, slots=True)
class ReleaseCounts:
    """Attempts of a kind. Starts are jobs whose first attempt succeeded or failed."""

    starts: int
    failures: int
    attempts: int
    deaths: int

    @property
    def failed_share(self) -> float | None:
        """Share of first attempts that failed, or None without any."""
        return self.failures / self.starts if self.starts else None


@dataclass(frozen=True, slots=True)
class KindUnderRelease:
    """A kind under one release, compared with all others."""

    kind: str
    state: ReleaseState
    counts: ReleaseCounts
    before: ReleaseCounts  # under other releases, until this one began


@dataclass(frozen=True, slots=True)
class ReleaseHold:
    """A kind that workers of a release do not claim."""

    kind: str  # empty: all kinds
    since: datetime
    until: datetime | None
    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class Release:
    """A release that workers have run."""

    name: str
    first_seen: datetime
    last_seen: datetime
    workers: int  # that are live
    state: ReleaseState  # the worst of its kinds
    counts: ReleaseCounts
    kinds: tuple[KindUnderRelease, ...]  # those that fail more come first
    holds: tuple[ReleaseHold, ...]

    @property
    def worse_kinds(self) -> tuple[KindUnderRelease, ...]:
        """The kinds that fail more than under other releases."""
        return tuple(kind for kind in self.kinds if kind.state is ReleaseState.WORSE)


@dataclass(frozen=True, slots=True)
class KindComparison:
    """A kind under two releases."""

    kind: str
    before: ReleaseCounts
    after: ReleaseCounts
    state: ReleaseState  # of the second one, compared with the first alone


@dataclass(frozen=True, slots=True)
class CauseComparison:
    """Deaths of a cause under two releases."""

    fingerprint: str
    code: str
    title: str
    kinds: tuple[str, ...]
    before: int
    after: int

    @property
    def is_new(self) -> bool:
        """True if no job died of the cause under the first release."""
        return not self.before


@dataclass(frozen=True, slots=True)
class ReleaseComparison:
    """Two releases: their kinds and their causes."""

    before: str
    after: str
    kinds: tuple[KindComparison, ...]
    causes: tuple[CauseComparison, ...]  # with deaths under the second one, most first


NO_COUNTS = ReleaseCounts(0, 0, 0, 0)
_STATES = tuple(ReleaseState)  # the worst first


class Releases:
    """`app.releases`: the releases that workers run."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    def list(self, *, limit: int = 50) -> list[Release]:
        """List the releases, the newest first."""
        with self._open().read() as tx:
            return _load_releases(tx, ReleaseQueries(tx).list_releases(limit))

    def get(self, name: str) -> Release:
        """Return one release."""
        with self._open().read() as tx:
            return _load_releases(tx, [_find(tx, name)])[0]

    def find_previous(self, name: str) -> str:
        """Return the release that was first seen before another one."""
        with self._open().read() as tx:
            _find(tx, name)
            names = [row.name for row in ReleaseQueries(tx).list_releases()]
        older = names[names.index(name) + 1 :]
        if not older:
            message = f"no release was seen before {name!r}"
            raise NotFound(message)
        return older[0]

    def compare(self, before: str, after: str, *, kind: str | None = None) -> ReleaseComparison:
        """Compare the failures of two releases, kind by kind and cause by cause.

        - `kind`: only this one.
        """
        with self._open().read() as tx:
            _find(tx, before)
            _find(tx, after)
            rows = ReleaseQueries(tx).list_counts(None if kind is None else [kind])
            names = [name for name, _ in FailureQueries(tx).list_causes(MAX_CAUSES)]
            causes = FailureQueries(tx).get_causes(names).values()
        return ReleaseComparison(
            before,
            after,
            tuple(_compare_kinds(rows, before, after)),
            tuple(_compare_causes(causes, before, after, kind)),
        )

    def hold(
        self,
        name: str,
        *,
        kind: str | None = None,
        until: DurationOrTime | None = None,
        reason: str = "",
    ) -> Release:
        """Let workers of a release claim no more jobs. Running jobs continue.

        - `kind`: only this one; the others go on.
        - `until`: end of the hold; without it, until `unhold`.
        """
        with self._open().begin() as tx:
            _find(tx, name)
            now = tx.now()
            key = hold_key(name, "" if kind is None else check_name("kind", kind))
            end = resolve_end("until", until, now)
            hold_release(tx, Gate(RELEASE_SCOPE, key, now, end, reason, self._actor))
        return self.get(name)

    def unhold(self, name: str, *, kind: str | None = None, reason: str = "") -> Release:
        """End the hold of a release, or of one of its kinds."""
        with self._open().begin() as tx:
            _find(tx, name)
            key = hold_key(name, kind or "")
            if GuardQueries(tx).open_gate(RELEASE_SCOPE, key):
                data = {"reason": reason, "before": {"held": True}, "after": {"held": False}}
                _write_event(tx, EventType.RELEASE_UNHELD, key, self._actor, data)
        return self.get(name)


# --- Holds ---


def hold_release(tx: Transaction, gate: Gate) -> None:
    """Hold a release in the caller's transaction and write the event."""
    was_held = any(
        (other.scope, other.key) == (gate.scope, gate.key) and is_closed(other, gate.since)
        for other in GuardQueries(tx).list_gates()
    )
    GuardQueries(tx).open_gate(gate.scope, gate.key)  # the new end may be earlier
    GuardQueries(tx).close_gate(gate)
    data = {
        "until": gate.until,
        "reason": gate.reason,
        "before": {"held": was_held},
        "after": {"held": True},
    }
    _write_event(tx, EventType.RELEASE_HELD, gate.key, gate.actor, data)


def _write_event(
    tx: Transaction, event: EventType, key: str, actor: str, data: Mapping[str, object]
) -> None:
    release, kind = parse_hold_key(key)
    fields = {"release": release, "kind": kind, **data}
    shown = {name: value for name, value in fields.items() if value not in (None, "")}
    EventQueries(tx).write_events([NewEvent(event, actor=actor, data=shown)])


def _find(tx: Transaction, name: str) -> ReleaseRow:
    known = ReleaseQueries(tx).list_releases()
    for row in known:
        if row.name == name:
            return row
    names = ", ".join(row.name for row in known[:MAX_NAMED]) or "none"
    message = f'unknown release {name!r}. The newest are: {names}. See "mulligan releases list".'
    raise NotFound(message)


# --- Read ---


def _load_releases(tx: Transaction, releases: builtins.list[ReleaseRow]) -> builtins.list[Release]:
    now = tx.now()
    rows = ReleaseQueries(tx).list_counts()
    workers = Counter(dict(ReleaseQueries(tx).count_live_workers()))
    gates = [gate for gate in GuardQueries(tx).list_gates() if is_closed(gate, now)]
    return [_build_release(release, rows, workers[release.name], gates) for release in releases]


def _build_release(
    release: ReleaseRow, rows: Sequence[ReleaseKindRow], workers: int, gates: Iterable[Gate]
) -> Release:
    own = [row for row in rows if row.release == release.name]
    kinds = judge_kinds(own, rows)
    last_at = max([release.last_at, *(row.last_at for row in own)])
    return Release(
        name=release.name,
        first_seen=to_datetime(release.first_at),
        last_seen=to_datetime(last_at),
        workers=workers,
        state=_worst(kind.state for kind in kinds),
        counts=_sum_counts(own),
        kinds=tuple(kinds),
        holds=tuple(_holds(gates, release.name)),
    )


def judge_kinds(
    own: Sequence[ReleaseKindRow], rows: Iterable[ReleaseKindRow]
) -> list[KindUnderRelease]:
    """Judge every kind of a release. Those that fail more come first."""
    judged = sum(row.starts > 0 for row in own)
    by_kind: dict[str, builtins.list[ReleaseKindRow]] = {row.kind: [] for row in own}
    for row in rows:
        if row.kind in by_kind and row not in own:
            by_kind[row.kind].append(row)
    kinds = [
        KindUnderRelease(
            row.kind,
            judge_release(row, by_kind[row.kind], judged),
            _counts(row),
            ReleaseCounts(row.base_starts, row.base_failures, row.base_attempts, 0),
        )
        for row in own
    ]
    kinds.sort(key=lambda kind: (_STATES.index(kind.state), -kind.counts.failures, kind.kind))
    return kinds


def _holds(gates: Iterable[Gate], release: str) -> Iterable[ReleaseHold]:
    for gate in gates:
        if gate.scope != RELEASE_SCOPE:
            continue
        name, kind = parse_hold_key(gate.key)
        if name == release:
            until = optional_datetime(gate.until)
            yield ReleaseHold(kind, to_datetime(gate.since), until, gate.reason, gate.actor)


def _worst(states: Iterable[ReleaseState]) -> ReleaseState:
    """Return the worst state of a release's kinds; open without any."""
    found = set(states)
    return next((state for state in _STATES if state in found), ReleaseState.OPEN)


def _counts(row: ReleaseKindRow) -> ReleaseCounts:
    return ReleaseCounts(row.starts, row.failures, row.attempts, row.deaths)


def _sum_counts(rows: Sequence[ReleaseKindRow]) -> ReleaseCounts:
    return ReleaseCounts(
        sum(row.starts for row in rows),
        sum(row.failures for row in rows),
        sum(row.attempts for row in rows),
        sum(row.deaths for row in rows),
    )


# --- Compare ---


def _compare_kinds(
    rows: Sequence[ReleaseKindRow], before: str, after: str
) -> Iterable[KindComparison]:
    first = {row.kind: row for row in rows if row.release == before}
    second = {row.kind: row for row in rows if row.release == after}
    for kind in sorted(first.keys() | second.keys()):
        yield KindComparison(
            kind,
            _counts(first[kind]) if kind in first else NO_COUNTS,
            _counts(second[kind]) if kind in second else NO_COUNTS,
            _compare(first.get(kind), second.get(kind), len(second)),
        )


def _compare(
    before: ReleaseKindRow | None, after: ReleaseKindRow | None, kinds: int
) -> ReleaseState:
    """Judge a release by another one alone, however few counts there are."""
    if before is None or after is None or not (before.starts and after.starts):
        return ReleaseState.OPEN
    own = FirstAttempts(after.starts, after.failures)
    return decide_test(evidence(own, FirstAttempts(before.starts, before.failures)), kinds)


def _compare_causes(
    causes: Iterable[CauseRow], before: str, after: str, kind: str | None
) -> Sequence[CauseComparison]:
    found = []
    for row in causes:
        deaths = parse_releases(row)
        kinds = tuple(json.loads(row.kinds))
        if after not in deaths or (kind is not None and kind not in kinds):
            continue
        if all(name.startswith(SYSTEM_PREFIX) for name in kinds):
            continue
        earlier = deaths[before].deaths if before in deaths else 0
        title = " · ".join(part for part in (row.exception, row.location) if part)
        later = deaths[after].deaths
        found.append(CauseComparison(row.fingerprint, row.code, title, kinds, earlier, later))
    found.sort(key=lambda cause: (bool(cause.before), -cause.after, cause.fingerprint))
    return found


def release_starts(tx: Transaction, since: Micros) -> Sequence[ReleaseRow]:
    """Return the releases that were first seen since a time, the newest first."""
    return [row for row in ReleaseQueries(tx).list_releases() if row.first_at >= since]
