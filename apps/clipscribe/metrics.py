"""Metrics of the service: failures by type, failure rate, dead letters, and goals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from mulligan import Mulligan

KIND = "process_job"
FAILURES = ("job.retry_scheduled", "job.died")
MAX_REMEMBERED = 10_000  # message ids; a repeated delivery is not counted again

registry = CollectorRegistry()
failures = Counter(
    "clipscribe_worker_failures",
    "failed attempts",
    ["error_type", "is_permanent", "duration_bucket"],
    registry=registry,
)
rate = Gauge(
    "clipscribe_worker_failure_rate",
    "share of the attempts that failed",
    ["window"],
    registry=registry,
)
dead_letter_count = Gauge("clipscribe_dlq_size", "dead letters", registry=registry)
_counted: dict[str, None] = {}


def duration_bucket(duration: float | None) -> str:
    if duration is None:
        return "unknown"
    limits = {300: "0-5min", 900: "5-15min", 2700: "15-45min"}
    return next((name for limit, name in limits.items() if duration < limit), "45min+")


def count_failure(
    message: str, event: str, details: dict[str, Any], duration: float | None
) -> None:
    if event not in FAILURES or message in _counted:
        return
    _counted[message] = None
    if len(_counted) > MAX_REMEMBERED:
        del _counted[next(iter(_counted))]
    failures.labels(
        str(details.get("code")), str(event == "job.died"), duration_bucket(duration)
    ).inc()


def render_metrics(app: Mulligan) -> str:
    found = app.insight(timedelta(days=1), kind=KIND)
    failure_share = next(
        (window.failed.value for window in found.lately if window.minutes == 5), None
    )
    rate.labels("5m").set(float("nan") if failure_share is None else failure_share)
    dead_letter_count.set(app.jobs.count(f"kind:{KIND} state:dead"))
    return generate_latest(registry).decode() + app.metrics()


def measure_goals(app: Mulligan) -> list[dict[str, Any]]:
    """Return the goals with their measured values; None if there is no data yet."""
    numbers = app.insight(timedelta(days=1), kind=KIND).numbers
    shares = [
        ("Retry Success Rate", numbers.retry_success, "> 60 %", lambda value: value > 0.6),
        (
            "User Experience (permanent failures)",
            numbers.permanent_failure,
            "< 2 %",
            lambda value: value < 0.02,
        ),
        ("Videos that cannot be processed", numbers.user_failure, "", None),
        ("Errors no rule knows", numbers.unknown, "", None),
    ]
    found = [
        _goal(name, ratio.value, f"{ratio.part} of {ratio.whole}", goal, met)
        for name, ratio, goal, met in shares
    ]
    cost = numbers.retry_cost_per_job
    return [
        *found,
        _goal(
            "Cost Efficiency (dollars for retries, by job)",
            cost,
            f"{numbers.jobs} jobs",
            "< 0.10",
            lambda value: value < 0.1,
        ),
    ]


def _goal(name: str, value: float | None, cohort: str, goal: str, met: Any) -> dict[str, Any]:
    met_now = None if value is None or met is None else met(value)
    return {"name": name, "value": value, "cohort": cohort, "goal": goal, "met": met_now}


def datetime_from_micros(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)
