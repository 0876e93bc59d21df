"""`mulligan queues …`: what waits where; pause, resume, limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli import complete
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with
from mulligan.cli.family import Family
from mulligan.cli.output import as_json, chosen, show_rows
from mulligan.engine.queues import COUNT_CAP, KEEP, Queue, Queues
from mulligan.policy.phrase import duration, per

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


_reason = click.option("--reason", default="", help="For everybody who wonders why.")
_until = click.option("--for", "until", type=shared.Length(), help="Ends by itself after: 30, 5m, 2h, 1d.")


@queues.command()
@click.argument("name", shell_complete=complete.queues)
@_until
@_reason
@shared.database
@shared.output
def pause(name: str, until: float | None, reason: str, database: str | None, output: str | None) -> None:
    """Start nothing more of a queue; what runs goes on."""
    with _queues(database) as api:
        _report(api.pause(name, until=until, reason=reason), output)
    say(f"mulligan queues resume {name}  lets it go on{'' if until is None else ' sooner'}")


@queues.command()
@click.argument("name", shell_complete=complete.queues)
@_reason
@shared.database
@shared.output
def resume(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Let a paused queue go on."""
    with _queues(database) as api:
        _report(api.resume(name, reason=reason), output)


@queues.command("set")
@click.argument("name", shell_complete=complete.queues)
@click.option("--concurrency", metavar="N|none", help="Running at once, in the whole fleet.")
@click.option("--rate", metavar="N/s|N/m|N/h|none", help="Starts, in the whole fleet.")
@click.option("--clear", is_flag=True, help="Back to what the code declares.")
@_until
@_reason
@shared.database
@shared.output
def set_(
    name: str,
    concurrency: str | None,
    rate: str | None,
    clear: bool,  # noqa: FBT001 - click's way
    until: float | None,
    reason: str,
    database: str | None,
    output: str | None,
) -> None:
    """Set limits that win over what the code declares, until they end or are cleared."""
    if clear and (concurrency or rate or until):
        message = "--clear goes alone: it takes back what was set"
        raise click.UsageError(message)
    with _queues(database) as api:
        if clear:
            _report(api.clear(name, reason=reason), output)
            return
        _report(
            api.set(name, **_said(concurrency, rate), until=KEEP if until is None else until, reason=reason), output
        )
    say(f"mulligan queues set {name} --clear  goes back to what the code declares")


def _said(concurrency: str | None, rate: str | None) -> dict[str, Any]:
    return {"concurrency": _number(concurrency), "rate": _none(rate)}


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


def _report(queue: Queue, output: str | None) -> None:
    if output in {"json", "jsonl"}:
        click.echo(as_json(_record(queue, output), 2 if output == "json" else None))
    else:
        show_rows([_record(queue, output)], COLUMNS, output)


def _record(queue: Queue, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: _plain(value) for name, value in asdict(queue).items()}
    return {
        "name": queue.name,
        "status": _status(queue),
        "ready": _count(queue.ready),
        "later": _count(queue.later),
        "running": queue.running,
        "oldest": None if queue.oldest is None else duration(max(0, round((_now() - queue.oldest).total_seconds()))),
        "concurrency": queue.concurrency,
        "rate": None if queue.rate is None else per(queue.rate),
        "fair": "yes" if queue.fair else "",
        "reason": f"{queue.reason} ({queue.actor})" if queue.reason else queue.actor,
    }


def _status(queue: Queue) -> str:
    if queue.paused_until is not None:
        return f"paused for {duration(max(0, round((queue.paused_until - _now()).total_seconds())))}"
    return "paused" if queue.paused else "limits set" if queue.set_by_hand else "open"


def _count(count: int) -> str:
    return f"{COUNT_CAP}+" if count >= COUNT_CAP else str(count)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _now() -> datetime:
    return datetime.now(UTC)
