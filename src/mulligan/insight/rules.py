"""Insight: statistics about many jobs, and advice derived from them. Pure.

docs/operate/insight.md defines each number. A number comes with its evidence; without any trial
there is no number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.durations import SECOND, to_datetime
from mulligan.core.format import format_duration, format_ordinal
from mulligan.core.statistics import (
    FAILED_OUTCOMES,
    Chance,
    CodeCount,
    FailureCount,
    GenerationCount,
    InsightCounts,
    JobCount,
    ManualRetryCount,
    Observation,
    Share,
    TrialCount,
    estimate_chance,
    estimate_share,
    event_time_quantile,
)

DAY_MS = 86_400_000
RESCUE_LIMIT_MS = 7 * DAY_MS  # a later success does not count as a rescue
HALF_LIFE = 7 * 86_400 * SECOND
ENDED = frozenset({"succeeded", "dead", "cancelled"})
SUCCEEDED_OR_DEAD = frozenset({"succeeded", "dead"})
USER_CAUSED = frozenset({Cls.INVALID_INPUT, Cls.CANCELLED})
CODE_WEIGHT = 10.0  # weight of a class, in trials, when the chance of one of its codes is estimated

# Mean and weight, in trials, of the prior of each class.
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


# --- Numbers ---


class RetryCell(NamedTuple):
    """Success of the automatic retries with one number, after one kind of failure."""

    cls: str
    code: str
    dependency: str
    attempt: int
    success: Share


class NextChance(NamedTuple):
    """Estimated success of an attempt after one kind of failure."""

    cls: str
    code: str  # empty: the whole class
    attempt: int
    chance: Chance


class Waste(NamedTuple):
    """Cost and time of the failed attempts of a class."""

    cls: str
    failures: int
    cost: float
    seconds: float


class ShareBounds(NamedTuple):
    """Bounds of a share that is not known exactly."""

    low: Share
    high: Share


class RecentRates(NamedTuple):
    """Attempts that ended within the last minutes, as counted by workers."""

    minutes: int
    failed: Share
    retries: Share


class Day(NamedTuple):
    """Jobs enqueued on one day (UTC)."""

    day: datetime
    jobs: int
    pending: int
    succeeded: int
    dead: int

    @property
    def settled(self) -> bool:
        """True if at most 1 % of the jobs are pending; before that, rates mean little."""
        return self.pending <= 0.01 * self.jobs


class TimeToSuccess(NamedTuple):
    """Seconds from the first failure to success; None: so large a share has not succeeded."""

    p50: float | None
    p95: float | None
    rescued_p50: float | None  # of jobs that did succeed
    rescued_p95: float | None
    rescued_mean: float | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """Statistics about the jobs enqueued in a period."""

    since: datetime
    until: datetime
    jobs: int
    pending: int  # not ended yet
    attempts: int
    failed_first: int  # jobs whose first counted attempt failed
    retry_success: Share
    rescue: Share
    permanent_failure: Share
    user_failure: Share
    unknown: Share
    false_permanent: Share  # a hint only: not retried, then retried manually with success
    false_retriable: ShareBounds
    amplification: float | None
    retry_cost: float
    retry_seconds: float
    retry_cost_per_job: float | None
    retry_cost_per_retried: float | None
    wasted: tuple[Waste, ...]
    time_to_success: TimeToSuccess
    cells: tuple[RetryCell, ...]
    chances: tuple[NextChance, ...]
    days: tuple[Day, ...]


def compute_numbers(counts: InsightCounts) -> Numbers:
    """Compute all statistics from the counts of a period."""
    jobs = _sum_jobs(counts.jobs)
    started = _sum_jobs(counts.generations)
    retried_generations = [row for row in counts.generations if row.retried]
    failed_generations = [row for row in counts.generations if row.ms is not None]
    attempts = sum(row.attempts for row in counts.ended)
    retry_cost = sum(row.cost for row in counts.trials)
    return Numbers(
        since=to_datetime(counts.since),
        until=to_datetime(counts.now),
        jobs=jobs,
        pending=_sum_jobs(row for row in counts.jobs if row.state not in ENDED),
        attempts=attempts,
        failed_first=_sum_jobs(failed_generations),
        retry_success=_rescued_share(retried_generations),
        rescue=_rescued_share(counts.generations),
        permanent_failure=_dead_share(counts.jobs, user_caused=False),
        user_failure=_dead_share(counts.jobs, user_caused=True),
        unknown=_unknown_share(counts.failures),
        false_permanent=_false_permanent_share(counts.manual_retries),
        false_retriable=bound_false_retriable(counts.generations),
        amplification=_ratio(attempts, started),
        retry_cost=retry_cost,
        retry_seconds=sum(row.busy for row in counts.trials) / SECOND,
        retry_cost_per_job=_ratio(retry_cost, jobs),
        retry_cost_per_retried=_ratio(retry_cost, _sum_jobs(retried_generations)),
        wasted=_waste_by_class(counts.failures),
        time_to_success=_time_to_success(failed_generations),
        cells=tuple(_build_cells(counts.trials)),
        chances=tuple(estimate_chances(counts.trials, counts.age_step)),
        days=tuple(_group_by_day(counts.jobs)),
    )


# --- Shares of jobs ---


def _sum_jobs(rows: Iterable[JobCount | GenerationCount]) -> int:
    return sum(row.jobs for row in rows)


def _ratio(value: float, divisor: int) -> float | None:
    return value / divisor if divisor else None


def _rescued_share(generations: Iterable[GenerationCount]) -> Share:
    """Return the share of jobs that failed first and then succeeded within a week, unaided."""
    ended = [row for row in generations if row.ms is not None and row.outcome in SUCCEEDED_OR_DEAD]
    rescued = [
        row for row in ended if row.outcome == "succeeded" and (row.ms or 0) <= RESCUE_LIMIT_MS
    ]
    return estimate_share(_sum_jobs(rescued), _sum_jobs(ended))


def _dead_share(jobs: Iterable[JobCount], *, user_caused: bool) -> Share:
    """Return the share of dead jobs by cause. Held, parked and waiting jobs do not count."""
    ended = [row for row in jobs if row.state in SUCCEEDED_OR_DEAD]
    dead = [row for row in ended if row.state == "dead" and (row.cls in USER_CAUSED) is user_caused]
    return estimate_share(_sum_jobs(dead), _sum_jobs(ended))


def bound_false_retriable(
    generations: Iterable[GenerationCount], cls: str | None = None
) -> ShareBounds:
    """Return bounds of the share of retries that had no chance.

    At least the jobs whose last failure was judged not retryable, at most all that died: whether
    the others would ever have succeeded is unknown.
    """
    retried = [row for row in generations if row.cls and row.outcome in SUCCEEDED_OR_DEAD]
    if cls is not None:
        retried = [row for row in retried if row.cls == cls]
    total = _sum_jobs(retried)
    dead = [row for row in retried if row.outcome == "dead"]
    hopeless = [row for row in dead if row.hopeless]
    return ShareBounds(
        estimate_share(_sum_jobs(hopeless), total), estimate_share(_sum_jobs(dead), total)
    )


def _false_permanent_share(manual_retries: Iterable[ManualRetryCount]) -> Share:
    not_retried = [row for row in manual_retries if row.cls not in RETRYABLE]
    successes = sum(row.successes for row in not_retried)
    return estimate_share(successes, sum(row.tries for row in not_retried))


def _unknown_share(failures: Sequence[FailureCount]) -> Share:
    unknown = sum(row.failures for row in failures if row.cls == Cls.UNKNOWN)
    return estimate_share(unknown, sum(row.failures for row in failures))


def _waste_by_class(failures: Iterable[FailureCount]) -> tuple[Waste, ...]:
    """Return the waste of each class, the most expensive first."""
    by_class: defaultdict[str, list[FailureCount]] = defaultdict(list)
    for row in failures:
        by_class[row.cls].append(row)
    found = []
    for cls, rows in by_class.items():
        count = sum(row.failures for row in rows)
        cost = sum(row.cost for row in rows)
        seconds = sum(row.busy for row in rows) / SECOND
        found.append(Waste(cls, count, cost, seconds))
    return tuple(sorted(found, key=lambda waste: (-waste.cost, -waste.seconds, waste.cls)))


def _time_to_success(failed: Iterable[GenerationCount]) -> TimeToSuccess:
    """Return quantiles that take dead jobs as never succeeding and pending ones as censored."""
    observations = [
        Observation(_observed_seconds(row), row.outcome == "succeeded", row.jobs) for row in failed
    ]
    rescued = [observation for observation in observations if observation.occurred]
    return TimeToSuccess(
        p50=event_time_quantile(0.5, observations),
        p95=event_time_quantile(0.95, observations),
        rescued_p50=event_time_quantile(0.5, rescued),
        rescued_p95=event_time_quantile(0.95, rescued),
        rescued_mean=_mean_time(rescued),
    )


def _observed_seconds(row: GenerationCount) -> float:
    if row.outcome == "dead":
        return math.inf
    return max(0, row.ms or 0) / 1000


def _mean_time(observations: Sequence[Observation]) -> float | None:
    jobs = sum(observation.jobs for observation in observations)
    return _ratio(sum(observation.at * observation.jobs for observation in observations), jobs)


def _group_by_day(jobs: Iterable[JobCount]) -> Iterator[Day]:
    by_day: defaultdict[int, list[JobCount]] = defaultdict(list)
    for row in jobs:
        by_day[row.day].append(row)
    for day, rows in sorted(by_day.items()):
        yield Day(
            day=to_datetime(day * 86_400 * SECOND),
            jobs=_sum_jobs(rows),
            pending=_sum_jobs(row for row in rows if row.state not in ENDED),
            succeeded=_sum_jobs(row for row in rows if row.state == "succeeded"),
            dead=_sum_jobs(row for row in rows if row.state == "dead"),
        )


# --- Success of attempts ---


def _build_cells(trials: Iterable[TrialCount]) -> Iterator[RetryCell]:
    """Yield one cell per failure, dependency and attempt.

    A job with several dependencies counts for each of them.
    """
    successes: defaultdict[tuple[str, str, str, int], int] = defaultdict(int)
    totals: defaultdict[tuple[str, str, str, int], int] = defaultdict(int)
    for row in trials:
        for dependency in row.uses.split(","):
            key = (row.cls, row.code, dependency, row.k)
            successes[key] += row.successes
            totals[key] += row.trials
    for key in sorted(totals):
        yield RetryCell(*key, estimate_share(successes[key], totals[key]))


def estimate_chances(trials: Sequence[TrialCount], age_step: int) -> Iterator[NextChance]:
    """Yield the chance of each class, from its prior, then of each of its codes, from the class."""
    for cls, attempt in sorted({(row.cls, row.k) for row in trials}):
        prior_mean, prior_weight = PRIORS.get(cls, PRIORS[Cls.UNKNOWN])
        rows = [row for row in trials if (row.cls, row.k) == (cls, attempt)]
        weighted = [_weigh(row, age_step) for row in rows]
        class_chance = estimate_chance(prior_mean, prior_weight, weighted)
        yield NextChance(cls, "", attempt, class_chance)
        for code in sorted({row.code for row in rows}):
            weighted = [_weigh(row, age_step) for row in rows if row.code == code]
            code_chance = estimate_chance(class_chance.mean, CODE_WEIGHT, weighted)
            yield NextChance(cls, code, attempt, code_chance)


def _weigh(row: TrialCount, age_step: int) -> tuple[float, int, int]:
    """Return (weight, trials, successes). The weight halves with each half-life."""
    age = (max(0, row.age) + 0.5) * age_step
    return 0.5 ** (age / HALF_LIFE), row.trials, row.successes


class AttemptCount(NamedTuple):
    """Attempts with one outcome."""

    outcome: str
    is_retry: bool
    attempts: int


def compute_recent_rates(minutes: int, counts: Iterable[AttemptCount]) -> RecentRates:
    """Compute the rates of the last minutes, of attempts that succeeded or failed."""
    total = 0
    failed = 0
    retries = 0
    for outcome, is_retry, attempts in counts:
        if outcome != "succeeded" and outcome not in FAILED_OUTCOMES:
            continue
        total += attempts
        if outcome in FAILED_OUTCOMES:
            failed += attempts
        if is_retry:
            retries += attempts
    return RecentRates(minutes, estimate_share(failed, total), estimate_share(retries, total))


# --- Advice ---

ENOUGH = 20  # trials that an advice needs at least
HOPELESS = 0.15  # attempts whose chance is below this, with 95 % confidence, are not worth making
HOPEFUL = 0.20  # attempts whose chance is above this, with 95 % confidence, are worth adding
MIN_SAVED = 0.05  # share of the retries of a code that a lower limit must save
MIN_UNKNOWN = 0.10  # share of failures without a rule from which on a rule is advised
SINGLE_INCIDENT_HOURS = 2  # failures within so few hours may be one incident


class Advice(NamedTuple):
    """A short text, and what following it would have saved in the period."""

    text: str
    code: str = ""
    attempts: int = 0
    seconds: float = 0.0
    cost: float = 0.0


def build_advice(counts: InsightCounts) -> tuple[Advice, ...]:
    """Return all advice that enough trials support, the largest saving first."""
    found = [
        *_advise_lower_limits(counts),
        *_advise_higher_limits(counts),
        *_advise_on_manual_retries(counts.manual_retries),
        *_advise_new_rule(counts.failures),
    ]
    return tuple(sorted(found, key=lambda one: (-one.cost, -one.seconds, -one.attempts)))


def format_percent(value: float | None) -> str:
    """Return `61 %`, `3 %`, `0.4 %`, `under 0.1 %`, or `–` for None."""
    if value is None:
        return "–"
    percent = value * 100
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if percent >= 10 or percent == round(percent):
        return f"{percent:.0f} %"
    return f"{percent:.1f} %"


def _group_by_code(trials: Sequence[TrialCount]) -> dict[tuple[str, str], list[TrialCount]]:
    found: defaultdict[tuple[str, str], list[TrialCount]] = defaultdict(list)
    for row in trials:
        found[row.cls, row.code].append(row)
    return dict(sorted(found.items()))


# --- Advice: lower the limit ---


def _advise_lower_limits(counts: InsightCounts) -> Iterator[Advice]:
    codes = {(count.cls, count.code): count for count in counts.codes}
    for key, rows in _group_by_code(counts.trials).items():
        attempt = _first_hopeless_attempt(rows)
        if attempt is not None and key in codes:
            yield _advise_lower_limit(rows, attempt, codes[key])


def _first_hopeless_attempt(rows: Sequence[TrialCount]) -> int | None:
    """Return the first attempt from which on retries hardly ever succeed."""
    last = max(row.k for row in rows)
    total = _success_from(rows, 2).whole
    for attempt in range(2, last + 1):
        late = _success_from(rows, attempt)
        is_certain = late.whole >= ENOUGH and late.high <= HOPELESS
        if is_certain and late.whole >= MIN_SAVED * total:
            return attempt
    return None


def _success_from(rows: Sequence[TrialCount], attempt: int) -> Share:
    """Return the success of this attempt and all later ones."""
    late = [row for row in rows if row.k >= attempt]
    return estimate_share(sum(row.successes for row in late), sum(row.trials for row in late))


def _advise_lower_limit(rows: Sequence[TrialCount], attempt: int, count: CodeCount) -> Advice:
    late = _success_from(rows, attempt)
    total = _success_from(rows, 2)
    dropped = [row for row in rows if row.k >= attempt]
    seconds = sum(row.busy for row in dropped) / SECOND
    lost = format_percent(late.part / count.jobs if count.jobs else 0)
    saved = format_percent(late.whole / total.whole)
    text = (
        f"{_name_attempts(rows, attempt, count.code)} succeed in {format_percent(late.value)} "
        f"of cases ({late.part:,} of {late.whole:,}; with 95 % confidence below "
        f"{format_percent(late.high)}). {_name_limit(attempt, count)} would lose {lost} of "
        f"{count.jobs:,} jobs and save {saved} of their retries, "
        f"{format_duration(round(seconds, 1))} of work.{_incident_caveat(count)}"
    )
    return Advice(text, count.code, late.whole, seconds, sum(row.cost for row in dropped))


def _name_attempts(rows: Sequence[TrialCount], attempt: int, code: str) -> str:
    if attempt == 2:
        return f"Retries after {code}"
    later = " and later" if any(row.k > attempt for row in rows) else ""
    return f"{format_ordinal(attempt)}{later} attempts after {code}"


def _name_limit(attempt: int, count: CodeCount) -> str:
    if attempt == 2:
        return "Not retrying it (a rule with a class that is not retried, or max_retries=0)"
    policy = f'Policy(classes={{"{count.cls}": Policy(max_retries={attempt - 2})}})'
    return f"A limit of {attempt - 1} attempts, {policy},"


def _incident_caveat(count: CodeCount) -> str:
    if count.hours > SINGLE_INCIDENT_HOURS:
        return ""
    hours = "one hour" if count.hours <= 1 else f"{count.hours} different hours"
    return f" All of these failures fell into {hours}, perhaps into one incident."


# --- Advice: raise the limit ---


def _advise_higher_limits(counts: InsightCounts) -> Iterator[Advice]:
    for (cls, code), rows in _group_by_code(counts.trials).items():
        if cls not in RETRYABLE:
            continue
        attempt = max(row.k for row in rows)
        success = _success_at(rows, attempt)
        died = sum(
            row.failures
            for row in counts.failures
            if (row.cls, row.code, row.verb) == (cls, code, "die") and row.k >= attempt
        )
        if died and success.whole >= ENOUGH and success.low >= HOPEFUL:
            yield Advice(_higher_limit_text(attempt, code, success, died), code)


def _success_at(rows: Sequence[TrialCount], attempt: int) -> Share:
    here = [row for row in rows if row.k == attempt]
    return estimate_share(sum(row.successes for row in here), sum(row.trials for row in here))


def _higher_limit_text(attempt: int, code: str, success: Share, died: int) -> str:
    low = round(success.low * died)
    high = round(success.high * died)
    return (
        f"{format_ordinal(attempt)} attempts after {code} still succeed in "
        f"{format_percent(success.value)} of cases ({success.part:,} of {success.whole:,}), and "
        f"{died:,} jobs died there. One more retry might have saved {low:,} to {high:,} of them. "
        "This is an estimate: no such retry was made."
    )


# --- Advice: check or add rules ---


def _advise_on_manual_retries(rows: Sequence[ManualRetryCount]) -> Iterator[Advice]:
    for row in rows:
        success = estimate_share(row.successes, row.tries)
        if row.cls in RETRYABLE or row.tries < ENOUGH or success.low < HOPEFUL:
            continue
        text = (
            f"{row.tries:,} jobs that were not retried because of {row.code} (rule {row.rule}) "
            f"were retried manually, and {format_percent(success.value)} of them succeeded within "
            "a day. People retry what they have fixed, so this proves nothing, but check the rule."
        )
        yield Advice(text, row.code)


def _advise_new_rule(failures: Sequence[FailureCount]) -> Iterator[Advice]:
    total = sum(row.failures for row in failures)
    by_code: defaultdict[str, int] = defaultdict(int)
    for row in failures:
        if row.cls == Cls.UNKNOWN:
            by_code[row.code] += row.failures
    unknown = sum(by_code.values())
    if total < ENOUGH or unknown < MIN_UNKNOWN * total:
        return
    code = max(by_code, key=lambda name: (by_code[name], name))
    text = (
        f"{format_percent(unknown / total)} of failures ({unknown:,} of {total:,}) match no rule. "
        f"Most of them are {code} ({by_code[code]:,}). Add a rule that says whether a retry helps."
    )
    yield Advice(text, code)
