"""What workers have seen of a dependency, as numbers that add up. One of these is the body of a tally."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.core.format import duration
from mulligan.core.job import SECOND, Micros

MOST_JOBS = (
    8  # of those that failed, so many are remembered by name: to know that it was not one alone
)
STEPS = 2  # of a doubling, in which durations are counted
ENOUGH = 20  # durations from which on they say something

# Why a dependency may be to blame, and how much.
BLAME: Mapping[Cls, float] = {Cls.TRANSIENT: 1.0, Cls.TIMEOUT: 1.0, Cls.UNKNOWN: 0.5}

_encode = json.JSONEncoder(separators=(",", ":")).encode

Times = Mapping[int, float]  # step of duration → how many


class ProbeVerdict(NamedTuple):
    """How a probe ended. `passed` None: it says nothing about the dependency."""

    job_id: str
    token: int
    passed: bool | None


class DependencyTally(NamedTuple):
    ok: float = 0.0  # answered as they should
    failed: float = 0.0  # failed or were slow, and the dependency is to blame
    slow: int = 0  # of them
    limited: int = 0  # were told to come less often
    first_ok: int = 0  # succeeded at the first try
    retry_ok: int = 0
    retried: int = 0  # retries that were started
    jobs: tuple[str, ...] = ()  # some of those that failed
    times: Mapping[str, Times] = {}  # by kind, of those that succeeded
    verdict: ProbeVerdict | None = None

    def plus(self, other: DependencyTally) -> DependencyTally:
        return DependencyTally(
            self.ok + other.ok,
            self.failed + other.failed,
            self.slow + other.slow,
            self.limited + other.limited,
            self.first_ok + other.first_ok,
            self.retry_ok + other.retry_ok,
            self.retried + other.retried,
            tuple(dict.fromkeys((*self.jobs, *other.jobs)))[:MOST_JOBS],
            merged(self.times, other.times) if other.times else self.times,
            other.verdict or self.verdict,
        )

    @property
    def calls(self) -> float:
        return self.ok + self.failed

    def to_json(self) -> str:
        return _encode({name: value for name, value in self._asdict().items() if value})


NOTHING = DependencyTally()


def read_seen(text: str) -> DependencyTally:
    """A newer version may have counted more than we know."""
    said = json.loads(text)
    known = {name: said[name] for name in DependencyTally._fields if name in said}
    if "jobs" in known:
        known["jobs"] = tuple(known["jobs"])
    if "times" in known:
        known["times"] = read_times(known["times"])
    if "verdict" in known:
        known["verdict"] = ProbeVerdict(*known["verdict"])
    return DependencyTally(**known)


def read_times(said: Mapping[str, Mapping[str, float]]) -> dict[str, Times]:
    return {
        kind: {int(step): count for step, count in times.items()} for kind, times in said.items()
    }


def total(all_seen: Iterable[DependencyTally]) -> DependencyTally:
    result = NOTHING
    for seen in all_seen:
        result = result.plus(seen)
    return result


def blame(failure: Failure | None, keys: int) -> float:
    """How much of this failure counts against each of so many dependencies: nobody can tell which of them it was."""
    return 0.0 if failure is None else BLAME.get(failure.cls, 0.0) / max(1, keys)


# -- durations --------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def step_of(ms: float) -> int:
    return round(STEPS * math.log2(max(1.0, ms)))


def merged(one: Mapping[str, Times], other: Mapping[str, Times]) -> dict[str, Times]:
    both: dict[str, Any] = {kind: dict(times) for kind, times in one.items()}
    for kind, times in other.items():
        mine = both.setdefault(kind, {})
        for step, count in times.items():
            mine[step] = mine.get(step, 0) + count
    return both


def quantile(times: Times | None, share: float) -> float | None:
    """In milliseconds; None: too few to say."""
    whole = sum(times.values()) if times else 0
    if times is None or whole < ENOUGH:
        return None
    left = whole * share
    for step in sorted(times):
        left -= times[step]
        if left <= 0:
            return float(2 ** (step / STEPS))
    return float(2 ** (max(times) / STEPS))


def faded(times: Mapping[str, Times], share: float, most_kinds: int) -> dict[str, Times]:
    """What was long ago counts less; of many kinds the most frequent stay."""
    kept = {
        kind: {
            step: round(count * share, 3) for step, count in steps.items() if count * share >= 0.05
        }
        for kind, steps in times.items()
    }
    often = sorted(
        (kind for kind in kept if kept[kind]), key=lambda kind: -sum(kept[kind].values())
    )
    return {kind: kept[kind] for kind in often[:most_kinds]}


# When is a dependency down? What its last calls say, over a window of time and by how fast it got worse.

BUCKETS = 12  # of one window
SURE = 0.95
FALSE_ALARM = 1e6  # calls between two, at the share of failures that is still well
WARY = 150.0  # the same after an outage: it may well be down still
DISTINCT = 3  # jobs that must have failed: one that alone provokes errors is no outage


class Heat(NamedTuple):
    """The running sum, and what it is made of since it last stood at zero."""

    sum: float = 0.0
    failed: float = 0.0
    ok: float = 0.0
    since: Micros = 0


COLD = Heat()


class Window(NamedTuple):
    buckets: tuple[tuple[Micros, float, float], ...] = ()  # start, ok, failed; oldest first
    heat: Heat = COLD
    jobs: tuple[str, ...] = ()  # some of those that failed in it

    def plus(self, seen: DependencyTally, now: Micros, length: Micros, open_at: float) -> Window:
        width = max(SECOND, length // BUCKETS)
        start = now - now % width
        kept = [
            bucket
            for bucket in self.buckets
            if now - length < bucket[0] + width and bucket[0] <= start
        ]
        ok, failed = seen.ok, seen.failed
        if kept and kept[-1][0] == start:
            _, before, broken = kept.pop()
            ok, failed = ok + before, failed + broken
        if ok or failed:
            kept.append((start, ok, failed))
        jobs = (
            tuple(dict.fromkeys((*self.jobs, *seen.jobs)))[:MOST_JOBS]
            if any(b[2] for b in kept)
            else ()
        )
        return Window(tuple(kept), _heated(self.heat, seen, now, open_at), jobs)

    @property
    def ok(self) -> float:
        return sum(bucket[1] for bucket in self.buckets)

    @property
    def failed(self) -> float:
        return sum(bucket[2] for bucket in self.buckets)

    def rate(self, now: Micros, length: Micros) -> float | None:
        """Successes a second where it was busiest; None: there were none."""
        width = max(SECOND, length // BUCKETS)
        rates = [
            ok * SECOND / max(SECOND, min(width, now - start))
            for start, ok, _ in self.buckets
            if ok
        ]
        return max(rates, default=None)


EMPTY = Window()


def _heated(heat: Heat, seen: DependencyTally, now: Micros, open_at: float) -> Heat:
    well, ill = 0.6 * open_at, open_at + 0.6 * (1 - open_at)
    rise = math.log(ill / well)
    fall = math.log((1 - well) / max(1e-9, 1 - ill))
    height = max(0.0, heat.sum + seen.failed * rise - seen.ok * fall)
    if height <= 0:
        return COLD
    since = heat.since if heat.sum > 0 else now
    return Heat(height, heat.failed + seen.failed, heat.ok + seen.ok, since)


def why_down(
    window: Window,
    now: Micros,
    length: Micros,
    open_at: float,
    min_calls: int,
    *,
    wary: bool = False,
) -> str | None:
    """What it is that speaks for an outage; None: nothing does."""
    if len(window.jobs) < DISTINCT:
        return None
    heat = window.heat
    if heat.sum >= math.log(WARY if wary else FALSE_ALARM):
        since = duration(max(1, round((now - heat.since) / SECOND)))
        return f"{_of(heat.failed, heat.ok)} failed within {since}"
    ok, failed = window.ok, window.failed
    calls = ok + failed
    if (calls >= min_calls and failed >= open_at * calls) or surely(failed, ok, open_at) > SURE:
        return f"{_of(failed, ok)} failed in the last {duration(length / SECOND)}"
    return None


def _of(failed: float, ok: float) -> str:
    return f"{max(1, round(failed))} of {max(1, round(failed + ok))} calls"


def surely(failed: float, ok: float, share: float) -> float:
    """How sure one may be that more than this share of all calls fails: the upper tail of Beta(1 + failed, 1 + ok).

    Whole numbers make it a binomial sum. Halves (a failure of unknown class) are counted down.
    """
    failures, successes = int(failed), math.ceil(ok)
    calls = failures + successes
    if failures * 2 < calls * share or calls > 1000:  # hopeless, or a case for the share alone
        return 0.0
    chances = (
        math.comb(calls + 1, k) * share**k * (1 - share) ** (calls + 1 - k)
        for k in range(failures + 1)
    )
    return min(1.0, sum(chances))
