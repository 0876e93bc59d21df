"""How `mulligan batches` prints: a bar for people, plain columns for pipes, all of it for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

import click

from mulligan.cli.charts import bar
from mulligan.cli.database import patiently
from mulligan.cli.output import as_json, cell, chosen, event_record, show_rows, style
from mulligan.cli.story import event_line
from mulligan.cli.watching import drawing
from mulligan.engine.batches import Batch, Batches, MemberFailures, Retried
from mulligan.errors import WaitTimeout
from mulligan.event import Event
from mulligan.policy.batch import BatchCounts, BatchState

COLUMNS = ("id", "state", "name", "owner", "total", "succeeded", "dead", "cancelled", "unfinished", "created_at")
FOR_PEOPLE = ("id", "status", "name", "owner", "ended", "members")
EVERY = 0.3  # seconds
WIDE = 24


def batch_record(batch: Batch) -> dict[str, Any]:
    """All of it, with the counts in the order in which they are read."""
    record = {one.name: _plain(getattr(batch, one.name)) for one in fields(batch) if not one.name.startswith("_")}
    return {**record, "sealed": batch.sealed, "counts": {"total": batch.counts.total, **asdict(batch.counts)}}


def print_batches(batches: Sequence[Batch], output: str | None, *, empty: str = "") -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        show_rows([batch_record(batch) for batch in batches], (), output)
        return
    rows = [_row(batch) for batch in batches]
    show_rows(rows, FOR_PEOPLE if form == "table" else COLUMNS, output, empty=empty, short="members")


def _row(batch: Batch) -> dict[str, Any]:
    counts = batch.counts
    return {
        "id": batch.id,
        "state": batch.state.value,
        "status": _status(batch),
        "name": batch.name,
        "owner": batch.owner,
        "total": counts.total,
        "succeeded": counts.succeeded,
        "dead": counts.dead,
        "cancelled": counts.cancelled,
        "unfinished": counts.unfinished,
        "created_at": batch.created_at.isoformat(),
        "ended": f"{bar(counts.share, 10)} {counts.share:.0%}" if counts.total else "",
        "members": members(counts),
    }


def _status(batch: Batch) -> str:
    if batch.state is BatchState.PROCESSING:
        return "stopping" if batch.cancelled else "processing" if batch.sealed else "open"
    return batch.state.value


def members(counts: BatchCounts) -> str:
    """2 succeeded, 1 dead, 3 queued."""
    found = ((name, count) for name, count in asdict(counts).items() if name != "missed" and count)
    words = [f"{count:,} {name}" for name, count in sorted(found, key=lambda one: -one[1])]
    return ", ".join([*words, *([f"{counts.missed} must-have missed"] if counts.missed else [])]) or "no members"


def said(batch: Batch) -> str:
    """One line about how far it is."""
    if batch.outcome is not None:
        return f"{batch.state}: {members(batch.counts)}"
    waits = "" if batch.sealed else ", not sealed yet"
    return f"{batch.state}, {batch.counts.share:.0%} ended{waits}: {members(batch.counts)}"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# -- one ----------------------------------------------------------------------------------------------
def print_batch(batch: Batch, failures: Sequence[MemberFailures], events: Sequence[Event], output: str | None) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        told = {
            **batch_record(batch),
            "failures": [asdict(one) for one in failures],
            "events": [event_record(event) for event in events],
        }
        click.echo(as_json(told, 2 if form == "json" else None))
        return
    for line in (*_facts(batch, people=form == "table"), *_failures(failures), *_events(events)):
        click.echo(line)


def _facts(batch: Batch, *, people: bool) -> Iterator[str]:
    facts = [
        ("id", batch.id),
        ("name", batch.name),
        ("owner", batch.owner),
        ("state", _status(batch) if people else batch.state.value),
        ("members", members(batch.counts)),
        ("ended", f"{bar(batch.counts.share, WIDE)} {batch.counts.share:.0%}" if people and batch.counts.total else ""),
        ("generation", str(batch.generation) if batch.generation > 1 else ""),
        ("before", batch.previous or ""),
        ("tolerance", "" if batch.tolerance == "0" else batch.tolerance),
        ("on complete", batch.on_complete or ""),
        ("unique key", batch.unique_key or ""),
        ("created", _when(batch.created_at)),
        ("sealed", _when(batch.sealed_at)),
        ("finished", _when(batch.finished_at)),
        ("expires", _when(batch.expires_at)),
        ("expired", _when(batch.expired_at)),
        ("cancelled", f"{_when(batch.cancelled_at)} {batch.cancel_reason or ''}".strip()),
    ]
    for name, value in facts:
        if value:
            yield f"{name + ':':<13}{cell(value)}" if people else f"{name}\t{cell(value)}"


def _failures(failures: Sequence[MemberFailures]) -> Iterator[str]:
    if failures:
        yield from ("", "FAILED MEMBERS")
    for one in failures:
        yield f"  {one.count}  {cell(one.code)}  {cell(one.message)}  (the newest: {one.job})"


def _events(events: Sequence[Event]) -> Iterator[str]:
    if events:
        yield from ("", f"EVENTS ({len(events)})")
    for event in events:
        yield f"  {event_line(event)}"


def print_retried(done: Retried, output: str | None) -> None:
    if chosen(output) not in {"json", "jsonl"}:
        print_batches([done.batch], output)
        return
    refused = [{"id": job_id, "code": why.code, "message": str(why)} for job_id, why in done.refused.items()]
    told = {"batch": batch_record(done.batch), "retried": list(done.jobs), "refused": refused}
    click.echo(as_json(told, 2 if chosen(output) == "json" else None))


# -- watch --------------------------------------------------------------------------------------------
def follow(api: Batches, batch_id: str, timeout: float | None) -> Batch:
    """Until it has an outcome, drawn in place where a person looks on."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with drawing() as draw:
        while True:
            batch = patiently(lambda: api.get(batch_id), deadline)
            words = said(batch)
            draw(lambda batch=batch, words=words: _picture(batch, words), words, words)
            if batch.outcome is not None:
                return batch
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"batch {batch_id} is still processing after {timeout:g} s; it goes on")
            time.sleep(EVERY)


def _picture(batch: Batch, words: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    told = Text.assemble((f"{cell(batch.name)} ", "bold"), (words, style(batch.state)))
    return Columns([ProgressBar(total=1.0, completed=batch.counts.share, width=WIDE), told])


def _when(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
