"""`mulligan jobs export`: page after page, so that neither we nor the database hold more than one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from mulligan.cli.database import Desk, desk, say
from mulligan.cli.listing import code_of, one_filter
from mulligan.cli.output import as_json, attempt_record, job_record
from mulligan.engine.jobs import COUNT_MOST
from mulligan.job import Job

PAGE = 500


def run_export(words: tuple[str, ...], database: str | None, *, attempts: bool) -> None:
    count = 0
    with desk(database) as at, _progress(at, words) as advance:
        for job in every(at, one_filter(words)):
            click.echo(as_json(_record(at, job, attempts=attempts)))
            advance()
            count += 1
    say(f"{count:,} jobs")


def every(at: Desk, words: str) -> Iterator[Job]:
    """New jobs that come meanwhile have later ids: they are not met, and nobody is met twice."""
    before: str | None = None
    while True:
        page = at.jobs.list(words, limit=PAGE, before=before)
        yield from page
        if page.cursor is None:
            return
        before = page.cursor


def _record(at: Desk, job: Job, *, attempts: bool) -> dict[str, Any]:
    record = {**job_record(job), "code": code_of(job)}
    if attempts:
        record["attempts_made"] = [attempt_record(row) for row in at.jobs.attempts(job.id)]
    return record


@contextmanager
def _progress(at: Desk, words: tuple[str, ...]) -> Iterator[Callable[[], None]]:
    """A bar while a person looks on and the data goes elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = at.jobs.count(one_filter(words), cap=COUNT_MOST)
    columns = (TextColumn("export"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("export", total=None if total.capped or total.partial else int(total))
        yield lambda: bar.advance(task)
