"""Insight: statistics about many jobs, and advice derived from them. Pure.

docs/operate/insight.md defines each number. A number comes with its evidence; without any trial
there is no number.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
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
    jobs = _jobs_by_state(counts.jobs)
    started = _sum_jobs(counts.generations)
    retried_generations = [row for row in counts.generations if row.retried]
    failed_generations = [row for row in counts.generations if row.ms is not None]
    attempts = sum(row.attempts for row in counts.ended)
    retry_cost = sum(row.cost for row in counts.trials)
    return Numbers(
        since=to_datetime(counts.since),
        until=to_datetime(counts.now),
        jobs=jobs.total(),
        pending=_count_pending(jobs),
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
        retry_cost_per_job=_ratio(retry_cost, jobs.total()),
        retry_cost_per_retried=_ratio(retry_cost, _sum_jobs(retried_generations)),
        wasted=_waste_by_class(counts.failures),
        time_to_success=_time_to_success(failed_generations),
        cells=tuple(_build_cells(counts.trials)),
        chances=tuple(estimate_chances(counts.trials, counts.age_step)),
        days=tuple(_group_by_day(counts.jobs)),
    )


# --- Shares of jobs ---


def _sum_jobs(rows: Iterable[GenerationCount]) -> int:
    return sum(row.jobs for row in rows)


def _jobs_by_state(rows: Iterable[JobCount]) -> Counter[str]:
    jobs: Counter[str] = Counter()
    for row in rows:
        jobs[row.state] += row.jobs
    return jobs


def _count_pending(jobs: Counter[str]) -> int:
    return sum(count for state, count in jobs.items() if state not in ENDED)


def _ratio(value: float, divisor: int) -> float | None:
    return value / divisor if divisor else None


def _rescued_share(generations: Iterable[GenerationCount]) -> Share:
    """Return the share of jobs that failed first and then succeeded within a week, unaided."""
    rescued = 0
    ended = 0
    for row in generations:
        if row.ms is None or row.outcome not in SUCCEEDED_OR_DEAD:
            continue
        ended += row.jobs
        if row.outcome == "succeeded" and row.ms <= RESCUE_LIMIT_MS:
            rescued += row.jobs
    return estimate_share(rescued, ended)


def _dead_share(jobs: Iterable[JobCount], *, user_caused: bool) -> Share:
    """Return the share of dead jobs by cause. Held, parked and waiting jobs do not count."""
    dead = 0
    ended = 0
    for row in jobs:
        if row.state in SUCCEEDED_OR_DEAD:
            ended += row.jobs
        is_users_fault = row.cls in USER_CAUSED
        if row.state == "dead" and is_users_fault is user_caused:
            dead += row.jobs
    return estimate_share(dead, ended)


def bound_false_retriable(
    generations: Iterable[GenerationCount], cls: str | None = None
) -> ShareBounds:
    """Return bounds of the share of retries that had no chance.

    At least the jobs whose last failure was judged not retryable, at most all that died: it is
    unknown whether the others would ever have succeeded.
    """
    hopeless = 0
    dead = 0
    retried = 0
    for row in generations:
        is_counted = row.cls and cls in {None, row.cls}
        if not is_counted or row.outcome not in SUCCEEDED_OR_DEAD:
            continue
        retried += row.jobs
        if row.outcome == "dead":
            dead += row.jobs
        if row.outcome == "dead" and row.hopeless:
            hopeless += row.jobs
    return ShareBounds(estimate_share(hopeless, retried), estimate_share(dead, retried))


def _false_permanent_share(manual_retries: Iterable[ManualRetryCount]) -> Share:
    successes = 0
    tries = 0
    for row in manual_retries:
        if row.cls not in RETRYABLE:
            successes += row.successes
            tries += row.tries
    return estimate_share(successes, tries)


def _unknown_share(failures: Sequence[FailureCount]) -> Share:
    by_class: Counter[str] = Counter()
    for row in failures:
        by_class[row.cls] += row.failures
    return estimate_share(by_class[Cls.UNKNOWN], by_class.total())


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
    """Return quantiles of the time to success.

    Dead jobs never succeed. Of pending jobs it is known only that they have not succeeded so far.
    """
    observations = []
    for row in failed:
        has_succeeded = row.outcome == "succeeded"
        observations.append(Observation(_observed_seconds(row), has_succeeded, row.jobs))
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
    seconds = 0.0
    jobs = 0
    for observation in observations:
        seconds += observation.at * observation.jobs
        jobs += observation.jobs
    return _ratio(seconds, jobs)


def _group_by_day(jobs: Iterable[JobCount]) -> Iterator[Day]:
    by_day: defaultdict[int, list[JobCount]] = defaultdict(list)
    for row in jobs:
        by_day[row.day].append(row)
    for day, rows in sorted(by_day.items()):
        by_state = _jobs_by_state(rows)
        yield Day(
            day=to_datetime(day * 86_400 * SECOND),
            jobs=by_state.total(),
            pending=_count_pending(by_state),
            succeeded=by_state["succeeded"],
            dead=by_state["dead"],
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
    """Yield the chances of each class and attempt, then those of its codes.

    The chance of a class starts from its prior, that of a code from the chance of its class.
    """
    by_class: defaultdict[tuple[str, int], dict[str, list[WeightedTrials]]] = defaultdict(dict)
    for row in trials:
        by_code = by_class[row.cls, row.k]
        by_code.setdefault(row.code, []).append(_weigh(row, age_step))
    for (cls, attempt), by_code in sorted(by_class.items()):
        prior_mean, prior_weight = PRIORS.get(cls, PRIORS[Cls.UNKNOWN])
        of_class = list(chain.from_iterable(by_code.values()))
        class_chance = estimate_chance(prior_mean, prior_weight, of_class)
        yield NextChance(cls, "", attempt, class_chance)
        for code, of_code in sorted(by_code.items()):
            code_chance = estimate_chance(class_chance.mean, CODE_WEIGHT, of_code)
            yield NextChance(cls, code, attempt, code_chance)


WeightedTrials = tuple[float, int, int]  # weight, trials, successes


def _weigh(row: TrialCount, age_step: int) -> WeightedTrials:
    """Return trials with a weight that halves with each half-life."""
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
    return tuple(sorted(found, key=_saving, reverse=True))


def _saving(advice: Advice) -> tuple[float, float, int]:
    return advice.cost, advice.seconds, advice.attempts


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
    return _success_share([row for row in rows if row.k >= attempt])


def _success_share(rows: Sequence[TrialCount]) -> Share:
    successes = sum(row.successes for row in rows)
    trials = sum(row.trials for row in rows)
    return estimate_share(successes, trials)


def _advise_lower_limit(rows: Sequence[TrialCount], attempt: int, count: CodeCount) -> Advice:
    late = _success_from(rows, attempt)
    total = _success_from(rows, 2)
    dropped = [row for row in rows if row.k >= attempt]
    seconds = sum(row.busy for row in dropped) / SECOND
    lost_share = late.part / count.jobs if count.jobs else 0
    lost = format_percent(lost_share)
    saved = format_percent(late.whole / total.whole)
    text = (
        f"{_name_attempts(rows, attempt, count.code)} succeed in {format_percent(late.value)} "
        f"of cases ({late.part:,} of {late.whole:,}; with 95 % confidence below "
        f"{format_percent(late.high)}). {_name_limit(attempt, count)} would lose {lost} of "
        f"{count.jobs:,} jobs and save {saved} of their retries, "
        f"{format_duration(round(seconds, 1))} of work.{_incident_caveat(count)}"
    )
    cost = sum(row.cost for row in dropped)
    return Advice(text, count.code, late.whole, seconds, cost)


def _name_attempts(rows: Sequence[TrialCount], attempt: int, code: str) -> str:
    if attempt == 2:
        return f"Retries after {code}"
    last = max(row.k for row in rows)
    later = " and later" if last > attempt else ""
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
        died = _count_died(counts.failures, cls, code, attempt)
        if died and success.whole >= ENOUGH and success.low >= HOPEFUL:
            yield Advice(_higher_limit_text(attempt, code, success, died), code)


def _count_died(failures: Sequence[FailureCount], cls: str, code: str, attempt: int) -> int:
    """Count the failures with a code that ended a job with this attempt or a later one."""
    died = 0
    for row in failures:
        is_same = row.cls == cls and row.code == code
        if is_same and row.verb == "die" and row.k >= attempt:
            died += row.failures
    return died


def _success_at(rows: Sequence[TrialCount], attempt: int) -> Share:
    return _success_share([row for row in rows if row.k == attempt])


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
    by_code: Counter[str] = Counter()
    for row in failures:
        if row.cls == Cls.UNKNOWN:
            by_code[row.code] += row.failures
    unknown = by_code.total()
    if total < ENOUGH or unknown < MIN_UNKNOWN * total:
        return
    code = max(by_code, key=lambda name: (by_code[name], name))
    text = (
        f"{format_percent(unknown / total)} of failures ({unknown:,} of {total:,}) have class"
        f" unknown. Most of them are {code} ({by_code[code]:,})."
        " Add a rule that says whether a retry helps."
    )
    yield Advice(text, code)
