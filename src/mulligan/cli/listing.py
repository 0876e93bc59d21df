"""`mulligan jobs list`: a page of jobs, how many there are, and how to see the next ones."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import click

from mulligan.cli.database import Desk, desk, say, typed
from mulligan.cli.output import as_json, chosen, job_record, show_rows
from mulligan.engine.jobs import COUNT_MOST
from mulligan.engine.paging import JobList
from mulligan.ids import LENGTH
from mulligan.job import Job
from mulligan.policy.lifecycle import TERMINAL
from mulligan.policy.phrase import duration
from mulligan.store.skimming import EXAMINED

COLUMNS = ("id", "state", "phase", "kind", "queue", "attempt", "code", "created_at", "why")
FOR_PEOPLE = ("id", "phase", "kind", "attempt", "code", "age", "why")


def show_list(
    words: tuple[str, ...], limit: int, cursor: str | None, database: str | None, output: str | None, *, page: bool
) -> None:
    if cursor is not None and len(cursor) != LENGTH:
        raise click.BadParameter(f"{cursor!r} is none; the page before names it at its end", param_hint="--cursor")
    with desk(database) as at:
        found = at.jobs.list(one_filter(words), limit=limit, before=cursor)
        if page:
            _print_page(at, words, found, output)
        else:
            print_jobs(found, output, empty="" if found.partial else _empty(words, cursor))
        if found.cursor is not None:
            _more(at, words, found, database)


def _print_page(at: Desk, words: tuple[str, ...], found: JobList, output: str | None) -> None:
    """For programs: the jobs, and what they must know of the others."""
    if output not in {"json", "jsonl"}:
        raise click.UsageError("--page is for programs: add -o json")
    total = at.jobs.count(one_filter(words), cap=COUNT_MOST)
    said = {
        "jobs": [{**job_record(job), "code": code_of(job)} for job in found],
        "cursor": found.cursor,
        "partial": found.partial,
        "count": {"jobs": total, "capped": total.capped, "partial": total.partial},
    }
    click.echo(as_json(said, 2 if output == "json" else None))


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


def _more(at: Desk, words: tuple[str, ...], found: JobList, database: str | None) -> None:
    following = typed("jobs", "list", *words, "--cursor", str(found.cursor), database=database)
    if found.partial:
        say(f"this is a part: {EXAMINED:,} jobs were looked at, and there are older ones. Go on: {following}")
        return
    total = at.jobs.count(one_filter(words), cap=COUNT_MOST)
    unsure = " or more" if total.capped or total.partial else ""
    say(f"{total:,}{unsure} in all; the next ones: {following}")


def _short(job: Job) -> str:
    """Of an end that is over only the reason: the state has a column of its own."""
    return job.why.partition(": ")[2] or job.why if job.state in TERMINAL else job.why


def age(job: Job) -> str:
    return duration(max(0, int((datetime.now(UTC) - job.created_at).total_seconds())))


def code_of(job: Job) -> str:
    return "" if job.error is None else str(job.error.get("code", ""))
