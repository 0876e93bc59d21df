"""`mulligan queues …`, `mulligan kinds …`, `mulligan deps …`: what may start, and how fast.

A paused queue, a held kind and an open dependency start no jobs. Queues and dependencies also have
limits that an operator can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

import click

from mulligan.cli import CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import (
    cli_actor,
    command_line,
    load_settings,
    open_existing,
    print_hint,
    print_notice,
)
from mulligan.cli.output import (
    format_optional,
    is_json,
    json_value,
    print_record,
    print_rows,
    time_left,
    time_since,
)
from mulligan.core.format import format_rate
from mulligan.guards.gate_status import COUNT_CAP, Dependency, KindStatus, Queue
from mulligan.guards.gates import UNCHANGED, Dependencies, Kinds, Queues

F = TypeVar("F", bound=Callable[..., Any])

# --- Limits ---


def limit_options(command: F) -> F:
    """Add the options of `queues set` and `deps set`."""
    return shared.add_options(
        command,
        shared.output,
        shared.database,
        shared.reason_option,
        shared.duration_option,
        click.option("--clear", is_flag=True, help="Return to the limits declared in code."),
        click.option(
            "--rate",
            metavar="N/s|N/m|N/h|none",
            help="Starts per second, minute or hour, fleet-wide.",
        ),
        click.option(
            "--concurrency", metavar="N|none", help="Jobs that run at the same time, fleet-wide."
        ),
    )


def parse_limits(
    concurrency: str | None, rate: str | None, until: float | None, *, clear: bool
) -> dict[str, Any]:
    """Return the limits to set. UNCHANGED leaves a limit as it is, None removes it."""
    if clear and (concurrency or rate or until):
        message = "--clear cannot be combined with --concurrency, --rate or --for"
        raise click.UsageError(message)
    return {
        "concurrency": _parse_concurrency(concurrency),
        "rate": _parse_limit(rate),
        "until": UNCHANGED if until is None else until,
    }


def _parse_limit(text: str | None) -> Any:
    if text is None:
        return UNCHANGED
    return None if text == "none" else text


def _parse_concurrency(text: str | None) -> Any:
    limit = _parse_limit(text)
    if not isinstance(limit, str):
        return limit
    if not limit.isdecimal():
        message = f"--concurrency must be a whole number or none, not {text!r}"
        raise click.BadParameter(message)
    return int(limit)


# --- Formatting ---


def format_count(count: int) -> str:
    """Format a count of jobs, which stops at a cap."""
    return f"{COUNT_CAP}+" if count >= COUNT_CAP else str(count)


def _format_reason(reason: str, actor: str) -> str:
    return f"{reason} ({actor})" if reason else actor


def _format_ago(at: datetime) -> str:
    return f"{time_since(at)} ago"


def _resume_effect(until: float | None) -> str:
    return "resume it" if until is None else "resume it sooner"


# --- mulligan queues ---

QUEUE_COLUMNS = (
    "name",
    "status",
    "ready",
    "later",
    "running",
    "oldest",
    "concurrency",
    "rate",
    "fair",
    "reason",
)


@click.group(cls=CommandGroup)
def queues() -> None:
    """List, pause and resume queues; set their limits."""


@contextmanager
def _open_queues(database: str | None) -> Iterator[Queues]:
    with open_existing(load_settings(database)) as store:
        yield Queues(lambda: store, actor=cli_actor())


_queue_argument = click.argument("name", shell_complete=complete.complete_queues)


@queues.command("list")
@shared.database
@shared.output
def list_queues(database: str | None, output: str | None) -> None:
    """List all queues that are declared, in use or changed by an operator."""
    with _open_queues(database) as service:
        found = service.list()
    empty = "No queues yet. They appear with the first worker or job."
    records = [_queue_record(queue, output) for queue in found]
    print_rows(records, QUEUE_COLUMNS, output, empty=empty)


@queues.command("pause")
@_queue_argument
@shared.duration_option
@shared.reason_option
@shared.database
@shared.output
def pause_queue(
    name: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Start no more jobs of a queue. Running jobs continue."""
    with _open_queues(database) as service:
        _print_queue(service.pause(name, until=until, reason=reason), output)
    print_hint(command_line("queues", "resume", name), _resume_effect(until))


@queues.command("resume")
@_queue_argument
@shared.reason_option
@shared.database
@shared.output
def resume_queue(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Resume a paused queue."""
    with _open_queues(database) as service:
        _print_queue(service.resume(name, reason=reason), output)


@queues.command("set")
@_queue_argument
@limit_options
def set_queue(
    name: str,
    reason: str,
    database: str | None,
    output: str | None,
    *,
    clear: bool,
    **options: Any,
) -> None:
    """Set limits that override the declared ones until they expire or are cleared."""
    limits = parse_limits(**options, clear=clear)
    with _open_queues(database) as service:
        if clear:
            _print_queue(service.clear(name, reason=reason), output)
            return
        _print_queue(service.set(name, **limits, reason=reason), output)
    print_hint(command_line("queues", "set", name, "--clear"), "return to the declared limits")


def _print_queue(queue: Queue, output: str | None) -> None:
    print_record(_queue_record(queue, output), QUEUE_COLUMNS, output)


def _queue_record(queue: Queue, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(queue).items()}
    return {
        "name": queue.name,
        "status": _queue_status(queue),
        "ready": format_count(queue.ready),
        "later": format_count(queue.later),
        "running": queue.running,
        "oldest": format_optional(time_since, queue.oldest),
        "concurrency": queue.concurrency,
        "rate": format_optional(format_rate, queue.rate),
        "fair": "yes" if queue.fair else "",
        "reason": _format_reason(queue.reason, queue.actor),
    }


def _queue_status(queue: Queue) -> str:
    if queue.paused_until is not None:
        return f"paused, resumes in {time_left(queue.paused_until)}"
    if queue.paused:
        return "paused"
    return "limits set" if queue.set_by_hand else "open"


# --- mulligan kinds ---

KIND_COLUMNS = ("name", "status", "ready", "later", "since", "job", "reason")


@click.group(cls=CommandGroup)
def kinds() -> None:
    """List, hold and release kinds."""


@contextmanager
def _open_kinds(database: str | None) -> Iterator[Kinds]:
    with open_existing(load_settings(database)) as store:
        yield Kinds(lambda: store, actor=cli_actor())


_kind_argument = click.argument("name", shell_complete=complete.complete_kinds)


@kinds.command("list")
@click.option("--held", is_flag=True, help="Only held kinds.")
@shared.database
@shared.output
def list_kinds(database: str | None, output: str | None, *, held: bool) -> None:
    """List all kinds that are declared, in use or changed by an operator, held ones first."""
    with _open_kinds(database) as service:
        found = [kind for kind in service.list() if kind.held or not held]
    empty = "No kinds yet. They appear with the first worker or job."
    if held:
        empty = "No kind is held."
    records = [_kind_record(kind, output) for kind in found]
    print_rows(records, KIND_COLUMNS, output, empty=empty, truncate="reason")


@kinds.command("hold")
@_kind_argument
@shared.duration_option
@shared.reason_option
@shared.database
@shared.output
def hold_kind(
    name: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Start no more jobs of a kind. Running jobs continue."""
    with _open_kinds(database) as service:
        _print_kind(service.hold(name, until=until, reason=reason), output)
    print_hint(command_line("kinds", "release", name), _resume_effect(until))


@kinds.command("release")
@_kind_argument
@shared.reason_option
@shared.database
@shared.output
def release_kind(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Start the jobs of a held kind again."""
    with _open_kinds(database) as service:
        _print_kind(service.release(name, reason=reason), output)
    command = command_line("jobs", "list", f"kind:{name}", "state:dead")
    print_hint(command, "list the jobs that died before it was held")


def _print_kind(kind: KindStatus, output: str | None) -> None:
    print_record(_kind_record(kind, output), KIND_COLUMNS, output)


def _kind_record(kind: KindStatus, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(kind).items()}
    return {
        "name": kind.name,
        "status": _kind_status(kind),
        "ready": format_count(kind.ready),
        "later": format_count(kind.later),
        "since": format_optional(_format_ago, kind.since),
        "job": kind.job,
        "reason": _format_reason(kind.reason, kind.actor),
    }


def _kind_status(kind: KindStatus) -> str:
    if kind.until is not None:
        return f"held, released in {time_left(kind.until)}"
    return "held" if kind.held else "open"


# --- mulligan deps ---

DEPENDENCY_COLUMNS = (
    "name",
    "status",
    "held",
    "running",
    "failed",
    "concurrency",
    "rate",
    "retries",
    "mode",
    "reason",
)
NO_DEPENDENCIES = (
    'No dependencies yet. Declare one with @app.job(uses="gateway") and start a worker.'
)


@click.group(cls=CommandGroup)
def deps() -> None:
    """List, open, close and probe dependencies; set their limits.

    Open means that the circuit breaker is open: jobs that use the dependency are held, or fail at
    once in mode fail_fast. Closed is the normal state.
    """


@contextmanager
def _open_dependencies(database: str | None) -> Iterator[Dependencies]:
    with open_existing(load_settings(database)) as store:
        yield Dependencies(lambda: store, actor=cli_actor())


_key_argument = click.argument("key", shell_complete=complete.complete_dependencies)
_new_option = click.option(
    "--new", is_flag=True, help="Accept a key that no job or declaration uses yet."
)


def _check_key(service: Dependencies, key: str, *, new: bool) -> None:
    """Refuse an unknown key, unless it is declared as new: a typo would silently hold nothing."""
    if not new:
        service.get(key)


@deps.command("list")
@shared.database
@shared.output
def list_dependencies(database: str | None, output: str | None) -> None:
    """List all dependencies that are declared, in use or changed by an operator."""
    with _open_dependencies(database) as service:
        found = service.list()
    records = [_dependency_record(dependency, output) for dependency in found]
    print_rows(records, DEPENDENCY_COLUMNS, output, empty=NO_DEPENDENCIES)


@deps.command("open")
@_key_argument
@shared.duration_option
@shared.reason_option
@_new_option
@shared.database
@shared.output
def open_dependency(
    key: str,
    until: float | None,
    reason: str,
    database: str | None,
    output: str | None,
    *,
    new: bool,
) -> None:
    """Open the breaker: hold jobs that use it (fail_fast: fail them). Running jobs continue.

    It is not probed until it is closed or --for ends.
    """
    with _open_dependencies(database) as service:
        _check_key(service, key, new=new)
        _print_dependency(service.open(key, until=until, reason=reason), output)
    print_hint(command_line("deps", "close", key), _resume_effect(until))


@deps.command("close")
@_key_argument
@click.option(
    "--for",
    "until",
    type=shared.DurationParam(),
    help="Do not open it automatically for this time: 30, 5m, 2h, 1d.",
)
@shared.reason_option
@shared.database
@shared.output
def close_dependency(
    key: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Close the breaker: start held jobs, slowly at first and faster while they succeed."""
    with _open_dependencies(database) as service:
        _check_key(service, key, new=False)
        _print_dependency(service.close(key, until=until, reason=reason), output)


@deps.command("probe")
@_key_argument
@shared.reason_option
@shared.database
@shared.output
def probe_dependency(key: str, reason: str, database: str | None, output: str | None) -> None:
    """Check now whether it works again, with its probe function or with one of its jobs."""
    with _open_dependencies(database) as service:
        _print_dependency(service.probe(key, reason=reason), output)
    print_notice("A worker will probe it shortly. Three successful probes close it.")


@deps.command("set")
@_key_argument
@_new_option
@limit_options
def set_dependency(
    key: str,
    reason: str,
    database: str | None,
    output: str | None,
    *,
    new: bool,
    clear: bool,
    **options: Any,
) -> None:
    """Set limits that override the declared ones until they expire or are cleared."""
    limits = parse_limits(**options, clear=clear)
    with _open_dependencies(database) as service:
        _check_key(service, key, new=new)
        if clear:
            _print_dependency(service.clear(key, reason=reason), output)
            return
        _print_dependency(service.set(key, **limits, reason=reason), output)
    print_hint(command_line("deps", "set", key, "--clear"), "return to the declared limits")


def _print_dependency(dependency: Dependency, output: str | None) -> None:
    print_record(_dependency_record(dependency, output), DEPENDENCY_COLUMNS, output)


def _dependency_record(dependency: Dependency, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(dependency).items()}
    calls = dependency.calls
    return {
        "name": dependency.key,
        "status": dependency_status(dependency),
        "held": format_count(dependency.held),
        "running": dependency.running,
        "failed": f"{dependency.failed} of {calls}" if calls else "",
        "concurrency": _format_concurrency(dependency),
        "rate": format_optional(format_rate, dependency.rate),
        "retries": format_optional(_format_tokens, dependency.tokens),
        "mode": dependency.mode,
        "reason": _format_reason(dependency.reason, dependency.actor),
    }


def _format_tokens(tokens: float) -> str:
    return f"{max(0.0, tokens):.0f}"


def _format_concurrency(dependency: Dependency) -> Any:
    limit = dependency.concurrency
    return f"{limit} (reduced)" if dependency.reduced else limit


def dependency_status(dependency: Dependency) -> str:
    """Return the state, since when, and what happens next."""
    if dependency.state == "open":
        elapsed = "" if dependency.since is None else f" for {time_since(dependency.since)}"
        return f"open{elapsed}{_next_step(dependency)}"
    status = "closed"
    if dependency.state == "ramping":
        status = f"recovering at {format_rate(dependency.rate or 0.0)}"
    if dependency.until is not None:
        status += f", kept closed for {time_left(dependency.until)}"
    if dependency.set_by_hand:
        status += ", limits set"
    return status


def _next_step(dependency: Dependency) -> str:
    if dependency.probing:
        return ", probe running"
    if dependency.probe_at is not None:
        return f", next probe in {time_left(dependency.probe_at)}"
    if dependency.until is not None:
        return f", closes in {time_left(dependency.until)}"
    return ""
