"""`mulligan kinds …`: which kinds are held, for what; hold, release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from shlex import quote
from typing import Any

import click

from mulligan.cli import complete
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with
from mulligan.cli.family import Family
from mulligan.cli.output import as_json, chosen, show_rows
from mulligan.engine.held import Kinds, KindStatus
from mulligan.engine.queues import COUNT_CAP
from mulligan.policy.phrase import duration

COLUMNS = ("name", "status", "ready", "later", "since", "job", "reason")


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
def list_(held: bool, database: str | None, output: str | None) -> None:  # noqa: FBT001 - click's way
    """Every kind that a waiting job, an app or a person names, those that are held first."""
    with _kinds(database) as api:
        found = [kind for kind in api.list() if kind.held or not held]
    empty = "no kind is held" if held else "no kinds yet; they come with the first worker or job"
    show_rows([_record(kind, output) for kind in found], COLUMNS, output, empty=empty, short="reason")


_reason = click.option("--reason", default="", help="For everybody who wonders why.")


@kinds.command()
@click.argument("name", shell_complete=complete.kinds)
@click.option("--for", "until", type=shared.Length(), help="Ends by itself after: 30, 5m, 2h, 1d.")
@_reason
@shared.database
@shared.output
def hold(name: str, until: float | None, reason: str, database: str | None, output: str | None) -> None:
    """Start nothing more of a kind; what runs goes on."""
    with _kinds(database) as api:
        _report(api.hold(name, until=until, reason=reason), output)
    say(f"mulligan kinds release {quote(name)}  lets it go on{'' if until is None else ' sooner'}")


@kinds.command()
@click.argument("name", shell_complete=complete.kinds)
@_reason
@shared.database
@shared.output
def release(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Let all jobs of a held kind go."""
    with _kinds(database) as api:
        _report(api.release(name, reason=reason), output)
    say(f"mulligan jobs list kind:{name} state:dead  lists those that died before it was held")


def _report(kind: KindStatus, output: str | None) -> None:
    if output in {"json", "jsonl"}:
        click.echo(as_json(_record(kind, output), 2 if output == "json" else None))
    else:
        show_rows([_record(kind, output)], COLUMNS, output)


def _record(kind: KindStatus, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: _plain(value) for name, value in asdict(kind).items()}
    return {
        "name": kind.name,
        "status": _status(kind),
        "ready": _count(kind.ready),
        "later": _count(kind.later),
        "since": None if kind.since is None else f"{_length(_now() - kind.since)} ago",
        "job": kind.job,
        "reason": f"{kind.reason} ({kind.actor})" if kind.reason else kind.actor,
    }


def _status(kind: KindStatus) -> str:
    if kind.until is not None:
        return f"held for {_length(kind.until - _now())}"
    return "held" if kind.held else "open"


def _length(span: Any) -> str:
    return duration(max(0, round(span.total_seconds())))


def _count(count: int) -> str:
    return f"{COUNT_CAP}+" if count >= COUNT_CAP else str(count)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _now() -> datetime:
    return datetime.now(UTC)
