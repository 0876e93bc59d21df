"""`mulligan keys …`: who may ask over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from mulligan.cli import options as shared
from mulligan.cli import setting
from mulligan.cli.database import actor, existing, prepared, say, settings_with
from mulligan.cli.family import Family
from mulligan.cli.output import as_json, chosen, show_rows
from mulligan.engine.keys import EVERYTHING, Key, Keys, Role
from mulligan.job import to_micros
from mulligan.policy.phrase import moment

COLUMNS = ("id", "name", "scope", "role", "state", "created", "expires", "last_used", "created_by")


@click.group(cls=Family)
def keys() -> None:
    """Who may ask over HTTP: make a key, list them, revoke one."""


@contextmanager
def _keys(database: str | None) -> Iterator[Keys]:
    with existing(settings_with(database)) as store:
        yield Keys(lambda: store, actor=actor())


@keys.command()
@click.option("--scope", required=True, metavar="OWNER|*", help="Whose jobs it is for; * for everything.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What it may do.")
@click.option("--expires", type=shared.When(), help="When it ends: 90d, or 2027-01-01T00:00Z. Default: never.")
@click.option("--name", default="", help="What it is for, so that you know it again.")
@setting.reason
@shared.database
@shared.output
def create(
    scope: str, role: str, expires: Any, name: str, reason: str, database: str | None, output: str | None
) -> None:
    """Make a key. It is printed once, on stdout, and kept nowhere."""
    with prepared(settings_with(database), aloud=False) as store:
        made = Keys(lambda: store, actor=actor()).create(scope, role, name=name, expires=expires, reason=reason)
    if output in {"json", "jsonl"}:
        click.echo(as_json({**_plain(made.key), "key": made.text}, 2 if output == "json" else None))
    else:
        click.echo(made.text)
    whose = "everything" if scope == EVERYTHING else f"what belongs to {scope!r}"
    say(f"key {made.key.id}: {role} of {whose}. This is the only time it is shown.")
    say(f"mulligan keys revoke {made.key.id}  ends it")


@keys.command("list")
@shared.database
@shared.output
def list_(database: str | None, output: str | None) -> None:
    """Every key, without what makes it one."""
    with _keys(database) as api:
        found = api.list()
    _show(found, output, empty="no keys yet; mulligan keys create --scope '*' --role admin makes one")


@keys.command()
@click.argument("key")
@setting.reason
@shared.database
@shared.output
def revoke(key: str, reason: str, database: str | None, output: str | None) -> None:
    """From now on this key lets nobody in; streams that are open with it end within a minute."""
    with _keys(database) as api:
        _show([api.revoke(key, reason=reason)], output)


def _show(found: list[Key], output: str | None, empty: str = "") -> None:
    program = chosen(output) in {"json", "jsonl"}
    show_rows([_plain(key) if program else _row(key) for key in found], COLUMNS, output, empty=empty)


def _plain(key: Key) -> dict[str, Any]:
    return {name: setting.plain(value) for name, value in asdict(key).items()}


def _row(key: Key) -> dict[str, Any]:
    return {
        **asdict(key),
        "created": _at(key.created_at),
        "expires": _at(key.expires_at),
        "last_used": _at(key.last_used_at),
    }


def _at(value: datetime | None) -> str:
    return "" if value is None else moment(to_micros(value))
