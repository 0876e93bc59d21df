"""`mulligan worker APP`."""

from __future__ import annotations

import click

from mulligan.cli import options as shared


@click.command()
@click.argument("app")
@shared.worker_options
def worker(
    app: str, database: str | None, queues: frozenset[str] | None, concurrency: int | None, runners: int | None,
    log_level: str,
) -> int:  # fmt: skip
    """Run the jobs of APP (module:attribute) until SIGTERM or Ctrl-C."""
    from mulligan.cli import working
    from mulligan.cli.appfacts import settings_for
    from mulligan.cli.database import prepared
    from mulligan.engine.supervisor.main import Options

    working.begin(log_level)
    settings = settings_for(app, working.worker_flags(database, concurrency, runners))
    with prepared(settings) as store:
        return working.run_worker(store, settings, Options(app, queues, log_level.upper()))
