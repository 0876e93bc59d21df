"""Are retries worth it, by provider: from Mulligan's own numbers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from mulligan import Job
from videogen.jobs import app
from videogen.providers import BY_KIND, PROVIDERS, Provider

SINCE = timedelta(days=7)
KEPT = 60  # seconds that a chance may be old
SHOWN = 5  # seconds that a report may be old: pages ask for it all the time
MOST = 1000  # tasks of which it is told how many attempts they needed
_known: dict[str, tuple[float, Any]] = {}


def report() -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", kept("report", SHOWN, ranked))


def kept(name: str, seconds: float, count: Callable[[], Any]) -> Any:
    """To count all tasks for each who looks would be much."""
    at, found = _known.get(name, (float("-inf"), None))
    if time.monotonic() - at > seconds:
        found = count()
        _known[name] = (time.monotonic(), found)
    return found


def ranked() -> list[dict[str, Any]]:
    """Those that fail most come first."""
    states = {
        found.key: found.state for found in app.dependencies.list()
    }  # of those that a worker has named
    rows = [
        {"state": states.get(provider.name, "closed"), **about(provider)} for provider in PROVIDERS
    ]
    return sorted(rows, key=lambda row: -(row["failureRate"] or 0))


def about(provider: Provider) -> dict[str, Any]:
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
        "retrySuccessByAttempt": {
            n: {"succeeded": s, "of": of} for n, (s, of) in sorted(by_attempt.items())
        },
        "failuresByType": failures(provider),
        "meanSecondsToSuccess": numbers.time_to_success.rescued_mean,
        "attemptsNeeded": attempts_needed(provider),
        "retryCost": numbers.retry_cost,
    }


def failures(provider: Provider) -> dict[str, int]:
    """Tasks that failed for good, by their code."""
    found: Counter[str] = Counter()
    for group in app.failures.groups(f"kind:{provider.kind}"):
        found.update(group.codes)
    return dict(found.most_common())


def attempts_needed(provider: Provider) -> dict[int, int]:
    done = app.jobs.list(f"kind:{provider.kind} state:succeeded", limit=MOST)
    return dict(sorted(Counter(job.failures + 1 for job in done).items()))


def chance_of(job: Job) -> dict[str, Any] | None:
    """How often tasks that failed like this one succeeded at the next attempt, and how many there were."""
    if job.error is None:
        return None
    fitting = [
        one
        for one in chances(BY_KIND[job.kind])
        if (one.code, one.cls) == (job.error["code"], job.error["class"])
        and one.attempt <= job.failures + 1
    ]
    last = max(fitting, key=lambda one: one.attempt, default=None)
    return {"share": round(last.chance.mean, 2), "of": last.chance.trials} if last else None


def chances(provider: Provider) -> Any:
    return kept(provider.kind, KEPT, lambda: app.insight(SINCE, kind=provider.kind).numbers.chances)
