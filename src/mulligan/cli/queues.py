"""`mulligan queues …`: what waits where; pause, resume, limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from shlex import quote
from typing import Any

import click

from mulligan.cli import complete, setting
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with
from mulligan.cli.family import Family
from mulligan.cli.output import chosen, show_rows
from mulligan.engine.queues import Queue, Queues
from mulligan.policy.phrase import per

COLUMNS = ("name", "status", "ready", "later", "running", "oldest", "concurrency", "rate", "fair", "reason")


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
def list_(database: str | None, output: str | None) -> None:
    """Every queue that a job, a kind, a declaration or a person names."""
    with _queues(database) as api:
        found = api.list()
    empty = "no queues yet; they come with the first worker or job"
    show_rows([_record(queue, output) for queue in found], COLUMNS, output, empty=empty)


@queues.command()
@click.argument("name", shell_complete=complete.queues)
@setting.until
@setting.reason
@shared.database
@shared.output
def pause(name: str, until: float | None, reason: str, database: str | None, output: str | None) -> None:
    """Start nothing more of a queue; what runs goes on."""
    with _queues(database) as api:
        _report(api.pause(name, until=until, reason=reason), output)
    say(f"mulligan queues resume {quote(name)}  lets it go on{'' if until is None else ' sooner'}")


@queues.command()
@click.argument("name", shell_complete=complete.queues)
@setting.reason
@shared.database
@shared.output
def resume(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Let a paused queue go on."""
    with _queues(database) as api:
        _report(api.resume(name, reason=reason), output)


@queues.command("set")
@click.argument("name", shell_complete=complete.queues)
@setting.limit_options
def set_(name: str, reason: str, database: str | None, output: str | None, clear: bool, **said: Any) -> None:  # noqa: FBT001 - click's way
    """Set limits that win over what the code declares, until they end or are cleared."""
    limits = setting.limits_said(**said, clear=clear)
    with _queues(database) as api:
        if clear:
            _report(api.clear(name, reason=reason), output)
            return
        _report(api.set(name, **limits, reason=reason), output)
    say(f"mulligan queues set {quote(name)} --clear  goes back to what the code declares")


def _report(queue: Queue, output: str | None) -> None:
    setting.show_one(_record(queue, output), COLUMNS, output)


def _record(queue: Queue, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.plain(value) for name, value in asdict(queue).items()}
    return {
        "name": queue.name,
        "status": _status(queue),
        "ready": setting.count(queue.ready),
        "later": setting.count(queue.later),
        "running": queue.running,
        "oldest": None if queue.oldest is None else setting.since(queue.oldest),
        "concurrency": queue.concurrency,
        "rate": None if queue.rate is None else per(queue.rate),
        "fair": "yes" if queue.fair else "",
        "reason": f"{queue.reason} ({queue.actor})" if queue.reason else queue.actor,
    }


def _status(queue: Queue) -> str:
    if queue.paused_until is not None:
        return f"paused for {setting.left(queue.paused_until)}"
    return "paused" if queue.paused else "limits set" if queue.set_by_hand else "open"
