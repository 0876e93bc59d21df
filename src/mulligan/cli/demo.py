"""`mulligan demo`: jobs that succeed, fail and recover, on a database of their own."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import click

from mulligan.cli import options as shared

APP = "mulligan.cli.demo_jobs:app"


@click.command()
@click.argument("name", required=False)
@click.option("--seconds", type=int, default=600, show_default=True, help="How long new jobs keep coming.")
@click.option(
    "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), default="WARNING", show_default=True
)
@shared.database
@shared.page_options
def demo(
    name: str | None, seconds: int, log_level: str, database: str | None, host: str | None, port: int | None
) -> int:
    """Run jobs that succeed, fail and recover, and serve the page; prints its address.

    NAME is one of the applications (watermark): a whole one, with its pages, its workers and the world it needs.

    Everything is in a temporary directory that goes with the demo, unless --database names a place.
    """
    if name is not None:
        from mulligan.cli.demo_apps import run_application

        run_application(name, database, host, port)
    if database is not None:
        return _run(database, seconds, log_level, host, port)
    with tempfile.TemporaryDirectory(prefix="mulligan-demo-", ignore_cleanup_errors=True) as folder:
        return _run(f"sqlite:///{Path(folder) / 'demo.db'}", seconds, log_level, host, port)


def _run(database: str, seconds: int, log_level: str, host: str | None, port: int | None) -> int:
    from mulligan.cli import working
    from mulligan.cli.database import say, settings_with
    from mulligan.engine.supervisor.main import Options
    from mulligan.policy.redact import without_secrets
    from mulligan.store import open_store
    from mulligan.store.urls import shown_url, sqlite_file

    working.begin()
    os.environ["MULLIGAN_DATABASE_URL"] = database  # for the runners and the feeder
    os.environ["MULLIGAN_NOTIFY__ALLOW_PRIVATE"] = "127.0.0.0/8"  # the demo's own receiver of webhooks
    os.environ["DEMO_BEGAN"] = str(int(time.time()))
    flags = {"worker.concurrency": 12, "worker.runners": 2, "worker.shutdown_grace": 3, "worker.sweep": 1}
    settings = settings_with(database, flags | {"web.host": host, "web.port": port, "log.level": log_level})
    working.listen(settings)
    store = open_store(settings.database_url, schema=settings.schema_name)
    store.prepare()
    say(f"database: {sqlite_file(database) or without_secrets(shown_url(database))}")
    say(f"try in another terminal: mulligan jobs list state:dead --database {without_secrets(shown_url(database))}")
    feeder = working.Companion("mulligan.cli.demo_feeder", str(seconds))
    options = Options(APP)
    try:
        return working.run_with_page(store, settings, options, may_move=port is None, others=[feeder])
    finally:
        store.close()
