"""`mulligan web`: the page alone. It is a program of its own (`python -m mulligan.web`); this becomes it."""

from __future__ import annotations

import os
import sys

import click

from mulligan.cli import options as shared


@click.command()
@click.argument("app", required=False)
@shared.database
@shared.page_options
def web(app: str | None, database: str | None, host: str | None, port: int | None) -> None:
    """Serve the page; prints its address. With APP: on the database that app names."""
    from mulligan.cli.working import page_environment
    from mulligan.config import read_settings

    flags = {"database_url": database, "web.host": host, "web.port": port}
    if app is None:
        settings = read_settings(flags)
    else:
        from mulligan.cli.appfacts import settings_for

        settings = settings_for(app, flags)
    page_environment(settings)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "mulligan.web", *(["--may-move"] if port is None else [])])  # noqa: S606 - no shell is wanted
