"""`mulligan jobs …`. An id may be given by as many of its first characters as make it unique."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli import options as shared
from mulligan.cli.database import desk, say
from mulligan.cli.output import as_json, cell, chosen, job_record, show_rows
from mulligan.cli.story import show_story
from mulligan.engine.jobs import Jobs
from mulligan.errors import WaitTimeout
from mulligan.job import Job, State
from mulligan.policy.lifecycle import TERMINAL
from mulligan.policy.phrase import duration

COLUMNS = ("id", "state", "phase", "kind", "queue", "attempt", "code", "created_at", "why")
FOR_PEOPLE = ("id", "phase", "kind", "attempt", "code", "age", "why")
FAILED = 6
WATCH_EVERY = 0.2


@click.group()
def jobs() -> None:
    """List, show, watch and repair jobs."""


@jobs.command("list")
@click.argument("filter_", metavar="[FILTER]...", nargs=-1)
@click.option("--limit", type=int, default=50, show_default=True)
@shared.database
@shared.output
def list_(filter_: tuple[str, ...], limit: int, database: str | None, output: str | None) -> None:
    """Newest first. FILTER: state:dead kind:render queue:pdf owner:acme batch:…"""
    with desk(database) as at:
        found = at.jobs.list(_filter(filter_), limit=limit)
    records = [{**job_record(job), "code": code_of(job)} for job in found]
    if chosen(output) == "table":
        records = [{**record, "age": _age(job)} for record, job in zip(records, found, strict=True)]
    empty = (
        "no job matches; mulligan jobs list shows all" if filter_ else "no jobs yet; mulligan enqueue KIND key=value"
    )
    show_rows(records, FOR_PEOPLE if chosen(output) == "table" else COLUMNS, output, empty=empty)
    if len(found) == limit:
        say(f"the newest {limit}; --limit shows more")


def _filter(words: tuple[str, ...]) -> str:
    """One word may be a whole filter; of several, each is a part that the shell has unquoted."""
    return words[0] if len(words) == 1 else shlex.join(words)


def _age(job: Job) -> str:
    return duration(max(0, int((datetime.now(UTC) - job.created_at).total_seconds())))


def code_of(job: Job) -> str:
    return "" if job.error is None else str(job.error.get("code", ""))


@jobs.command()
@click.argument("job_id", metavar="ID")
@shared.database
@shared.output
def show(job_id: str, database: str | None, output: str | None) -> None:
    """Everything about one job: facts, why, attempts (newest first, with their private half), events."""
    with desk(database) as at:
        show_story(at, at.jobs.resolve(job_id), output)


# -- repair -----------------------------------------------------------------------------------------
Repair = Callable[[Jobs, str, dict[str, Any]], Job]


def repair(name: str, words: str, act: Repair, *more: Callable[[Any], Any]) -> None:
    """One command per verb, all alike."""

    def run(job_id: str, database: str | None, output: str | None, **said: Any) -> None:
        with desk(database) as at:
            _report(act(at.jobs, at.jobs.resolve(job_id), said), output)

    decorated: Any = run
    for option in (shared.output, shared.database, *more, click.argument("job_id", metavar="ID")):
        decorated = option(decorated)
    jobs.command(name, help=words)(decorated)


def _report(job: Job, output: str | None) -> None:
    if output in {"json", "jsonl"}:
        click.echo(as_json(job_record(job), 2 if output == "json" else None))
    else:
        click.echo(f"{job.id}\t{job.state}\t{job.phase}")
    say(cell(job.why))


_reason = click.option("--reason", default="", help="For the history.")
_must_reason = click.option("--reason", required=True, help="The last thing anybody will read about this job.")
_choice = click.option("--choice", help="What was decided; the handler reads it as ctx.choice.")
_max_retries = click.option("--max-retries", type=int, help="Instead of what holds for this job.")

repair("cancel", "Stop a job: at once while it waits, once its code has stopped while it runs.",
       lambda api, job_id, said: api.cancel(job_id, **said), _reason)  # fmt: skip
repair("retry", "Run a dead, parked or cancelled job again, with fresh counters; its history stays.",
       lambda api, job_id, said: api.retry(job_id, reason=said["reason"], overrides=_overrides(said)),
       _max_retries, _reason)  # fmt: skip
repair("release", "Let a parked job go on, perhaps with a choice.",
       lambda api, job_id, said: api.release(job_id, **said), _choice, _reason)  # fmt: skip
repair("discard", "Nobody wants this dead or parked job any more.",
       lambda api, job_id, said: api.discard(job_id, **said), _must_reason)  # fmt: skip


def _overrides(said: dict[str, Any]) -> dict[str, Any] | None:
    return None if said["max_retries"] is None else {"max_retries": said["max_retries"]}


# -- watch ------------------------------------------------------------------------------------------
@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--timeout", type=shared.Length(), help="Give up after: 30, 5m, 2h; the job goes on.")
@shared.database
@shared.output
def watch(job_id: str, timeout: float | None, database: str | None, output: str | None) -> int:
    """Follow a job to its end. Exit code 6: it did not succeed."""
    with desk(database) as at:
        job = _follow(at.jobs, at.jobs.resolve(job_id), timeout)
    _report(job, output)
    return 0 if job.state is State.SUCCEEDED else FAILED


def _follow(api: Jobs, job_id: str, timeout: float | None) -> Job:
    deadline = None if timeout is None else time.monotonic() + timeout
    said = ""
    while True:
        job = api.get(job_id)
        if job.state in TERMINAL or job.state is State.PARKED:
            return job
        if (words := _where(job)) != said:
            said = words
            say(words)
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(f"job {job_id} is still {job.state} after {timeout:g} s; it goes on")
        time.sleep(WATCH_EVERY)


def _where(job: Job) -> str:
    share = "" if job.progress is None else f" {job.progress:.0%}"
    return f"{job.phase}{share}: {cell(job.why)}"
