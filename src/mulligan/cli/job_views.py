"""`mulligan jobs list, show, explain`: what they read and how they print it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mulligan.app.services import StoreServices
from mulligan.batches.queries import BatchQueries
from mulligan.cli.database import (
    command_line,
    open_services,
    print_notice,
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
    terminal_width,
    to_json,
)
from mulligan.core.attempt import Verb
from mulligan.core.attempt_log import LogOfAttempt
from mulligan.core.durations import SECOND, to_micros
from mulligan.core.event import Event
from mulligan.core.format import cut_end, format_duration, format_time
from mulligan.core.ids import LENGTH, shorten_id
from mulligan.core.job import AttemptRow, Job, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.failures.facts import FACTS_KEY
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import EXAMINED_LIMIT, JobQueries
from mulligan.jobs.search import JobList
from mulligan.jobs.service import DEFAULT_COUNT_CAP

if TYPE_CHECKING:
    from mulligan.jobs.explain import Explanation
    from mulligan.steps.view import JobStep

# --- mulligan jobs list ---

COLUMNS = ("id", "state", "phase", "kind", "queue", "attempt", "code", "created_at", "why")
TABLE_COLUMNS = ("id", "phase", "job", "owner", "attempt", "age", "why")
NARROW_COLUMNS = ("id", "phase", "job", "age", "why")
NARROW = 100  # characters of a terminal that has no room for all columns
JOB_WIDTH = 44  # characters of kind and title in a table
NARROW_JOB_WIDTH = 26


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
            _print_jobs(services, found, output, empty=empty)
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
        "jobs": _list_records(services, found),
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


def _print_jobs(
    services: StoreServices, found: Sequence[Job], output: str | None, *, empty: str
) -> None:
    """Print jobs as rows. A table gets the age and a short reason."""
    records = _list_records(services, found)
    if output_format(output) != "table":
        print_rows(records, COLUMNS, output)
        return
    is_narrow = terminal_width() < NARROW
    for record, job in zip(records, found, strict=True):
        width = NARROW_JOB_WIDTH if is_narrow else JOB_WIDTH
        record["id"] = shorten_id(job.id)
        record["job"] = cut_end(f"{job.kind} {record['title']}".strip(), width)
        record["age"] = format_age(job)
        record["why"] = _short_reason(job)
    columns = NARROW_COLUMNS if is_narrow else TABLE_COLUMNS
    print_rows(records, columns, output, empty=empty, truncate="why")


def _list_records(services: StoreServices, found: Sequence[Job]) -> list[dict[str, Any]]:
    titles = services.jobs.titles(found)
    return [
        {**job_record(job), "title": title, "code": failure_code(job)}
        for job, title in zip(found, titles, strict=True)
    ]


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
    """Return the failure code and why, without the state, which has its own column."""
    if job.state is State.SUCCEEDED:
        return ""
    why = job.why
    if job.state in TERMINAL:
        why = why.partition(": ")[2] or why
    code = failure_code(job)
    return f"{code}: {why}" if code and code not in why else why


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
    "title",
    "queue",
    "owner",
    "state",
    "phase",
    "priority",
    "attempt",
    "generation",
    "retries",
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
    "progress_message",
    "cost",
    "release",
    "payload",
    "result",
)
EMPTY_VALUES: tuple[Any, ...] = (None, "", (), 0, 0.0)


def show_job(id_or_prefix: str, database: str | None, output: str | None) -> None:
    """Print one job with its attempts, newest first, and its events."""
    with open_services(database) as services:
        job = services.jobs.get(services.jobs.resolve(id_or_prefix))
        title = services.jobs.titles([job])[0]
        events = services.jobs.history(job.id)
        steps = services.jobs.steps(job.id)
        with services.store.read() as tx:
            attempts = JobQueries(tx).list_attempts(job.id)[::-1]
            batch = None
            if job.batch_id is not None:
                batch = BatchQueries(tx).get_batch(job.batch_id)
    if is_json(output):
        record = {**job_record(job), "title": title}
        record["steps"] = [step.to_json() for step in steps]
        record["attempts_made"] = [attempt_record(attempt) for attempt in attempts]
        record["events"] = [event_record(event) for event in events]
        record["batch"] = None
        if batch is not None:
            record["batch"] = {"name": batch.name, "outcome": batch.outcome}
        print_json(record, output)
        return
    batch_name = "" if batch is None else batch.name
    lines = [
        *_job_lines(job, title, batch_name),
        *_step_lines(steps, attempts),
        *_attempt_lines(attempts),
        *_event_lines(events),
    ]
    for line in lines:
        click.echo(line)


def show_log(
    id_or_prefix: str, token: int | None, database: str | None, output: str | None
) -> None:
    """Print the log of one attempt, or of the last that has one."""
    with open_services(database) as services:
        log = services.jobs.log(services.jobs.resolve(id_or_prefix), token)
    if is_json(output):
        print_json(log.to_json(), output)
    else:
        print_log(log)


def print_log(log: LogOfAttempt) -> None:
    """Print the records and stacks of an attempt."""
    for line in log.lines():
        click.echo(format_text(line))


def _job_lines(job: Job, title: str, batch_name: str) -> Iterable[str]:
    record = {**job_record(job), "title": title}
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


def _step_lines(steps: Sequence[JobStep], attempts: Sequence[AttemptRow]) -> Iterable[str]:
    """Yield the steps in the order in which they ended; nothing for a job without steps."""
    if not steps:
        return
    yield from ("", f"STEPS ({len(steps)})")
    numbers = {row.token: row.attempt for row in attempts}
    width = min(30, max(len(step.name) for step in steps))
    for step in steps:
        took = format_duration(step.seconds) if step.seconds else ""
        attempt = f"#{numbers[step.token]}" if step.token in numbers else ""
        line = f"  {step.state:<11}  {format_cell(step.name):<{width}}  {took:>7}  {attempt:<3}"
        yield f"{line}  {_step_outcome(step)}".rstrip()


def _step_outcome(step: JobStep) -> str:
    if step.code:
        return step.code
    if step.until is not None:
        return f"until {format_time(to_micros(step.until))}"
    return "" if step.value is None else format_cell(to_json(step.value))[:200]


def _attempt_lines(attempts: Sequence[AttemptRow]) -> Iterable[str]:
    yield from ("", f"ATTEMPTS ({len(attempts)})")
    if not attempts:
        yield "  no attempt has ended yet"
    for row in attempts:
        record = attempt_record(row)
        ran = format_duration((row.ended_at - row.started_at) / SECOND)
        started = format_time(row.started_at)
        code = row.code or ""
        yield f"  #{row.attempt}  {started}  ran {ran}  {row.ended}  {code}".rstrip()
        yield f"      {format_cell(row.reason)}"
        if row.code:
            yield f"      class {row.cls}, rule {row.rule}: {format_cell(row.public)}"
        yield from _detail_lines("evidence", record["evidence"])
        private = dict(record["private"])
        private.pop(FACTS_KEY, None)
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
    at = format_time(event.at)
    return f"{at}  {subject}{event.type}{attempt}{actor}  {data}".rstrip()


def _format_event_data(data: Mapping[str, Any]) -> str:
    parts = []
    for name, value in data.items():
        if value not in (None, "", {}, []):
            parts.append(f"{name}={_format_value(name, value)}")
    return " ".join(parts)


def _format_value(name: str, value: Any) -> str:
    """Format a value of an event for people: times, durations, short numbers, no Python types."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and (name.endswith("_at") or name in TIME_FIELDS):
        return format_time(value)
    if is_whole and name.endswith("_ms"):
        return format_duration(value / 1000)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, Mapping):
        parts = (f"{key} {_format_value(key, one)}" for key, one in value.items())
        return f"({', '.join(parts)})"
    if isinstance(value, list | tuple):
        return ",".join(_format_value("", one) for one in value)
    return str(value)


# --- mulligan jobs explain ---

INDENT = "  "
TIME_FIELDS = frozenset({"since", "until", "first", "oldest", "at"})  # of events, in microseconds


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
    from mulligan.jobs.explain import Fact

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
