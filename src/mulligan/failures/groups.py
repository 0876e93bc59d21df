"""Rules of failure groups: their state, when their jobs died, and their causes. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.format import one_line
from mulligan.core.job import FailureGroupRow
from mulligan.core.json import scalar_text
from mulligan.core.statistics import Deaths
from mulligan.failures.facts import SOURCE_MARK
from mulligan.failures.redact import mask_secrets

HOURS = 24  # of the hourly chart
DAYS = 14  # of the daily chart
CHART_HOURS = HOURS * DAYS  # older deaths are in no chart
NEW_FOR: Micros = 86_400 * SECOND


class GroupState(StrEnum):
    """State of a failure group."""

    REGRESSED = "regressed"  # a job died after the group was resolved, or had recovered
    NEW = "new"  # not marked, nothing recovered, and the first death is less than a day old
    OPEN = "open"  # people read "ongoing"
    MUTED = "muted"
    RESOLVED = "resolved"
    RECOVERED = "recovered"  # no dead job is left, and those that were retried succeeded


STATE_ORDER = tuple(GroupState)  # order of a list: what needs attention comes first
STATE_LABELS = {state: state.value for state in GroupState} | {GroupState.OPEN: "ongoing"}


class GroupRetries(NamedTuple):
    """Counts of the jobs of a group that were retried manually, by their result."""

    ended: int  # succeeded or dead
    recovered: int  # succeeded
    pending: int
    last_recovery: Micros | None


NO_RETRIES = GroupRetries(0, 0, 0, None)


class GroupTimes(NamedTuple):
    """Times of the deaths of a group."""

    first: Micros | None  # ever
    last: Micros | None
    oldest_dead: Micros | None  # of the jobs that are dead now; None: there is none


def group_state(
    mark: FailureGroupRow | None,
    times: GroupTimes,
    now: Micros,
    retries: GroupRetries = NO_RETRIES,
) -> GroupState:
    """Return the state of a group at `now`. `mark` is what a person last decided."""
    if mark is not None and mark.state == "muted":
        has_ended = mark.until is not None and mark.until <= now
        if not has_ended:
            return GroupState.MUTED
    if mark is not None and mark.state == "resolved":
        if not _has_regressed(mark, times):
            return GroupState.RESOLVED
        if times.oldest_dead is not None:
            return GroupState.REGRESSED
    if times.oldest_dead is None:
        has_recovered = retries.recovered > 0 and not retries.pending
        return GroupState.RECOVERED if has_recovered else GroupState.OPEN
    if _died_after_recovery(times.oldest_dead, retries):
        return GroupState.REGRESSED
    is_young = times.first is not None and now - times.first < NEW_FOR
    is_new = mark is None and is_young and not retries.recovered
    return GroupState.NEW if is_new else GroupState.OPEN


def _has_regressed(mark: FailureGroupRow, times: GroupTimes) -> bool:
    """True if a job died although the cause was resolved.

    If it was resolved in a release, `failures/regressions.py` has compared the releases.
    """
    if mark.regressed_at is not None or mark.in_release:
        return mark.regressed_at is not None
    return times.last is not None and times.last > (mark.resolved_at or mark.at)


def _died_after_recovery(oldest_dead: Micros, retries: GroupRetries) -> bool:
    """True if all earlier dead jobs recovered before the oldest of those that are dead now died."""
    all_recovered = 0 < retries.recovered == retries.ended
    return all_recovered and oldest_dead > (retries.last_recovery or 0)


@dataclass(frozen=True, slots=True)
class DeathSummary:
    """Counts of the dead jobs of a group."""

    count: int
    kinds: Mapping[str, int]
    codes: Mapping[str, int]
    classes: Mapping[str, int]
    owners: Mapping[str, int]
    first: Micros | None
    last: Micros | None
    hourly: tuple[int, ...]  # deaths in each of the last 24 hours, the current one last
    daily: tuple[int, ...]  # deaths in each of the last 14 periods of 24 hours


def summarise_deaths(deaths: Deaths) -> DeathSummary:
    """Count the dead jobs of a group. All counts describe the same jobs, so they agree."""
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for row in deaths.counts:
        kinds[row.kind] += row.jobs
        codes[row.code] += row.jobs
        classes[row.cls] += row.jobs
    by_day = [(hours_ago // 24, jobs) for hours_ago, jobs in deaths.hours]
    return DeathSummary(
        count=kinds.total(),
        kinds=_largest_first(kinds),
        codes=_largest_first(codes),
        classes=_largest_first(classes),
        owners=_largest_first(deaths.owners),
        first=deaths.first,
        last=deaths.last,
        hourly=bucket_counts(deaths.hours, HOURS),
        daily=bucket_counts(by_day, DAYS),
    )


def bucket_counts(counts: Iterable[tuple[int, int]], size: int) -> tuple[int, ...]:
    """Add up (periods ago, jobs) for the last `size` periods. Return the oldest first."""
    buckets = [0] * size
    for periods_ago, jobs in counts:
        if 0 <= periods_ago < size:
            buckets[size - 1 - periods_ago] += jobs
    return tuple(buckets)


def _largest_first(jobs: Mapping[str, int]) -> dict[str, int]:
    names = sorted(jobs, key=lambda name: (-jobs[name], name))
    return {name: jobs[name] for name in names}


def recovery_rate(recovered: int, retried: int) -> float | None:
    """Return the share of manual retries that succeeded, or None without a retry."""
    return recovered / retried if retried else None


# --- Causes: what is kept of a failure group when its dead jobs are gone ---

# A cause is written when jobs die, so that its title, its last sample and its deaths outlive a
# repair. `failures/queries.py` writes it.
HOUR: Micros = 3600 * SECOND
MAX_EXCEPTION = 200  # characters
MAX_KINDS = 20  # that are counted by name
MAX_RELEASES = 30  # with deaths of a cause
SAMPLE_FIELDS = ("exception", "runbook", "alarm", "message", "detail", "stderr", "trace")


class CauseRow(NamedTuple):
    """Stored cause: a failure group since its first death."""

    fingerprint: str
    code: str
    cls: str
    exception: str  # KeyError: 'AT'; for operators
    location: str  # shop.py:18; for operators
    first_at: Micros
    last_at: Micros
    deaths: int
    hours: str  # JSON: deaths by hours since 1970, of the last 14 days
    kinds: str  # JSON: deaths by kind
    sample: str  # JSON: the last death
    releases: str = "{}"  # JSON: first and last death, and number of deaths, by release


class FailureParts(NamedTuple):
    """Evidence and private part of a failure, as its attempt stored them."""

    evidence: Mapping[str, Any]
    private: Mapping[str, Any]


NO_PARTS = FailureParts({}, {})


class CauseDeath(NamedTuple):
    """Death of a job, as it is added to its cause."""

    fingerprint: str
    at: Micros
    job: str
    token: int | None  # None: it did not die in an attempt
    owner: str
    data: Mapping[str, Any]  # of its event
    release: str = ""  # that the attempt ran in


def fold_deaths(
    before: CauseRow | None, deaths: Sequence[CauseDeath], parts: FailureParts
) -> CauseRow:
    """Add deaths of one cause, in the order of their events. `parts`: of the last failure."""
    last = deaths[-1]
    hours: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    if before is not None:
        hours.update(json.loads(before.hours))
        kinds.update(json.loads(before.kinds))
    hours.update(str(death.at // HOUR) for death in deaths)
    kinds.update(str(death.data.get("kind", "")) for death in deaths)
    oldest = last.at // HOUR - CHART_HOURS
    exception, location = describe_exception(parts.private)
    first_at, last_at = deaths[0].at, last.at
    total = len(deaths)
    if before is not None:
        first_at = min(first_at, before.first_at)
        last_at = max(last_at, before.last_at)
        total += before.deaths
    return CauseRow(
        fingerprint=last.fingerprint,
        code=str(last.data.get("code", "")),
        cls=str(last.data.get("class", "")),
        exception=exception,
        location=location,
        first_at=first_at,
        last_at=last_at,
        deaths=total,
        hours=_encode({hour: n for hour, n in hours.items() if int(hour) >= oldest}),
        kinds=_encode(dict(kinds.most_common(MAX_KINDS))),
        sample=_encode(_sample(last, parts)),
        releases=_encode(_fold_releases(before, deaths)),
    )


class ReleaseSpan(NamedTuple):
    """Deaths of a cause under one release."""

    first_at: Micros
    last_at: Micros
    deaths: int


def parse_releases(row: CauseRow) -> dict[str, ReleaseSpan]:
    """Return the deaths of a cause by release."""
    stored: Mapping[str, Sequence[int]] = json.loads(row.releases)
    return {name: ReleaseSpan._make(span) for name, span in stored.items()}


def _fold_releases(
    before: CauseRow | None, deaths: Sequence[CauseDeath]
) -> Mapping[str, ReleaseSpan]:
    """Add deaths to those by release. Keep the releases with the newest deaths."""
    spans = {} if before is None else parse_releases(before)
    for death in deaths:
        span = spans.get(death.release, ReleaseSpan(death.at, death.at, 0))
        spans[death.release] = ReleaseSpan(
            min(span.first_at, death.at), max(span.last_at, death.at), span.deaths + 1
        )
    newest = sorted(spans, key=lambda name: -spans[name].last_at)[:MAX_RELEASES]
    return {name: spans[name] for name in newest}


def _encode(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _sample(death: CauseDeath, parts: FailureParts) -> dict[str, Any]:
    """Return what `FailureSample` shows of a death."""
    data = death.data
    return {
        "job": death.job,
        "kind": str(data.get("kind", "")),
        "owner": death.owner,
        "at": death.at,
        "code": str(data.get("code", "")),
        "message": str(data.get("message", "")),
        "evidence": dict(parts.evidence),
        "private": _shown_fields(parts.private),
    }


def _shown_fields(private: Mapping[str, Any]) -> dict[str, Any]:
    return {name: private[name] for name in SAMPLE_FIELDS if private.get(name)}


# --- Charts of causes ---


class DeathChart(NamedTuple):
    """Deaths of a cause by hour and by day, the current one last."""

    hourly: tuple[int, ...]
    daily: tuple[int, ...]


def chart_deaths(row: CauseRow, now: Micros) -> DeathChart:
    """Return the deaths of the last 24 hours and of the last 14 days."""
    this_hour = now // HOUR
    by_hour = []
    by_day = []
    for hour, deaths in json.loads(row.hours).items():
        hours_ago = this_hour - int(hour)
        by_hour.append((hours_ago, deaths))
        by_day.append((hours_ago // 24, deaths))
    return DeathChart(bucket_counts(by_hour, HOURS), bucket_counts(by_day, DAYS))


# --- The exception as operators see it ---


class TraceFrame(NamedTuple):
    """One frame of a stored trace."""

    path: str
    line: int
    function: str
    is_library: bool  # of Python, of an installed package or of Mulligan
    source: str = ""  # its line of code, if the trace has it

    @property
    def location(self) -> str:
        return f"{self.path.rpartition('/')[2]}:{self.line}"


_FRAME = re.compile(r"  (.+):(\d+) in (.+)")
# A stored trace may stem from another machine, so only the form of a path tells what it belongs to.
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<|/mulligan/(?:worker|app|testing)/"
)
_SAMPLE = re.compile(r"/mulligan/(?:cli/demo_jobs\.py|apps/)")  # jobs that Mulligan ships


def parse_frame(line: str) -> TraceFrame | None:
    """Parse a line of a stored trace. None: the line is no frame."""
    match = _FRAME.fullmatch(line)
    if match is None:
        return None
    path, number, function = match.groups()
    is_library = _LIBRARY.search(path) is not None and _SAMPLE.search(path) is None
    return TraceFrame(path, int(number), function, is_library)


def describe_exception(private: Mapping[str, Any]) -> tuple[str, str]:
    """Return the exception and the location in the job's code: ("KeyError: 'AT'", "shop.py:18")."""
    package, _, name = str(private.get("exception") or "").rpartition(".")
    if package.partition(".")[0] == "mulligan":
        name = ""  # Fail("CODE", "…"): its message says it all
    message = one_line(str(private.get("message") or ""), MAX_EXCEPTION)
    text = ": ".join(filter(None, (name, message)))
    trace = str(private.get("trace") or "").split("\n")
    return text[:MAX_EXCEPTION], _location(trace)


def _location(lines: Iterable[str]) -> str:
    """Return the innermost frame of the job's code in the first exception that has one."""
    location = ""
    for part in parse_trace(lines):
        if isinstance(part, str) and location:
            return location
        if isinstance(part, TraceFrame) and not part.is_library:
            location = part.location
    return location


def parse_trace(lines: Iterable[str]) -> list[TraceFrame | str]:
    """Return the frames of a stored trace, and the lines that are no frames."""
    parts: list[TraceFrame | str] = []
    for line in lines:
        last = parts[-1] if parts else None
        if line.startswith(SOURCE_MARK) and isinstance(last, TraceFrame):
            parts[-1] = last._replace(source=line.removeprefix(SOURCE_MARK))
        else:
            parts.append(parse_frame(line) or line)
    return parts


# --- Breakdown ---

MAX_ARGUMENTS = 3  # that a breakdown shows
MAX_ARGUMENT_TEXT = 60  # characters of a value that is counted
MIN_SHARE = 0.2  # of the jobs: a value that fewer jobs have says nothing about the cause


class GroupMemberRow(NamedTuple):
    """Dead job of a failure group: its arguments, and where its last attempt ran."""

    payload: str
    worker: str | None
    release: str | None


def count_arguments(payloads: Iterable[str]) -> dict[str, dict[str, int]]:
    """Count the values of the arguments that many of the jobs share, the most common first.

    An argument that is different in every job is left out: it does not explain the cause.
    """
    counts: dict[str, Counter[str]] = {}
    jobs = 0
    for payload in payloads:
        jobs += 1
        arguments = mask_secrets(json.loads(payload))
        if not isinstance(arguments, Mapping):
            continue
        for name in arguments:
            text = scalar_text(arguments, name)
            if text is not None and len(text) <= MAX_ARGUMENT_TEXT:
                counts.setdefault(name, Counter())[text] += 1
    least = max(2.0, jobs * MIN_SHARE)
    largest = {name: max(values.values()) for name, values in counts.items()}
    shared = [name for name in counts if largest[name] >= least]
    shared.sort(key=lambda name: -largest[name])
    return {name: dict(counts[name].most_common()) for name in shared[:MAX_ARGUMENTS]}
