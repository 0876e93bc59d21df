"""`mulligan migrate`."""

from __future__ import annotations

import click

from mulligan.cli import options as shared


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
    from mulligan.store import open_store
    from mulligan.store.migrate import steps
    from mulligan.store.urls import sqlite_file

    file = sqlite_file(url)
    if dry_run and file is not None and not file.exists():
        return [step.name for step in steps("sqlite", "")]  # opening it would make the file
    store = open_store(url, schema=schema)
    try:
        return store.migrate(dry_run=dry_run)
    finally:
        store.close()
