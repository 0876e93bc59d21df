"""One job in full: facts, why, attempts newest first, events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from mulligan.cli.database import Desk
from mulligan.cli.output import as_json, attempt_record, cell, event_record, job_record, lines
from mulligan.event import Event
from mulligan.job import SECOND, AttemptRow, Job
from mulligan.policy import stored
from mulligan.policy.phrase import duration, moment

FACTS = (
    "id", "kind", "queue", "owner", "state", "phase", "priority", "attempt", "generation", "failures", "losses",
    "max_retries", "uses", "unique_key", "batch_id", "created_at", "run_at", "started_at", "finished_at", "deadline_at",
    "progress", "cost", "payload", "result",
)  # fmt: skip


def show_story(at: Desk, job_id: str, output: str | None) -> None:
    job, events = at.jobs.get(job_id), at.jobs.history(job_id)
    with at.store.read() as unit:
        attempts = unit.attempts(job_id)[::-1]
        batch = unit.batch(job.batch_id) if job.batch_id is not None else None
    if output in {"json", "jsonl"}:
        told = job_record(job) | {
            "attempts_made": [attempt_record(attempt) for attempt in attempts],
            "events": [event_record(event) for event in events],
            "batch": None if batch is None else {"name": batch.name, "outcome": batch.outcome},
        }
        click.echo(as_json(told, 2 if output == "json" else None))
        return
    for line in (*_facts(job, "" if batch is None else batch.name), *_attempts(attempts), *_events(events)):
        click.echo(line)


def _facts(job: Job, batch: str) -> Iterable[str]:
    record = job_record(job)
    for name in FACTS:
        if record[name] not in (None, "", (), 0, 0.0) or name == "payload":
            yield f"{name + ':':<14}{cell(record[name])}"
    if batch:
        yield f"{'batch:':<14}{cell(batch)}"
    yield f"{'why:':<14}{cell(job.why)}"
    if job.error is not None:
        yield f"{'error:':<14}{job.error.get('code')} ({job.error.get('class')}): {cell(job.error.get('message'))}"


def _attempts(attempts: list[AttemptRow]) -> Iterable[str]:
    yield from ("", f"ATTEMPTS ({len(attempts)})")
    if not attempts:
        yield "  none has ended yet"
    for row in attempts:
        ran = duration((row.ended_at - row.started_at) / SECOND)
        yield f"  #{row.attempt}  {moment(row.started_at)}  ran {ran}  {row.ended}  {row.code or ''}".rstrip()
        yield f"      {cell(row.reason)}"
        record = attempt_record(row)
        if row.code:
            yield f"      class {row.cls}, rule {row.rule}: {cell(row.public)}"
        yield from _half("evidence", record["evidence"])
        yield from _half("private", {part: value for part, value in record["private"].items() if part != stored.FACTS})


def _half(name: str, parts: Mapping[str, Any]) -> Iterable[str]:
    for part, value in parts.items():
        text = lines(value if isinstance(value, str) else as_json(value)).rstrip()
        first, *rest = text.split("\n") or [""]
        yield f"      {name} {part}: {first}"
        yield from (f"          {line}" for line in rest)


def _events(events: list[Event]) -> Iterable[str]:
    yield from ("", f"EVENTS ({len(events)})")
    for event in events:
        yield f"  {event_line(event)}"


def event_line(event: Event, whom: str = "") -> str:
    by = f" by {cell(event.actor)}" if event.actor else ""
    attempt = f" #{event.attempt}" if event.attempt else ""
    return f"{moment(event.at)}  {whom}{event.type}{attempt}{by}  {cell(_news(event.data))}".rstrip()


def _news(data: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_said(name, value)}" for name, value in data.items() if value not in (None, "", {}, []))


def _said(name: str, value: Any) -> Any:
    return moment(value) if name.endswith("_at") and isinstance(value, int) else value
