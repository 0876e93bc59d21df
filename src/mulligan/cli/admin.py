"""`mulligan keys …`: who may ask over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from mulligan.access.keys import EVERYTHING, Key, Keys, Role
from mulligan.cli import Family
from mulligan.cli import gates as setting
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, prepared, say, settings_with
from mulligan.cli.output import as_json, chosen, show_rows
from mulligan.core.format import moment
from mulligan.core.job import to_micros

# `mulligan init [DIR]`: a first app that runs at once, and fails once, so that a newcomer sees what happens then.

JOBS = '''\
"""A first app. Run its jobs: mulligan worker jobs:app"""

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()  # on the database that mulligan.toml names


@app.job(policy=Policy(max_retries=3, backoff=Fixed(2)))
def greet(ctx: Context, name: str = "world") -> str:
    """Its first attempt fails, so that you see what happens then. Take the two lines out when you have seen it."""
    if ctx.attempt == 1:
        raise ConnectionError("the greeting service did not answer")
    return f"Hello, {name}!"
'''

TOML = """\
# Settings of this folder; the environment (MULLIGAN_WORKER__CONCURRENCY=8) and flags win over it.
# `mulligan doctor` shows every setting, its value and where it comes from.

database_url = "sqlite:///mulligan.db"  # or "postgresql://user@host/database"

[worker]
concurrency = 4

[retry]
max_retries = 3
base_delay = 5 # seconds before the first retry; each further one waits twice as long
"""

FILES = {"jobs.py": JOBS, "mulligan.toml": TOML}


@click.command()
@click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
def init(directory: Path) -> None:
    """Write jobs.py and mulligan.toml into DIR (default: here). What is there already is never overwritten."""
    from mulligan.cli.database import say

    _refuse_overwriting(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
            click.echo(str(directory / name))
    except OSError as error:
        raise click.ClickException(f"cannot write into {directory}: {error.strerror}") from None
    for line in _next(directory):
        say(line)


class Occupied(click.ClickException):
    exit_code = 5


def _refuse_overwriting(directory: Path) -> None:
    there = [str(directory / name) for name in FILES if (directory / name).exists()]
    if there:
        raise Occupied(
            f"{' and '.join(there)} exists already; nothing was written. Another place: mulligan init DIR"
        )


def _next(directory: Path) -> list[str]:
    there = [] if directory.resolve() == Path.cwd() else [f"  cd {directory}"]
    return [
        "",
        "Now type:",
        *there,
        "  mulligan worker jobs:app               # in one terminal",
        "  ID=$(mulligan enqueue greet name=Ada)  # in another",
        "  mulligan jobs watch $ID                # its first attempt fails, the second succeeds",
        "  mulligan jobs explain $ID              # why",
    ]


# `mulligan migrate`.


@click.command()
@shared.database
@shared.output
@click.option("--dry-run", is_flag=True, help="Only say which steps would be taken.")
def migrate(database: str | None, output: str | None, *, dry_run: bool) -> None:
    """Bring the schema up to date. Safe to repeat, and safe to kill at any moment."""
    from mulligan.cli.database import say, settings_with
    from mulligan.cli.output import show_rows

    settings = settings_with(database)
    taken = _steps(settings.database_url, settings.schema_name, dry_run=dry_run)
    state = "pending" if dry_run else "applied"
    show_rows([{"name": name, "status": state} for name in taken], ["name", "status"], output)
    if not taken:
        say("the schema is up to date")
    elif dry_run:
        say(f"{len(taken)} to take; without --dry-run they are")


def _steps(url: str, schema: str, *, dry_run: bool) -> list[str]:
    from mulligan.storage import open_store
    from mulligan.storage.maintenance import steps
    from mulligan.storage.url import sqlite_file

    file = sqlite_file(url)
    if dry_run and file is not None and not file.exists():
        return [step.name for step in steps("sqlite", "")]  # opening it would make the file
    store = open_store(url, schema=schema)
    try:
        return store.migrate(dry_run=dry_run)
    finally:
        store.close()


# `mulligan backup FILE` and `mulligan restored`.


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@shared.database
@shared.output
def backup(file: Path, database: str | None, output: str | None) -> None:
    """Copy a live SQLite database to FILE: one moment of it, checked, while workers go on."""
    from mulligan.cli.database import existing, settings_with
    from mulligan.cli.output import show_rows
    from mulligan.storage.url import own_library, sqlite_file

    settings = settings_with(database)
    source = sqlite_file(settings.database_url)
    if source is None:
        raise click.UsageError(_pg_dump(settings.schema_name))
    own = settings.model_copy(update={"database_url": own_library(settings.database_url)})
    with existing(own):  # says so if it is not there, or none of ours
        _copy(source, file.absolute())
    show_rows([{"file": str(file), "bytes": file.stat().st_size}], ("file", "bytes"), output)


def _pg_dump(schema: str) -> str:
    return f"PostgreSQL has its own tool: pg_dump --format=custom --schema={schema} --file=FILE URL"


def _copy(source: Path, target: Path) -> None:
    from mulligan.storage.maintenance import copy

    bar = click.progressbar(
        length=1, label="copying", file=sys.stderr, hidden=not sys.stderr.isatty()
    )
    with bar:

        def told(done: int, whole: int) -> None:
            bar.length = whole
            bar.update(done - bar.pos)

        copy(source, target, told)


@click.command()
@click.option("--reason", default="", help="For the history.")
@shared.database
@shared.output
def restored(reason: str, database: str | None, output: str | None) -> None:
    """Once after a restore, before workers start: forget the workers of before, give out no token twice."""
    from mulligan.cli.database import actor, existing, settings_with
    from mulligan.cli.output import show_rows
    from mulligan.storage.maintenance import restored as settle_in
    from mulligan.storage.url import own_library

    settings = settings_with(database)
    own = settings.model_copy(update={"database_url": own_library(settings.database_url)})
    with existing(own) as store:
        done = settle_in(store, actor(), reason)
    show_rows([done._asdict()], ("workers", "jobs"), output)


# `mulligan keys …`: who may ask over HTTP.

COLUMNS = ("id", "name", "scope", "role", "state", "created", "expires", "last_used", "created_by")


@click.group(cls=Family)
def keys() -> None:
    """Who may ask over HTTP: make a key, list them, revoke one."""


@contextmanager
def _keys(database: str | None) -> Iterator[Keys]:
    with existing(settings_with(database)) as store:
        yield Keys(lambda: store, actor=actor())


@keys.command()
@click.option(
    "--scope", required=True, metavar="OWNER|*", help="Whose jobs it is for; * for everything."
)
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="What it may do.",
)
@click.option(
    "--expires", type=shared.When(), help="When it ends: 90d, or 2027-01-01T00:00Z. Default: never."
)
@click.option("--name", default="", help="What it is for, so that you know it again.")
@setting.reason
@shared.database
@shared.output
def create(
    scope: str,
    role: str,
    expires: Any,
    name: str,
    reason: str,
    database: str | None,
    output: str | None,
) -> None:
    """Make a key. It is printed once, on stdout, and kept nowhere."""
    with prepared(settings_with(database), aloud=False) as store:
        made = Keys(lambda: store, actor=actor()).create(
            scope, role, name=name, expires=expires, reason=reason
        )
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
    _show(
        found, output, empty="no keys yet; mulligan keys create --scope '*' --role admin makes one"
    )


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
    show_rows(
        [_plain(key) if program else _row(key) for key in found], COLUMNS, output, empty=empty
    )


def _plain(key: Key) -> dict[str, Any]:
    return {name: setting.to_plain(value) for name, value in asdict(key).items()}


def _row(key: Key) -> dict[str, Any]:
    return {
        **asdict(key),
        "created": _at(key.created_at),
        "expires": _at(key.expires_at),
        "last_used": _at(key.last_used_at),
    }


def _at(value: datetime | None) -> str:
    return "" if value is None else moment(to_micros(value))
