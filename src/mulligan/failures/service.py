"""`app.failures`: dead jobs grouped by cause, and the marks that people set on the groups."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, optional_datetime, resolve_end, to_datetime, to_micros
from mulligan.core.errors import DurationOrTime, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import check_text
from mulligan.core.job import ALL_OWNERS, FailureGroupRow, JobRow, State
from mulligan.core.statistics import Deaths
from mulligan.events.queries import EventQueries
from mulligan.failures.groups import (
    CHART_HOURS,
    NO_RETRIES,
    STATE_ORDER,
    CauseRow,
    DeathChart,
    DeathSummary,
    GroupState,
    GroupTimes,
    chart_deaths,
    describe_exception,
    group_state,
    parse_releases,
    recovery_rate,
    summarise_deaths,
)
from mulligan.failures.queries import FailureQueries, parse_parts
from mulligan.guards.gate_status import KindStatus, list_guarded_kinds
from mulligan.jobs.filter import ARGUMENT_PREFIX, INDEXED_PREFIX, Filter, Where, parse_filter
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.search import resolve_filter
from mulligan.jobs.service import DEFAULT_COUNT_CAP
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.rules import ReleaseDeaths, Suspect, find_suspect
from mulligan.storage.base import Store, Transaction

MAX_LIST = 500
_MAX_CANDIDATES = 5  # fingerprints that an error lists
MAX_GROUPS = 2000  # a list reads the newest groups
MAX_KINDS_NAMED = 3  # in the line below a title
MAX_RECOVERIES = 1000  # recoveries are counted among the newest deaths
_NO_DEATHS = Deaths([], [], None, None)


@dataclass(frozen=True, slots=True)
class FailureSample:
    """A job of a group: the last one that died, if no other is chosen."""

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
    """Jobs with one cause: those that are dead now, and what is known about earlier ones.

    `count`, `kinds`, `codes` and `owners` describe the dead jobs. The times and the charts also
    describe jobs that died of the cause earlier, unless a filter or an owner selects jobs.
    """

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
    deaths: int = 0  # since first_seen; a job that was retried may have died several times
    exception: str = ""  # KeyError: 'AT'; only for operators of all owners, as is `location`
    location: str = ""  # shop.py:18
    owners: Mapping[str, int] = field(default_factory=dict)
    retrying: int = 0  # jobs that were retried manually and have not ended
    held: Mapping[str, int] = field(default_factory=dict)  # kinds held for it: waiting jobs
    assignee: str = ""  # the person who works on it
    releases: tuple[ReleaseDeaths, ...] = ()  # of one group: in the order they were first seen
    suspect: Suspect | None = None  # the release with which it began
    in_release: str = ""  # the release that has the fix, or "next"

    @property
    def title(self) -> str:
        """The exception for operators; for others the public message."""
        return self.exception or self.message or self.code

    @property
    def subject(self) -> str:
        """The kinds, and for operators the line of code: "make_invoice · shop.py:18"."""
        names = list(self.kinds or self.held)
        if not names and self.sample is not None:
            names = [self.sample.kind]
        kinds = ", ".join(names[:MAX_KINDS_NAMED])
        if len(names) > MAX_KINDS_NAMED:
            kinds += f" and {len(names) - MAX_KINDS_NAMED} more"
        return " · ".join(part for part in (kinds, self.location) if part)

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
        history: bool = False,
    ) -> GroupList:
        """List the groups with the newest deaths, those that need attention first.

        Without a filter the list includes causes for which a kind is held.

        - `owner`: only jobs of this owner, with the owner's marks.
        - `before`: the `cursor` of the previous page.
        - `private`: return the exceptions, and let quoted words search the private part too.
        - `history`: include causes without a dead job, such as recovered ones.
        """
        if not 1 <= limit <= MAX_LIST:
            message = f"limit must be between 1 and {MAX_LIST}, not {limit}"
            raise Refused(message)
        dead_jobs = _restrict_to_dead(parse_filter(filter), owner)
        with self._open().read() as tx:
            query = _GroupQuery(dead_jobs, owner, limit, before, private, history)
            return _list_groups(tx, query)

    def get(
        self,
        fingerprint: str,
        *,
        owner: str | None = None,
        private: bool = False,
        sample: str | None = None,
    ) -> FailureGroup:
        """Return one group.

        - `private`: include the exception, and message and trace of the sample; not for owners.
        - `sample`: id of the dead job to show, instead of the last one.
        """
        with self._open().read() as tx:
            return self._get_group(tx, fingerprint, owner, private=private, sample=sample)

    def complete_fingerprint(self, prefix: str, *, owner: str | None = None) -> str:
        """Return the fingerprint that begins with `prefix`."""
        with self._open().read() as tx:
            known = {name for name, _ in FailureQueries(tx).list_groups(owner, MAX_GROUPS)}
            known.update(FailureQueries(tx).list_group_states(_scope(owner)))
            if owner is None:
                known.update(name for name, _ in FailureQueries(tx).list_causes(MAX_GROUPS))
                known.update(kind.fingerprint for kind in list_guarded_kinds(tx))
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
        if not candidates:
            raise NotFound(f"no group of failures begins with {prefix!r}")
        return candidates[0]

    @staticmethod
    def _get_group(
        tx: Transaction,
        fingerprint: str,
        owner: str | None,
        *,
        private: bool = False,
        sample: str | None = None,
    ) -> FailureGroup:
        where: dict[str, str] = {"group": fingerprint}
        if owner is not None:
            where["owner"] = owner
        mark = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
        reader = _GroupReader(tx, [fingerprint], where, owner, private=private)
        group = reader.read(fingerprint, mark)
        if (
            group.count
            or group.deaths
            or group.held
            or group.marked_at is not None
            or FailureQueries(tx).is_known_group(fingerprint, owner, MAX_RECOVERIES)
        ):
            group = replace(group, sample=reader.read_sample(fingerprint, sample, private=private))
            return _add_releases(tx, group, reader.past(fingerprint))
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
        self,
        fingerprint: str,
        *,
        in_release: str = "",
        note: str = "",
        owner: str | None = None,
    ) -> FailureGroup:
        """Record that the cause is fixed. If a job dies of it later, the group has regressed.

        - `in_release`: the release that has the fix, or "next" for the first one that is seen from
          now on. Deaths under older releases are no regression.
        """
        return self._mark(fingerprint, owner, "resolved", note, in_release=in_release)

    def reopen(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Set a muted or resolved group back to open."""
        return self._mark(fingerprint, owner, "open", reason)

    def assign(
        self, fingerprint: str, person: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Name the person who works on a cause; "" for nobody. Its other marks stay."""
        person = check_text("person", person)
        with self._open().begin() as tx:
            before = self._get_group(tx, fingerprint, owner)
            now = tx.now()
            mark = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
            if mark is None:
                mark = FailureGroupRow(
                    fingerprint, _scope(owner), "open", None, "", self._actor, now, None
                )
            FailureQueries(tx).write_group_state(mark._replace(assignee=person))
            after = self._get_group(tx, fingerprint, owner)
            data = {
                "fingerprint": fingerprint,
                "code": after.code,
                "reason": reason,
                "before": {**_mark_data(before), "assignee": before.assignee},
                "after": {**_mark_data(after), "assignee": person},
            }
            event = NewEvent(
                EventType.FAILURE_ASSIGNED, owner=after.owner or "", actor=self._actor, data=data
            )
            EventQueries(tx).write_events([event])
            return after

    def _mark(
        self,
        fingerprint: str,
        owner: str | None,
        state: str,
        note: str,
        until: DurationOrTime | None = None,
        *,
        only_if: GroupState | None = None,
        in_release: str = "",
    ) -> FailureGroup:
        with self._open().begin() as tx:
            if in_release:
                _check_release(tx, in_release)
            before = self._get_group(tx, fingerprint, owner)
            if only_if is not None and before.state is not only_if:
                return before
            now = tx.now()
            end = resolve_end("until", until, now)
            resolved_at = now if state == "resolved" else None
            known = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
            mark = FailureGroupRow(
                fingerprint,
                _scope(owner),
                state,
                end,
                note,
                self._actor,
                now,
                resolved_at,
                in_release,
                assignee="" if known is None else known.assignee,
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
            "in_release": mark.in_release,
            "before": _mark_data(before),
            "after": _mark_data(after),
        }
        data = {name: value for name, value in data.items() if value not in (None, "")}
        owner = after.owner or ""
        EventQueries(tx).write_events(
            [NewEvent(_EVENTS[mark.state], owner=owner, actor=self._actor, data=data)]
        )


def _check_release(tx: Transaction, name: str) -> None:
    """Refuse a mark that could never end: without releases no death counts as a regression."""
    if not ReleaseQueries(tx).list_releases(limit=1):
        message = (
            f"in_release={name!r}: no worker has reported a release yet."
            " Set MULLIGAN_RELEASE for the workers, or resolve without a release."
        )
        raise Refused(message)


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


class _GroupQuery(NamedTuple):
    """Arguments of `groups`, checked."""

    filter: Filter
    scope: str | None
    limit: int
    before: str | None
    private: bool
    history: bool


def _list_groups(tx: Transaction, query: _GroupQuery) -> GroupList:
    where = resolve_filter(tx, query.filter, query.scope, private=query.private)
    _refuse_unindexed(where)
    owner = where.get("owner")
    assert owner is None or isinstance(owner, str)  # noqa: S101 - a filter has one owner
    last_deaths = _list_fingerprints(tx, where, owner, history=query.history)
    page = GroupList()
    page.more = "group" not in where and len(last_deaths) >= MAX_GROUPS
    remaining = dict(_after_cursor(last_deaths, query.before))
    for group in _read_groups(tx, list(remaining), where, owner, query):
        if len(page) == query.limit:
            page.more = True
            page.cursor = _cursor(remaining, page[-1].fingerprint)
            break
        page.append(group)
    page.sort(key=_urgency)
    return page


def _urgency(group: FailureGroup) -> tuple[bool, int, int, str]:
    """Sort key of a list: held causes first, then by state and number of jobs."""
    return (
        not group.held,
        STATE_ORDER.index(group.state),
        -group.count,
        group.fingerprint,
    )


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
    tx: Transaction, where: Where, owner: str | None, *, history: bool
) -> list[tuple[str, Micros]]:
    """Return (fingerprint, last death), the newest first.

    Groups that the filter names have no order; their times are 0.
    """
    named = where.get("group")
    if named is not None:
        return [(name, 0) for name in sorted([named] if isinstance(named, str) else named)]
    if any(name.startswith(INDEXED_PREFIX) for name in where):
        return FailureQueries(tx).list_groups_matching(where, MAX_GROUPS)
    last_deaths = dict(FailureQueries(tx).list_groups(owner, MAX_GROUPS))
    if _is_whole(where):
        if history:
            past = FailureQueries(tx).list_causes(MAX_GROUPS)
            last_deaths = {**dict(past), **last_deaths}
        for kind in list_guarded_kinds(tx):
            last_deaths.setdefault(kind.fingerprint, _held_since(kind))
    newest = sorted(last_deaths.items(), key=lambda pair: (-pair[1], pair[0]))
    return newest[:MAX_GROUPS]


def _held_since(kind: KindStatus) -> Micros:
    return 0 if kind.since is None else to_micros(kind.since)


def _is_whole(where: Where) -> bool:
    """True if the filter selects groups, not some of their jobs."""
    return set(where) <= {"group", "state"}


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
    tx: Transaction, names: list[str], where: Where, owner: str | None, query: _GroupQuery
) -> Iterator[FailureGroup]:
    """Yield the groups with a job that the filter matches, reading a page of groups at a time."""
    marks = FailureQueries(tx).list_group_states(_scope(owner))
    step = query.limit + 1
    for start in range(0, len(names), step):
        some = names[start : start + step]
        reader = _GroupReader(tx, some, where, owner, private=query.private)
        for name in some:
            if name in reader.deaths or reader.is_held(name) or query.history:
                yield reader.read(name, marks.get(name))


class _GroupReader:
    """Read several groups at one time, with one query of each kind for all of them."""

    def __init__(
        self,
        tx: Transaction,
        names: list[str],
        where: Where,
        owner: str | None,
        *,
        private: bool,
    ) -> None:
        self._tx = tx
        self._owner = owner
        self._now = tx.now()
        queries = FailureQueries(tx)
        self.deaths = queries.count_group_deaths(
            names, where, self._now, CHART_HOURS, DEFAULT_COUNT_CAP
        )
        self._retries = queries.count_group_retries(names, owner, MAX_RECOVERIES)
        is_whole = owner is None and _is_whole(where)
        self._past = queries.get_causes(names) if is_whole else {}
        self._held = _kinds_by_cause(tx) if is_whole else {}
        self._samples = {
            **_held_samples(tx, {name: self._held[name] for name in names if name in self._held}),
            **_past_samples(tx, [name for name in self._past if name not in self.deaths]),
            **_dead_samples(queries.get_group_samples(list(self.deaths), where)),
        }
        self._exceptions: dict[str, tuple[str, str]] = {}
        if private and owner is None:
            self._exceptions = self._read_exceptions(names)

    def is_held(self, name: str) -> bool:
        """True if a kind is held for this cause."""
        return name in self._held

    def past(self, name: str) -> CauseRow | None:
        """Return what is stored about a cause since its first death."""
        return self._past.get(name)

    def read(self, name: str, mark: FailureGroupRow | None) -> FailureGroup:
        """Build the group of this fingerprint, without the private part of its sample."""
        deaths = summarise_deaths(self.deaths.get(name, _NO_DEATHS))
        past = self._past.get(name)
        held = self._held.get(name, [])
        times = _death_times(deaths, past, held)
        retries = self._retries.get(name, NO_RETRIES)
        state = group_state(mark, times, self._now, retries)
        until = mark.until if mark is not None and state is GroupState.MUTED else None
        hourly, daily = _death_charts(deaths, past, self._now)
        exception, location = self._exceptions.get(name, ("", ""))
        sample = self._samples.get(name)
        return FailureGroup(
            fingerprint=name,
            owner=self._owner,
            state=state,
            count=deaths.count,
            capped=deaths.count >= DEFAULT_COUNT_CAP,
            code=_most_frequent(deaths.codes) or ("" if sample is None else sample.code),
            cls=_most_frequent(deaths.classes) or ("" if past is None else past.cls),
            kinds=deaths.kinds,
            codes=deaths.codes,
            owners=deaths.owners,
            first_seen=optional_datetime(times.first),
            last_seen=optional_datetime(times.last),
            hourly=hourly,
            daily=daily,
            retried=retries.ended,
            recovered=retries.recovered,
            until=optional_datetime(until),
            note="" if mark is None else mark.note,
            actor="" if mark is None else mark.actor,
            marked_at=None if mark is None else optional_datetime(mark.at),
            resolved_at=None if mark is None else optional_datetime(mark.resolved_at),
            in_release="" if mark is None else mark.in_release,
            assignee="" if mark is None else mark.assignee,
            sample=None if sample is None else replace(sample, private=None),
            deaths=max(deaths.count, 0 if past is None else past.deaths),
            exception=exception,
            location=location,
            retrying=retries.pending,
            held={kind.name: kind.held_jobs for kind in held},
        )

    def read_sample(self, name: str, job_id: str | None, *, private: bool) -> FailureSample | None:
        """Return the last sample, or that of a dead job of the group."""
        sample = self._samples.get(name)
        if job_id is not None:
            sample = self._sample_of_job(name, job_id) or sample
        if sample is None or not private:
            return None if sample is None else replace(sample, private=None)
        if sample.private is not None:
            return sample
        return replace(sample, private=_read_private(self._tx, sample.job))

    def _sample_of_job(self, name: str, job_id: str) -> FailureSample | None:
        row = JobQueries(self._tx).get_job(job_id)
        attempt = JobQueries(self._tx).get_latest_attempts([job_id]).get(job_id)
        if row is None or row.state != State.DEAD or attempt is None:
            return None
        if self._owner not in (None, row.owner) or attempt.fingerprint != name:
            return None
        return _build_sample(row)

    def _read_exceptions(self, names: list[str]) -> dict[str, tuple[str, str]]:
        """Return exception and location of each group. Those without a stored cause are read."""
        queries = FailureQueries(self._tx)
        causes = self._past or queries.get_causes(names)
        found = {name: (row.exception, row.location) for name, row in causes.items()}
        jobs = {name: sample.job for name, sample in self._samples.items() if name not in found}
        attempts = JobQueries(self._tx).get_latest_attempts(list(jobs.values()), failed=True)
        for name, job in jobs.items():
            if job in attempts:
                found[name] = describe_exception(parse_parts(attempts[job]).private)
        return found


def _add_releases(tx: Transaction, group: FailureGroup, past: CauseRow | None) -> FailureGroup:
    """Add the deaths by release, and the release with which the cause began."""
    if past is None:
        return group
    deaths = parse_releases(past)
    first_seen = {row.name: row.first_at for row in ReleaseQueries(tx).list_releases()}
    attempts: Counter[str] = Counter()
    for row in ReleaseQueries(tx).list_counts(list(json.loads(past.kinds))):
        attempts[row.release] += row.attempts
    history = []
    for name in first_seen.keys() & (deaths.keys() | attempts.keys()):
        span = deaths.get(name)
        history.append(
            ReleaseDeaths(
                release=name,
                first_seen=to_datetime(first_seen[name]),
                first_death=optional_datetime(None if span is None else span.first_at),
                last_death=optional_datetime(None if span is None else span.last_at),
                deaths=0 if span is None else span.deaths,
                attempts=attempts[name],
            )
        )
    history.sort(key=attrgetter("first_seen", "release"))
    return replace(group, releases=tuple(history), suspect=find_suspect(history))


def _kinds_by_cause(tx: Transaction) -> dict[str, list[KindStatus]]:
    """Return the kinds that are held for each cause."""
    by_cause: dict[str, list[KindStatus]] = {}
    for kind in list_guarded_kinds(tx):
        by_cause.setdefault(kind.fingerprint, []).append(kind)
    return by_cause


def _death_times(
    deaths: DeathSummary, past: CauseRow | None, held: Sequence[KindStatus]
) -> GroupTimes:
    """Return the times of a group. A job that a held kind spared counts as if it had died."""
    spared = [_held_since(kind) for kind in held]
    first = [time for time in (deaths.first, *spared) if time is not None]
    last = [time for time in (deaths.last, *spared) if time is not None]
    oldest_dead = min(first, default=None)
    if past is not None:
        first.append(past.first_at)
        last.append(past.last_at)
    return GroupTimes(min(first, default=None), max(last, default=None), oldest_dead)


def _death_charts(deaths: DeathSummary, past: CauseRow | None, now: Micros) -> DeathChart:
    """Return the deaths by hour and by day, also of jobs that are no longer dead.

    Until the newest deaths are added to the cause, the dead jobs know more.
    """
    if past is not None:
        chart = chart_deaths(past, now)
        if sum(chart.daily) >= sum(deaths.daily):
            return chart
    return DeathChart(deaths.hourly, deaths.daily)


# --- Samples ---


def _dead_samples(rows: Mapping[str, JobRow]) -> dict[str, FailureSample]:
    return {name: _build_sample(row) for name, row in rows.items()}


def _past_samples(tx: Transaction, names: list[str]) -> dict[str, FailureSample]:
    """Return the last death of causes that have no dead job."""
    if not names:
        return {}
    samples = {}
    for name, text in FailureQueries(tx).get_cause_samples(names).items():
        record = json.loads(text)
        samples[name] = FailureSample(**{**record, "at": to_datetime(record["at"])})
    return samples


def _held_samples(
    tx: Transaction, kinds: Mapping[str, Sequence[KindStatus]]
) -> dict[str, FailureSample]:
    """Return the job for which a kind is held, which has not died."""
    samples = {}
    for name, (kind, *_) in kinds.items():
        row = JobQueries(tx).get_job(kind.job)
        attempt = JobQueries(tx).get_latest_attempts([kind.job], failed=True).get(kind.job)
        if row is not None and attempt is not None:
            samples[name] = FailureSample(
                job=row.id,
                kind=row.kind,
                owner=row.owner,
                at=to_datetime(attempt.ended_at),
                code=kind.code,
                message=kind.message,
                evidence=parse_parts(attempt).evidence,
                private=parse_parts(attempt).private,
            )
    return samples


def _read_private(tx: Transaction, job_id: str) -> Mapping[str, Any]:
    """Return the private part of the failure that a job died of.

    A job whose deadline passed while it waited did not die in an attempt, so it has none.
    """
    attempt = JobQueries(tx).get_latest_attempts([job_id]).get(job_id)
    if attempt is None or attempt.verb != "die":
        return {}
    return parse_parts(attempt).private


def _build_sample(row: JobRow) -> FailureSample:
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
    )


def _most_frequent(counts: Mapping[str, int]) -> str:
    return next(iter(counts), "")


def _scope(owner: str | None) -> str:
    return ALL_OWNERS if owner is None else owner
