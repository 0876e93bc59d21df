"""Metrics of the service: failures by type, failure rate, dead letters, and goals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from mulligan import Mulligan
from mulligan.apps.clipscribe import records

KIND = "process_job"
Test = Callable[[float], bool]


def render_metrics(app: Mulligan) -> str:
    """Return the metrics in the Prometheus format. All numbers come from the database."""
    registry = CollectorRegistry()
    labels = ["error_type", "is_permanent", "duration_bucket"]
    failures = Counter("clipscribe_worker_failures", "failed attempts", labels, registry=registry)
    for error_type, is_permanent, bucket, count in records.count_failures(app):
        failures.labels(error_type, str(bool(is_permanent)), bucket).inc(count)
    name = "clipscribe_worker_failure_rate"
    rate = Gauge(name, "share of the attempts that failed", ["window"], registry=registry)
    share = _recent_failure_share(app)
    rate.labels("5m").set(float("nan") if share is None else share)
    dead_letters = app.jobs.count(f"kind:{KIND} state:dead")
    Gauge("clipscribe_dlq_size", "dead letters", registry=registry).set(dead_letters)
    return generate_latest(registry).decode() + app.metrics()


def _recent_failure_share(app: Mulligan) -> float | None:
    """Return the share of the attempts of the last five minutes that failed."""
    for rates in app.insight(timedelta(days=1), kind=KIND).recent:
        if rates.minutes == 5:
            return rates.failed.value
    return None


# --- Goals ---------------------------------------------------------------------------------------
def measure_goals(app: Mulligan) -> list[dict[str, Any]]:
    """Return the goals with their measured values; None if there is no data yet."""
    numbers = app.insight(timedelta(days=1), kind=KIND).numbers
    wrong, verdicts = records.count_wrong_verdicts(app)
    wrong_share = wrong / verdicts if verdicts else None
    wrong_name = "False Positive Rate (permanent failures that an unchanged retry disproved)"
    cost_name = "Cost Efficiency (dollars for retries, by job)"
    cost, jobs = numbers.retry_cost_per_job, f"{numbers.jobs} jobs"
    dead = numbers.permanent_failure
    return [
        _share("Retry Success Rate", numbers.retry_success, "> 60 %", lambda v: v > 0.6),
        _goal(wrong_name, wrong_share, f"{wrong} of {verdicts}", "< 5 %", lambda v: v < 0.05),
        _share("User Experience (permanent failures)", dead, "< 2 %", lambda v: v < 0.02),
        _goal(cost_name, cost, jobs, "< 0.10", lambda v: v < 0.1),
        _share("Videos that cannot be processed", numbers.user_failure),
        _share("Errors no rule knows", numbers.unknown),
    ]


def _share(name: str, share: Any, goal: str = "", is_met: Test | None = None) -> dict[str, Any]:
    return _goal(name, share.value, f"{share.part} of {share.whole}", goal, is_met)


def _goal(
    name: str, value: float | None, cohort: str, goal: str, is_met: Test | None
) -> dict[str, Any]:
    met = is_met(value) if is_met and value is not None else None
    return {"name": name, "value": value, "cohort": cohort, "goal": goal, "met": met}
