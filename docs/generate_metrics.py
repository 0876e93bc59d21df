"""Generate docs/reference/metrics.md. Used by `generate.py`."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.observability.event_counts import (
    ATTEMPT_BUCKETS,
    DELAY_SECONDS,
    MAX_EVENTS,
    MAX_LABEL_LENGTH,
    RUN_SECONDS,
    WAIT_SECONDS,
)
from mulligan.observability.event_counts import MAX_LABELS as NAMES
from mulligan.observability.exporter import GAUGES
from mulligan.observability.metrics import COUNTERS, HISTOGRAMS

Table = Callable[..., str]

PAGE = """\
{notice}

# Metrics

`mulligan metrics` prints them, `GET /metrics` serves them. All values come from the database, so scrape any one
process. [Monitoring](../operate/monitoring.md) says how to use them. The setting `metrics_prefix` replaces `mulligan_`,
also in `mulligan metrics rules` and `mulligan metrics dashboard`.

## Counters

They only grow, also across restarts and retention. An event is counted about a second after it happened.

{counters}

## Histograms

{histograms}

| histogram | upper bounds |
|---|---|
| run time | {run} s |
| wait | {wait} s |
| retry delay | {delay} s |
| attempts to success | {tries} |

## Gauges

Read on demand, at most every five seconds, without locks. Counts stop at 10,000. Every queue that an app declares,
or that one of its kinds uses, has series while it is empty.

{gauges}

## What do labels contain?

No label names a job, a batch, a failure group or an owner. The first {kinds} kinds, {queues} queues,
{codes} codes and {dependencies} dependencies keep their names; later ones are counted as `other`. A name has
at most {longest} characters; unprintable ones become `?`. Kinds `mulligan.*` are counted only in `mulligan_notifications_total`.

| label | values |
|---|---|
| `outcome` | `succeeded`, `retry`, `dead`, `cancelled`, `parked`, `released` (returned uncharged), `lost` (its process or worker died), `snoozed` (snoozed, held, or failed without being charged) |
| `error_code`, `error_type` | a code of the [registry](codes.md) or of your rules |
| `error_class`, `reason` | a class: `transient`, `timeout`, …; empty: no failure |
| `try` | 1 + counted failures before; `8` means 8 or more |
| `nth` | `first` or `retry` |
| `state` of a breaker | `closed`, `open`, `probing`, `ramping`: one of them is 1 |

## Aliases

| name | is |
|---|---|
| `mulligan_jobs_failed_total` | dead jobs by code: `mulligan_jobs_ended_total{{state="dead"}}` |
| `mulligan_job_processing_duration_seconds` | `mulligan_attempt_duration_seconds` of all queues |
| `mulligan_queue_depth` | `mulligan_queue_jobs`, ready and held |
| `mulligan_jobs_active` | `mulligan_queue_jobs{{phase="running"}}` |
| `mulligan_manual_retry_total` | `mulligan_manual_retries_total` without labels |
| `mulligan_worker_failures_total` | failed attempts with `error_type`, `is_permanent`, `duration_bucket` |
| `mulligan_dlq_size` | `mulligan_dead_letters` |

## What is stored?

Table `stat`: counts per minute, name and labels, at most {most:,} events per step. After a day minutes are merged into hours; after 30 days
only the total is left (minute 0), which all counters use.
"""


def page(notice: str, table: Table) -> str:
    return PAGE.format(
        notice=notice,
        counters=table(("name", "labels", "what it is"), [_row(one) for one in COUNTERS]),
        histograms=table(("name", "labels", "what it is"), [_row(one) for one in HISTOGRAMS]),
        gauges=table(("name", "labels", "what it is"), [_row(one) for one in GAUGES]),
        run=_bounds(RUN_SECONDS),
        wait=_bounds(WAIT_SECONDS),
        delay=_bounds(DELAY_SECONDS),
        tries=_bounds(ATTEMPT_BUCKETS),
        kinds=NAMES["kind"],
        queues=NAMES["queue"],
        codes=NAMES["code"],
        dependencies=NAMES["dependency"],
        longest=MAX_LABEL_LENGTH,
        most=MAX_EVENTS,
    )


def _row(metric: object) -> list[str]:
    name, labels, meaning = (getattr(metric, field) for field in ("name", "labels", "help"))
    return [f"`{name}`", ", ".join(f"`{label}`" for label in labels), meaning]


def _bounds(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)
