"""What `mulligan events tail` does: the end of the log, and then what comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from functools import partial

import click

from mulligan.cli.database import Desk, desk, patiently, say
from mulligan.cli.output import as_json, cell, chosen, event_record
from mulligan.cli.story import event_line
from mulligan.engine.hearing import Wanted, wants
from mulligan.event import Event

WINDOW = 500  # events read at once
LOOKED_AT = 50_000  # how far back we look for enough that match
POLL = 0.25  # seconds
COLUMNS = ("id", "at", "type", "job_id", "owner", "attempt", "actor", "data")


def run_tail(
    count: int, types: tuple[str, ...], job: str | None, words: str, database: str | None, output: str | None,
    *, follow: bool,
) -> None:  # fmt: skip
    form = chosen(output)
    with desk(database) as at:
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
