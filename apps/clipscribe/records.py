"""Durable records of what happened: manifests in object storage, failures in a table.

The table is in Mulligan's database, so that all web processes report the same numbers.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mulligan import Event, Job, Mulligan, redact
from mulligan.apps.clipscribe import storage
from mulligan.apps.clipscribe.config import CONFIG, KIND_FILTER
from mulligan.apps.clipscribe.views import job_view
from mulligan.core.errors import NotFound

CHANGES = "job.retry_scheduled, job.died, job.succeeded, job.parked, job.retried, job.cancelled"
FAILURES = ("job.retry_scheduled", "job.died")
NOT_RETRIABLE = ("invalid_input", "auth", "quota", "permanent")
OUTAGES = "TemporaryServiceError,NetworkTimeout"
TABLE = (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")
INSERT = "INSERT INTO clipscribe_failures VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING"
MARK_WRONG = """
UPDATE clipscribe_failures SET is_wrong = 1
WHERE job_id = ? AND is_permanent = 1 AND is_retriable = 0"""
COUNT_WRONG = """
SELECT coalesce(sum(is_wrong), 0), count(*) FROM clipscribe_failures
WHERE is_permanent = 1 AND is_retriable = 0"""
COUNT_FAILURES = """
SELECT error_type, is_permanent, duration_bucket, count(*) FROM clipscribe_failures
GROUP BY error_type, is_permanent, duration_bucket"""


def subscribe(app: Mulligan) -> None:
    """Record every change of a job, and recover from outages if the phase has it."""

    @app.on(CHANGES, filter=KIND_FILTER, name="record_change")
    def record_change(event: Event) -> None:
        try:
            job = app.jobs.get(str(event.job_id))
        except NotFound:
            return
        if event.type in FAILURES:
            record_failure(app, event, job)
        if event.type == "job.succeeded" and job.generation > 1:
            record_wrong_verdict(app, job)
        manifest = job_view(app, job) | {"url": redact(job.payload["url"])}
        storage.write(f"jobs/{job.id}/manifest.json", manifest)

    if CONFIG.features.recovery:

        @app.on("dependency.closed", name="recover")
        def recover(_: Event) -> None:
            """Retry what died of an outage, once: the dependency works again."""
            for job in app.jobs.list(f"{KIND_FILTER} state:dead code:{OUTAGES}", limit=1000):
                if job.generation == 1:
                    app.jobs.retry(job.id, reason="automatic recovery: the model is back")


# --- Failures ------------------------------------------------------------------------------------
def duration_bucket(duration: float | None) -> str:
    if duration is None:
        return "unknown"
    limits = {300: "0-5min", 900: "5-15min", 2700: "15-45min"}
    return next((name for limit, name in limits.items() if duration < limit), "45min+")


def record_failure(app: Mulligan, event: Event, job: Job) -> None:
    """Add a row, unless the event is repeated."""
    found = storage.read(f"jobs/{job.id}/video.json")
    bucket = duration_bucket(found["duration"] if found else job.payload.get("duration"))
    is_permanent = int(event.type == "job.died")
    is_retriable = int(event.data.get("class") not in NOT_RETRIABLE)
    error_type = str(event.data.get("code"))
    _execute(app, INSERT, job.id, event.token or 0, error_type, bucket, is_permanent, is_retriable)


def record_wrong_verdict(app: Mulligan, job: Job) -> None:
    """Mark a permanent failure as wrong: the job succeeded without a change of its payload."""
    retried = [item for item in app.jobs.history(job.id) if item.type == "job.retried"]
    if retried and not retried[-1].data.get("changes"):
        _execute(app, MARK_WRONG, job.id)


def count_failures(app: Mulligan) -> list[tuple[Any, ...]]:
    """Return rows of error type, is permanent, duration bucket and count."""
    return _query(app, COUNT_FAILURES)


def count_wrong_verdicts(app: Mulligan) -> tuple[int, int]:
    """Return how many verdicts "not retriable" were wrong, and how many there are."""
    [(wrong, verdicts)] = _query(app, COUNT_WRONG)
    return int(wrong), int(verdicts)


def _query(app: Mulligan, sql: str) -> list[tuple[Any, ...]]:
    _create_table(app)
    with app.transaction() as tx:
        return list(tx.execute(sql))


def _execute(app: Mulligan, sql: str, *values: object) -> None:
    _create_table(app)
    if not app.settings.database_url.startswith("sqlite"):
        sql = sql.replace("?", "%s")
    with app.transaction() as tx:
        tx.execute(sql, values)


@cache
def _create_table(app: Mulligan) -> None:
    with suppress(Exception), app.transaction() as tx:
        tx.execute(TABLE)  # refused if another process creates it at the same time
    with app.transaction() as tx:
        tx.execute("SELECT 1 FROM clipscribe_failures LIMIT 1")
