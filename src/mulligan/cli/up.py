"""`mulligan up APP`."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli import options as shared


@click.command()
@click.argument("app")
@shared.worker_options
@shared.page_options
def up(app: str, queues: frozenset[str] | None, **said: Any) -> int:
    """Run the jobs of APP (module:attribute) and serve the page; prints its address."""
    from mulligan.cli import working
    from mulligan.cli.appfacts import settings_for
    from mulligan.cli.database import prepared
    from mulligan.engine.supervisor.main import Options

    working.begin(leave_with_stdin=said.pop("leave_with_stdin"))
    settings = settings_for(app, working.worker_flags(said))
    working.listen(settings)
    with prepared(settings) as store:
        return working.run_with_page(store, settings, Options(app, queues), may_move=said["port"] is None)
