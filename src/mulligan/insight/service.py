"""`app.insight`: what the jobs of the last days came to, from counts the store makes over a bounded range of ids."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from mulligan.config import Settings
from mulligan.core.durations import span_of
from mulligan.core.errors import Moment
from mulligan.core.format import duration, moment
from mulligan.core.ids import SKEW, first_id
from mulligan.core.job import SECOND, Micros
from mulligan.core.statistics import InsightCounts
from mulligan.insight.rules import Advice, Lately, Numbers, advice, lately, numbers
from mulligan.manifest.declared import stored_kinds
from mulligan.manifest.specs import KindSpec
from mulligan.storage.base import Store, Transaction
from mulligan.storage.history_queries import InsightScope
from mulligan.storage.stat_queries import MINUTE

SINCE = timedelta(days=7)
JOBS = 100_000  # at most so many are looked at, the newest
ATTEMPTS = 100_000
ROWS = 20_000  # of one answer
STEPS = 32  # into which the time is divided, to let what is old count less
DAY = 86_400 * SECOND
LATELY = (5, 60)  # minutes


@dataclass(frozen=True, slots=True)
class Insight:
    """The numbers, what they advise, and what to keep in mind when reading them."""

    kind: str | None
    queue: str | None
    partial: bool  # only the newest jobs were looked at
    notes: tuple[str, ...]
    numbers: Numbers
    advice: tuple[Advice, ...]
    lately: tuple[Lately, ...]  # the last 5 minutes, the last hour


def insight(
    store: Store, settings: Settings, since: Moment, kind: str | None, queue: str | None
) -> Insight:
    with store.read() as unit:
        now, kinds = unit.now(), stored_kinds(unit)
        span = span_of(since, now)
        kept = _kept(settings, kinds.get(kind or ""))
        tally = _counted(unit, now, min(span, kept), kind, queue)
        recent = tuple(_lately(unit, now, kind, queue))
    notes = tuple(_notes(tally, span, kept, () if kind else tuple(_short(kinds, min(span, kept)))))
    return Insight(kind, queue, tally.cut, notes, numbers(tally), advice(tally), recent)


def _lately(
    unit: Transaction, now: Micros, kind: str | None, queue: str | None
) -> Iterator[Lately]:
    """From what is counted minute by minute; without a worker nobody counts."""
    asked = {"kind": kind, "queue": queue}
    wanted = {name: value for name, value in asked.items() if value is not None}.items()
    said = [
        (row, json.loads(row.labels)) for row in unit.stats(["tries"], now - max(LATELY) * MINUTE)
    ]
    mine = [(row, labels) for row, labels in said if wanted <= labels.items()]
    for minutes in LATELY:
        ends = [(labels, row.n) for row, labels in mine if row.minute > now // MINUTE - minutes]
        yield lately(minutes, [(labels["outcome"], labels["try"] != "1", n) for labels, n in ends])


def _kept(settings: Settings, spec: KindSpec | None) -> Micros:
    """For how long succeeded jobs stay. Of what is older only failures are left, and every rate would be wrong."""
    if spec is not None and spec.retention is not None:
        return spec.retention
    return round(settings.retention.succeeded * SECOND)


def _counted(
    unit: Transaction, now: Micros, span: Micros, kind: str | None, queue: str | None
) -> InsightCounts:
    low = first_id((time.time_ns() // 1000 - span - SKEW) // 1000)
    width = max(DAY, span // STEPS)
    return unit.tally(InsightScope(low, now - span, width, kind, queue, JOBS, ATTEMPTS, ROWS))


def _short(kinds: Mapping[str, KindSpec], span: Micros) -> Iterator[str]:
    return (
        name
        for name, spec in sorted(kinds.items())
        if spec.retention is not None and spec.retention < span
    )


def _notes(
    tally: InsightCounts, span: Micros, kept: Micros, short: tuple[str, ...]
) -> Iterator[str]:
    if span > kept:
        yield (
            f"Succeeded jobs are kept for {duration(kept / SECOND)} (retention), so nothing older is counted: "
            "of older jobs only failures are left."
        )
    if short:
        yield f"Jobs of kind {', '.join(short)} are kept for less time; their failures look commoner than they are."
    if tally.cut:
        yield (
            f"More was there than is looked at: only the newest jobs are counted, up to {JOBS:,} jobs and {ATTEMPTS:,} "
            f"attempts. The oldest of them was enqueued on {moment(_oldest(tally))[:10]}."
        )
    pending = sum(row.jobs for row in tally.jobs if row.state in {"queued", "running", "parked"})
    if pending:
        yield f"{pending} jobs have not ended yet; they are in no rate, and may change it."


def _oldest(tally: InsightCounts) -> Micros:
    return min((row.day * DAY for row in tally.jobs), default=tally.since)
