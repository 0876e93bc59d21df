"""What `mulligan events tail` does: the end of the log, and then what comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import click

from mulligan.cli import Family
from mulligan.cli import options as shared
from mulligan.cli.completion import job_ids
from mulligan.cli.database import CommandServices, open_services, patiently, say, typed
from mulligan.cli.job_views import event_line
from mulligan.cli.output import as_json, cell, chosen, event_record, show_rows
from mulligan.core.event import Event
from mulligan.core.format import moment
from mulligan.core.job import to_datetime
from mulligan.events.service import Events, Wanted, wants

# How `mulligan events list` prints who did what: for people, for pipes, for programs.

AUDIT_COLUMNS = ("id", "at", "actor", "type", "what", "reason", "change")
WHAT = (
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
_UNSAID: tuple[Any, ...] = (None, "", {}, [])


def show_deeds(said: dict[str, Any], database: str | None, output: str | None) -> None:
    limit = said["limit"]
    with open_services(database) as at:
        job = None if said["job"] is None else at.jobs.resolve(said["job"])
        asked = {name: said[name] for name in ("actor", "since", "until", "owner", "limit")}
        found = Events(lambda: at.store).list(
            **asked, type=said["types"], job=job, before=said["cursor"]
        )
    form = chosen(output)
    records = [event_record(event) if form in {"json", "jsonl"} else _row(event) for event in found]
    show_rows(
        records,
        AUDIT_COLUMNS if form == "tsv" else AUDIT_COLUMNS[1:],
        output,
        empty="nobody did anything that matches",
    )
    if len(found) == limit:
        say(
            f"there may be more: {typed('events', 'list', '--cursor', str(found[-1].id), database=database)}"
        )


def _row(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": moment(event.at),
        "actor": event.actor,
        "type": event.type,
        "what": what_of(event),
        "reason": event.data.get("reason", ""),
        "change": change_of(event.data),
    }


def what_of(event: Event) -> str:
    """The job it was done to, or the name of what else."""
    named = (str(event.data[name]) for name in WHAT if event.data.get(name))
    return event.job_id or next(named, "")


def change_of(data: Mapping[str, Any]) -> str:
    """`state: dead → queued, queue: default → big`: what is different, and only that."""
    before, after = _facts(data.get("before")), _facts(data.get("after"))
    parts = [(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))]
    parts += [
        (name, one.get("before"), one.get("after"))
        for name, one in (data.get("changes") or {}).items()
    ]
    return ", ".join(
        f"{name}: {_value(name, old)} → {_value(name, new)}"
        for name, old, new in parts
        if old != new
    )


def _facts(value: Any) -> Mapping[str, Any]:
    return (
        {name: one for name, one in value.items() if name not in {"actor", "reason"}}
        if isinstance(value, Mapping)
        else {}
    )


def _value(name: str, value: Any) -> str:
    if value in _UNSAID:
        return "unset"
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(("until", "_at")):
        return f"{to_datetime(value):%Y-%m-%d %H:%M:%S}"
    return cell(value)


# What `mulligan events tail` does: the end of the log, and then what comes.

WINDOW = 500  # events read at once
LOOKED_AT = 50_000  # how far back we look for enough that match
POLL = 0.25  # seconds
TAIL_COLUMNS = ("id", "at", "type", "job_id", "owner", "attempt", "actor", "data")


def run_tail(
    count: int,
    types: tuple[str, ...],
    job: str | None,
    words: str,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
) -> None:
    form = chosen(output)
    with open_services(database) as at:
        wanted = wants(words, types, None if job is None else at.jobs.resolve(job))
        cursor, found = _last(at, count, wanted)
        if form == "json" and not follow:
            click.echo(as_json([event_record(event) for event in found], 2))
            return
        _print(found, form)
        if follow:
            _follow(at, cursor, wanted, form)
        elif not found:
            say("no event matches")


# -- the end of the log -------------------------------------------------------------------------------
def _last(at: CommandServices, count: int, wanted: Wanted) -> tuple[int, list[Event]]:
    """(where to go on, the last `count` that are wanted). Windows of ids, from the end backwards."""
    with at.store.read() as unit:
        newest = unit.newest_event()
        low = max(0, newest - WINDOW)
        window = unit.events_after(low, newest - low)
        cursor = window[-1].id if window else low
        found = [event for event in window if wanted(event)]
        while len(found) < count and low > 0 and newest - low < LOOKED_AT:
            high, low = low, max(0, low - WINDOW)
            window = [event for event in unit.events_after(low, high - low) if event.id <= high]
            found = [event for event in window if wanted(event)] + found
    if len(found) < count and low > 0:
        say(f"only the newest {LOOKED_AT:,} events were looked at")
    return cursor, found[-count:] if count else []


def _follow(at: CommandServices, cursor: int, wanted: Wanted, form: str) -> None:
    while True:
        events = patiently(partial(_after, at, cursor))
        _print([event for event in events if wanted(event)], form)
        if events:
            cursor = events[-1].id
        else:
            time.sleep(POLL)


def _after(at: CommandServices, cursor: int) -> list[Event]:
    with at.store.read() as unit:
        return unit.events_after(cursor, WINDOW)


def _print(events: Iterable[Event], form: str) -> None:
    for event in events:
        click.echo(_line(event, form))
    sys.stdout.flush()


def _line(event: Event, form: str) -> str:
    if form in {"json", "jsonl"}:
        return as_json(event_record(event))
    if form == "tsv":
        record = event_record(event)
        return "\t".join(cell(record[column]) for column in TAIL_COLUMNS)
    whom = event.job_id or event.batch_id or ""
    return event_line(event, f"{whom:<28}  ")


# `mulligan events list` and `mulligan events tail`.


@click.group(cls=Family)
def events() -> None:
    """What happened, and what happens."""


@events.command("list")
@click.option("--actor", help="Only what this one did: cli:ann, python …")
@click.option("--since", type=shared.When(), help="Only since then: 2h, 7d, or 2026-03-01T06:00Z.")
@click.option("--until", type=shared.When(), help="Only before then.")
@click.option(
    "--type", "types", multiple=True, help="Only these: job.retried, or queue.*. May be repeated."
)
@click.option("--job", metavar="ID", help="Only what was done to this job.", shell_complete=job_ids)
@click.option("--owner", help="Only what was done to jobs and groups of this owner.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="How many on this page.",
)
@click.option(
    "--cursor", type=int, metavar="ID", help="The next page: what the page before named at its end."
)
@shared.database
@shared.output
def list_(database: str | None, output: str | None, **said: Any) -> None:
    """Who did what, newest first: actor, time, reason, before and after. What Mulligan does by itself is in tail."""
    pass

    show_deeds(said, database, output)


@events.command()
@click.option(
    "-n",
    "count",
    type=click.IntRange(0, 100_000),
    default=20,
    show_default=True,
    help="How many to begin with.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "--type",
    "types",
    multiple=True,
    help="Only these: job.died, or job.* for all of a kind. May be repeated.",
)
@click.option("--job", metavar="ID", help="Only those of this job.", shell_complete=job_ids)
@click.option(
    "--filter",
    "words",
    default="",
    help="owner:acme batch:… kind:… actor:upkeep code:BAD_FILE class:transient",
)
@shared.database
@shared.output
def tail(
    count: int,
    types: tuple[str, ...],
    job: str | None,
    words: str,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
) -> None:
    """The newest events, oldest of them first; none is skipped, however late its transaction commits."""
    pass

    run_tail(count, types, job, words, database, output, follow=follow)
