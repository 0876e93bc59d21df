"""Call statistics of a dependency, and the tests that tell an outage from chance.

Workers count outcomes into tallies that can be added up. A window of the last calls and a running
sum (CUSUM) over all calls decide together whether the dependency is down.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.core.durations import SECOND, Micros
from mulligan.core.format import format_duration

MAX_FAILED_JOBS = 8  # job ids kept, to know that more than one job failed
STEPS_PER_DOUBLING = 2  # resolution of duration histograms
MIN_SAMPLES = 20  # durations needed for a quantile

# How much a failure of a class speaks against the dependency. Other classes do not.
BLAME_BY_CLASS: Mapping[Cls, float] = {Cls.TRANSIENT: 1.0, Cls.TIMEOUT: 1.0, Cls.UNKNOWN: 0.5}

_encode = json.JSONEncoder(separators=(",", ":")).encode

DurationHistogram = Mapping[int, float]  # step of duration → count

# --- Tallies ---


class ProbeVerdict(NamedTuple):
    """Result of a probe. `passed` is None if it says nothing about the dependency."""

    job_id: str
    token: int
    passed: bool | None


class DependencyTally(NamedTuple):
    """Outcomes of calls to one dependency. Stored as JSON until they are folded into its guard."""

    ok: float = 0.0
    failed: float = 0.0  # failed or slow, and the dependency may be to blame
    slow: int = 0  # part of `failed`
    limited: int = 0  # rate limited
    first_ok: int = 0  # first attempts that succeeded
    retry_ok: int = 0  # retries that succeeded
    retried: int = 0  # retries that were started
    jobs: tuple[str, ...] = ()  # some of the jobs that failed
    times: Mapping[str, DurationHistogram] = {}  # of successes, by kind
    verdict: ProbeVerdict | None = None

    def add(self, other: DependencyTally) -> DependencyTally:
        """Return the sum of two tallies."""
        times = self.times
        if other.times:
            times = merge_histograms(times, other.times)
        return DependencyTally(
            self.ok + other.ok,
            self.failed + other.failed,
            self.slow + other.slow,
            self.limited + other.limited,
            self.first_ok + other.first_ok,
            self.retry_ok + other.retry_ok,
            self.retried + other.retried,
            _merge_job_ids(self.jobs, other.jobs),
            times,
            other.verdict or self.verdict,
        )

    @property
    def calls(self) -> float:
        return self.ok + self.failed

    def to_json(self) -> str:
        return _encode({name: value for name, value in self._asdict().items() if value})


EMPTY_TALLY = DependencyTally()


def parse_tally(text: str) -> DependencyTally:
    """Parse a stored tally. Fields of a newer version are ignored."""
    record = json.loads(text)
    fields = {name: record[name] for name in DependencyTally._fields if name in record}
    if "jobs" in fields:
        fields["jobs"] = tuple(fields["jobs"])
    if "times" in fields:
        fields["times"] = parse_histograms(fields["times"])
    if "verdict" in fields:
        fields["verdict"] = ProbeVerdict(*fields["verdict"])
    return DependencyTally(**fields)


def sum_tallies(tallies: Iterable[DependencyTally]) -> DependencyTally:
    result = EMPTY_TALLY
    for tally in tallies:
        result = result.add(tally)
    return result


def blame_share(failure: Failure | None, dependencies: int) -> float:
    """Return how much of a failure counts against each of the job's dependencies.

    It is unknown which of them caused it, so the blame is divided equally.
    """
    if failure is None:
        return 0.0
    return BLAME_BY_CLASS.get(failure.cls, 0.0) / max(1, dependencies)


def _merge_job_ids(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))[:MAX_FAILED_JOBS]


# --- Durations ---


@lru_cache(maxsize=4096)
def duration_step(ms: float) -> int:
    """Return the histogram step of a duration."""
    return round(STEPS_PER_DOUBLING * math.log2(max(1.0, ms)))


def parse_histograms(record: Mapping[str, Mapping[str, float]]) -> dict[str, DurationHistogram]:
    """Restore the integer keys that JSON turned into text."""
    return {
        kind: {int(step): count for step, count in times.items()} for kind, times in record.items()
    }


def merge_histograms(
    first: Mapping[str, DurationHistogram], second: Mapping[str, DurationHistogram]
) -> dict[str, DurationHistogram]:
    """Add two sets of histograms, kind by kind."""
    merged: dict[str, Any] = {kind: dict(times) for kind, times in first.items()}
    for kind, times in second.items():
        histogram = merged.setdefault(kind, {})
        for step, count in times.items():
            histogram[step] = histogram.get(step, 0) + count
    return merged


def quantile(times: DurationHistogram | None, share: float) -> float | None:
    """Return a quantile in milliseconds, or None if there are too few samples."""
    if not times:
        return None
    total = sum(times.values())
    if total < MIN_SAMPLES:
        return None
    remaining = total * share
    for step in sorted(times):
        remaining -= times[step]
        if remaining <= 0:
            return float(2 ** (step / STEPS_PER_DOUBLING))
    return float(2 ** (max(times) / STEPS_PER_DOUBLING))


def decay_histograms(
    times: Mapping[str, DurationHistogram], share: float, max_kinds: int
) -> dict[str, DurationHistogram]:
    """Scale all counts by `share` and keep the most frequent kinds."""
    decayed = {}
    for kind, histogram in times.items():
        counts = _decay(histogram, share)
        if counts:
            decayed[kind] = counts
    by_frequency = sorted(decayed, key=lambda kind: -sum(decayed[kind].values()))
    return {kind: decayed[kind] for kind in by_frequency[:max_kinds]}


def _decay(histogram: DurationHistogram, share: float) -> DurationHistogram:
    """Scale the counts and drop those that became negligible."""
    return {
        step: round(count * share, 3) for step, count in histogram.items() if count * share >= 0.05
    }


# --- Outage detection ---

BUCKETS = 12  # per window
CONFIDENCE = 0.95
# Threshold of the CUSUM: calls between two false alarms while the failure share is still normal.
CALLS_PER_FALSE_ALARM = 1e6
CALLS_PER_FALSE_ALARM_AFTER_OUTAGE = 150.0  # after an outage another one is likely
MIN_FAILED_JOBS = 3  # a single job that always fails is not an outage


class Cusum(NamedTuple):
    """Running log-likelihood sum, and the calls since it last was zero."""

    sum: float = 0.0
    failed: float = 0.0
    ok: float = 0.0
    since: Micros = 0


ZERO_CUSUM = Cusum()


class CallWindow(NamedTuple):
    """Calls of the last minutes, in buckets of equal width."""

    buckets: tuple[tuple[Micros, float, float], ...] = ()  # start, ok, failed; oldest first
    cusum: Cusum = ZERO_CUSUM
    jobs: tuple[str, ...] = ()  # some of the jobs that failed

    def add(
        self, tally: DependencyTally, now: Micros, length: Micros, open_at: float
    ) -> CallWindow:
        """Return the window with these calls, without the buckets that are too old."""
        width = _bucket_width(length)
        start = now - now % width
        buckets = [
            bucket
            for bucket in self.buckets
            if now - length < bucket[0] + width and bucket[0] <= start
        ]
        ok = tally.ok
        failed = tally.failed
        if buckets and buckets[-1][0] == start:
            _, ok_before, failed_before = buckets.pop()
            ok += ok_before
            failed += failed_before
        if ok or failed:
            buckets.append((start, ok, failed))
        any_failed = any(bucket[2] for bucket in buckets)
        jobs = _merge_job_ids(self.jobs, tally.jobs) if any_failed else ()
        return CallWindow(tuple(buckets), _update_cusum(self.cusum, tally, now, open_at), jobs)

    @property
    def ok(self) -> float:
        return sum(bucket[1] for bucket in self.buckets)

    @property
    def failed(self) -> float:
        return sum(bucket[2] for bucket in self.buckets)

    def rate(self, now: Micros, length: Micros) -> float | None:
        """Return successes per second of the busiest bucket, or None if there were none."""
        width = _bucket_width(length)
        rates = [
            ok * SECOND / max(SECOND, min(width, now - start))
            for start, ok, _ in self.buckets
            if ok
        ]
        return max(rates, default=None)


EMPTY_WINDOW = CallWindow()


def _bucket_width(length: Micros) -> Micros:
    return max(SECOND, length // BUCKETS)


def _update_cusum(cusum: Cusum, tally: DependencyTally, now: Micros, open_at: float) -> Cusum:
    """Add the log-likelihood of "down" against "healthy" for these calls."""
    healthy = 0.6 * open_at
    down = open_at + 0.6 * (1 - open_at)
    rise = math.log(down / healthy)
    fall = math.log((1 - healthy) / max(1e-9, 1 - down))
    total = max(0.0, cusum.sum + tally.failed * rise - tally.ok * fall)
    if total <= 0:
        return ZERO_CUSUM
    since = cusum.since if cusum.sum > 0 else now
    return Cusum(total, cusum.failed + tally.failed, cusum.ok + tally.ok, since)


def explain_outage(
    window: CallWindow,
    now: Micros,
    length: Micros,
    open_at: float,
    min_calls: int,
    *,
    after_outage: bool = False,
) -> str | None:
    """Return the evidence that the dependency is down, or None if there is none."""
    if len(window.jobs) < MIN_FAILED_JOBS:
        return None
    cusum = window.cusum
    calls_per_alarm = CALLS_PER_FALSE_ALARM
    if after_outage:
        calls_per_alarm = CALLS_PER_FALSE_ALARM_AFTER_OUTAGE
    if cusum.sum >= math.log(calls_per_alarm):
        since = format_duration(max(1, round((now - cusum.since) / SECOND)))
        return f"{_format_calls(cusum.failed, cusum.ok)} failed within {since}"
    ok = window.ok
    failed = window.failed
    calls = ok + failed
    over_share = calls >= min_calls and failed >= open_at * calls
    if over_share or probability_above(failed, ok, open_at) > CONFIDENCE:
        span = format_duration(length / SECOND)
        return f"{_format_calls(failed, ok)} failed in the last {span}"
    return None


def _format_calls(failed: float, ok: float) -> str:
    failed_calls = max(1, round(failed))
    calls = max(1, round(failed + ok))
    return f"{failed_calls:,} of {calls:,} calls"


def probability_above(failed: float, ok: float, share: float) -> float:
    """Return the probability that more than this share of all calls fails.

    It is the upper tail of Beta(1 + failed, 1 + ok), which is a binomial sum for whole numbers.
    Fractions (failures of unknown class count half) are rounded in favour of the dependency.
    """
    failures = int(failed)
    calls = failures + math.ceil(ok)
    # Far below the share there is nothing to test; above 1,000 calls the share alone decides.
    if failures * 2 < calls * share or calls > 1000:
        return 0.0
    probabilities = (
        math.comb(calls + 1, k) * share**k * (1 - share) ** (calls + 1 - k)
        for k in range(failures + 1)
    )
    return min(1.0, sum(probabilities))
