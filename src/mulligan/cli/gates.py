"""`mulligan deps …`: what jobs use and how it is; hold it, let it go, look now, set limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from shlex import quote
from typing import Any, TypeVar

import click

from mulligan.cli import Family
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with
from mulligan.cli.output import as_json, chosen, show_rows
from mulligan.core.format import duration, per
from mulligan.guards.dependencies import Dependencies, Dependency
from mulligan.guards.gates import COUNT_CAP, KEEP, Kinds, KindStatus, Queue, Queues

# What an operator says of a queue or a dependency: for how long, why, and which limits.

F = TypeVar("F", bound=Callable[..., Any])

reason = click.option("--reason", default="", help="For everybody who wonders why.")
until = click.option(
    "--for", "until", type=shared.Length(), help="Ends by itself after: 30, 5m, 2h, 1d."
)


def limit_options(command: F) -> F:
    for option in (
        shared.output,
        shared.database,
        reason,
        until,
        click.option("--clear", is_flag=True, help="Back to what the code declares."),
        click.option("--rate", metavar="N/s|N/m|N/h|none", help="Starts, in the whole fleet."),
        click.option(
            "--concurrency", metavar="N|none", help="Running at once, in the whole fleet."
        ),
    ):
        command = option(command)
    return command


def parse_limits(
    concurrency: str | None, rate: str | None, until: float | None, *, clear: bool
) -> dict[str, Any]:
    if clear and (concurrency or rate or until):
        message = "--clear goes alone: it takes back what was set"
        raise click.UsageError(message)
    return {
        "concurrency": _number(concurrency),
        "rate": _none(rate),
        "until": KEEP if until is None else until,
    }


def _none(text: str | None) -> Any:
    return KEEP if text is None else None if text == "none" else text


def _number(text: str | None) -> Any:
    said = _none(text)
    if not isinstance(said, str):
        return said
    if not said.isdecimal():
        message = f"--concurrency is a whole number or none, not {text!r}"
        raise click.BadParameter(message)
    return int(said)


# -- how it is shown --------------------------------------------------------------------------------
def print_record(record: dict[str, Any], columns: tuple[str, ...], output: str | None) -> None:
    if output in {"json", "jsonl"}:
        click.echo(as_json(record, 2 if output == "json" else None))
    else:
        show_rows([record], columns, output)


def format_count(number: int) -> str:
    return f"{COUNT_CAP}+" if number >= COUNT_CAP else str(number)


def to_plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def time_since(at: datetime) -> str:
    return duration(max(0, round((datetime.now(UTC) - at).total_seconds())))


def time_left(at: datetime) -> str:
    return duration(max(0, round((at - datetime.now(UTC)).total_seconds())))


# `mulligan queues …`: what waits where; pause, resume, limits.

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


@click.group(cls=Family)
def queues() -> None:
    """List queues, pause and resume them, set their limits."""


@contextmanager
def _queues(database: str | None) -> Iterator[Queues]:
    with existing(settings_with(database)) as store:
        yield Queues(lambda: store, actor=actor())


@queues.command("list")
@shared.database
@shared.output
def list_queues(database: str | None, output: str | None) -> None:
    """Every queue that a job, a kind, a declaration or a person names."""
    with _queues(database) as api:
        found = api.list()
    empty = "no queues yet; they come with the first worker or job"
    show_rows([_queue_record(queue, output) for queue in found], QUEUE_COLUMNS, output, empty=empty)


@queues.command()
@click.argument("name", shell_complete=complete.queues)
@until
@reason
@shared.database
@shared.output
def pause_queue(
    name: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Start nothing more of a queue; what runs goes on."""
    with _queues(database) as api:
        _print_queue(api.pause(name, until=until, reason=reason), output)
    say(f"mulligan queues resume {quote(name)}  lets it go on{'' if until is None else ' sooner'}")


@queues.command()
@click.argument("name", shell_complete=complete.queues)
@reason
@shared.database
@shared.output
def resume_queue(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Let a paused queue go on."""
    with _queues(database) as api:
        _print_queue(api.resume(name, reason=reason), output)


@queues.command("set")
@click.argument("name", shell_complete=complete.queues)
@limit_options
def set_queue(
    name: str, reason: str, database: str | None, output: str | None, clear: bool, **said: Any
) -> None:  # noqa: FBT001 - click's way
    """Set limits that win over what the code declares, until they end or are cleared."""
    limits = parse_limits(**said, clear=clear)
    with _queues(database) as api:
        if clear:
            _print_queue(api.clear(name, reason=reason), output)
            return
        _print_queue(api.set(name, **limits, reason=reason), output)
    say(f"mulligan queues set {quote(name)} --clear  goes back to what the code declares")


def _print_queue(queue: Queue, output: str | None) -> None:
    print_record(_queue_record(queue, output), QUEUE_COLUMNS, output)


def _queue_record(queue: Queue, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: to_plain(value) for name, value in asdict(queue).items()}
    return {
        "name": queue.name,
        "status": _queue_status(queue),
        "ready": format_count(queue.ready),
        "later": format_count(queue.later),
        "running": queue.running,
        "oldest": None if queue.oldest is None else time_since(queue.oldest),
        "concurrency": queue.concurrency,
        "rate": None if queue.rate is None else per(queue.rate),
        "fair": "yes" if queue.fair else "",
        "reason": f"{queue.reason} ({queue.actor})" if queue.reason else queue.actor,
    }


def _queue_status(queue: Queue) -> str:
    if queue.paused_until is not None:
        return f"paused for {time_left(queue.paused_until)}"
    return "paused" if queue.paused else "limits set" if queue.set_by_hand else "open"


# `mulligan kinds …`: which kinds are held, for what; hold, release.

KIND_COLUMNS = ("name", "status", "ready", "later", "since", "job", "reason")


@click.group(cls=Family)
def kinds() -> None:
    """List kinds; hold one, or release one that is held."""


@contextmanager
def _kinds(database: str | None) -> Iterator[Kinds]:
    with existing(settings_with(database)) as store:
        yield Kinds(lambda: store, actor=actor())


@kinds.command("list")
@click.option("--held", is_flag=True, help="Only those that are held.")
@shared.database
@shared.output
def list_kinds(held: bool, database: str | None, output: str | None) -> None:  # noqa: FBT001 - click's way
    """Every kind that a waiting job, an app or a person names, those that are held first."""
    with _kinds(database) as api:
        found = [kind for kind in api.list() if kind.held or not held]
    empty = "no kind is held" if held else "no kinds yet; they come with the first worker or job"
    show_rows(
        [_kind_record(kind, output) for kind in found],
        KIND_COLUMNS,
        output,
        empty=empty,
        short="reason",
    )


@kinds.command()
@click.argument("name", shell_complete=complete.kinds)
@until
@reason
@shared.database
@shared.output
def hold_kind(
    name: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Start nothing more of a kind; what runs goes on."""
    with _kinds(database) as api:
        _print_kind(api.hold(name, until=until, reason=reason), output)
    say(f"mulligan kinds release {quote(name)}  lets it go on{'' if until is None else ' sooner'}")


@kinds.command()
@click.argument("name", shell_complete=complete.kinds)
@reason
@shared.database
@shared.output
def release_kind(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Let all jobs of a held kind go."""
    with _kinds(database) as api:
        _print_kind(api.release(name, reason=reason), output)
    say(f"mulligan jobs list kind:{name} state:dead  lists those that died before it was held")


def _print_kind(kind: KindStatus, output: str | None) -> None:
    print_record(_kind_record(kind, output), KIND_COLUMNS, output)


def _kind_record(kind: KindStatus, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: to_plain(value) for name, value in asdict(kind).items()}
    return {
        "name": kind.name,
        "status": _kind_status(kind),
        "ready": format_count(kind.ready),
        "later": format_count(kind.later),
        "since": None if kind.since is None else f"{time_since(kind.since)} ago",
        "job": kind.job,
        "reason": f"{kind.reason} ({kind.actor})" if kind.reason else kind.actor,
    }


def _kind_status(kind: KindStatus) -> str:
    if kind.until is not None:
        return f"held for {time_left(kind.until)}"
    return "held" if kind.held else "open"


# `mulligan deps …`: what jobs use and how it is; hold it, let it go, look now, set limits.

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
EMPTY = (
    'no dependencies yet; a job names what it needs: @app.job(uses="gateway"), then start a worker'
)


@click.group(cls=Family)
def deps() -> None:
    """What jobs use: list it, hold it, let it go, look now, set limits.

    Open means that nothing flows: its jobs are held, or end at once where it was declared so. Closed means all is well.
    """


@contextmanager
def _deps(database: str | None) -> Iterator[Dependencies]:
    with existing(settings_with(database)) as store:
        yield Dependencies(lambda: store, actor=actor())


@deps.command("list")
@shared.database
@shared.output
def list_dependencies(database: str | None, output: str | None) -> None:
    """Every dependency that a job, a kind, a declaration or a person names."""
    with _deps(database) as api:
        found = api.list()
    show_rows(
        [_dependency_record(one, output) for one in found], DEPENDENCY_COLUMNS, output, empty=EMPTY
    )


_key = click.argument("key", shell_complete=complete.dependencies)
_new = click.option("--new", is_flag=True, help="Also one that nothing names yet.")


@deps.command("open")
@_key
@until
@reason
@_new
@shared.database
@shared.output
def open_dependency(
    key: str, until: float | None, reason: str, new: bool, database: str | None, output: str | None
) -> None:  # noqa: FBT001 - click's way
    """Hold the jobs that use it (mode fail_fast: end them at once); what runs goes on. No probe goes meanwhile."""
    with _deps(database) as api:
        _known(api, key, new=new)
        _print_dependency(api.open(key, until=until, reason=reason), output)
    say(f"mulligan deps close {quote(key)}  lets its jobs go{'' if until is None else ' sooner'}")


@deps.command()
@_key
@click.option(
    "--for",
    "until",
    type=shared.Length(),
    help="And do not open it by itself before: 30, 5m, 2h, 1d.",
)
@reason
@shared.database
@shared.output
def close_dependency(
    key: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Let its jobs go: a few a second at first, more while all goes well."""
    with _deps(database) as api:
        _known(api, key, new=False)
        _print_dependency(api.close(key, until=until, reason=reason), output)


@deps.command()
@_key
@reason
@shared.database
@shared.output
def probe_dependency(key: str, reason: str, database: str | None, output: str | None) -> None:
    """Look now whether it answers again: its function is called, or one of its jobs is let through."""
    with _deps(database) as api:
        _print_dependency(api.probe(key, reason=reason), output)
    say("a worker looks within a moment; three good answers close it")


@deps.command("set")
@_key
@_new
@limit_options
def set_dependency(
    key: str,
    reason: str,
    database: str | None,
    output: str | None,
    new: bool,
    clear: bool,
    **said: Any,
) -> None:  # noqa: FBT001 - click's way
    """Set limits that win over what the code declares, until they end or are cleared."""
    limits = parse_limits(**said, clear=clear)
    with _deps(database) as api:
        _known(api, key, new=new)
        if clear:
            _print_dependency(api.clear(key, reason=reason), output)
            return
        _print_dependency(api.set(key, **limits, reason=reason), output)
    say(f"mulligan deps set {quote(key)} --clear  goes back to what the code declares")


def _known(api: Dependencies, key: str, *, new: bool) -> None:
    """A slip of the finger must not hold nothing while everybody believes it holds."""
    if not new:
        api.get(key)


def _print_dependency(one: Dependency, output: str | None) -> None:
    print_record(_dependency_record(one, output), DEPENDENCY_COLUMNS, output)


def _dependency_record(one: Dependency, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: to_plain(value) for name, value in asdict(one).items()}
    return {
        "name": one.key,
        "status": dependency_status(one),
        "held": format_count(one.held),
        "running": one.running,
        "failed": f"{one.failed} of {one.calls}" if one.calls else "",
        "concurrency": f"{one.concurrency} (reduced)" if one.reduced else one.concurrency,
        "rate": None if one.rate is None else per(one.rate),
        "retries": None if one.tokens is None else f"{max(0.0, one.tokens):.0f}",
        "mode": one.mode,
        "reason": f"{one.reason} ({one.actor})" if one.reason else one.actor,
    }


def dependency_status(one: Dependency) -> str:
    """A word, since when, and what comes next."""
    if one.state != "open":
        word = f"recovering at {per(one.rate or 0.0)}" if one.state == "ramping" else "closed"
        kept = "" if one.until is None else f", kept closed for {time_left(one.until)}"
        return f"{word}{kept}{', limits set' if one.set_by_hand else ''}"
    since = "" if one.since is None else f" since {time_since(one.since)}"
    return f"open{since}{_next(one)}"


def _next(one: Dependency) -> str:
    if one.probing:
        return ", a probe is under way"
    if one.probe_at is not None:
        return f", next probe in {time_left(one.probe_at)}"
    return "" if one.until is None else f", closes in {time_left(one.until)}"
