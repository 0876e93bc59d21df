"""`mulligan workers …`. An id may be given by as many of its first characters as make it unique."""

from __future__ import annotations

import click

from mulligan.cli import options as shared
from mulligan.cli.complete import worker_ids
from mulligan.cli.family import Family


@click.group(cls=Family)
def workers() -> None:
    """List workers, let one drain, check that one lives."""


@workers.command("list")
@click.option("--all", "everybody", is_flag=True, help="Also those that have left.")
@shared.database
@shared.output
def list_(database: str | None, output: str | None, *, everybody: bool) -> None:
    """Who runs jobs, how many of how many, and when each was last heard of."""
    from mulligan.cli.crew import show_workers

    show_workers(database, output, everybody=everybody)


@workers.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=worker_ids)
@click.option("--reason", default="", help="For its log.")
@click.option("--wait", is_flag=True, help="Return once they have left.")
@click.option("--timeout", type=shared.Length(), help="With --wait: give up after 30, 5m, 2h; they drain on.")
@shared.dry_run
@shared.database
@shared.output
def drain(
    ids: tuple[str, ...], reason: str, timeout: float | None, database: str | None, output: str | None,
    *, wait: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Ask workers to claim nothing more, to finish what they run however long it takes, and to leave.

    They hear of it at their next heartbeat. SIGTERM, afterwards, gives what still runs its shutdown grace.
    """
    from mulligan.cli.crew import run_drain

    if timeout is not None and not wait:
        message = "--timeout is how long --wait waits; without --wait nobody waits. Say both, or neither"
        raise click.UsageError(message)
    run_drain(ids, reason, database, output, dry_run=dry_run, wait=timeout if wait else 0.0)


@workers.command()
@click.option("--id", "worker", metavar="ID", help="This worker.", shell_complete=worker_ids)
@click.option("--host", help="Any worker of this host. Default: the host we are on.")
@shared.database
def check(worker: str | None, host: str | None, database: str | None) -> int:
    """Is a worker alive? For health checks of containers: exit code 0 if so, else 1.

    Alive: its row was renewed within its lease; one that drains is alive. While the database is away nobody can
    renew, and it would be wrong to end workers for that: then a life file of this host that is held counts.
    """
    from mulligan.cli.crew import run_check

    return run_check(worker, host, database)
