"""`mulligan schedules …`: from the stored manifests, without the app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli import Family
from mulligan.cli import options as shared
from mulligan.cli.database import actor, open_services, say
from mulligan.cli.gates import reason as why
from mulligan.cli.gates import until as for_how_long
from mulligan.cli.output import as_json, chosen, job_record, show_rows
from mulligan.core.format import duration, who
from mulligan.schedules.service import Schedule, Schedules

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
FOR_PEOPLE = ("name", "cron", "timezone", "kind", "missed", "next", "last", "paused")
NEXT = ("at", "utc")
NEXT_FOR_PEOPLE = ("at", "utc", "in")


@click.group(cls=Family)
def schedules() -> None:
    """List schedules, see when they run, pause one, run one now."""


@contextmanager
def _book(database: str | None) -> Iterator[Schedules]:
    with open_services(database) as at:
        yield Schedules(lambda: at.store, at.jobs, {}, actor())


@schedules.command("list")
@shared.database
@shared.output
def list_(database: str | None, output: str | None) -> None:
    """Every schedule, by name."""
    with _book(database) as book:
        found = book.list()
    for_people = chosen(output) == "table"
    show_rows(
        [_record(schedule, for_people=for_people) for schedule in found],
        FOR_PEOPLE if for_people else COLUMNS,
        output,
        empty="no schedules; declare one with app.schedule(...) and start a worker",
    )
    for schedule in found:
        if schedule.problem:
            say(f"warning: {schedule.name}: {schedule.problem}")


def _record(schedule: Schedule, *, for_people: bool) -> dict[str, Any]:
    record = asdict(schedule)
    for name in ("next_at", "last_at", "paused_until"):
        record[name] = record[name] and record[name].isoformat()
    if for_people:
        record |= {
            "next": _local(schedule.next_at),
            "last": _local(schedule.last_at),
            "paused": _paused(schedule),
        }
    return record


def _paused(schedule: Schedule) -> str:
    if not schedule.paused:
        return ""
    until = (
        ""
        if schedule.paused_until is None
        else f"until {schedule.paused_until:%Y-%m-%d %H:%M:%S UTC} "
    )
    return f"{until}by {who(schedule.actor)}{': ' + schedule.reason if schedule.reason else ''}"


def _local(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S %z}"


@schedules.command("next")
@click.argument("name")
@click.option("-n", "count", type=int, default=5, show_default=True, help="How many.")
@shared.database
@shared.output
def next_(name: str, count: int, database: str | None, output: str | None) -> None:
    """The next slots of a schedule, in its own zone and in UTC."""
    with _book(database) as book:
        times = book.next(name, count)
    now = datetime.now(UTC)
    records = [
        {
            "at": at.isoformat(),
            "utc": at.astimezone(UTC).isoformat(),
            "in": duration(max(0, int((at - now).total_seconds()))),
        }
        for at in times
    ]
    show_rows(records, NEXT_FOR_PEOPLE if chosen(output) == "table" else NEXT, output)


@schedules.command()
@click.argument("name")
@click.option("--reason", default="", help="For the history.")
@shared.database
@shared.output
def run(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Enqueue a job of this schedule now, besides its slots, and print its id."""
    with _book(database) as book:
        job = book.run(name, reason=reason)
    click.echo(
        as_json(job_record(job), 2 if output == "json" else None)
        if output in {"json", "jsonl"}
        else job.id
    )
    say(f"queued. Follow it: mulligan jobs watch {job.id}")


@schedules.command()
@click.argument("name")
@for_how_long
@why
@shared.database
def pause(name: str, until: float | None, reason: str, database: str | None) -> None:
    """Its slots get no job until somebody resumes it, or until the time is over."""
    with _book(database) as book:
        found = book.pause(name, until=until, reason=reason)
    say(f"paused {_paused(found)}. Slots of the next seconds may have their job already")


@schedules.command()
@click.argument("name")
@why
@shared.database
def resume(name: str, reason: str, database: str | None) -> None:
    """It goes on from now; slots that came meanwhile get no job."""
    with _book(database) as book:
        found = book.resume(name, reason=reason)
    say(f"goes on: next {_local(found.next_at)}")
