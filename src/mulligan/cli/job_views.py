"""`mulligan jobs watch`: one job until it ends, or the counts of a filter. On a terminal it is drawn in place."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli import FAILED
from mulligan.cli.database import CommandServices, open_services, patiently, say, typed
from mulligan.cli.output import (
    as_json,
    attempt_record,
    cell,
    chosen,
    event_record,
    job_record,
    lines,
    show_rows,
    style,
)
from mulligan.core.attempt import Verb
from mulligan.core.errors import WaitTimeout
from mulligan.core.event import Event
from mulligan.core.format import duration, moment
from mulligan.core.ids import LENGTH
from mulligan.core.job import SECOND, AttemptRow, Job, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.failures import facts as stored
from mulligan.jobs.explain import Explanation, Fact
from mulligan.jobs.filter import Filter, parse_filter
from mulligan.jobs.search import CappedCount, JobList, counted, resolved
from mulligan.jobs.service import COUNT_MOST
from mulligan.storage.search_queries import EXAMINED

# `mulligan jobs list`: a page of jobs, how many there are, and how to see the next ones.

COLUMNS = ("id", "state", "phase", "kind", "queue", "attempt", "code", "created_at", "why")
FOR_PEOPLE = ("id", "phase", "kind", "attempt", "code", "age", "why")


def show_list(
    words: tuple[str, ...],
    limit: int,
    cursor: str | None,
    database: str | None,
    output: str | None,
    *,
    page: bool,
) -> None:
    if cursor is not None and len(cursor) != LENGTH:
        raise click.BadParameter(
            f"{cursor!r} is none; the page before names it at its end", param_hint="--cursor"
        )
    with open_services(database) as at:
        found = at.jobs.list(one_filter(words), limit=limit, before=cursor)
        if page:
            _print_page(at, words, found, output)
        else:
            print_jobs(found, output, empty="" if found.partial else _empty(words, cursor))
        if found.cursor is not None:
            _more(at, words, found, database)


def _print_page(
    at: CommandServices, words: tuple[str, ...], found: JobList, output: str | None
) -> None:
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
    if len(words) == 1 and (
        ":" in words[0] or " " not in words[0].strip() or words[0].strip()[0] in "\"'"
    ):
        return words[0]
    return shlex.join(words)


def print_jobs(found: list[Job], output: str | None, *, empty: str) -> None:
    records = [{**job_record(job), "code": code_of(job)} for job in found]
    if chosen(output) == "table":
        records = [
            {**record, "age": age(job), "why": _short(job)}
            for record, job in zip(records, found, strict=True)
        ]
    show_rows(
        records,
        FOR_PEOPLE if chosen(output) == "table" else COLUMNS,
        output,
        empty=empty,
        short="why",
    )


def _empty(words: tuple[str, ...], cursor: str | None) -> str:
    if cursor is not None:
        return "no more jobs"
    return (
        "no job matches; mulligan jobs list shows all"
        if words
        else "no jobs yet; mulligan enqueue KIND key=value"
    )


def _more(
    at: CommandServices, words: tuple[str, ...], found: JobList, database: str | None
) -> None:
    following = typed("jobs", "list", *words, "--cursor", str(found.cursor), database=database)
    if found.partial:
        say(
            f"this is a part: {EXAMINED:,} jobs were looked at, and there are older ones. Go on: {following}"
        )
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


# `mulligan jobs explain`: a job's story, why it is where it is, and what to type next.

INDENT = "  "


def show_explanation(
    given: str, database: str | None, output: str | None, *, private: bool = False
) -> None:
    with open_services(database) as at:
        told = at.jobs.explain(at.jobs.resolve(given), private=private)
    commands = list(_next(told, database))
    if output in {"json", "jsonl"}:
        record = _record(told, commands, private=private)
        click.echo(as_json(record, 2 if output == "json" else None))
        return
    for line in (lines(told.text).rstrip(), *_explanation_lines(told), *_commands(commands)):
        click.echo(line)


def _record(told: Explanation, commands: list[tuple[str, str]], *, private: bool) -> dict[str, Any]:
    attempts = [attempt_record(attempt) for attempt in told.attempts]
    return {
        "job": job_record(told.job),
        "why": told.job.why,
        "now": told.now,
        "story": [{"at": one.at.isoformat(), "text": one.text} for one in told.story],
        "text": told.text,
        "facts": [fact._asdict() for fact in told.facts],
        "attempts": attempts if private else [_public(attempt) for attempt in attempts],
        "choices": told.choices,
        "next": [command for command, _ in commands],
    }


def _public(attempt: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attempt.items() if name != "private"}


def _explanation_lines(told: Explanation) -> Iterator[str]:
    yield from ("", "What holds for it")
    job = told.job
    facts = [Fact("queue", f"{job.queue}, priority {job.priority}"), *told.facts]
    if job.deadline_at is not None:
        facts.append(Fact("deadline", f"{job.deadline_at:%Y-%m-%d %H:%M:%S} UTC", "job"))
    if job.uses:
        facts.append(Fact("uses", ", ".join(job.uses), "kind"))
    wide = max(len(fact.name) for fact in facts) + 2
    for fact in facts:
        origin = f"  ({fact.origin})" if fact.origin else ""
        yield f"{INDENT}{fact.name:<{wide}}{cell(fact.value)}{origin}"


def _commands(commands: list[tuple[str, str]]) -> Iterator[str]:
    yield from ("", "What to type next")
    wide = max(len(command) for command, _ in commands) + 2
    for command, words in commands:
        yield f"{INDENT}{command:<{wide}}# {words}"


def _next(told: Explanation, database: str | None) -> Iterator[tuple[str, str]]:
    job = told.job
    if job.phase == "no_worker":
        yield typed("worker", "APP", database=database), "with an app that knows this kind"
    if job.phase == "held" and job.why.startswith(f"queue {job.queue} "):
        yield typed("queues", "resume", job.queue, database=database), "let the whole queue go on"
    if job.state in {State.QUEUED, State.RUNNING}:
        yield typed("jobs", "watch", job.id, database=database), "follow it to its end"
    for verb in told.moves:
        yield from _by_hand(told, verb, database)
    yield typed("jobs", "show", job.id, database=database), "everything about it, with traces"


def _by_hand(told: Explanation, verb: Verb, database: str | None) -> Iterator[tuple[str, str]]:
    job = told.job.id
    if verb is Verb.RELEASE:
        for choice in told.choices or ("",):
            said = ("--choice", choice) if choice else ()
            yield typed("jobs", "release", job, *said, database=database), "let it go on"
    elif verb is Verb.RETRY_BY_HAND:
        yield typed("jobs", "retry", job, database=database), "run it again, with fresh counters"
    elif verb is Verb.CANCEL:
        yield typed("jobs", "cancel", job, database=database), "nobody wants it any more"
    elif verb is Verb.DISCARD:
        yield typed("jobs", "discard", job, "--reason", "WHY", database=database), "give it up"


# One job in full: facts, why, attempts newest first, events.

FACTS = (
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


def show_story(at: CommandServices, job_id: str, output: str | None) -> None:
    job, events = at.jobs.get(job_id), at.jobs.history(job_id)
    with at.store.read() as unit:
        attempts = unit.attempts(job_id)[::-1]
        batch = unit.batch(job.batch_id) if job.batch_id is not None else None
    if output in {"json", "jsonl"}:
        told = job_record(job) | {
            "attempts_made": [attempt_record(attempt) for attempt in attempts],
            "events": [event_record(event) for event in events],
            "batch": None if batch is None else {"name": batch.name, "outcome": batch.outcome},
        }
        click.echo(as_json(told, 2 if output == "json" else None))
        return
    for line in (
        *_job_lines(job, "" if batch is None else batch.name),
        *_attempts(attempts),
        *_events(events),
    ):
        click.echo(line)


def _job_lines(job: Job, batch: str) -> Iterable[str]:
    record = job_record(job)
    for name in FACTS:
        if record[name] not in (None, "", (), 0, 0.0) or name == "payload":
            yield f"{name + ':':<14}{cell(record[name])}"
    if batch:
        yield f"{'batch:':<14}{cell(batch)}"
    yield f"{'why:':<14}{cell(job.why)}"
    if job.error is not None:
        yield f"{'error:':<14}{job.error.get('code')} ({job.error.get('class')}): {cell(job.error.get('message'))}"


def _attempts(attempts: list[AttemptRow]) -> Iterable[str]:
    yield from ("", f"ATTEMPTS ({len(attempts)})")
    if not attempts:
        yield "  none has ended yet"
    for row in attempts:
        ran = duration((row.ended_at - row.started_at) / SECOND)
        yield f"  #{row.attempt}  {moment(row.started_at)}  ran {ran}  {row.ended}  {row.code or ''}".rstrip()
        yield f"      {cell(row.reason)}"
        record = attempt_record(row)
        if row.code:
            yield f"      class {row.cls}, rule {row.rule}: {cell(row.public)}"
        yield from _half("evidence", record["evidence"])
        yield from _half(
            "private",
            {part: value for part, value in record["private"].items() if part != stored.FACTS},
        )


def _half(name: str, parts: Mapping[str, Any]) -> Iterable[str]:
    for part, value in parts.items():
        text = lines(value if isinstance(value, str) else as_json(value)).rstrip()
        first, *rest = text.split("\n") or [""]
        yield f"      {name} {part}: {first}"
        yield from (f"          {line}" for line in rest)


def _events(events: list[Event]) -> Iterable[str]:
    yield from ("", f"EVENTS ({len(events)})")
    for event in events:
        yield f"  {event_line(event)}"


def event_line(event: Event, whom: str = "") -> str:
    by = f" by {cell(event.actor)}" if event.actor else ""
    attempt = f" #{event.attempt}" if event.attempt else ""
    return (
        f"{moment(event.at)}  {whom}{event.type}{attempt}{by}  {cell(_news(event.data))}".rstrip()
    )


def _news(data: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={_format_value(name, value)}"
        for name, value in data.items()
        if value not in (None, "", {}, [])
    )


def _format_value(name: str, value: Any) -> Any:
    return moment(value) if name.endswith("_at") and isinstance(value, int) else value


# `mulligan jobs watch`: one job until it ends, or the counts of a filter. On a terminal it is drawn in place.

JOB_EVERY = 0.2  # seconds
COUNTS_EVERY = 0.5
Counts = dict[str, CappedCount]
Draw = Callable[
    [Any, str, str], None
]  # what a terminal shows, the same in words, and what of it is news


# -- one job ----------------------------------------------------------------------------------------
def watch_job(given: str, timeout: float | None, database: str | None, output: str | None) -> int:
    with open_services(database) as at, drawing() as draw:
        job = _follow(at, at.jobs.resolve(given), timeout, draw)
    if output in {"json", "jsonl"}:
        click.echo(as_json(job_record(job), 2 if output == "json" else None))
    else:
        click.echo(f"{job.id}\t{job.state}\t{job.phase}")
    say(cell(job.why))
    if job.state is not State.SUCCEEDED:
        say(f"more: {typed('jobs', 'explain', job.id, database=database)}")
    return 0 if job.state is State.SUCCEEDED else FAILED


def _follow(at: CommandServices, job_id: str, timeout: float | None, draw: Draw) -> Job:
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
    words: tuple[str, ...],
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
) -> int:
    where = parse_filter(one_filter(words))
    deadline = None if timeout is None else time.monotonic() + timeout
    with open_services(database) as at, drawing() as draw:
        while True:
            counts = patiently(lambda: _counts(at, where), deadline)
            draw(
                lambda counts=counts: _counts_picture(counts),
                _format_counts(counts),
                _format_counts(counts),
            )
            over = not follow and not any(
                counts[state] or counts[state].partial for state in ("queued", "running")
            )
            if over or (deadline is not None and time.monotonic() >= deadline):
                break
            time.sleep(COUNTS_EVERY)
    _print_counts(counts, output)
    if not over and not follow:
        unsure = (
            "perhaps more than " if counts["queued"].partial or counts["running"].partial else ""
        )
        raise WaitTimeout(
            f"{unsure}{counts['queued'] + counts['running']} still wait or run after {timeout:g} s; they go on"
        )
    return FAILED if counts["dead"] or counts["parked"] or counts["cancelled"] else 0


def _counts(at: CommandServices, where: Filter) -> Counts:
    """Per state, each stopping at 10,000, or with 50,000 jobs looked at."""
    states = where.get("state", tuple(State))
    wanted = (states,) if isinstance(states, str) else states
    with at.store.read() as unit:
        meant = resolved(unit, where)
        return {
            state.value: counted(
                unit.skim_count({**meant, "state": state.value}, COUNT_MOST), COUNT_MOST
            )
            if state.value in wanted
            else CappedCount(0)
            for state in State
        }


def _format_counts(counts: Counts) -> str:
    return (
        ", ".join(f"{_number(count)} {state}" for state, count in counts.items() if count)
        or "no job matches"
    )


def _number(count: CappedCount) -> str:
    return f"{count:,}+" if count.capped or count.partial else f"{count:,}"


def _counts_picture(counts: Counts) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for state in counts:
        table.add_column(state.upper(), justify="right", min_width=9)
    table.add_row(
        *(
            Text(_number(count), style=style(state) if count else "dim")
            for state, count in counts.items()
        )
    )
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
        show_rows(
            [{state: _number(count) for state, count in counts.items()}], list(counts), "table"
        )
    else:
        for state, count in counts.items():
            click.echo(f"{state}\t{count}")
    if output not in {"json", "jsonl"} and any(count.partial for count in counts.values()):
        say(
            "at most 50,000 jobs were looked at for each state: there may be more; narrow the filter"
        )


# -- drawing ----------------------------------------------------------------------------------------
@contextmanager
def drawing() -> Iterator[Draw]:
    """In place where a person looks on; elsewhere a line whenever the words change."""
    if not sys.stderr.isatty():
        yield _line_by_line()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(
        console=Console(stderr=True, highlight=False), refresh_per_second=8, transient=True
    ) as live:
        yield lambda picture, _, __: live.update(picture())


def _line_by_line() -> Draw:
    last = ""

    def draw(_: Any, words: str, news: str) -> None:
        nonlocal last
        if news != last:
            last = news
            say(words)

    return draw
