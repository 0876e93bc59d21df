"""`mulligan insight`: what retries are worth, what failures cost, and what that advises."""

from __future__ import annotations

import click

from mulligan.cli import options as shared
from mulligan.cli.complete import kinds, queues


@click.command()
@click.option("--since", type=shared.Length(), default="7d", show_default=True, help="Jobs enqueued within: 2h, 7d.")
@click.option("--kind", help="Only this kind.", shell_complete=kinds)
@click.option("--queue", help="Only this queue.", shell_complete=queues)
@shared.database
@shared.output
def insight(since: float, kind: str | None, queue: str | None, database: str | None, output: str | None) -> None:
    """What the jobs of the last days came to: what retries are worth, what failures cost, what that advises.

    At most 100,000 jobs are looked at, the newest; it says so when there are more.
    """
    from mulligan.cli.insights import show_insight

    show_insight(since, kind, queue, database, output)
