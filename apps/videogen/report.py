"""Report on the usefulness of retries by provider, from Mulligan's numbers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from mulligan import Job
from mulligan.apps.videogen.jobs import app
from mulligan.apps.videogen.providers import BY_KIND, PROVIDERS, Provider

SINCE = timedelta(days=7)
CHANCES_TTL = 60  # seconds
ENOUGH = 10  # tasks below which a share says too little
REPORT_TTL = 5  # seconds; open pages request the report all the time
MAX_TASKS = 1000  # tasks counted by the number of attempts they needed
_cache: dict[str, tuple[float, Any]] = {}


def report() -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", cached("report", REPORT_TTL, rank_providers))


def cached(name: str, seconds: float, compute: Callable[[], Any]) -> Any:
    """Return a cached value, computed again if it is older than `seconds`."""
    at, found = _cache.get(name, (float("-inf"), None))
    if time.monotonic() - at > seconds:
        found = compute()
        _cache[name] = (time.monotonic(), found)
    return found


def rank_providers() -> list[dict[str, Any]]:
    """Report on all providers, the highest failure rate first."""
    # Only providers that a worker has registered; the others count as closed.
    states = {dependency.key: dependency.state for dependency in app.dependencies.list()}
    rows = [
        {"state": states.get(provider.name, "closed"), **provider_report(provider)}
        for provider in PROVIDERS
    ]
    return sorted(rows, key=lambda row: -(row["failureRate"] or 0))


def provider_report(provider: Provider) -> dict[str, Any]:
    numbers = app.insight(SINCE, kind=provider.kind).numbers
    by_attempt: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for cell in numbers.cells:
        by_attempt[cell.attempt][0] += cell.success.part
        by_attempt[cell.attempt][1] += cell.success.whole
    return {
        "provider": provider.name,
        "tasks": numbers.jobs,
        "failureRate": numbers.permanent_failure.value,
        "attemptsPerTask": numbers.amplification,
        "retrySuccessRate": numbers.retry_success.value,
        "retrySuccess": share_view(numbers.retry_success),
        "retrySuccessByAttempt": {
            attempt: {"succeeded": succeeded, "of": total}
            for attempt, (succeeded, total) in sorted(by_attempt.items())
        },
        "failuresByType": count_failures(provider),
        "meanSecondsToSuccess": numbers.time_to_success.rescued_mean,
        "attemptsNeeded": count_attempts_needed(provider),
        "retryCost": numbers.retry_cost,
    }


def count_failures(provider: Provider) -> dict[str, int]:
    """Count permanently failed tasks by their code."""
    found: Counter[str] = Counter()
    for group in app.failures.groups(f"kind:{provider.kind}"):
        found.update(group.codes)
    return dict(found.most_common())


def count_attempts_needed(provider: Provider) -> dict[int, int]:
    done = app.jobs.list(f"kind:{provider.kind} state:succeeded", limit=MAX_TASKS)
    return dict(sorted(Counter(job.failures + 1 for job in done).items()))


def estimate_chance(job: Job) -> dict[str, Any] | None:
    """Return how many tasks with the same failure succeeded at the next attempt.

    The interval (95 %) tells how much that says about this task.
    """
    if job.error is None:
        return None
    matching = [
        cell
        for cell in load_cells(BY_KIND[job.kind])
        if (cell.code, cell.cls) == (job.error["code"], job.error["class"])
        and cell.attempt <= job.failures + 1
    ]
    last = max(matching, key=lambda cell: cell.attempt, default=None)
    return None if last is None else share_view(last.success)


def load_cells(provider: Provider) -> Any:
    return cached(
        provider.kind, CHANCES_TTL, lambda: app.insight(SINCE, kind=provider.kind).numbers.cells
    )


def share_view(share: Any) -> dict[str, Any]:
    """Return a share with its interval and the numbers it was computed from."""
    return {
        "share": None if share.value is None else round(share.value, 3),
        "low": round(share.low, 3),
        "high": round(share.high, 3),
        "succeeded": share.part,
        "of": share.whole,
        "enough": share.whole >= ENOUGH,
    }
