"""`mulligan init`, `migrate`, `backup`, `restored` and `keys …`: set up and maintain."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from mulligan.access.keys import Key, Keys, Role
from mulligan.cli import CommandGroup
from mulligan.cli import options as shared
from mulligan.cli.database import (
    cli_actor,
    command_line,
    load_settings,
    open_existing,
    open_or_create,
    open_services,
    print_hint,
    print_notice,
)
from mulligan.cli.output import is_json, json_value, print_json, print_rows
from mulligan.config import Settings
from mulligan.core.durations import to_micros
from mulligan.core.format import format_time
from mulligan.core.job import ALL_OWNERS

# --- mulligan init ---

JOBS_PY = '''\
"""A first app. Run its jobs: mulligan worker jobs:app"""

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()  # uses the database that mulligan.toml names


@app.job(policy=Policy(max_retries=3, backoff=Fixed(2)))
def greet(ctx: Context, name: str = "world") -> str:
    """Fail on the first attempt, to show a retry. Remove the next two lines later."""
    if ctx.attempt == 1:
        raise ConnectionError("the greeting service did not answer")
    return f"Hello, {name}!"
'''

MULLIGAN_TOML = """\
# Settings of this folder. Environment variables (MULLIGAN_WORKER__CONCURRENCY=8)
# and flags override them.
# `mulligan doctor` shows every setting, its value and its origin.

database_url = "sqlite:///mulligan.db"  # or "postgresql://user@host/database"

[worker]
concurrency = 4

[retry]
max_retries = 3
base_delay = 5 # seconds before the first retry; each further retry waits twice as long
"""

NEW_FILES = {"jobs.py": JOBS_PY, "mulligan.toml": MULLIGAN_TOML}


class FileExists(click.ClickException):
    """A file that `init` would write exists already."""

    exit_code = 5


@click.command("init")
@click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
def init(directory: Path) -> None:
    """Write jobs.py and mulligan.toml into DIR (default: here). Never overwrite a file."""
    _refuse_to_overwrite(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in NEW_FILES.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
            click.echo(str(directory / name))
    except OSError as error:
        raise click.ClickException(f"cannot write into {directory}: {error.strerror}") from None
    for line in _next_steps(directory):
        print_notice(line)


def _refuse_to_overwrite(directory: Path) -> None:
    existing = [str(directory / name) for name in NEW_FILES if (directory / name).exists()]
    if existing:
        raise FileExists(
            f"{' and '.join(existing)} already exists. Nothing was written. "
            "Choose another directory: mulligan init DIR"
        )


def _next_steps(directory: Path) -> list[str]:
    is_current = directory.resolve() == Path.cwd()
    change_directory = [] if is_current else [f"  cd {directory}"]
    return [
        "",
        "Next steps:",
        *change_directory,
        "  mulligan worker jobs:app               # in one terminal",
        "  ID=$(mulligan enqueue greet name=Ada)  # in another",
        "  mulligan jobs watch $ID                # the first attempt fails, the second succeeds",
        "  mulligan jobs explain $ID              # why",
    ]


# --- mulligan migrate ---


@click.command("migrate")
@shared.database_option
@shared.output_option
@click.option("--dry-run", is_flag=True, help="Only list the pending steps.")
def migrate(database: str | None, output: str | None, *, dry_run: bool) -> None:
    """Bring the schema up to date. Safe while workers run, safe to repeat and to interrupt."""
    steps = _migrate(load_settings(database), dry_run=dry_run)
    status = "pending" if dry_run else "applied"
    print_rows([{"name": name, "status": status} for name in steps], ["name", "status"], output)
    if not steps:
        print_notice("The schema is up to date.")
    elif dry_run:
        print_notice(f"{len(steps)} pending. Run without --dry-run to apply.")


def _migrate(settings: Settings, *, dry_run: bool) -> list[str]:
    from mulligan.storage import open_store, sqlite_path
    from mulligan.storage.migrations import load_steps

    file = sqlite_path(settings.database_url)
    if dry_run and file is not None and not file.exists():
        return [
            step.row.name for step in load_steps("sqlite", "")
        ]  # opening it would create the file
    store = open_store(settings.database_url, schema=settings.schema_name)
    try:
        return store.migrate(dry_run=dry_run)
    finally:
        store.close()


# --- mulligan backup, restored ---


def _with_apsw(settings: Settings) -> Settings:
    """Return settings that open SQLite files with apsw, even if the app uses another library."""
    from mulligan.storage import use_apsw

    return settings.model_copy(update={"database_url": use_apsw(settings.database_url)})


@click.command("backup")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@shared.database_option
@shared.output_option
def backup(file: Path, database: str | None, output: str | None) -> None:
    """Copy a live SQLite database to FILE: a consistent, verified snapshot while workers run."""
    from mulligan.storage import sqlite_path

    settings = load_settings(database)
    source = sqlite_path(settings.database_url)
    if source is None:
        raise click.UsageError(
            "backup copies SQLite databases. For PostgreSQL use: "
            f"pg_dump --format=custom --schema={settings.schema_name} --file=FILE URL"
        )
    with open_existing(_with_apsw(settings)):  # refuses a missing or foreign database
        _copy(source, file.absolute())
    print_rows([{"file": str(file), "bytes": file.stat().st_size}], ("file", "bytes"), output)


def _copy(source: Path, target: Path) -> None:
    from mulligan.storage.sqlite_handle import copy_database

    is_terminal = sys.stderr.isatty()
    bar = click.progressbar(length=1, label="copying", file=sys.stderr, hidden=not is_terminal)
    with bar:

        def show_progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        copy_database(source, target, show_progress)


@click.command("restored")
@shared.reason_option
@shared.database_option
@shared.output_option
def restored(reason: str, database: str | None, output: str | None) -> None:
    """Run once after restoring a backup, before workers start.

    Forgets the workers of the backup and makes sure that no token is used twice.
    """
    from mulligan.worker.service import mark_restored

    with open_existing(_with_apsw(load_settings(database))) as store:
        result = mark_restored(store, cli_actor(), reason)
    print_rows([result._asdict()], ("workers", "jobs"), output)


# --- mulligan keys ---

KEY_COLUMNS = (
    "id",
    "name",
    "scope",
    "role",
    "state",
    "created",
    "expires",
    "last_used",
    "created_by",
)
NO_KEYS = "No keys yet. Create one with: mulligan keys create --scope '*' --role admin"


@click.group(cls=CommandGroup)
def keys() -> None:
    """Create, list and revoke HTTP API keys."""


@keys.command("create")
@click.option(
    "--scope", required=True, metavar="OWNER|*", help="Owner whose jobs it may access; * for all."
)
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="What it may do.",
)
@click.option(
    "--expires",
    type=shared.TimeParam(),
    help="When it expires: 90d, or 2027-01-01T00:00Z. Default: never.",
)
@click.option("--name", default="", help="What the key is for.")
@shared.reason_option
@shared.database_option
@shared.output_option
def create(
    scope: str,
    role: str,
    expires: Any,
    name: str,
    reason: str,
    database: str | None,
    output: str | None,
) -> None:
    """Create a key. It is printed once, on stdout, and stored nowhere."""
    with open_or_create(load_settings(database), announce=False) as store:
        keys_service = Keys(lambda: store, actor=cli_actor())
        created = keys_service.create(scope, role, name=name, expires=expires, reason=reason)
    if is_json(output):
        print_json({**_key_record(created.key), "key": created.text}, output)
    else:
        click.echo(created.text)
    subject = "all owners" if scope == ALL_OWNERS else f"owner {scope!r}"
    key_id = created.key.id
    print_notice(f"Key {key_id}: role {role} for {subject}. It is not shown again.")
    print_hint(command_line("keys", "revoke", key_id), "revoke it")


@keys.command("list")
@shared.database_option
@shared.output_option
def list_keys(database: str | None, output: str | None) -> None:
    """List keys, without their secrets."""
    with open_services(database) as services:
        found = services.keys.list()
    _print_keys(found, output, empty=NO_KEYS)


@keys.command("revoke")
@click.argument("key")
@shared.reason_option
@shared.database_option
@shared.output_option
def revoke(key: str, reason: str, database: str | None, output: str | None) -> None:
    """Revoke a key now. Streams opened with it end within a minute."""
    with open_services(database) as services:
        _print_keys([services.keys.revoke(key, reason=reason)], output)


def _print_keys(found: Sequence[Key], output: str | None, empty: str = "") -> None:
    if is_json(output):
        print_rows([_key_record(key) for key in found], (), output)
    else:
        print_rows([_key_row(key) for key in found], KEY_COLUMNS, output, empty=empty)


def _key_record(key: Key) -> dict[str, Any]:
    return {name: json_value(value) for name, value in asdict(key).items()}


def _key_row(key: Key) -> dict[str, Any]:
    return {
        **asdict(key),
        "created": _format_optional_time(key.created_at),
        "expires": _format_optional_time(key.expires_at),
        "last_used": _format_optional_time(key.last_used_at),
    }


def _format_optional_time(at: datetime | None) -> str:
    return "" if at is None else format_time(to_micros(at))
