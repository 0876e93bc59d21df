"""Read groups of failures: their dead jobs, and what is stored about a cause and its marks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from mulligan.core.durations import Micros, optional_datetime, to_datetime, to_micros
from mulligan.core.job import FailureGroupRow, JobRow, State
from mulligan.core.statistics import Deaths
from mulligan.failures.groups import (
    CHART_HOURS,
    NO_RETRIES,
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
from mulligan.jobs.filter import Where
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.service import DEFAULT_COUNT_CAP
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.rules import ReleaseDeaths, Suspect, find_suspect
from mulligan.storage.base import Transaction

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


class GroupReader:
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
        is_whole = owner is None and selects_whole_groups(where)
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


def add_releases(tx: Transaction, group: FailureGroup, past: CauseRow | None) -> FailureGroup:
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


def held_since(kind: KindStatus) -> Micros:
    return 0 if kind.since is None else to_micros(kind.since)


def selects_whole_groups(where: Where) -> bool:
    """True if the filter selects groups, not some of their jobs."""
    return set(where) <= {"group", "state"}


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
    spared = [held_since(kind) for kind in held]
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
