"""`mulligan batches …`: list, show, seal, retry and cancel batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

import click

from mulligan.batches.rules import BatchCounts, BatchState
from mulligan.batches.service import Batch, Batches, MemberFailures, RetriedMembers
from mulligan.cli import EXIT_NOT_SUCCEEDED, CommandGroup, exit_code_for
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import (
    command_line,
    deadline_after,
    is_past,
    open_services,
    print_hint,
    print_notice,
    wait_for_database,
)
from mulligan.cli.job_views import format_event
from mulligan.cli.output import (
    Frame,
    draw_bar,
    event_record,
    format_cell,
    is_json,
    json_value,
    live_display,
    output_format,
    print_json,
    print_rows,
    print_tsv,
    style_of,
)
from mulligan.core.errors import IllegalMove, NothingFailed, Refused, WaitTimeout
from mulligan.core.event import Event

COLUMNS = (
    "id",
    "state",
    "name",
    "owner",
    "total",
    "succeeded",
    "dead",
    "cancelled",
    "unfinished",
    "created_at",
)
TABLE_COLUMNS = ("id", "status", "name", "owner", "ended", "members")
WATCH_INTERVAL = 0.3  # seconds
BAR_WIDTH = 24
NO_BATCHES = (
    "No batches yet. Create one in Python with app.batch(name), "
    "and add jobs to it with options(batch=batch)."
)


@click.group(cls=CommandGroup)
def batches() -> None:
    """List, show, seal, retry and cancel batches. A unique prefix of an ID is enough."""


_id_argument = click.argument("batch_id", metavar="ID", shell_complete=complete.complete_batch_ids)


# --- mulligan batches list ---


@batches.command("list")
@click.argument("terms", metavar="[FILTER]...", nargs=-1)
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="Number of batches on this page.",
)
@click.option("--cursor", metavar="ID", help="Next page, as printed at the end of the last page.")
@shared.database_option
@shared.output_option
def list_batches(
    terms: tuple[str, ...], limit: int, cursor: str | None, database: str | None, output: str | None
) -> None:
    """List batches, newest first.

    FILTER: state:partial owner:acme. States: processing, ready, partial, failed, expired.
    """
    filters = _parse_filter(terms)
    with open_services(database) as services:
        found = services.batches.list(
            state=filters.get("state"), owner=filters.get("owner"), limit=limit, before=cursor
        )
    empty = NO_BATCHES
    if terms or cursor:
        empty = "No batch matches. List all batches with: mulligan batches list"
    print_batches(found, output, empty=empty)
    if len(found) == limit:
        cursor_option = ("--cursor", found[-1].id)
        command = command_line("batches", "list", *terms, *cursor_option, database=database)
        print_notice(f"Next page: {command}")


def _parse_filter(terms: tuple[str, ...]) -> dict[str, str]:
    filters: dict[str, str] = {}
    for word in " ".join(terms).split():
        name, colon, value = word.partition(":")
        if name not in {"state", "owner"} or not colon or not value:
            message = (
                f"invalid filter {word!r}. Use state:… or owner:…. "
                "To list the jobs of a batch: mulligan jobs list batch:ID"
            )
            raise Refused(message)
        filters[name] = value
    return filters


# --- mulligan batches show ---


@batches.command("show")
@_id_argument
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Follow the batch until it has an outcome. Exit code 6: not ready.",
)
@click.option(
    "--timeout",
    type=shared.DurationParam(),
    help="With --watch: stop watching after 30, 5m, 2h. The batch continues.",
)
@shared.database_option
@shared.output_option
def show(
    batch_id: str, timeout: float | None, database: str | None, output: str | None, *, watch: bool
) -> int:
    """Show a batch: progress, members, failures and events."""
    with open_services(database) as services:
        full_id = services.batches.resolve(batch_id)
        batch = (
            _watch_batch(services.batches, full_id, timeout)
            if watch
            else services.batches.get(full_id)
        )
        print_batch(
            batch, services.batches.failures(full_id), services.batches.history(full_id), output
        )
    _print_hints(batch, database)
    if watch and batch.outcome is not BatchState.READY:
        return EXIT_NOT_SUCCEEDED
    return 0


def _print_hints(batch: Batch, database: str | None) -> None:
    if batch.counts.dead and batch.state is not BatchState.EXPIRED:
        retry_command = command_line("batches", "retry", batch.id, database=database)
        print_hint(retry_command, "retry its dead members")
    list_command = command_line("jobs", "list", f"batch:{batch.id}", database=database)
    print_hint(list_command, "list its members")


def _watch_batch(service: Batches, batch_id: str, timeout: float | None) -> Batch:
    """Follow a batch until it has an outcome."""
    deadline = deadline_after(timeout)
    with live_display() as show_frame:
        while True:
            batch = wait_for_database(lambda: service.get(batch_id), deadline)
            show_frame(_batch_frame(batch))
            if batch.outcome is not None:
                return batch
            if is_past(deadline):
                message = f"batch {batch_id} is still processing after {timeout:g} s; it continues"
                raise WaitTimeout(message)
            time.sleep(WATCH_INTERVAL)


def _batch_frame(batch: Batch) -> Frame:
    text = describe_progress(batch)
    return Frame(text, lambda: _draw_batch(batch, text), text)


def _draw_batch(batch: Batch, text: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    name = (f"{format_cell(batch.name)} ", "bold")
    label = Text.assemble(name, (text, style_of(batch.state)))
    bar = ProgressBar(total=1.0, completed=batch.counts.share, width=BAR_WIDTH)
    return Columns([bar, label])


# --- mulligan batches seal, retry, cancel ---


@batches.command("seal")
@_id_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def seal(batch_id: str, reason: str, database: str | None, output: str | None) -> None:
    """Accept no more members. The batch gets its outcome when the last member ends."""
    with open_services(database) as services:
        print_batches(
            [services.batches.seal(services.batches.resolve(batch_id), reason=reason)], output
        )


@batches.command("retry")
@_id_argument
@shared.reason_option
@shared.dry_run_option
@shared.database_option
@shared.output_option
def retry(
    batch_id: str, reason: str, database: str | None, output: str | None, *, dry_run: bool
) -> int:
    """Retry every dead member. The batch is processing again until its next outcome."""
    with open_services(database) as services:
        full_id = services.batches.resolve(batch_id)
        if dry_run:
            _preview_retry(services.batches, services.batches.get(full_id), output)
            return 0
        retried = services.batches.retry_failed(full_id, reason=reason)
    _print_retried(retried, output)
    for job_id, error in retried.refused.items():
        print_notice(f"{job_id}: {error} [{error.code}]")
    total = len(retried.jobs) + len(retried.refused)
    print_notice(f"retry: {len(retried.jobs)} of {total}")
    watch_command = command_line("batches", "show", full_id, "--watch", database=database)
    print_hint(watch_command, "follow it until it has an outcome")
    if retried.refused:
        return exit_code_for(next(iter(retried.refused.values())))
    return 0


def _preview_retry(service: Batches, batch: Batch, output: str | None) -> None:
    if not batch.counts.dead:
        message = f"batch {batch.id} has no dead member to retry"
        raise NothingFailed(message)
    print_batch(batch, service.failures(batch.id), (), output)
    members = pluralize(batch.counts.dead, "member")
    print_notice(f"would retry {members}; nothing was changed")


def _print_retried(retried: RetriedMembers, output: str | None) -> None:
    if not is_json(output):
        print_batches([retried.batch], output)
        return
    refused = [
        {"id": job_id, "code": error.code, "message": str(error)}
        for job_id, error in retried.refused.items()
    ]
    record = {
        "batch": batch_record(retried.batch),
        "retried": list(retried.jobs),
        "refused": refused,
    }
    print_json(record, output)


@batches.command("cancel")
@_id_argument
@shared.reason_option
@shared.dry_run_option
@shared.database_option
@shared.output_option
def cancel(
    batch_id: str, reason: str, database: str | None, output: str | None, *, dry_run: bool
) -> None:
    """Cancel waiting members and stop running ones. The batch accepts no more members."""
    with open_services(database) as services:
        full_id = services.batches.resolve(batch_id)
        batch = (
            services.batches.get(full_id)
            if dry_run
            else services.batches.cancel(full_id, reason=reason)
        )
    if dry_run and batch.outcome is not None:
        message = f"batch {batch.id} ({batch.name}) is {batch.state}: nothing left to cancel"
        raise IllegalMove(message)
    print_batches([batch], output)
    running = batch.counts.running
    if dry_run:
        waiting = pluralize(batch.counts.queued + batch.counts.parked, "member")
        print_notice(f"would cancel {waiting} and stop {running} running; nothing was changed")
    elif batch.outcome is None:
        stopping = pluralize(running, "running member")
        print_notice(f"stopping {stopping}; {describe_progress(batch)}")


# --- Output ---


def batch_record(batch: Batch) -> dict[str, Any]:
    """Return every public field of a batch, with its counts."""
    names = [field.name for field in fields(batch) if not field.name.startswith("_")]
    record = {name: json_value(getattr(batch, name)) for name in names}
    return {
        **record,
        "sealed": batch.sealed,
        "counts": {"total": batch.counts.total, **asdict(batch.counts)},
    }


def print_batches(batches: Sequence[Batch], output: str | None, *, empty: str = "") -> None:
    """Print batches as rows."""
    if is_json(output):
        print_rows([batch_record(batch) for batch in batches], (), output)
        return
    columns = TABLE_COLUMNS if output_format(output) == "table" else COLUMNS
    rows = [_row(batch) for batch in batches]
    print_rows(rows, columns, output, empty=empty, truncate="members")


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
        "ended": _draw_share(counts, 10),
        "members": format_members(counts),
    }


def _status(batch: Batch) -> str:
    """Return the state for people: a processing batch may also be open or stopping."""
    if batch.state is not BatchState.PROCESSING:
        return batch.state.value
    if batch.cancelled:
        return "stopping"
    return "processing" if batch.sealed else "open"


def _draw_share(counts: BatchCounts, width: int) -> str:
    if not counts.total:
        return ""
    return f"{draw_bar(counts.share, width)} {counts.share:.0%}"


def format_members(counts: BatchCounts) -> str:
    """Format the counts, largest first: 3 queued, 2 succeeded, 1 dead."""
    by_state = {name: count for name, count in asdict(counts).items() if name != "missed"}
    largest_first = sorted(by_state.items(), key=lambda item: -item[1])
    parts = [f"{count:,} {name}" for name, count in largest_first if count]
    if counts.missed:
        parts.append(f"{counts.missed} required missed")
    return ", ".join(parts) or "no members"


def describe_progress(batch: Batch) -> str:
    """Describe in one line how far a batch is."""
    members = format_members(batch.counts)
    if batch.outcome is not None:
        return f"{batch.state}: {members}"
    unsealed = "" if batch.sealed else ", not sealed yet"
    return f"{batch.state}, {batch.counts.share:.0%} ended{unsealed}: {members}"


def pluralize(count: int, noun: str) -> str:
    """Return the count with its noun in singular or plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_batch(
    batch: Batch, failures: Sequence[MemberFailures], events: Sequence[Event], output: str | None
) -> None:
    """Print one batch with its failures and events."""
    if is_json(output):
        record = {
            **batch_record(batch),
            "failures": [asdict(group) for group in failures],
            "events": [event_record(event) for event in events],
        }
        print_json(record, output)
        return
    _print_batch_facts(batch, people=output_format(output) == "table")
    for line in (*_failure_lines(failures), *_event_lines(events)):
        click.echo(line)


def _print_batch_facts(batch: Batch, *, people: bool) -> None:
    for name, value in _batch_facts(batch, people=people):
        if not value:
            continue
        if people:
            click.echo(f"{name + ':':<13}{format_cell(value)}")
        else:
            print_tsv((name, value))


def _batch_facts(batch: Batch, *, people: bool) -> list[tuple[str, str]]:
    cancelled = f"{_format_time(batch.cancelled_at)} {batch.cancel_reason or ''}".strip()
    status = batch.state.value
    progress = ""
    if people:
        status = _status(batch)
        progress = _draw_share(batch.counts, BAR_WIDTH)
    generation = str(batch.generation) if batch.generation > 1 else ""
    tolerance = "" if batch.tolerance == "0" else batch.tolerance
    return [
        ("id", batch.id),
        ("name", batch.name),
        ("owner", batch.owner),
        ("state", status),
        ("members", format_members(batch.counts)),
        ("ended", progress),
        ("generation", generation),
        ("before", batch.previous or ""),
        ("tolerance", tolerance),
        ("on complete", batch.on_complete or ""),
        ("unique key", batch.unique_key or ""),
        ("created", _format_time(batch.created_at)),
        ("sealed", _format_time(batch.sealed_at)),
        ("finished", _format_time(batch.finished_at)),
        ("expires", _format_time(batch.expires_at)),
        ("expired", _format_time(batch.expired_at)),
        ("cancelled", cancelled),
    ]


def _failure_lines(failures: Sequence[MemberFailures]) -> Iterator[str]:
    if failures:
        yield from ("", "FAILED MEMBERS")
    for group in failures:
        code = format_cell(group.code)
        message = format_cell(group.message)
        yield f"  {group.count}  {code}  {message}  (newest: {group.job})"


def _event_lines(events: Sequence[Event]) -> Iterator[str]:
    if events:
        yield from ("", f"EVENTS ({len(events)})")
    for event in events:
        yield f"  {format_event(event)}"


def _format_time(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"
