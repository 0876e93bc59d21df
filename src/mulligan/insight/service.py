"""`app.insight`: statistics and advice about the jobs of the last days.

The database counts over a bounded range of job ids, so that a large history costs no more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from mulligan.config import Settings
from mulligan.core.durations import SECOND, Micros, resolve_lookback
from mulligan.core.errors import DurationOrTime
from mulligan.core.format import format_duration, format_time
from mulligan.core.ids import MAX_CLOCK_SKEW, first_id
from mulligan.core.statistics import InsightCounts
from mulligan.events.queries import MINUTE, StatQueries
from mulligan.insight.queries import InsightQueries, InsightScope
from mulligan.insight.rules import (
    Advice,
    AttemptCount,
    Numbers,
    RecentRates,
    build_advice,
    compute_numbers,
    compute_recent_rates,
)
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import KindSpec
from mulligan.storage.base import Store, Transaction

DEFAULT_PERIOD = timedelta(days=7)
MAX_JOBS = 100_000  # the newest
MAX_ATTEMPTS = 100_000
MAX_ROWS = 20_000  # of one query
AGE_STEPS = 32  # into which the period is divided, so that older trials weigh less
DAY = 86_400 * SECOND
RECENT_MINUTES = (5, 60)
PENDING_STATES = frozenset({"queued", "running", "parked"})


@dataclass(frozen=True, slots=True)
class Insight:
    """Statistics, advice, and notes about their limits."""

    kind: str | None
    queue: str | None
    partial: bool  # only the newest jobs were counted
    notes: tuple[str, ...]
    numbers: Numbers
    advice: tuple[Advice, ...]
    recent: tuple[RecentRates, ...]  # the last 5 minutes, the last hour


def load_insight(
    store: Store, settings: Settings, since: DurationOrTime, kind: str | None, queue: str | None
) -> Insight:
    """Load the statistics of a period, of all jobs or of one kind or queue."""
    with store.read() as tx:
        now = tx.now()
        kinds = load_kinds(tx)
        requested = resolve_lookback(since, now)
        retention = _retention(settings, kinds.get(kind or ""))
        period = min(requested, retention)
        counts = _load_counts(tx, now, period, kind, queue)
        recent = tuple(_load_recent_rates(tx, now, kind, queue))
    notes = []
    if requested > retention:
        notes.append(_retention_note(retention))
    if kind is None:
        notes.extend(_short_retention_notes(kinds, period))
    notes.extend(_count_notes(counts))
    return Insight(
        kind=kind,
        queue=queue,
        partial=counts.truncated,
        notes=tuple(notes),
        numbers=compute_numbers(counts),
        advice=build_advice(counts),
        recent=recent,
    )


def _load_recent_rates(
    tx: Transaction, now: Micros, kind: str | None, queue: str | None
) -> Iterator[RecentRates]:
    """Yield the rates of recent minutes, from the counters of workers."""
    filters = {"kind": kind, "queue": queue}
    wanted = {name: value for name, value in filters.items() if value is not None}
    found: list[tuple[int, AttemptCount]] = []
    for row in StatQueries(tx).list_stats(["tries"], now - max(RECENT_MINUTES) * MINUTE):
        labels = json.loads(row.labels)
        if wanted.items() <= labels.items():
            count = AttemptCount(labels["outcome"], labels["try"] != "1", row.n)
            found.append((row.minute, count))
    for minutes in RECENT_MINUTES:
        first_minute = now // MINUTE - minutes
        recent = [count for minute, count in found if minute > first_minute]
        yield compute_recent_rates(minutes, recent)


def _retention(settings: Settings, spec: KindSpec | None) -> Micros:
    """Return how long succeeded jobs are stored.

    Of older jobs only failures are left, and every rate would be wrong.
    """
    if spec is not None and spec.retention is not None:
        return spec.retention
    return round(settings.retention.succeeded * SECOND)


def _load_counts(
    tx: Transaction, now: Micros, period: Micros, kind: str | None, queue: str | None
) -> InsightCounts:
    oldest_id = first_id((time.time_ns() // 1000 - period - MAX_CLOCK_SKEW) // 1000)
    age_step = max(DAY, period // AGE_STEPS)
    scope = InsightScope(
        oldest_id, now - period, age_step, kind, queue, MAX_JOBS, MAX_ATTEMPTS, MAX_ROWS
    )
    return InsightQueries(tx).count_insight(scope)


# --- Notes ---


def _retention_note(retention: Micros) -> str:
    stored_for = format_duration(retention / SECOND)
    return (
        f"Succeeded jobs are stored for {stored_for} (retention), so older jobs are not counted: "
        "only their failures are left."
    )


def _short_retention_notes(kinds: Mapping[str, KindSpec], period: Micros) -> Iterator[str]:
    names = [
        name
        for name, spec in sorted(kinds.items())
        if spec.retention is not None and spec.retention < period
    ]
    if names:
        yield (
            f"Jobs of kind {', '.join(names)} are stored for a shorter time, "
            "so their failures look more common than they are."
        )


def _count_notes(counts: InsightCounts) -> Iterator[str]:
    if counts.truncated:
        oldest = min((row.day * DAY for row in counts.jobs), default=counts.since)
        yield (
            f"Only the newest jobs are counted: up to {MAX_JOBS:,} jobs and {MAX_ATTEMPTS:,} "
            f"attempts. The oldest of them was enqueued on {format_time(oldest)[:10]}."
        )
    pending = sum(row.jobs for row in counts.jobs if row.state in PENDING_STATES)
    if pending:
        jobs = "1 job has" if pending == 1 else f"{pending:,} jobs have"
        yield f"{jobs} not ended yet. The rates do not include pending jobs and may change."
