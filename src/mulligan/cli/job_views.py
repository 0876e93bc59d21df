"""`mulligan jobs list, show, explain, watch`: what they read and how they print it."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from mulligan.app.services import StoreServices
from mulligan.batches.queries import BatchQueries
from mulligan.cli import EXIT_NOT_SUCCEEDED
from mulligan.cli.database import (
    command_line,
    deadline_after,
    is_past,
    open_services,
    print_notice,
    wait_for_database,
)
from mulligan.cli.output import (
    attempt_record,
    event_record,
    format_cell,
    format_text,
    is_json,
    job_record,
    output_format,
    print_json,
    print_rows,
    print_tsv,
    style_of,
    to_json,
)
from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND
from mulligan.core.errors import WaitTimeout
from mulligan.core.event import Event
from mulligan.core.format import format_duration, format_time
from mulligan.core.ids import LENGTH
from mulligan.core.job import AttemptRow, Job, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.failures.facts import FACTS_KEY
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.explain import Explanation, Fact
from mulligan.jobs.filter import Filter, parse_filter
from mulligan.jobs.queries import EXAMINED_LIMIT, JobQueries, SearchQueries
from mulligan.jobs.search import CappedCount, JobList, build_count, resolve_filter
from mulligan.jobs.service import DEFAULT_COUNT_CAP

# --- mulligan jobs list ---

COLUMNS = ("id", "state", "phase", "kind", "queue", "attempt", "code", "created_at", "why")
TABLE_COLUMNS = ("id", "phase", "kind", "attempt", "code", "age", "why")


def show_list(
    terms: tuple[str, ...],
    limit: int,
    cursor: str | None,
    database: str | None,
    output: str | None,
    *,
    page: bool,
) -> None:
    """Print one page of jobs and the command for the next page."""
    if cursor is not None and len(cursor) != LENGTH:
        raise click.BadParameter(
            f"invalid cursor {cursor!r}. Use the one printed at the end of the last page.",
            param_hint="--cursor",
        )
    with open_services(database) as services:
        found = services.jobs.list(join_filter(terms), limit=limit, before=cursor)
        if page:
            _print_page(services, terms, found, output)
        else:
            empty = "" if found.partial else _empty_message(terms, cursor)
            print_jobs(found, output, empty=empty)
        if found.cursor is not None:
            _print_next_page(services, terms, found, database)


def _print_page(
    services: StoreServices, terms: tuple[str, ...], found: JobList, output: str | None
) -> None:
    """Print the jobs as an object that also says what a program cannot see: cursor and counts."""
    if not is_json(output):
        raise click.UsageError("--page needs -o json or -o jsonl")
    total = services.jobs.count(join_filter(terms), cap=DEFAULT_COUNT_CAP)
    page = {
        "jobs": [_list_record(job) for job in found],
        "cursor": found.cursor,
        "partial": found.partial,
        "count": {"jobs": total, "capped": total.capped, "partial": total.partial},
    }
    print_json(page, output)


def join_filter(terms: tuple[str, ...]) -> str:
    """Join the terms of a filter. A single term may already be a whole filter.

    The shell has removed the quotes of several terms, so each of them is quoted again.
    """
    if len(terms) == 1:
        term = terms[0]
        if ":" in term or " " not in term.strip() or term.strip()[0] in "\"'":
            return term
    return shlex.join(terms)


def print_jobs(found: Sequence[Job], output: str | None, *, empty: str) -> None:
    """Print jobs as rows. A table gets the age and a short reason."""
    if output_format(output) != "table":
        print_rows([_list_record(job) for job in found], COLUMNS, output)
        return
    records = [
        {**_list_record(job), "age": format_age(job), "why": _short_reason(job)} for job in found
    ]
    print_rows(records, TABLE_COLUMNS, output, empty=empty, truncate="why")


def _list_record(job: Job) -> dict[str, Any]:
    return {**job_record(job), "code": failure_code(job)}


def _empty_message(terms: tuple[str, ...], cursor: str | None) -> str:
    if cursor is not None:
        return "No more jobs."
    if terms:
        return "No job matches. List all jobs with: mulligan jobs list"
    return "No jobs yet. Create one with: mulligan enqueue KIND key=value"


def _print_next_page(
    services: StoreServices, terms: tuple[str, ...], found: JobList, database: str | None
) -> None:
    command = command_line("jobs", "list", *terms, "--cursor", str(found.cursor), database=database)
    if found.partial:
        print_notice(
            f"Incomplete: stopped after reading {EXAMINED_LIMIT:,} jobs. Continue with: {command}"
        )
        return
    total = services.jobs.count(join_filter(terms), cap=DEFAULT_COUNT_CAP)
    at_least = "at least " if total.capped or total.partial else ""
    print_notice(f"{at_least}{total:,} in all. Next page: {command}")


def _short_reason(job: Job) -> str:
    """Return why, without the state of a finished job: the state has its own column."""
    if job.state not in TERMINAL:
        return job.why
    return job.why.partition(": ")[2] or job.why


def format_age(job: Job) -> str:
    """Return how long ago the job was created."""
    age = datetime.now(UTC) - job.created_at
    return format_duration(max(0, int(age.total_seconds())))


def failure_code(job: Job) -> str:
    """Return the failure code of a job, or an empty string."""
    return "" if job.error is None else str(job.error.get("code", ""))


# --- mulligan jobs show ---

FIELDS = (
    "id",
    "kind",
    "queue",
    "owner",
    "state",
    "phase",
    "priority",
    "attempt",
    "generation",
    "failures",
    "losses",
    "max_retries",
    "uses",
    "unique_key",
    "batch_id",
    "created_at",
    "run_at",
    "started_at",
    "finished_at",
    "deadline_at",
    "progress",
    "cost",
    "payload",
    "result",
)
EMPTY_VALUES: tuple[Any, ...] = (None, "", (), 0, 0.0)


def show_job(id_or_prefix: str, database: str | None, output: str | None) -> None:
    """Print one job with its attempts, newest first, and its events."""
    with open_services(database) as services:
        job = services.jobs.get(services.jobs.resolve(id_or_prefix))
        events = services.jobs.history(job.id)
        with services.store.read() as tx:
            attempts = JobQueries(tx).list_attempts(job.id)[::-1]
            batch = None if job.batch_id is None else BatchQueries(tx).get_batch(job.batch_id)
    if is_json(output):
        record = job_record(job) | {
            "attempts_made": [attempt_record(attempt) for attempt in attempts],
            "events": [event_record(event) for event in events],
            "batch": None if batch is None else {"name": batch.name, "outcome": batch.outcome},
        }
        print_json(record, output)
        return
    batch_name = "" if batch is None else batch.name
    for line in (*_job_lines(job, batch_name), *_attempt_lines(attempts), *_event_lines(events)):
        click.echo(line)


def _job_lines(job: Job, batch_name: str) -> Iterable[str]:
    record = job_record(job)
    for name in FIELDS:
        if name == "payload" or record[name] not in EMPTY_VALUES:
            yield f"{name + ':':<14}{format_cell(record[name])}"
    if batch_name:
        yield f"{'batch:':<14}{format_cell(batch_name)}"
    yield f"{'why:':<14}{format_cell(job.why)}"
    if job.error is not None:
        code = job.error.get("code")
        cls = job.error.get("class")
        yield f"{'error:':<14}{code} ({cls}): {format_cell(job.error.get('message'))}"


def _attempt_lines(attempts: Sequence[AttemptRow]) -> Iterable[str]:
    yield from ("", f"ATTEMPTS ({len(attempts)})")
    if not attempts:
        yield "  no attempt has ended yet"
    for row in attempts:
        record = attempt_record(row)
        ran = format_duration((row.ended_at - row.started_at) / SECOND)
        started = format_time(row.started_at)
        yield f"  #{row.attempt}  {started}  ran {ran}  {row.ended}  {row.code or ''}".rstrip()
        yield f"      {format_cell(row.reason)}"
        if row.code:
            yield f"      class {row.cls}, rule {row.rule}: {format_cell(row.public)}"
        yield from _detail_lines("evidence", record["evidence"])
        private = {name: value for name, value in record["private"].items() if name != FACTS_KEY}
        yield from _detail_lines("private", private)


def _detail_lines(label: str, details: Mapping[str, Any]) -> Iterable[str]:
    for name, value in details.items():
        text = value if isinstance(value, str) else to_json(value)
        first, *rest = format_text(text).rstrip().split("\n")
        yield f"      {label} {name}: {first}"
        yield from (f"          {line}" for line in rest)


def _event_lines(events: Sequence[Event]) -> Iterable[str]:
    yield from ("", f"EVENTS ({len(events)})")
    for event in events:
        yield f"  {format_event(event)}"


def format_event(event: Event, subject: str = "") -> str:
    """Format an event on one line: time, subject, type, attempt, actor, data."""
    attempt = f" #{event.attempt}" if event.attempt else ""
    actor = f" by {format_cell(event.actor)}" if event.actor else ""
    data = format_cell(_format_event_data(event.data))
    return f"{format_time(event.at)}  {subject}{event.type}{attempt}{actor}  {data}".rstrip()


def _format_event_data(data: Mapping[str, Any]) -> str:
    present = {name: value for name, value in data.items() if value not in (None, "", {}, [])}
    return " ".join(f"{name}={_format_value(name, value)}" for name, value in present.items())


def _format_value(name: str, value: Any) -> Any:
    is_time = name.endswith("_at") and isinstance(value, int)
    return format_time(value) if is_time else value


# --- mulligan jobs explain ---

INDENT = "  "


class NextCommand(NamedTuple):
    """A command to type next, and what it does."""

    command: str
    effect: str


def show_explanation(
    id_or_prefix: str, database: str | None, output: str | None, *, private: bool = False
) -> None:
    """Print a job's story, its policy and limits, and the commands that make sense now."""
    with open_services(database) as services:
        job_id = services.jobs.resolve(id_or_prefix)
        explanation = services.jobs.explain(job_id, private=private)
        queue_paused = _is_queue_paused(services, explanation.job)
    commands = list(_next_commands(explanation, database, queue_paused=queue_paused))
    if is_json(output):
        print_json(_explanation_record(explanation, commands, private=private), output)
        return
    click.echo(format_text(explanation.text).rstrip())
    for line in (*_fact_lines(explanation), *_command_lines(commands)):
        click.echo(line)


def _is_queue_paused(services: StoreServices, job: Job) -> bool:
    if job.phase != "held":
        return False
    with services.store.read() as tx:
        return any(
            gate.scope == "queue" and gate.key == job.queue
            for gate in GuardQueries(tx).list_gates()
        )


def _explanation_record(
    explanation: Explanation, commands: Sequence[NextCommand], *, private: bool
) -> dict[str, Any]:
    attempts = [attempt_record(attempt) for attempt in explanation.attempts]
    if not private:
        for attempt in attempts:
            del attempt["private"]
    return {
        "job": job_record(explanation.job),
        "why": explanation.job.why,
        "now": explanation.now,
        "story": [{"at": item.at.isoformat(), "text": item.text} for item in explanation.story],
        "text": explanation.text,
        "facts": [fact._asdict() for fact in explanation.facts],
        "attempts": attempts,
        "choices": explanation.choices,
        "next": [command for command, _ in commands],
    }


def _fact_lines(explanation: Explanation) -> Iterator[str]:
    job = explanation.job
    facts = [Fact("queue", f"{job.queue}, priority {job.priority}"), *explanation.facts]
    if job.deadline_at is not None:
        facts.append(Fact("deadline", f"{job.deadline_at:%Y-%m-%d %H:%M:%S} UTC", "job"))
    if job.uses:
        facts.append(Fact("uses", ", ".join(job.uses), "kind"))
    width = max(len(fact.name) for fact in facts) + 2
    yield from ("", "Policy and limits")
    for fact in facts:
        origin = f"  ({fact.origin})" if fact.origin else ""
        yield f"{INDENT}{fact.name:<{width}}{format_cell(fact.value)}{origin}"


def _command_lines(commands: Sequence[NextCommand]) -> Iterator[str]:
    width = max(len(command) for command, _ in commands) + 2
    yield from ("", "What to type next")
    for command, effect in commands:
        yield f"{INDENT}{command:<{width}}# {effect}"


def _next_commands(
    explanation: Explanation, database: str | None, *, queue_paused: bool
) -> Iterator[NextCommand]:
    def command(*arguments: str) -> str:
        return command_line(*arguments, database=database)

    job = explanation.job
    if job.phase == "no_worker":
        yield NextCommand(command("worker", "APP"), "start a worker with an app that has this kind")
    if queue_paused:
        yield NextCommand(command("queues", "resume", job.queue), "resume the whole queue")
    if job.state in {State.QUEUED, State.RUNNING}:
        yield NextCommand(command("jobs", "watch", job.id), "follow it until it ends")
    for verb in explanation.moves:
        for arguments, effect in _manual_moves(explanation, verb):
            yield NextCommand(command("jobs", *arguments), effect)
    yield NextCommand(command("jobs", "show", job.id), "show everything, with traces")


def _manual_moves(explanation: Explanation, verb: Verb) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the arguments of `mulligan jobs` that make this move, and what it does."""
    job_id = explanation.job.id
    match verb:
        case Verb.RELEASE if explanation.choices:
            for choice in explanation.choices:
                yield ("release", job_id, "--choice", choice), "release it with this choice"
        case Verb.RELEASE:
            yield ("release", job_id), "release it"
        case Verb.RETRY_BY_HAND:
            yield ("retry", job_id), "run it again with counters reset"
        case Verb.CANCEL:
            yield ("cancel", job_id), "cancel it"
        case Verb.DISCARD:
            yield ("discard", job_id, "--reason", "WHY"), "give it up for good"


# --- mulligan jobs watch: live display ---


class Frame(NamedTuple):
    """The current state of something that is watched."""

    text: str  # one line, for pipes and logs
    draw: Callable[[], Any]  # returns the rich renderable for a terminal
    key: str  # the line is printed again when this changes


ShowFrame = Callable[[Frame], None]


@contextmanager
def live_display() -> Iterator[ShowFrame]:
    """Redraw frames in place on a terminal. Elsewhere print a line whenever the key changes."""
    if not sys.stderr.isatty():
        yield _print_changes()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield lambda frame: live.update(frame.draw())


def _print_changes() -> ShowFrame:
    last_key = ""

    def show(frame: Frame) -> None:
        nonlocal last_key
        if frame.key != last_key:
            last_key = frame.key
            print_notice(frame.text)

    return show


# --- mulligan jobs watch ID ---

JOB_INTERVAL = 0.2  # seconds


def watch_job(
    id_or_prefix: str, timeout: float | None, database: str | None, output: str | None
) -> int:
    """Follow one job until it ends or is parked. Return 0 if it succeeded."""
    with open_services(database) as services, live_display() as show:
        job = _follow_job(services, services.jobs.resolve(id_or_prefix), timeout, show)
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
    services: StoreServices, job_id: str, timeout: float | None, show: ShowFrame
) -> Job:
    deadline = deadline_after(timeout)
    while True:
        job = wait_for_database(lambda: services.jobs.get(job_id), deadline)
        if job.state in TERMINAL or job.state is State.PARKED:
            return job
        show(_job_frame(job))
        if is_past(deadline):
            message = f"job {job_id} is still {job.state} after {timeout:g} s; it continues"
            raise WaitTimeout(message)
        time.sleep(JOB_INTERVAL)


def _job_frame(job: Job) -> Frame:
    progress = "" if job.progress is None else f" {job.progress:.0%}"
    text = f"{job.phase}{progress}: {format_cell(job.why)}"
    key = f"{job.phase} {job.attempt} {job.progress}"
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
    return any(counts[state] or counts[state].partial for state in ("queued", "running"))


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
    parts = [f"{_format_count(count)} {state}" for state, count in counts.items() if count]
    text = ", ".join(parts) or "no job matches"
    return Frame(text, lambda: _draw_counts(counts), text)


def _format_count(count: CappedCount) -> str:
    return f"{count:,}+" if count.capped or count.partial else f"{count:,}"


def _draw_counts(counts: Counts) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    cells = []
    for state, count in counts.items():
        table.add_column(state.upper(), justify="right", min_width=9)
        cells.append(Text(_format_count(count), style=style_of(state) if count else "dim"))
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
        row = {state: _format_count(count) for state, count in counts.items()}
        print_rows([row], list(counts), "table")
    else:
        for state, count in counts.items():
            print_tsv((state, str(count)))
    if any(count.partial for count in counts.values()):
        print_notice(
            f"Incomplete: read at most {EXAMINED_LIMIT:,} jobs for each state. Narrow the filter."
        )
