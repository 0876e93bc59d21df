"""What workers have seen of a dependency, as numbers that add up. One of these is the body of a tally."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Failure

MOST_JOBS = 8  # of those that failed, so many are remembered by name: to know that it was not one alone
STEPS = 2  # of a doubling, in which durations are counted
ENOUGH = 20  # durations from which on they say something

# Why a dependency may be to blame, and how much.
BLAME: Mapping[Cls, float] = {Cls.TRANSIENT: 1.0, Cls.TIMEOUT: 1.0, Cls.UNKNOWN: 0.5}

_encode = json.JSONEncoder(separators=(",", ":")).encode

Times = Mapping[int, float]  # step of duration → how many


class Verdict(NamedTuple):
    """How a probe ended. `passed` None: it says nothing about the dependency."""

    job_id: str
    token: int
    passed: bool | None


class Seen(NamedTuple):
    ok: float = 0.0  # answered as they should
    failed: float = 0.0  # failed or were slow, and the dependency is to blame
    slow: int = 0  # of them
    limited: int = 0  # were told to come less often
    first_ok: int = 0  # succeeded at the first try
    retry_ok: int = 0
    retried: int = 0  # retries that were started
    jobs: tuple[str, ...] = ()  # some of those that failed
    times: Mapping[str, Times] = {}  # by kind, of those that succeeded
    verdict: Verdict | None = None

    def plus(self, other: Seen) -> Seen:
        return Seen(
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


NOTHING = Seen()


def read_seen(text: str) -> Seen:
    """A newer version may have counted more than we know."""
    said = json.loads(text)
    known = {name: said[name] for name in Seen._fields if name in said}
    if "jobs" in known:
        known["jobs"] = tuple(known["jobs"])
    if "times" in known:
        known["times"] = read_times(known["times"])
    if "verdict" in known:
        known["verdict"] = Verdict(*known["verdict"])
    return Seen(**known)


def read_times(said: Mapping[str, Mapping[str, float]]) -> dict[str, Times]:
    return {kind: {int(step): count for step, count in times.items()} for kind, times in said.items()}


def total(all_seen: Iterable[Seen]) -> Seen:
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
        kind: {step: round(count * share, 3) for step, count in steps.items() if count * share >= 0.05}
        for kind, steps in times.items()
    }
    often = sorted((kind for kind in kept if kept[kind]), key=lambda kind: -sum(kept[kind].values()))
    return {kind: kept[kind] for kind in often[:most_kinds]}
