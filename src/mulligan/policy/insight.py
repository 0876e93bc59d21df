"""What many jobs came to: from counts to numbers that mean something, as docs/operate/insight.md defines them.

A number is given with what it rests on; where nothing was tried nothing is claimed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.job import SECOND, to_datetime
from mulligan.policy.estimate import Chance, Ending, Share, chance, quantile, share
from mulligan.tally import FailureCount, JobCount, LifeCount, Tally, TrialCount

DAY_MS = 86_400_000
HORIZON_MS = 7 * DAY_MS  # a success that comes later is no rescue
HALF_LIFE = 7 * 86_400 * SECOND
ENDED = frozenset({"succeeded", "dead", "cancelled"})
USER_CAUSED = frozenset({Cls.INVALID_INPUT, Cls.CANCELLED})
CODE_WEIGHT = 10.0  # trials that the class is worth when one of its codes is judged

# Means and weights that hold until there are data.
PRIORS: Mapping[str, tuple[float, float]] = {
    Cls.RATE_LIMITED: (0.90, 6),
    Cls.TRANSIENT: (0.75, 4),
    Cls.TIMEOUT: (0.50, 4),
    Cls.RESOURCE: (0.40, 4),
    Cls.UNKNOWN: (0.30, 3),
    Cls.QUOTA: (0.05, 10),
    Cls.AUTH: (0.05, 10),
    Cls.INVALID_INPUT: (0.02, 20),
    Cls.PERMANENT: (0.02, 20),
    Cls.CANCELLED: (0.02, 20),
}


class Cell(NamedTuple):
    """Automatic retries: the `attempt`-th attempts of jobs that had failed so before, and how many succeeded."""

    cls: str
    code: str
    dependency: str
    attempt: int
    success: Share


class NextChance(NamedTuple):
    """What the `attempt`-th attempt would do after such a failure; `code` is empty for the class as a whole."""

    cls: str
    code: str
    attempt: int
    chance: Chance


class Waste(NamedTuple):
    """What failed attempts of a class took."""

    cls: str
    failures: int
    cost: float
    seconds: float


class Between(NamedTuple):
    """A share of which only bounds are known."""

    low: Share
    high: Share


class Lately(NamedTuple):
    """Attempts that ended within the last minutes, whenever their jobs were enqueued; counted by workers."""

    minutes: int
    failed: Share  # of those that succeeded or failed
    retries: Share  # of all of them


class Day(NamedTuple):
    """Jobs enqueued on a day (UTC). Rates of a day that has not ended yet for 99 % of its jobs mean little."""

    day: datetime
    jobs: int
    pending: int
    succeeded: int
    dead: int

    @property
    def settled(self) -> bool:
        return self.pending <= 0.01 * self.jobs


class Waited(NamedTuple):
    """Seconds from the first failure to success; None: less than that share ever succeeded, as far as one can see."""

    p50: float | None
    p95: float | None
    rescued_p50: float | None  # of those that did succeed
    rescued_p95: float | None
    rescued_mean: float | None


@dataclass(frozen=True, slots=True)
class Numbers:
    since: datetime
    until: datetime
    jobs: int
    pending: int  # of them, not ended yet
    attempts: int
    failed_first: int  # jobs whose first counted attempt failed
    retry_success: Share
    rescue: Share
    permanent_failure: Share
    user_failure: Share
    unknown: Share
    false_permanent: Share  # a hint only: dead by verdict, begun again by hand, and succeeded
    false_retriable: Between
    amplification: float | None
    retry_cost: float
    retry_seconds: float
    retry_cost_per_job: float | None
    retry_cost_per_retried: float | None
    wasted: tuple[Waste, ...]
    time_to_success: Waited
    cells: tuple[Cell, ...]
    chances: tuple[NextChance, ...]
    days: tuple[Day, ...]


def numbers(tally: Tally) -> Numbers:
    jobs = sum(row.jobs for row in tally.jobs)
    started = sum(row.jobs for row in tally.lives)
    attempts = sum(row.attempts for row in tally.ended)
    retried = _jobs(tally.lives, retried=True)
    cost = sum(row.cost for row in tally.trials)
    return Numbers(
        since=to_datetime(tally.since),
        until=to_datetime(tally.now),
        jobs=jobs,
        pending=sum(row.jobs for row in tally.jobs if row.state not in ENDED),
        attempts=attempts,
        failed_first=sum(row.jobs for row in tally.lives if row.ms is not None),
        retry_success=_rescued(row for row in tally.lives if row.retried),
        rescue=_rescued(tally.lives),
        permanent_failure=_dead(tally.jobs, user=False),
        user_failure=_dead(tally.jobs, user=True),
        unknown=_unknown(tally.failures),
        false_permanent=_begun_again(tally),
        false_retriable=false_retriable(tally.lives),
        amplification=attempts / started if started else None,
        retry_cost=cost,
        retry_seconds=sum(row.busy for row in tally.trials) / SECOND,
        retry_cost_per_job=cost / jobs if jobs else None,
        retry_cost_per_retried=cost / retried if retried else None,
        wasted=tuple(_wasted(tally.failures)),
        time_to_success=_waited(tally.lives),
        cells=tuple(_cells(tally.trials)),
        chances=tuple(chances(tally.trials, tally.width)),
        days=tuple(_days(tally.jobs)),
    )


# -- shares of jobs ---------------------------------------------------------------------------------
def _jobs(lives: Iterable[LifeCount], *, retried: bool) -> int:
    return sum(row.jobs for row in lives if row.retried is retried)


def _rescued(lives: Iterable[LifeCount]) -> Share:
    """Of first lives that failed once and have ended: those that succeeded, within the horizon, with nobody's help."""
    ended = [row for row in lives if row.ms is not None and row.outcome in {"succeeded", "dead"}]
    good = sum(row.jobs for row in ended if row.outcome == "succeeded" and (row.ms or 0) <= HORIZON_MS)
    return share(good, sum(row.jobs for row in ended))


def _dead(jobs: Iterable[JobCount], *, user: bool) -> Share:
    """Dead by such causes, of all that succeeded or died. What is held, parked or waits is not terminal."""
    ended = [row for row in jobs if row.state in {"succeeded", "dead"}]
    dead = sum(row.jobs for row in ended if row.state == "dead" and (row.cls in USER_CAUSED) is user)
    return share(dead, sum(row.jobs for row in ended))


def false_retriable(lives: Iterable[LifeCount], cls: str | None = None) -> Between:
    """Verdicts "try again" about jobs that were hopeless: at least those that a later verdict called so, at most all
    that never succeeded. Between the two nobody knows, for their attempts ended at the limit.
    """
    ended = [
        row for row in lives if row.cls and row.outcome in {"succeeded", "dead"} and (cls is None or row.cls == cls)
    ]
    whole = sum(row.jobs for row in ended)
    dead = [row for row in ended if row.outcome == "dead"]
    surely = sum(row.jobs for row in dead if row.hopeless)
    return Between(share(surely, whole), share(sum(row.jobs for row in dead), whole))


def _begun_again(tally: Tally) -> Share:
    by_verdict = [row for row in tally.by_hand if row.cls not in RETRYABLE]
    return share(sum(row.successes for row in by_verdict), sum(row.tries for row in by_verdict))


def _unknown(failures: Sequence[FailureCount]) -> Share:
    unknown = sum(row.failures for row in failures if row.cls == Cls.UNKNOWN)
    return share(unknown, sum(row.failures for row in failures))


def _wasted(failures: Iterable[FailureCount]) -> Iterator[Waste]:
    by_class: defaultdict[str, list[FailureCount]] = defaultdict(list)
    for row in failures:
        by_class[row.cls].append(row)
    found = [
        Waste(cls, sum(r.failures for r in rows), sum(r.cost for r in rows), sum(r.busy for r in rows) / SECOND)
        for cls, rows in by_class.items()
    ]
    yield from sorted(found, key=lambda waste: (-waste.cost, -waste.seconds, waste.cls))


def _waited(lives: Iterable[LifeCount]) -> Waited:
    """A dead job never succeeds, so it stays among those that have not; one that waits is watched until now."""
    failed = [row for row in lives if row.ms is not None]
    all_ = [Ending(_time(row), row.outcome == "succeeded", row.jobs) for row in failed]
    rescued = [ending for ending in all_ if ending.came]
    half, most = quantile(0.5, all_), quantile(0.95, all_)
    return Waited(half, most, quantile(0.5, rescued), quantile(0.95, rescued), _mean(rescued))


def _mean(endings: Sequence[Ending]) -> float | None:
    jobs = sum(ending.jobs for ending in endings)
    return sum(ending.at * ending.jobs for ending in endings) / jobs if jobs else None


def _time(row: LifeCount) -> float:
    return math.inf if row.outcome == "dead" else max(0, row.ms or 0) / 1000


def _days(jobs: Iterable[JobCount]) -> Iterator[Day]:
    by_day: defaultdict[int, list[JobCount]] = defaultdict(list)
    for row in jobs:
        by_day[row.day].append(row)
    for day, rows in sorted(by_day.items()):
        count = {state: sum(row.jobs for row in rows if row.state == state) for state in ENDED}
        whole = sum(row.jobs for row in rows)
        pending = whole - sum(count.values())
        yield Day(to_datetime(day * 86_400 * SECOND), whole, pending, count["succeeded"], count["dead"])


# -- attempts ---------------------------------------------------------------------------------------
def _cells(trials: Iterable[TrialCount]) -> Iterator[Cell]:
    """A job that uses several dependencies counts for each of them."""
    found: defaultdict[tuple[str, str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in trials:
        for dependency in row.uses.split(","):
            counts = found[row.cls, row.code, dependency, row.k]
            counts[0] += row.successes
            counts[1] += row.trials
    for key, (good, whole) in sorted(found.items()):
        yield Cell(*key, share(good, whole))


def chances(trials: Sequence[TrialCount], width: int) -> Iterator[NextChance]:
    """First the class, from its prior; then each of its codes, from the class."""
    for cls, k in sorted({(row.cls, row.k) for row in trials}):
        mean, weight = PRIORS.get(cls, PRIORS[Cls.UNKNOWN])
        rows = [row for row in trials if (row.cls, row.k) == (cls, k)]
        whole = chance(mean, weight, (_seen(row, width) for row in rows))
        yield NextChance(cls, "", k, whole)
        for code in sorted({row.code for row in rows}):
            mine = [_seen(row, width) for row in rows if row.code == code]
            yield NextChance(cls, code, k, chance(whole.mean, CODE_WEIGHT, mine))


def _seen(row: TrialCount, width: int) -> tuple[float, int, int]:
    """What is a half-life old counts half."""
    age = (max(0, row.age) + 0.5) * width
    return 0.5 ** (age / HALF_LIFE), row.trials, row.successes


# -- the last minutes -------------------------------------------------------------------------------
FAILED = frozenset({"retry", "dead", "lost"})


def lately(minutes: int, ends: Iterable[tuple[str, bool, int]]) -> Lately:
    """`ends`: outcome, was it a retry, how many."""
    known = [end for end in ends if end[0] == "succeeded" or end[0] in FAILED]
    whole = sum(n for _, _, n in known)
    failed = sum(n for outcome, _, n in known if outcome in FAILED)
    return Lately(minutes, share(failed, whole), share(sum(n for _, again, n in known if again), whole))
