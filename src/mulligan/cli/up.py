"""`mulligan up APP`."""

from __future__ import annotations

import click

from mulligan.cli import options as shared


@click.command()
@click.argument("app")
@shared.worker_options
@shared.page_options
def up(
    app: str, database: str | None, queues: frozenset[str] | None, concurrency: int | None, runners: int | None,
    log_level: str, host: str | None, port: int | None,
) -> int:  # fmt: skip
    """Run the jobs of APP (module:attribute) and serve the page; prints its address."""
    from mulligan.cli import working
    from mulligan.cli.appfacts import settings_for
    from mulligan.cli.database import prepared
    from mulligan.engine.supervisor.main import Options

    working.begin(log_level)
    flags = working.worker_flags(database, concurrency, runners) | {"web.host": host, "web.port": port}
    settings = settings_for(app, flags)
    with prepared(settings) as store:
        options = Options(app, queues, log_level.upper())
        return working.run_with_page(store, settings, options, may_move=port is None)
