"""`mulligan status, top, open, jobs watch`: what is broken, what runs, and when jobs end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.app.services import StoreServices
from mulligan.app.status import StatusProblem, SystemStatus, find_problems, read_status
from mulligan.cli import EXIT_NOT_HEALTHY, EXIT_NOT_SUCCEEDED
from mulligan.cli import options as shared
from mulligan.cli.completion import complete_job_ids
from mulligan.cli.database import (
    command_line,
    deadline_after,
    is_past,
    open_services,
    print_notice,
    wait_for_database,
)
from mulligan.cli.job_views import join_filter, print_log
from mulligan.cli.output import (
    Frame,
    ShowFrame,
    format_cell,
    is_json,
    job_record,
    json_value,
    live_display,
    output_format,
    print_json,
    print_rows,
    print_tsv,
    style_of,
    terminal_width,
)
from mulligan.core.durations import to_datetime
from mulligan.core.errors import WaitTimeout
from mulligan.core.format import cut_end, format_duration, format_time
from mulligan.core.ids import shorten_id
from mulligan.core.job import COUNT_CAP, Job, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.jobs.filter import Filter, parse_filter
from mulligan.jobs.queries import EXAMINED_LIMIT, JobQueries, SearchQueries
from mulligan.jobs.search import CappedCount, build_count, resolve_filter
from mulligan.jobs.service import DEFAULT_COUNT_CAP
from mulligan.worker.service import worker_statuses

# --- mulligan status ---

ICONS = {
    "workers": "◌",
    "dependency": "⊗",
    "kind": "‖",
    "queue": "‖",
    "alert": "▲",
    "cause": "✕",
}
NARROWEST = 60  # characters
CLEAR_SCREEN = "\x1b[H\x1b[2J"


_watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C."
)
_every_option = click.option(
    "--every",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two screens of --watch.",
)


@click.command("status")
@_watch_option
@_every_option
@shared.database_option
@shared.output_option
def status(database: str | None, output: str | None, *, watch: bool, every: float) -> int:
    """Show what is broken and what waits, on one screen.

    Exit code 0: nothing needs attention. 8: something does.
    """
    with open_services(database) as services:
        while True:
            found = read_status(services)
            problems = list(find_problems(found))
            if is_json(output):
                print_json(_to_record(found, problems), output)
            else:
                screen = "\n".join(_screen(found, problems))
                click.echo(CLEAR_SCREEN + screen if watch else screen)
            if not watch:
                return EXIT_NOT_HEALTHY if problems else 0
            time.sleep(every)


def _screen(found: SystemStatus, problems: list[StatusProblem]) -> Iterator[str]:
    width = max(NARROWEST, terminal_width())
    yield _headline(found, problems)
    for problem in problems:
        age = ""
        if problem.since is not None:
            age = f" · {_age(found, problem.since)} ago"
        text_width = width - len(age) - 4
        yield f"  {ICONS[problem.what]} {cut_end(problem.text, text_width)}{age}"
        yield click.style(f"    {command_line(*problem.command)}", dim=True)
    yield ""
    yield f"jobs     {_describe_jobs(found)}"
    yield f"workers  {_describe_workers(found)}"
    for operation in found.operations:
        yield f"running  {operation.action} {operation.filter} (mulligan ops show {operation.id})"


def _headline(found: SystemStatus, problems: list[StatusProblem]) -> str:
    at = format_time(found.now)
    if not problems:
        return click.style("✓ Nothing is broken", fg="green", bold=True) + f"  {at}"
    noun = "problem" if len(problems) == 1 else "problems"
    return click.style(f"{len(problems)} {noun}", fg="red", bold=True) + f"  {at}"


def _describe_jobs(found: SystemStatus) -> str:
    ready = f"{_format_count(found.ready)} ready"
    if found.oldest is not None and found.ready:
        ready += f" (oldest {_age(found, found.oldest)})"
    others = {
        "running": found.counts[State.RUNNING],
        "retrying": found.retrying,
        "held": found.held,
        "parked": found.counts[State.PARKED],
        "dead": found.counts[State.DEAD],
        "succeeded": found.counts[State.SUCCEEDED],
    }
    counts = [f"{_format_count(count)} {word}" for word, count in others.items() if count]
    return " · ".join([ready, *counts])


def _describe_workers(found: SystemStatus) -> str:
    live = found.live_workers
    if not live:
        return "none. Start one: mulligan worker APP"
    taken = sum(worker.running for worker in live)
    return f"{len(live)} live, {taken:,} of {found.places:,} places taken"


def _format_count(count: int) -> str:
    return f"{COUNT_CAP:,}+" if count >= COUNT_CAP else f"{count:,}"


def _age(found: SystemStatus, at: datetime) -> str:
    seconds = (to_datetime(found.now) - at).total_seconds()
    return format_duration(max(0, int(seconds)))


def _to_record(found: SystemStatus, problems: list[StatusProblem]) -> dict[str, Any]:
    return {
        "at": json_value(to_datetime(found.now)),
        "healthy": not problems,
        "problems": [_problem_record(problem) for problem in problems],
        "jobs": {
            **found.counts,
            "ready": found.ready,
            "retrying": found.retrying,
            "held": found.held,
        },
        "oldest": json_value(found.oldest),
        "workers": len(found.live_workers),
        "places": found.places,
    }


def _problem_record(problem: StatusProblem) -> dict[str, Any]:
    return {
        "what": problem.what,
        "name": problem.name,
        "text": problem.text,
        "since": json_value(problem.since),
        "command": command_line(*problem.command),
    }


# --- mulligan top ---

TOP_COLUMNS = ("id", "job", "running_for", "owner", "attempt", "progress")
TOP_LIMIT = 200  # jobs that are read


@click.command("top")
@click.option("--limit", type=click.IntRange(1, TOP_LIMIT), default=20, show_default=True)
@_watch_option
@_every_option
@shared.database_option
@shared.output_option
def top(limit: int, database: str | None, output: str | None, *, watch: bool, every: float) -> None:
    """Show who holds the workers: running jobs, the longest first."""
    with open_services(database) as services:
        while True:
            jobs = services.jobs.list("state:running", limit=TOP_LIMIT)
            now = datetime.now(UTC)
            by_start = sorted(jobs, key=lambda job: job.started_at or now)
            if watch:
                click.echo(CLEAR_SCREEN, nl=False)
            if output_format(output) == "table":
                click.echo(_describe_places(services, by_start))
            records = _running_records(services, by_start[:limit], now)
            if output_format(output) == "table":
                records = [{**one, "id": shorten_id(one["id"])} for one in records]
            print_rows(records, TOP_COLUMNS, output, empty="No job is running.", truncate="job")
            if not watch:
                return
            time.sleep(every)


def _describe_places(services: StoreServices, jobs: Sequence[Job]) -> str:
    with services.store.read() as tx:
        workers = [worker for worker in worker_statuses(tx) if worker.is_live]
    places = sum(worker.row.concurrency for worker in workers)
    kinds = Counter(job.kind for job in jobs)
    listed = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(5))
    return f"{len(jobs):,} of {places:,} places taken{': ' if listed else ''}{listed}"


def _running_records(
    services: StoreServices, jobs: Sequence[Job], now: datetime
) -> list[dict[str, Any]]:
    records = []
    for job, title in zip(jobs, services.jobs.titles(jobs), strict=True):
        seconds = (now - (job.started_at or now)).total_seconds()
        progress = "" if job.progress is None else f"{job.progress:.0%} {job.progress_message}"
        records.append(
            {
                "id": job.id,
                "job": f"{job.kind} {title}".strip(),
                "owner": job.owner,
                "attempt": job.attempt,
                "progress": progress.strip(),
                "running_for": format_duration(max(0, int(seconds))),
            }
        )
    return records


# --- mulligan open ---


@click.command("open")
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@click.option("--print", "only_print", is_flag=True, help="Print the address only.")
@shared.database_option
def open_page(job_id: str, database: str | None, *, only_print: bool) -> None:
    """Open the page of a job in the browser, and print its address.

    The address is that of the setting web.public_url, else web.host and web.port.
    """
    with open_services(database) as services:
        found = services.jobs.resolve(job_id)
        services.jobs.get(found)
        web = services.settings.web
    base = web.public_url.rstrip("/") or f"http://{web.host}:{web.port}"
    address = f"{base}/jobs/{found}"
    click.echo(address)
    if not only_print:
        click.launch(address)


# --- mulligan jobs watch ID ---

JOB_INTERVAL = 0.2  # seconds


def watch_job(
    id_or_prefix: str,
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    log: bool = False,
) -> int:
    """Follow one job until it ends or is parked. Return 0 if it succeeded."""
    with open_services(database) as services, live_display() as show:
        job_id = services.jobs.resolve(id_or_prefix)
        on_change = _LogPrinter(services, job_id, output).print_new if log else lambda: None
        job = _follow_job(services, job_id, timeout, show, on_change)
    if is_json(output):
        print_json(job_record(job), output)
    else:
        print_tsv((job.id, job.state.value, job.phase))
    print_notice(format_cell(job.why))
    if job.state is State.SUCCEEDED:
        return 0
    print_notice(f"Details: {command_line('jobs', 'explain', job.id, database=database)}")
    return EXIT_NOT_SUCCEEDED


def _follow_job(
    services: StoreServices,
    job_id: str,
    timeout: float | None,
    show: ShowFrame,
    on_change: Callable[[], None],
) -> Job:
    deadline = deadline_after(timeout)
    token = 0
    while True:
        job = wait_for_database(lambda: services.jobs.get(job_id), deadline)
        if job.token != token or job.state is not State.RUNNING:
            token = job.token
            wait_for_database(on_change, deadline)
        if job.state in TERMINAL or job.state is State.PARKED:
            return job
        show(_job_frame(job))
        if is_past(deadline):
            message = f"job {job_id} is still {job.state} after {timeout:g} s; it continues"
            raise WaitTimeout(message)
        time.sleep(JOB_INTERVAL)


class _LogPrinter:
    """Prints the logs of attempts that fail while their job is watched."""

    def __init__(self, services: StoreServices, job_id: str, output: str | None) -> None:
        self._services = services
        self._job_id = job_id
        self._output = output
        self._printed = set(self._tokens())

    def _tokens(self) -> list[int]:
        with self._services.store.read() as tx:
            return JobQueries(tx).list_attempt_logs(self._job_id)

    def print_new(self) -> None:
        """Print the logs that have been written since the last call."""
        for token in self._tokens():
            if token in self._printed:
                continue
            log = self._services.jobs.log(self._job_id, token)
            self._printed.add(token)
            if is_json(self._output):
                print_json(log.to_json(), self._output)
            else:
                print_log(log)


def _job_frame(job: Job) -> Frame:
    progress = "" if job.progress is None else f" {job.progress:.0%}"
    message = f" ({format_cell(job.progress_message)})" if job.progress_message else ""
    text = f"{job.phase}{progress}: {format_cell(job.why)}{message}"
    key = f"{job.phase} {job.attempt} {job.progress} {job.progress_message}"
    return Frame(text, lambda: _draw_job(job, text), key)


def _draw_job(job: Job, text: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.text import Text

    label = Text.assemble((f"{job.kind} ", "bold"), (text, style_of(job.phase)))
    if job.progress is None:
        return Spinner("dots", text=label)
    return Columns([ProgressBar(total=1.0, completed=job.progress, width=24), label])


# --- mulligan jobs watch FILTER ---

COUNTS_INTERVAL = 0.5  # seconds
Counts = dict[str, CappedCount]  # by state


def watch_filter(
    terms: tuple[str, ...],
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
) -> int:
    """Follow the counts of a filter until no job waits or runs. Return 0 if all succeeded."""
    where = parse_filter(join_filter(terms))
    deadline = deadline_after(timeout)
    with open_services(database) as services, live_display() as show:
        while True:
            counts = wait_for_database(lambda: _count_states(services, where), deadline)
            show(_counts_frame(counts))
            finished = not follow and not _has_unfinished(counts)
            if finished or is_past(deadline):
                break
            time.sleep(COUNTS_INTERVAL)
    _print_counts(counts, output)
    if not finished and not follow:
        raise WaitTimeout(_unfinished_message(counts, timeout))
    failed = counts["dead"] or counts["parked"] or counts["cancelled"]
    return EXIT_NOT_SUCCEEDED if failed else 0


def _has_unfinished(counts: Counts) -> bool:
    unfinished = [counts["queued"], counts["running"]]
    return any(count or count.partial for count in unfinished)


def _unfinished_message(counts: Counts, timeout: float | None) -> str:
    is_partial = counts["queued"].partial or counts["running"].partial
    at_least = "at least " if is_partial else ""
    unfinished = counts["queued"] + counts["running"]
    return f"{at_least}{unfinished} still wait or run after {timeout:g} s; they continue"


def _count_states(services: StoreServices, where: Filter) -> Counts:
    """Count per state. Each count stops at 10,000, or after reading 50,000 jobs."""
    states = where.get("state", tuple(State))
    wanted = (states,) if isinstance(states, str) else states
    counts = {state.value: CappedCount(0) for state in State}
    with services.store.read() as tx:
        resolved = resolve_filter(tx, where)
        for state in counts:
            if state in wanted:
                found = SearchQueries(tx).count_jobs_bounded(
                    {**resolved, "state": state}, DEFAULT_COUNT_CAP
                )
                counts[state] = build_count(found, DEFAULT_COUNT_CAP)
    return counts


def _counts_frame(counts: Counts) -> Frame:
    parts = []
    for state, count in counts.items():
        if count:
            parts.append(f"{_format_state_count(count)} {state}")
    text = ", ".join(parts) or "no job matches"
    return Frame(text, lambda: _draw_counts(counts), text)


def _format_state_count(count: CappedCount) -> str:
    is_minimum = count.capped or count.partial
    return f"{count:,}+" if is_minimum else f"{count:,}"


def _draw_counts(counts: Counts) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    cells = []
    for state, count in counts.items():
        table.add_column(state.upper(), justify="right", min_width=9)
        style = style_of(state) if count else "dim"
        cells.append(Text(_format_state_count(count), style=style))
    table.add_row(*cells)
    return table


def _print_counts(counts: Counts, output: str | None) -> None:
    if is_json(output):
        limits = {
            "stops_at": DEFAULT_COUNT_CAP,
            "capped": [state for state, count in counts.items() if count.capped],
            "partial": [state for state, count in counts.items() if count.partial],
        }
        print_json({**counts, **limits}, output)
        return
    if output_format(output) == "table":
        row = {state: _format_state_count(count) for state, count in counts.items()}
        print_rows([row], list(counts), "table")
    else:
        for state, count in counts.items():
            print_tsv((state, str(count)))
    if any(count.partial for count in counts.values()):
        print_notice(
            f"Incomplete: read at most {EXAMINED_LIMIT:,} jobs for each state. Narrow the filter."
        )
