"""What `mulligan events tail` does: the end of the log, and then what comes."""

from __future__ import annotations

import fnmatch
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import click

from mulligan.cli.database import Desk, desk, patiently, say
from mulligan.cli.family import no_such
from mulligan.cli.output import as_json, cell, chosen, event_record
from mulligan.cli.story import event_line
from mulligan.errors import Refused
from mulligan.event import Event, EventType

WINDOW = 500  # events read at once
LOOKED_AT = 50_000  # how far back we look for enough that match
POLL = 0.25  # seconds
COLUMNS = ("id", "at", "type", "job_id", "owner", "attempt", "actor", "data")
Wanted = Callable[[Event], bool]
FIELDS: Mapping[str, Callable[[Event], Any]] = {
    "owner": lambda event: event.owner,
    "batch": lambda event: event.batch_id,
    "actor": lambda event: event.actor,
    "code": lambda event: event.data.get("code"),
    "class": lambda event: event.data.get("class"),
}


def run_tail(
    count: int, types: tuple[str, ...], job: str | None, words: str, database: str | None, output: str | None,
    *, follow: bool,
) -> None:  # fmt: skip
    form = chosen(output)
    with desk(database) as at:
        wanted = wants(types, words, None if job is None else at.jobs.resolve(job))
        cursor, found = _last(at, count, wanted)
        if form == "json" and not follow:
            click.echo(as_json([event_record(event) for event in found], 2))
            return
        _print(found, form)
        if follow:
            _follow(at, cursor, wanted, form)
        elif not found:
            say("no event matches")


# -- which ------------------------------------------------------------------------------------------
def wants(types: tuple[str, ...], words: str, job: str | None) -> Wanted:
    for pattern in types:
        if not fnmatch.filter(EventType, pattern):
            raise Refused(no_such("event", pattern, [str(kind) for kind in EventType]))
    said = _parsed(words)

    def wanted(event: Event) -> bool:
        return (
            (not types or any(fnmatch.fnmatchcase(event.type, pattern) for pattern in types))
            and (job is None or event.job_id == job)
            and all(FIELDS[name](event) == value for name, value in said.items())
        )

    return wanted


def _parsed(words: str) -> dict[str, str]:
    try:
        parts = [word.partition(":") for word in shlex.split(words)]
    except ValueError as error:
        raise Refused(f"filter {words!r}: {error}") from None
    for name, colon, _ in parts:
        if not colon or name not in FIELDS:
            raise Refused(f"filter {words!r}: {no_such('field', name, list(FIELDS))}")
    return {name: value for name, _, value in parts}


# -- the end of the log -------------------------------------------------------------------------------
def _last(at: Desk, count: int, wanted: Wanted) -> tuple[int, list[Event]]:
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


def _follow(at: Desk, cursor: int, wanted: Wanted, form: str) -> None:
    while True:
        events = patiently(partial(_after, at, cursor))
        _print([event for event in events if wanted(event)], form)
        if events:
            cursor = events[-1].id
        else:
            time.sleep(POLL)


def _after(at: Desk, cursor: int) -> list[Event]:
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
        return "\t".join(cell(record[column]) for column in COLUMNS)
    whom = event.job_id or event.batch_id or ""
    return event_line(event, f"{whom:<28}  ")
