"""`app.failures`: dead jobs grouped by cause, and the marks that people set on the groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mulligan.core.durations import Micros, optional_datetime, resolve_end, to_datetime, to_micros
from mulligan.core.errors import DurationOrTime, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import ALL_OWNERS, FailureGroupRow, JobRow, State
from mulligan.core.statistics import Deaths
from mulligan.events.queries import EventQueries
from mulligan.failures.groups import (
    CHART_HOURS,
    STATE_ORDER,
    GroupState,
    group_state,
    recovery_rate,
    summarise_deaths,
)
from mulligan.failures.queries import FailureQueries
from mulligan.jobs.conditions import ARGUMENT_PREFIX, INDEXED_PREFIX, Where
from mulligan.jobs.filter import Filter, parse_filter
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.search import resolve_filter
from mulligan.jobs.service import DEFAULT_COUNT_CAP
from mulligan.storage.base import Store, Transaction

MAX_LIST = 500
_MAX_CANDIDATES = 5  # fingerprints that an error lists
MAX_GROUPS = 2000  # a list reads the newest groups
MAX_RECOVERIES = 1000  # recoveries are counted among the newest deaths
_NO_DEATHS = Deaths([], [], None, None)


@dataclass(frozen=True, slots=True)
class FailureSample:
    """The newest dead job of a group."""

    job: str
    kind: str
    owner: str
    at: datetime
    code: str
    message: str  # public
    evidence: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Any] | None = None  # message, trace, …; only on request


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead jobs with one cause. All counts describe the same jobs."""

    fingerprint: str
    owner: str | None  # None: all owners
    state: GroupState
    count: int
    capped: bool  # there may be more: at most 10,000 jobs are counted, the newest
    code: str  # the most frequent one, as is `cls`
    cls: str
    kinds: Mapping[str, int]
    codes: Mapping[str, int]
    first_seen: datetime | None
    last_seen: datetime | None
    hourly: tuple[int, ...]  # deaths in each of the last 24 hours, the current one last
    daily: tuple[int, ...]  # deaths in each of the last 14 days
    retried: int  # of the newest 1,000 deaths, those retried manually and finished since
    recovered: int  # retried jobs that succeeded
    until: datetime | None  # end of the mute
    note: str
    actor: str
    marked_at: datetime | None  # of the last mute, resolve or reopen
    resolved_at: datetime | None
    sample: FailureSample | None

    @property
    def message(self) -> str:
        return "" if self.sample is None else self.sample.message

    @property
    def recovered_share(self) -> float | None:
        """Share of retried jobs that succeeded, or None without a retry."""
        return recovery_rate(self.recovered, self.retried)


class GroupList(list[FailureGroup]):
    """One page of groups. If there are `more`, pass `cursor` as `before` to get the next page."""

    more: bool = False
    cursor: str | None = None


class Failures:
    """`app.failures`: read failure groups, and mute, resolve or reopen them."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # --- Read ---

    def groups(
        self,
        filter: str = "",  # noqa: A002 - public name
        *,
        owner: str | None = None,
        limit: int = 100,
        before: str | None = None,
        private: bool = True,
    ) -> GroupList:
        """List the groups with the newest deaths, those that need attention first.

        - `owner`: only jobs of this owner, with the owner's marks.
        - `before`: the `cursor` of the previous page.
        - `private`: whether quoted words of the filter also search the private part of failures.
        """
        if not 1 <= limit <= MAX_LIST:
            message = f"limit must be between 1 and {MAX_LIST}, not {limit}"
            raise Refused(message)
        dead_jobs = _restrict_to_dead(parse_filter(filter), owner)
        with self._open().read() as tx:
            return _list_groups(tx, dead_jobs, owner, limit, before, private=private)

    def get(
        self, fingerprint: str, *, owner: str | None = None, private: bool = False
    ) -> FailureGroup:
        """Return one group. `private`: include message and trace of the sample, not for owners."""
        with self._open().read() as tx:
            return self._get_group(tx, fingerprint, owner, private=private)

    def complete_fingerprint(self, prefix: str, *, owner: str | None = None) -> str:
        """Return the fingerprint that begins with `prefix`; `prefix` itself if none does."""
        with self._open().read() as tx:
            known = {name for name, _ in FailureQueries(tx).list_groups(owner, MAX_GROUPS)}
            known.update(FailureQueries(tx).list_group_states(_scope(owner)))
        if not prefix or prefix in known:
            return prefix
        candidates = sorted(name for name in known if name.startswith(prefix))
        if len(candidates) > 1:
            listed = ", ".join(candidates[:_MAX_CANDIDATES])
            more = ", …" if len(candidates) > _MAX_CANDIDATES else ""
            message = (
                f"{prefix!r} begins more than one group: {listed}{more}. Type more characters."
            )
            raise NotFound(message)
        return candidates[0] if candidates else prefix

    @staticmethod
    def _get_group(
        tx: Transaction, fingerprint: str, owner: str | None, *, private: bool = False
    ) -> FailureGroup:
        where: dict[str, str] = {"group": fingerprint}
        if owner is not None:
            where["owner"] = owner
        mark = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
        reader = _GroupReader(tx, [fingerprint], where, owner, tx.now())
        group = reader.read(fingerprint, mark, private=private)
        if (
            group.count
            or group.marked_at is not None
            or FailureQueries(tx).is_known_group(fingerprint, owner, MAX_RECOVERIES)
        ):
            return group
        message = (
            f"unknown failure group {fingerprint!r}: it has no dead job and was never marked."
            ' Run "mulligan failures list" to see the groups.'
        )
        raise NotFound(message)

    # --- Mark ---

    def mute(
        self,
        fingerprint: str,
        *,
        until: DurationOrTime | None = None,
        reason: str = "",
        owner: str | None = None,
    ) -> FailureGroup:
        """Hide a known cause until `until`; without it, until `unmute`."""
        return self._mark(fingerprint, owner, "muted", reason, until)

    def unmute(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """End a mute. A group that is not muted stays as it is."""
        return self._mark(fingerprint, owner, "open", reason, only_if=GroupState.MUTED)

    def resolve(
        self, fingerprint: str, *, note: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Record that the cause is fixed. If a job dies of it later, the group has regressed."""
        return self._mark(fingerprint, owner, "resolved", note)

    def reopen(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Set a muted or resolved group back to open."""
        return self._mark(fingerprint, owner, "open", reason)

    def _mark(
        self,
        fingerprint: str,
        owner: str | None,
        state: str,
        note: str,
        until: DurationOrTime | None = None,
        *,
        only_if: GroupState | None = None,
    ) -> FailureGroup:
        with self._open().begin() as tx:
            before = self._get_group(tx, fingerprint, owner)
            if only_if is not None and before.state is not only_if:
                return before
            now = tx.now()
            end = resolve_end("until", until, now)
            resolved_at = now if state == "resolved" else None
            mark = FailureGroupRow(
                fingerprint, _scope(owner), state, end, note, self._actor, now, resolved_at
            )
            FailureQueries(tx).write_group_state(mark)
            after = self._get_group(tx, fingerprint, owner)
            self._write_event(tx, mark, before, after)
            return after

    def _write_event(
        self, tx: Transaction, mark: FailureGroupRow, before: FailureGroup, after: FailureGroup
    ) -> None:
        data: dict[str, Any] = {
            "fingerprint": mark.fingerprint,
            "code": after.code,
            "until": mark.until,
            "note": mark.note,
            "reason": mark.note,
            "before": _mark_data(before),
            "after": _mark_data(after),
        }
        data = {name: value for name, value in data.items() if value not in (None, "")}
        owner = after.owner or ""
        EventQueries(tx).write_events(
            [NewEvent(_EVENTS[mark.state], owner=owner, actor=self._actor, data=data)]
        )


def _mark_data(group: FailureGroup) -> dict[str, Any]:
    until = None if group.until is None else to_micros(group.until)
    return {"state": group.state.value, "until": until, "note": group.note}


_EVENTS = {
    "muted": EventType.FAILURE_MUTED,
    "resolved": EventType.FAILURE_RESOLVED,
    "open": EventType.FAILURE_REOPENED,
}


# --- Lists ---


def _restrict_to_dead(filter_: Filter, owner: str | None) -> Filter:
    """Add the state and the owner to a filter. Refuse one that contradicts them."""
    dead = State.DEAD.value
    if filter_.get("state", dead) != dead or filter_.get("phase", dead) != dead:
        message = "groups are made of dead jobs. Remove state: and phase: from the filter."
        raise Refused(message)
    if owner is not None and filter_.get("owner", owner) != owner:
        message = f"filter owner:{filter_['owner']} does not match the owner {owner!r}"
        raise Refused(message)
    restricted = {**filter_, "state": dead}
    if owner is not None:
        restricted["owner"] = owner
    return restricted


def _list_groups(
    tx: Transaction,
    filter_: Filter,
    scope: str | None,
    limit: int,
    before: str | None,
    *,
    private: bool,
) -> GroupList:
    where = resolve_filter(tx, filter_, scope, private=private)
    _refuse_unindexed(where)
    owner = where.get("owner")
    assert owner is None or isinstance(owner, str)  # noqa: S101 - a filter has one owner
    last_deaths = _list_fingerprints(tx, where, owner)
    page = GroupList()
    page.more = "group" not in where and len(last_deaths) >= MAX_GROUPS
    remaining = dict(_after_cursor(last_deaths, before))
    for group in _read_groups(tx, list(remaining), where, owner, limit + 1):
        if len(page) == limit:
            page.more = True
            page.cursor = _cursor(remaining, page[-1].fingerprint)
            break
        page.append(group)
    page.sort(key=lambda group: (STATE_ORDER.index(group.state), -group.count, group.fingerprint))
    return page


def _refuse_unindexed(where: Where) -> None:
    """Refuse a filter on an argument without index: groups are counted without reading payloads."""
    unindexed = next((name for name in where if name.startswith(ARGUMENT_PREFIX)), None)
    if unindexed is not None:
        path = unindexed.removeprefix(ARGUMENT_PREFIX)
        message = (
            f"filter {unindexed}: failure groups can be filtered by indexed arguments only."
            f' Declare @app.job(index=("{path}",)), or list the jobs with the same filter.'
        )
        raise Refused(message)


def _list_fingerprints(
    tx: Transaction, where: Where, owner: str | None
) -> list[tuple[str, Micros]]:
    """Return (fingerprint, last death), the newest first.

    Groups that the filter names have no order; their times are 0.
    """
    named = where.get("group")
    if named is not None:
        return [(name, 0) for name in sorted([named] if isinstance(named, str) else named)]
    if any(name.startswith(INDEXED_PREFIX) for name in where):
        return FailureQueries(tx).list_groups_matching(where, MAX_GROUPS)
    return FailureQueries(tx).list_groups(owner, MAX_GROUPS)


def _after_cursor(
    last_deaths: list[tuple[str, Micros]], cursor: str | None
) -> list[tuple[str, Micros]]:
    """Return what follows the cursor, even if the group at the cursor has disappeared."""
    if cursor is None:
        return last_deaths
    last, _, name = cursor.partition(" ")
    if not last.isdecimal():
        message = f"invalid cursor {cursor!r:.80}. Use the cursor of the previous page."
        raise Refused(message)
    position = (-int(last), name)
    return [entry for entry in last_deaths if (-entry[1], entry[0]) > position]


def _cursor(last_deaths: Mapping[str, Micros], name: str) -> str:
    return f"{last_deaths[name]} {name}"


def _read_groups(
    tx: Transaction, names: list[str], where: Where, owner: str | None, step: int
) -> Iterator[FailureGroup]:
    """Yield the groups with a job that the filter matches, reading `step` groups at a time."""
    marks = FailureQueries(tx).list_group_states(_scope(owner))
    now = tx.now()
    for start in range(0, len(names), step):
        some = names[start : start + step]
        reader = _GroupReader(tx, some, where, owner, now)
        for name in some:
            if name in reader.deaths:
                yield reader.read(name, marks.get(name))


class _GroupReader:
    """Read several groups at one time, with one query of each kind for all of them."""

    def __init__(
        self, tx: Transaction, names: list[str], where: Where, owner: str | None, now: Micros
    ) -> None:
        self._tx = tx
        self._owner = owner
        self._now = now
        queries = FailureQueries(tx)
        self.deaths = queries.count_group_deaths(names, where, now, CHART_HOURS, DEFAULT_COUNT_CAP)
        self._samples = queries.get_group_samples(list(self.deaths), where)
        self._recovered = queries.count_group_recoveries(names, owner, MAX_RECOVERIES)

    def read(
        self, name: str, mark: FailureGroupRow | None, *, private: bool = False
    ) -> FailureGroup:
        """Build the group of this fingerprint. `private`: with the private part of its sample."""
        deaths = summarise_deaths(self.deaths.get(name, _NO_DEATHS))
        state = group_state(mark, deaths.first, deaths.last, self._now)
        retried, recovered = self._recovered.get(name, (0, 0))
        until = mark.until if mark is not None and state is GroupState.MUTED else None
        return FailureGroup(
            fingerprint=name,
            owner=self._owner,
            state=state,
            count=deaths.count,
            capped=deaths.count >= DEFAULT_COUNT_CAP,
            code=_most_frequent(deaths.codes),
            cls=_most_frequent(deaths.classes),
            kinds=deaths.kinds,
            codes=deaths.codes,
            first_seen=optional_datetime(deaths.first),
            last_seen=optional_datetime(deaths.last),
            hourly=deaths.hourly,
            daily=deaths.daily,
            retried=retried,
            recovered=recovered,
            until=optional_datetime(until),
            note="" if mark is None else mark.note,
            actor="" if mark is None else mark.actor,
            marked_at=None if mark is None else optional_datetime(mark.at),
            resolved_at=None if mark is None else optional_datetime(mark.resolved_at),
            sample=self._read_sample(name, private=private),
        )

    def _read_sample(self, name: str, *, private: bool) -> FailureSample | None:
        row = self._samples.get(name)
        if row is None:
            return None
        return _build_sample(row, _read_private(self._tx, row) if private else None)


def _read_private(tx: Transaction, row: JobRow) -> Mapping[str, Any]:
    """Return the private part of the failure that a job died of.

    A job whose deadline passed while it waited did not die in an attempt, so it has none.
    """
    attempt = JobQueries(tx).get_latest_attempts([row.id]).get(row.id)
    if attempt is None or attempt.verb != "die":
        return {}
    private: Mapping[str, Any] = json.loads(attempt.private or "{}")
    return private


def _build_sample(row: JobRow, private: Mapping[str, Any] | None) -> FailureSample:
    error = json.loads(row.error or "{}")
    named_fields = {"code", "class", "message", "rule"}
    return FailureSample(
        job=row.id,
        kind=row.kind,
        owner=row.owner,
        at=to_datetime(row.finished_at or 0),
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
        evidence={name: value for name, value in error.items() if name not in named_fields},
        private=private,
    )


def _most_frequent(counts: Mapping[str, int]) -> str:
    return next(iter(counts), "")


def _scope(owner: str | None) -> str:
    return ALL_OWNERS if owner is None else owner
