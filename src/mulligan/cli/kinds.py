"""`mulligan kinds …`: which kinds are held, for what; hold, release."""

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
from mulligan.engine.held import Kinds, KindStatus

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


@kinds.command()
@click.argument("name", shell_complete=complete.kinds)
@setting.until
@setting.reason
@shared.database
@shared.output
def hold(name: str, until: float | None, reason: str, database: str | None, output: str | None) -> None:
    """Start nothing more of a kind; what runs goes on."""
    with _kinds(database) as api:
        _report(api.hold(name, until=until, reason=reason), output)
    say(f"mulligan kinds release {quote(name)}  lets it go on{'' if until is None else ' sooner'}")


@kinds.command()
@click.argument("name", shell_complete=complete.kinds)
@setting.reason
@shared.database
@shared.output
def release(name: str, reason: str, database: str | None, output: str | None) -> None:
    """Let all jobs of a held kind go."""
    with _kinds(database) as api:
        _report(api.release(name, reason=reason), output)
    say(f"mulligan jobs list kind:{name} state:dead  lists those that died before it was held")


def _report(kind: KindStatus, output: str | None) -> None:
    setting.show_one(_record(kind, output), COLUMNS, output)


def _record(kind: KindStatus, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.plain(value) for name, value in asdict(kind).items()}
    return {
        "name": kind.name,
        "status": _status(kind),
        "ready": setting.count(kind.ready),
        "later": setting.count(kind.later),
        "since": None if kind.since is None else f"{setting.since(kind.since)} ago",
        "job": kind.job,
        "reason": f"{kind.reason} ({kind.actor})" if kind.reason else kind.actor,
    }


def _status(kind: KindStatus) -> str:
    if kind.until is not None:
        return f"held for {setting.left(kind.until)}"
    return "held" if kind.held else "open"
