"""`mulligan jobs watch`: one job until it ends, or the counts of a filter. On a terminal it is drawn in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from mulligan.cli import FAILED
from mulligan.cli.database import Desk, desk, patiently, say, typed
from mulligan.cli.listing import one_filter
from mulligan.cli.output import as_json, cell, chosen, job_record, show_rows, style
from mulligan.engine.filters import Filter, parse_filter
from mulligan.engine.jobs import COUNT_MOST
from mulligan.engine.paging import Count, counted
from mulligan.engine.searching import resolved
from mulligan.errors import WaitTimeout
from mulligan.job import Job, State
from mulligan.policy.lifecycle import TERMINAL

JOB_EVERY = 0.2  # seconds
COUNTS_EVERY = 0.5
Counts = dict[str, Count]
Draw = Callable[[Any, str, str], None]  # what a terminal shows, the same in words, and what of it is news


# -- one job ----------------------------------------------------------------------------------------
def watch_job(given: str, timeout: float | None, database: str | None, output: str | None) -> int:
    with desk(database) as at, drawing() as draw:
        job = _follow(at, at.jobs.resolve(given), timeout, draw)
    if output in {"json", "jsonl"}:
        click.echo(as_json(job_record(job), 2 if output == "json" else None))
    else:
        click.echo(f"{job.id}\t{job.state}\t{job.phase}")
    say(cell(job.why))
    if job.state is not State.SUCCEEDED:
        say(f"more: {typed('jobs', 'explain', job.id, database=database)}")
    return 0 if job.state is State.SUCCEEDED else FAILED


def _follow(at: Desk, job_id: str, timeout: float | None, draw: Draw) -> Job:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        job = patiently(lambda: at.jobs.get(job_id), deadline)
        if job.state in TERMINAL or job.state is State.PARKED:
            return job
        words, news = _where(job), f"{job.phase} {job.attempt} {job.progress}"
        draw(lambda job=job, words=words: _job_picture(job, words), words, news)
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(f"job {job_id} is still {job.state} after {timeout:g} s; it goes on")
        time.sleep(JOB_EVERY)


def _where(job: Job) -> str:
    share = "" if job.progress is None else f" {job.progress:.0%}"
    return f"{job.phase}{share}: {cell(job.why)}"


def _job_picture(job: Job, words: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.text import Text

    told = Text.assemble((f"{job.kind} ", "bold"), (words, style(job.phase)))
    if job.progress is None:
        return Spinner("dots", text=told)
    return Columns([ProgressBar(total=1.0, completed=job.progress, width=24), told])


# -- a filter ---------------------------------------------------------------------------------------
def watch_filter(
    words: tuple[str, ...], timeout: float | None, database: str | None, output: str | None, *, follow: bool
) -> int:
    where = parse_filter(one_filter(words))
    deadline = None if timeout is None else time.monotonic() + timeout
    with desk(database) as at, drawing() as draw:
        while True:
            counts = patiently(lambda: _counts(at, where), deadline)
            draw(lambda counts=counts: _counts_picture(counts), _said(counts), _said(counts))
            over = not follow and not any(counts[state] or counts[state].partial for state in ("queued", "running"))
            if over or (deadline is not None and time.monotonic() >= deadline):
                break
            time.sleep(COUNTS_EVERY)
    _print_counts(counts, output)
    if not over and not follow:
        unsure = "perhaps more than " if counts["queued"].partial or counts["running"].partial else ""
        raise WaitTimeout(
            f"{unsure}{counts['queued'] + counts['running']} still wait or run after {timeout:g} s; they go on"
        )
    return FAILED if counts["dead"] or counts["parked"] or counts["cancelled"] else 0


def _counts(at: Desk, where: Filter) -> Counts:
    """Per state, each stopping at 10,000, or with 50,000 jobs looked at."""
    states = where.get("state", tuple(State))
    wanted = (states,) if isinstance(states, str) else states
    with at.store.read() as unit:
        meant = resolved(unit, where)
        return {
            state.value: counted(unit.skim_count({**meant, "state": state.value}, COUNT_MOST), COUNT_MOST)
            if state.value in wanted
            else Count(0)
            for state in State
        }


def _said(counts: Counts) -> str:
    return ", ".join(f"{_number(count)} {state}" for state, count in counts.items() if count) or "no job matches"


def _number(count: Count) -> str:
    return f"{count:,}+" if count.capped or count.partial else f"{count:,}"


def _counts_picture(counts: Counts) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for state in counts:
        table.add_column(state.upper(), justify="right", min_width=9)
    table.add_row(*(Text(_number(count), style=style(state) if count else "dim") for state, count in counts.items()))
    return table


def _print_counts(counts: Counts, output: str | None) -> None:
    if output in {"json", "jsonl"}:
        unsure = {
            "stops_at": COUNT_MOST,
            "capped": [state for state, count in counts.items() if count.capped],
            "partial": [state for state, count in counts.items() if count.partial],
        }
        click.echo(as_json({**counts, **unsure}, 2 if output == "json" else None))
    elif chosen(output) == "table":
        show_rows([{state: _number(count) for state, count in counts.items()}], list(counts), "table")
    else:
        for state, count in counts.items():
            click.echo(f"{state}\t{count}")
    if output not in {"json", "jsonl"} and any(count.partial for count in counts.values()):
        say("at most 50,000 jobs were looked at for each state: there may be more; narrow the filter")


# -- drawing ----------------------------------------------------------------------------------------
@contextmanager
def drawing() -> Iterator[Draw]:
    """In place where a person looks on; elsewhere a line whenever the words change."""
    if not sys.stderr.isatty():
        yield _line_by_line()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True, highlight=False), refresh_per_second=8, transient=True) as live:
        yield lambda picture, _, __: live.update(picture())


def _line_by_line() -> Draw:
    last = ""

    def draw(_: Any, words: str, news: str) -> None:
        nonlocal last
        if news != last:
            last = news
            say(words)

    return draw
