"""`mulligan backup FILE` and `mulligan restored`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mulligan.cli import options as shared


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@shared.database
@shared.output
def backup(file: Path, database: str | None, output: str | None) -> None:
    """Copy a live SQLite database to FILE: one moment of it, checked, while workers go on."""
    from mulligan.cli.database import existing, settings_with
    from mulligan.cli.output import show_rows
    from mulligan.store.urls import own_library, sqlite_file

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
    from mulligan.store.backup import copy

    bar = click.progressbar(length=1, label="copying", file=sys.stderr, hidden=not sys.stderr.isatty())
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
    from mulligan.engine.restored import restored as settle_in
    from mulligan.store.urls import own_library

    settings = settings_with(database)
    own = settings.model_copy(update={"database_url": own_library(settings.database_url)})
    with existing(own) as store:
        done = settle_in(store, actor(), reason)
    show_rows([done._asdict()], ("workers", "jobs"), output)
