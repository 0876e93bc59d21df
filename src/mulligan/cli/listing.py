"""`mulligan jobs list`: a page of jobs, how many there are, and how to see the next ones."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import click

from mulligan.cli.database import Desk, desk, say, typed
from mulligan.cli.output import chosen, job_record, show_rows
from mulligan.engine.jobs import COUNT_MOST
from mulligan.ids import LENGTH
from mulligan.job import Job
from mulligan.policy.lifecycle import TERMINAL
from mulligan.policy.phrase import duration

COLUMNS = ("id", "state", "phase", "kind", "queue", "attempt", "code", "created_at", "why")
FOR_PEOPLE = ("id", "phase", "kind", "attempt", "code", "age", "why")


def show_list(words: tuple[str, ...], limit: int, cursor: str | None, database: str | None, output: str | None) -> None:
    if cursor is not None and len(cursor) != LENGTH:
        raise click.BadParameter(f"{cursor!r} is none; the page before names it at its end", param_hint="--cursor")
    with desk(database) as at:
        found = at.jobs.list(one_filter(words), limit=limit, before=cursor)
        print_jobs(found, output, empty=_empty(words, cursor))
        if len(found) == limit:
            _more(at, words, found[-1], database)


def one_filter(words: tuple[str, ...]) -> str:
    """One word may be a whole filter; of several, each is a part that the shell has unquoted."""
    if len(words) == 1 and (":" in words[0] or " " not in words[0].strip() or words[0].strip()[0] in "\"'"):
        return words[0]
    return shlex.join(words)


def print_jobs(found: list[Job], output: str | None, *, empty: str) -> None:
    records = [{**job_record(job), "code": code_of(job)} for job in found]
    if chosen(output) == "table":
        records = [{**record, "age": age(job), "why": _short(job)} for record, job in zip(records, found, strict=True)]
    show_rows(records, FOR_PEOPLE if chosen(output) == "table" else COLUMNS, output, empty=empty, short="why")


def _empty(words: tuple[str, ...], cursor: str | None) -> str:
    if cursor is not None:
        return "no more jobs"
    return "no job matches; mulligan jobs list shows all" if words else "no jobs yet; mulligan enqueue KIND key=value"


def _more(at: Desk, words: tuple[str, ...], last: Job, database: str | None) -> None:
    total = at.jobs.count(one_filter(words), cap=COUNT_MOST)
    known = f"{COUNT_MOST:,} or more" if total >= COUNT_MOST else f"{total:,}"
    say(f"{known} in all; the next ones: {typed('jobs', 'list', *words, '--cursor', last.id, database=database)}")


def _short(job: Job) -> str:
    """Of an end that is over only the reason: the state has a column of its own."""
    return job.why.partition(": ")[2] or job.why if job.state in TERMINAL else job.why


def age(job: Job) -> str:
    return duration(max(0, int((datetime.now(UTC) - job.created_at).total_seconds())))


def code_of(job: Job) -> str:
    return "" if job.error is None else str(job.error.get("code", ""))
