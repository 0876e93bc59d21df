"""`mulligan schedules …`: list, preview, run, pause and resume, without loading the app."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli import CommandGroup
from mulligan.cli import options as shared
from mulligan.cli.database import open_services, print_notice
from mulligan.cli.output import (
    is_json,
    job_record,
    output_format,
    print_json,
    print_rows,
)
from mulligan.core.format import format_actor, format_duration
from mulligan.schedules.service import Schedule

COLUMNS = (
    "name",
    "cron",
    "timezone",
    "kind",
    "missed",
    "next_at",
    "last_at",
    "last_job_id",
    "paused",
    "paused_until",
)
TABLE_COLUMNS = ("name", "cron", "next", "kind", "paused", "last", "timezone", "missed")
NEXT_COLUMNS = ("at", "utc")
NEXT_TABLE_COLUMNS = ("at", "utc", "in")
NO_SCHEDULES = "No schedules yet. Declare one with app.schedule(...) and start a worker."


@click.group(cls=CommandGroup)
def schedules() -> None:
    """List, preview, pause, resume and run schedules."""


@schedules.command("list")
@shared.database_option
@shared.output_option
def list_schedules(database: str | None, output: str | None) -> None:
    """List schedules by name."""
    with open_services(database) as services:
        found = services.schedules.list()
    if output_format(output) == "table":
        rows = [_table_row(schedule) for schedule in found]
        print_rows(rows, TABLE_COLUMNS, output, empty=NO_SCHEDULES)
    else:
        print_rows([_record(schedule) for schedule in found], COLUMNS, output)
    for schedule in found:
        if schedule.problem:
            print_notice(f"warning: {schedule.name}: {schedule.problem}")


def _record(schedule: Schedule) -> dict[str, Any]:
    record = asdict(schedule)
    for name in ("next_at", "last_at", "paused_until"):
        if record[name] is not None:
            record[name] = record[name].isoformat()
    return record


def _table_row(schedule: Schedule) -> dict[str, Any]:
    return _record(schedule) | {
        "next": _format_local(schedule.next_at),
        "last": _format_local(schedule.last_at),
        "paused": _describe_pause(schedule),
    }


def _describe_pause(schedule: Schedule) -> str:
    """Return until when, by whom and why a schedule is paused."""
    if not schedule.paused:
        return ""
    text = f"by {format_actor(schedule.actor)}"
    if schedule.paused_until is not None:
        text = f"until {schedule.paused_until:%Y-%m-%d %H:%M:%S UTC} {text}"
    return f"{text}: {schedule.reason}" if schedule.reason else text


def _format_local(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S %z}"


@schedules.command("next")
@click.argument("name")
@click.option("-n", "count", type=int, default=5, show_default=True, help="Number of runs.")
@shared.database_option
@shared.output_option
def show_next(name: str, count: int, database: str | None, output: str | None) -> None:
    """Show the next runs of a schedule, in its time zone and in UTC."""
    with open_services(database) as services:
        times = services.schedules.next(name, count)
    now = datetime.now(UTC)
    is_table = output_format(output) == "table"
    records = [_next_record(at, now) for at in times]
    columns = NEXT_TABLE_COLUMNS if is_table else NEXT_COLUMNS
    print_rows(records, columns, output)


def _next_record(at: datetime, now: datetime) -> dict[str, str]:
    seconds_left = max(0, int((at - now).total_seconds()))
    return {
        "at": at.isoformat(),
        "utc": at.astimezone(UTC).isoformat(),
        "in": format_duration(seconds_left),
    }


@schedules.command("run")
@click.argument("name")
@shared.reason_option
@shared.database_option
@shared.output_option
def run(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Enqueue a job of a schedule now, in addition to its regular runs, and print its id."""
    with open_services(database) as services:
        job = services.schedules.run(name, reason=reason)
    if is_json(output):
        print_json(job_record(job), output)
    else:
        click.echo(job.id)
    print_notice(f"Queued. Follow it with: mulligan jobs watch {job.id}")


@schedules.command("pause")
@click.argument("name")
@shared.duration_option
@shared.reason_option
@shared.database_option
def pause(name: str, until: float | None, reason: str, database: str | None) -> None:
    """Pause a schedule. Runs that fall into the pause are skipped."""
    with open_services(database) as services:
        paused = services.schedules.pause(name, until=until, reason=reason)
    print_notice(
        f"Paused {_describe_pause(paused)}. Runs of the next few seconds may already be enqueued."
    )


@schedules.command("resume")
@click.argument("name")
@shared.reason_option
@shared.database_option
def resume(name: str, reason: str, database: str | None) -> None:
    """Resume a schedule. Runs that were skipped meanwhile are not made up for."""
    with open_services(database) as services:
        resumed = services.schedules.resume(name, reason=reason)
    print_notice(f"Resumed. Next run: {_format_local(resumed.next_at)}")
