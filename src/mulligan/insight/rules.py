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
from mulligan.core.format import duration, ordinal
from mulligan.core.job import SECOND, to_datetime
from mulligan.core.statistics import (
    FAILED,
    Chance,
    CodeCount,
    FailureCount,
    HandCount,
    InsightCounts,
    JobCount,
    LifeCount,
    Observation,
    Share,
    TrialCount,
    chance,
    quantile,
    share,
)

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


def numbers(tally: InsightCounts) -> Numbers:
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
    good = sum(
        row.jobs for row in ended if row.outcome == "succeeded" and (row.ms or 0) <= HORIZON_MS
    )
    return share(good, sum(row.jobs for row in ended))


def _dead(jobs: Iterable[JobCount], *, user: bool) -> Share:
    """Dead by such causes, of all that succeeded or died. What is held, parked or waits is not terminal."""
    ended = [row for row in jobs if row.state in {"succeeded", "dead"}]
    dead = sum(
        row.jobs for row in ended if row.state == "dead" and (row.cls in USER_CAUSED) is user
    )
    return share(dead, sum(row.jobs for row in ended))


def false_retriable(lives: Iterable[LifeCount], cls: str | None = None) -> Between:
    """Verdicts "try again" about jobs that were hopeless: at least those that a later verdict called so, at most all
    that never succeeded. Between the two nobody knows, for their attempts ended at the limit.
    """
    ended = [
        row
        for row in lives
        if row.cls and row.outcome in {"succeeded", "dead"} and (cls is None or row.cls == cls)
    ]
    whole = sum(row.jobs for row in ended)
    dead = [row for row in ended if row.outcome == "dead"]
    surely = sum(row.jobs for row in dead if row.hopeless)
    return Between(share(surely, whole), share(sum(row.jobs for row in dead), whole))


def _begun_again(tally: InsightCounts) -> Share:
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
        Waste(
            cls,
            sum(r.failures for r in rows),
            sum(r.cost for r in rows),
            sum(r.busy for r in rows) / SECOND,
        )
        for cls, rows in by_class.items()
    ]
    yield from sorted(found, key=lambda waste: (-waste.cost, -waste.seconds, waste.cls))


def _waited(lives: Iterable[LifeCount]) -> Waited:
    """A dead job never succeeds, so it stays among those that have not; one that waits is watched until now."""
    failed = [row for row in lives if row.ms is not None]
    all_ = [Observation(_time(row), row.outcome == "succeeded", row.jobs) for row in failed]
    rescued = [ending for ending in all_ if ending.came]
    half, most = quantile(0.5, all_), quantile(0.95, all_)
    return Waited(half, most, quantile(0.5, rescued), quantile(0.95, rescued), _mean(rescued))


def _mean(endings: Sequence[Observation]) -> float | None:
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
        yield Day(
            to_datetime(day * 86_400 * SECOND), whole, pending, count["succeeded"], count["dead"]
        )


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


def lately(minutes: int, ends: Iterable[tuple[str, bool, int]]) -> Lately:
    """`ends`: outcome, was it a retry, how many."""
    known = [end for end in ends if end[0] == "succeeded" or end[0] in FAILED]
    whole = sum(n for _, _, n in known)
    failed = sum(n for outcome, _, n in known if outcome in FAILED)
    return Lately(
        minutes, share(failed, whole), share(sum(n for _, again, n in known if again), whole)
    )


# What the numbers advise, in words, ranked by what it would save. Said only where at least twenty trials carry it.

ENOUGH = 20  # trials below which nothing is said
HOPELESS = 0.15  # attempts whose chance is surely below this are worth leaving out
HOPEFUL = 0.20  # and those whose chance is surely above this are worth adding to
LEAST_SAVED = 0.05  # of the retries of a code
UNKNOWN = 0.10
ONE_INCIDENT = 2  # hours within which many failures may be a single event


class Advice(NamedTuple):
    """One sentence or two, and what following it would have saved in the time that was looked at."""

    text: str
    code: str = ""
    attempts: int = 0
    seconds: float = 0.0
    cost: float = 0.0


def advice(tally: InsightCounts) -> tuple[Advice, ...]:
    found = [*_cuts(tally), *_raises(tally), *_by_hand(tally.by_hand), *_unknowns(tally.failures)]
    return tuple(sorted(found, key=lambda one: (-one.cost, -one.seconds, -one.attempts)))


def percent(value: float | None) -> str:
    """`61 %`, `3 %`, `0.4 %`, `under 0.1 %`, `–`."""
    if value is None:
        return "–"
    shown = value * 100
    if 0 < shown < 0.1:
        return "under 0.1 %"
    return f"{shown:.0f} %" if shown >= 10 or shown == round(shown) else f"{shown:.1f} %"


# -- a lower limit ----------------------------------------------------------------------------------
def _cuts(tally: InsightCounts) -> Iterator[Advice]:
    for (cls, code), rows in _by_code(tally.trials).items():
        count = next((one for one in tally.codes if (one.cls, one.code) == (cls, code)), None)
        cut = next(
            (k for k in range(2, max(row.k for row in rows) + 1) if _hopeless(rows, k)), None
        )
        if cut is not None and count is not None:
            yield _cut(rows, cut, count)


def _by_code(trials: Sequence[TrialCount]) -> dict[tuple[str, str], list[TrialCount]]:
    found: defaultdict[tuple[str, str], list[TrialCount]] = defaultdict(list)
    for row in trials:
        found[row.cls, row.code].append(row)
    return dict(sorted(found.items()))


def _from(rows: Sequence[TrialCount], k: int) -> Share:
    """Success of the k-th and all later attempts."""
    late = [row for row in rows if row.k >= k]
    return share(sum(row.successes for row in late), sum(row.trials for row in late))


def _hopeless(rows: Sequence[TrialCount], k: int) -> bool:
    late = _from(rows, k)
    return (
        late.whole >= ENOUGH
        and late.high <= HOPELESS
        and late.whole >= LEAST_SAVED * _from(rows, 2).whole
    )


def _cut(rows: Sequence[TrialCount], k: int, count: CodeCount) -> Advice:
    late, all_ = _from(rows, k), _from(rows, 2)
    dropped = [row for row in rows if row.k >= k]
    lost = percent(late.part / count.jobs if count.jobs else 0)
    seconds = sum(row.busy for row in dropped) / SECOND
    text = (
        f"{_which(rows, k, count.code)} succeed {percent(late.value)} ({late.part} of {late.whole}, "
        f"surely below {percent(late.high)}); {_limit(k, count)} would lose {lost} of those {count.jobs} jobs and save "
        f"{percent(late.whole / all_.whole)} of their retries, {duration(round(seconds, 1))} of work.{_incident(count)}"
    )
    return Advice(text, count.code, late.whole, seconds, sum(row.cost for row in dropped))


def _which(rows: Sequence[TrialCount], k: int, code: str) -> str:
    if k == 2:
        return f"Retries after {code}"
    later = any(row.k > k for row in rows)
    return f"{ordinal(k)}{' and later' if later else ''} attempts after {code}"


def _limit(k: int, count: CodeCount) -> str:
    if k == 2:
        return "not retrying it at all (a rule of your own with a class that is not retried, or max_retries=0)"
    return f'a limit of {k - 1} attempts (Policy(classes={{"{count.cls}": Policy(max_retries={k - 2})}}))'


def _incident(count: CodeCount) -> str:
    if count.hours > ONE_INCIDENT:
        return ""
    within = "one hour" if count.hours <= 1 else f"{count.hours} different hours"
    return f" But all of it fell into {within}: perhaps one incident, which is one observation."


# -- a higher limit ---------------------------------------------------------------------------------
def _raises(tally: InsightCounts) -> Iterator[Advice]:
    for (cls, code), rows in _by_code(tally.trials).items():
        last = max(row.k for row in rows)
        there = share(*_at(rows, last))
        ended = sum(
            row.failures
            for row in tally.failures
            if (row.cls, row.code, row.verb) == (cls, code, "die")
            and row.k >= last
            and cls in RETRYABLE
        )
        if there.whole >= ENOUGH and there.low >= HOPEFUL and ended:
            low, high = round(there.low * ended), round(there.high * ended)
            yield Advice(
                f"{ordinal(last)} attempts after {code} still succeed {percent(there.value)} ({there.part} of "
                f"{there.whole}), and {ended} jobs ended there. One more retry might have saved {low} to {high} of "
                "them; nobody has tried, so this is a guess.",
                code,
            )


def _at(rows: Sequence[TrialCount], k: int) -> tuple[int, int]:
    here = [row for row in rows if row.k == k]
    return sum(row.successes for row in here), sum(row.trials for row in here)


# -- verdicts ---------------------------------------------------------------------------------------
def _by_hand(rows: Sequence[HandCount]) -> Iterator[Advice]:
    for row in rows:
        tried = share(row.successes, row.tries)
        if row.cls not in RETRYABLE and row.tries >= ENOUGH and tried.low >= HOPEFUL:
            yield Advice(
                f"{row.tries} jobs that were not retried because of {row.code} (rule {row.rule}) were begun again by "
                f"hand, and {percent(tried.value)} of them succeeded within a day. People retry what they have "
                "repaired, so this proves nothing; but look at the rule.",
                row.code,
            )


def _unknowns(failures: Sequence[FailureCount]) -> Iterator[Advice]:
    whole = sum(row.failures for row in failures)
    by_code: defaultdict[str, int] = defaultdict(int)
    for row in failures:
        if row.cls == Cls.UNKNOWN:
            by_code[row.code] += row.failures
    unknown = sum(by_code.values())
    if whole < ENOUGH or unknown < UNKNOWN * whole:
        return
    code = max(by_code, key=lambda name: (by_code[name], name))
    yield Advice(
        f"{percent(unknown / whole)} of the failures ({unknown} of {whole}) have a cause that no rule knows; most of "
        f"them are {code} ({by_code[code]}). A rule of your own would say whether trying again helps.",
        code,
    )
