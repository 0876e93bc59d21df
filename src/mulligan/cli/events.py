"""`mulligan events list, tail`: who did what, and events as they happen."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import click

from mulligan.app.services import StoreServices
from mulligan.cli import CommandGroup
from mulligan.cli import options as shared
from mulligan.cli.completion import complete_job_ids
from mulligan.cli.database import (
    command_line,
    open_services,
    print_notice,
    wait_for_database,
)
from mulligan.cli.job_views import format_event
from mulligan.cli.output import (
    event_record,
    format_cell,
    is_json,
    output_format,
    print_json,
    print_rows,
    time_since,
    to_json,
)
from mulligan.core.durations import to_datetime
from mulligan.core.event import Event
from mulligan.core.format import format_time
from mulligan.core.ids import LENGTH, shorten_id
from mulligan.events.follow import EventPredicate
from mulligan.events.queries import EventQueries
from mulligan.events.service import build_event_filter


@click.group(cls=CommandGroup)
def events() -> None:
    """Show who did what, and follow events as they happen."""


def _resolve_job(services: StoreServices, prefix: str | None) -> str | None:
    return None if prefix is None else services.jobs.resolve(prefix)


# --- mulligan events list ---

AUDIT_COLUMNS = ("id", "at", "actor", "type", "what", "reason", "change")
AUDIT_TABLE_COLUMNS = ("age", "actor", "type", "what", "reason", "change")
SUBJECT_FIELDS = (
    "schedule",
    "queue",
    "dependency",
    "worker",
    "kind",
    "fingerprint",
    "operation",
    "batch",
    "key",
)
EMPTY_VALUES: tuple[Any, ...] = (None, "", {}, [])


@events.command("list")
@click.option("--actor", help="Only actions of this actor: cli:ann, python …")
@click.option("--since", type=shared.TimeParam(), help="Only since: 2h, 7d, or 2026-03-01T06:00Z.")
@click.option("--until", type=shared.TimeParam(), help="Only before this time.")
@click.option(
    "--type",
    "types",
    multiple=True,
    help="Only these types: job.retried, or queue.*. May be repeated.",
)
@click.option(
    "--job", metavar="ID", help="Only actions on this job.", shell_complete=complete_job_ids
)
@click.option("--owner", help="Only actions on jobs and failure groups of this owner.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Number of events on this page.",
)
@click.option(
    "--cursor",
    type=int,
    metavar="ID",
    help="Next page, as printed at the end of the last page.",
)
@shared.database_option
@shared.output_option
def list_events(
    types: tuple[str, ...],
    job: str | None,
    limit: int,
    cursor: int | None,
    database: str | None,
    output: str | None,
    **filters: Any,
) -> None:
    """List what people did, newest first: actor, time, reason, before and after.

    `events tail` also shows what Mulligan does by itself.
    """
    with open_services(database) as services:
        job_id = _resolve_job(services, job)
        found = services.events.list(**filters, type=types, job=job_id, limit=limit, before=cursor)
    _print_audit(found, output)
    if len(found) == limit:
        cursor_option = ("--cursor", str(found[-1].id))
        command = command_line("events", "list", *cursor_option, database=database)
        print_notice(f"There may be more. Next page: {command}")


def _print_audit(found: list[Event], output: str | None) -> None:
    if is_json(output):
        print_rows([event_record(event) for event in found], (), output)
        return
    rows = [_audit_row(event) for event in found]
    if output_format(output) == "tsv":
        print_rows(rows, AUDIT_COLUMNS, output)
        return
    for row, event in zip(rows, found, strict=True):
        row["age"] = time_since(to_datetime(event.at))
        row["what"] = _short_subject(event)
    columns = AUDIT_TABLE_COLUMNS
    print_rows(rows, columns, output, empty="No action matches.", truncate="reason")


def _audit_row(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": format_time(event.at),
        "actor": event.actor,
        "type": event.type,
        "what": event_subject(event),
        "reason": event.data.get("reason", ""),
        "change": format_changes(event.data),
    }


def _short_subject(event: Event) -> str:
    if event.job_id:
        return f"{event.data.get('kind', 'job')} {shorten_id(event.job_id)}"
    subject = event_subject(event)
    return shorten_id(subject) if len(subject) > LENGTH else subject


def event_subject(event: Event) -> str:
    """Return the id of the job, or the name of whatever else was changed."""
    if event.job_id:
        return event.job_id
    for field in SUBJECT_FIELDS:
        if event.data.get(field):
            return str(event.data[field])
    return ""


def format_changes(data: Mapping[str, Any]) -> str:
    """Format what changed: `state: dead → queued, queue: default → big`."""
    return ", ".join(
        f"{change.name}: {_format_value(change.name, change.before)} → "
        f"{_format_value(change.name, change.after)}"
        for change in _changed_fields(data)
        if change.before != change.after
    )


class FieldChange(NamedTuple):
    """One field of an audited object before and after an action."""

    name: str
    before: Any
    after: Any


def _changed_fields(data: Mapping[str, Any]) -> Iterator[FieldChange]:
    before = _object_fields(data.get("before"))
    after = _object_fields(data.get("after"))
    for name in dict.fromkeys((*before, *after)):
        yield FieldChange(name, before.get(name), after.get(name))
    for name, change in (data.get("changes") or {}).items():
        yield FieldChange(name, change.get("before"), change.get("after"))


def _object_fields(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    return {name: field for name, field in value.items() if name not in {"actor", "reason"}}


def _format_value(name: str, value: Any) -> str:
    if value in EMPTY_VALUES:
        return "unset"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and name.endswith(("until", "_at")):
        return f"{to_datetime(value):%Y-%m-%d %H:%M:%S}"
    return format_cell(value)


# --- mulligan events tail ---

WINDOW = 500  # events read at once
MAX_LOOKBACK = 50_000  # events searched backwards for enough matches
POLL_INTERVAL = 0.25  # seconds
TAIL_COLUMNS = ("id", "at", "type", "job_id", "owner", "attempt", "actor", "data")


@events.command("tail")
@click.option(
    "-n",
    "count",
    type=click.IntRange(0, 100_000),
    default=20,
    show_default=True,
    help="Number of past events to print first.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@click.option(
    "--type",
    "types",
    multiple=True,
    help="Only these types: job.died, or job.* for all job events. May be repeated.",
)
@click.option(
    "--job", metavar="ID", help="Only events of this job.", shell_complete=complete_job_ids
)
@click.option(
    "--filter",
    "filter_",
    default="",
    help="owner:acme batch:… kind:… actor:upkeep code:BAD_FILE class:transient",
)
@shared.database_option
@shared.output_option
def tail(
    count: int,
    types: tuple[str, ...],
    job: str | None,
    filter_: str,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
) -> None:
    """Print the newest events, oldest first. No event is skipped, even if it commits late."""
    form = output_format(output)
    with open_services(database) as services:
        job_id = _resolve_job(services, job)
        wanted = build_event_filter(filter_, types, job_id)
        cursor, found = _read_newest(services, count, wanted)
        if form == "json" and not follow:
            print_json([event_record(event) for event in found], output)
            return
        _print_events(found, form)
        if follow:
            _follow(services, cursor, wanted, form)
        elif not found:
            print_notice("No event matches.")


def _read_newest(
    services: StoreServices, count: int, wanted: EventPredicate
) -> tuple[int, list[Event]]:
    """Return the cursor from which to follow, and the newest `count` matching events.

    Reads windows of ids backwards from the newest event.
    """
    with services.store.read() as tx:
        queries = EventQueries(tx)
        newest = queries.newest_event()
        low = max(0, newest - WINDOW)
        window = queries.list_events_after(low, newest - low)
        cursor = window[-1].id if window else low
        found = [event for event in window if wanted(event)]
        while len(found) < count and low > 0 and newest - low < MAX_LOOKBACK:
            high = low
            low = max(0, low - WINDOW)
            window = [
                event for event in queries.list_events_after(low, high - low) if event.id <= high
            ]
            found = [event for event in window if wanted(event)] + found
    if len(found) < count and low > 0:
        print_notice(f"Only the newest {MAX_LOOKBACK:,} events were searched.")
    newest_found = found[-count:] if count else []
    return cursor, newest_found


def _follow(services: StoreServices, cursor: int, wanted: EventPredicate, form: str) -> None:
    while True:
        new_events = wait_for_database(partial(_events_after, services, cursor))
        _print_events([event for event in new_events if wanted(event)], form)
        if new_events:
            cursor = new_events[-1].id
        else:
            time.sleep(POLL_INTERVAL)


def _events_after(services: StoreServices, cursor: int) -> list[Event]:
    with services.store.read() as tx:
        return EventQueries(tx).list_events_after(cursor, WINDOW)


def _print_events(found: Iterable[Event], form: str) -> None:
    for event in found:
        click.echo(_format_line(event, form))
    sys.stdout.flush()


def _format_line(event: Event, form: str) -> str:
    if is_json(form):
        return to_json(event_record(event))
    if form == "tsv":
        record = event_record(event)
        return "\t".join(format_cell(record[column]) for column in TAIL_COLUMNS)
    subject = event.job_id or event.batch_id or ""
    return format_event(event, f"{subject:<28}  ")
