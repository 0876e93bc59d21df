"""Rules about releases: which one a cause began with, and whether one fails more. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from mulligan.core.durations import Micros

# --- Rows ---


class ReleaseRow(NamedTuple):
    """A release that a worker has run."""

    name: str
    first_at: Micros
    last_at: Micros  # the last start of a worker


class ReleaseKindRow(NamedTuple):
    """Counters of a kind under one release.

    Starts are jobs whose first attempt succeeded or failed. The base counts are the sums of all
    other releases when this one first counted the kind.
    """

    release: str
    kind: str
    first_at: Micros
    last_at: Micros
    attempts: int
    deaths: int
    starts: int
    failures: int
    base_attempts: int
    base_starts: int
    base_failures: int
    claimed: int = 0  # by workers with --canary


# --- The release that a cause began with ---

MIN_EVIDENCE = 10.83  # G statistic of a difference that chance explains once in a thousand times
MIN_RISE = 3.0  # times the share of deaths before, to suspect a release


@dataclass(frozen=True, slots=True)
class ReleaseDeaths:
    """Deaths of one cause under one release, and all attempts of its kinds there."""

    release: str
    first_seen: datetime  # of the release
    first_death: datetime | None
    last_death: datetime | None
    deaths: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """The release with which a cause began, or with which it became more frequent."""

    release: str
    deaths_before: int
    attempts_before: int
    deaths_since: int
    attempts_since: int

    @property
    def sentence(self) -> str:
        """Describe the suspicion: "began with r42: 0 of 12,400 attempts before, …"."""
        verb = "rose" if self.deaths_before else "began"
        return (
            f"{verb} with {self.release}: {self.deaths_before:,} of {self.attempts_before:,} "
            f"attempts before, {self.deaths_since:,} of {self.attempts_since:,} since"
        )


def find_suspect(history: Sequence[ReleaseDeaths]) -> Suspect | None:
    """Return the release with which the share of deaths rose most clearly, if it did.

    `history`: the releases in the order in which they were first seen.
    """
    best: Suspect | None = None
    evidence = MIN_EVIDENCE
    for place in range(1, len(history)):
        before = _sum(history[:place])
        since = _sum(history[place:])
        if not before.attempts or not _has_risen(before, since):
            continue
        found = _g_statistic(before, since)
        if found > evidence:
            evidence = found
            name = history[place].release
            best = Suspect(name, before.deaths, before.attempts, since.deaths, since.attempts)
    return best


class _Sum(NamedTuple):
    deaths: int
    attempts: int


def _sum(history: Iterable[ReleaseDeaths]) -> _Sum:
    rows = list(history)
    deaths = sum(row.deaths for row in rows)
    # Deaths are counted a moment after attempts, so there may be more of them.
    return _Sum(deaths, max(deaths, sum(row.attempts for row in rows)))


def _has_risen(before: _Sum, since: _Sum) -> bool:
    return since.deaths * before.attempts > MIN_RISE * before.deaths * since.attempts


def _g_statistic(before: _Sum, since: _Sum) -> float:
    """Return the evidence against an equal share of deaths in both (likelihood-ratio test)."""
    deaths = before.deaths + since.deaths
    attempts = before.attempts + since.attempts
    total = 0.0
    for part in (before, since):
        cells = ((part.deaths, deaths), (part.attempts - part.deaths, attempts - deaths))
        for count, overall in cells:
            if count:
                total += count * math.log(count * attempts / (overall * part.attempts))
    return 2 * total


# --- Fixed in a release ---

NEXT = "next"  # the first release that is seen after the mark


def has_fix(
    release: str, in_release: str, resolved_at: Micros, first_seen: Mapping[str, Micros]
) -> bool:
    """Return whether a release has the fix of a cause that was resolved in `in_release`."""
    if not in_release:
        return True
    started = first_seen.get(release)
    if started is None:
        return False
    if in_release == NEXT:
        return started > resolved_at
    fixed = first_seen.get(in_release)
    return fixed is not None and started >= fixed


# --- Judge a release ---

MIN_STARTS = 50  # of the release, and of what it is compared with
WORSE_BY = 0.10  # the share of failures that must be noticed, above the one before
FALSE_ALARM_RATE = 0.01  # of a release that fails as before, over all of its kinds
ANY_SHARE = 0.1  # weight of "any share" in the alternative; the rest is "10 points more"
MISSED_RATE = 0.01  # of a release that fails WORSE_BY more, per kind


class ReleaseState(StrEnum):
    """State of a kind under a release."""

    WORSE = "worse"  # it fails more than under other releases
    OPEN = "open"  # not judged yet
    FINE = "fine"  # it does not fail 10 percentage points more


class FirstAttempts(NamedTuple):
    """Jobs whose first attempt succeeded or failed."""

    starts: int
    failures: int


def judge_release(
    row: ReleaseKindRow, others: Iterable[ReleaseKindRow], kinds: int
) -> ReleaseState:
    """Judge a kind under a release. `others`: its counters under all other releases.

    `kinds`: number of kinds of the release that are judged, which share the false alarms.
    """
    own = FirstAttempts(row.starts, row.failures)
    baseline = choose_baseline(row, others)
    if min(own.starts, baseline.starts) < MIN_STARTS:
        return ReleaseState.OPEN
    return decide_test(evidence(own, baseline), kinds)


def choose_baseline(row: ReleaseKindRow, others: Iterable[ReleaseKindRow]) -> FirstAttempts:
    """Return what a release is compared with: other releases, before it began and since.

    If other releases have begun to fail more as well, only what they do since counts: an outage
    that hits all releases blames none.
    """
    rows = list(others)
    before = FirstAttempts(row.base_starts, row.base_failures)
    starts = max(0, sum(other.starts for other in rows) - before.starts)
    failures = max(0, sum(other.failures for other in rows) - before.failures)
    since = FirstAttempts(starts, min(starts, failures))
    if before.starts < MIN_STARTS or evidence(since, before) > 0:
        return since
    return FirstAttempts(before.starts + since.starts, before.failures + since.failures)


def decide_test(log_ratio: float, kinds: int) -> ReleaseState:
    """Return the state that a log likelihood ratio stands for (Wald's sequential test)."""
    if log_ratio >= math.log(max(1, kinds) / FALSE_ALARM_RATE):
        return ReleaseState.WORSE
    if log_ratio <= math.log(MISSED_RATE):
        return ReleaseState.FINE
    return ReleaseState.OPEN


def evidence(own: FirstAttempts, baseline: FirstAttempts) -> float:
    """Return the log likelihood ratio of "fails 10 points more" against "fails as the baseline".

    The share of the baseline is known only from its counts, so failing like it is a beta-binomial
    distribution: the fewer counts it has, the more it explains. A release that fails far more than
    10 points is explained better by that than by exactly 10 points, so a part of the alternative
    is that any share is possible.
    """
    failed, passed = min(own.failures, own.starts), max(0, own.starts - own.failures)
    a = baseline.failures + 0.5
    b = baseline.starts - baseline.failures + 0.5
    as_baseline = _log_beta(a + failed, b + passed) - _log_beta(a, b)
    share = min(0.999, a / (a + b) + WORSE_BY)
    ten_points_more = failed * math.log(share) + passed * math.log(1 - share)
    ratio = math.log(1 - ANY_SHARE) + ten_points_more - as_baseline
    if failed <= share * own.starts:
        return ratio
    any_share = math.log(ANY_SHARE) + _log_beta(failed + 1, passed + 1) - as_baseline
    return _add_logarithms(ratio, any_share)


def _add_logarithms(one: float, other: float) -> float:
    """Return the logarithm of the sum of two numbers, from their logarithms."""
    most = max(one, other)
    return most + math.log(math.exp(one - most) + math.exp(other - most))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


# --- Canaries ---


def canary_starts_left(share: float, claimed: int, others: int) -> int:
    """Return how many jobs canaries may still claim, of which others have run `others` meanwhile.

    Canaries never have more than `share` of all of them.
    """
    return max(0, math.floor(others * share / (1 - share) + _ROUNDING) - claimed)


_ROUNDING = 1e-9  # 19 jobs of others allow one canary with a share of 5 %
