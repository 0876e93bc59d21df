"""`mulligan events list` and `mulligan events tail`."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli import options as shared
from mulligan.cli.complete import job_ids
from mulligan.cli.family import Family


@click.group(cls=Family)
def events() -> None:
    """What happened, and what happens."""


@events.command("list")
@click.option("--actor", help="Only what this one did: cli:ann, python …")
@click.option("--since", type=shared.When(), help="Only since then: 2h, 7d, or 2026-03-01T06:00Z.")
@click.option("--until", type=shared.When(), help="Only before then.")
@click.option("--type", "types", multiple=True, help="Only these: job.retried, or queue.*. May be repeated.")
@click.option("--job", metavar="ID", help="Only what was done to this job.", shell_complete=job_ids)
@click.option("--owner", help="Only what was done to jobs and groups of this owner.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many on this page.")
@click.option("--cursor", type=int, metavar="ID", help="The next page: what the page before named at its end.")
@shared.database
@shared.output
def list_(database: str | None, output: str | None, **said: Any) -> None:
    """Who did what, newest first: actor, time, reason, before and after. What Mulligan does by itself is in tail."""
    from mulligan.cli.auditing import show_deeds

    show_deeds(said, database, output)


@events.command()
@click.option(
    "-n", "count", type=click.IntRange(0, 100_000), default=20, show_default=True, help="How many to begin with."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "--type", "types", multiple=True, help="Only these: job.died, or job.* for all of a kind. May be repeated."
)
@click.option("--job", metavar="ID", help="Only those of this job.", shell_complete=job_ids)
@click.option(
    "--filter", "words", default="", help="owner:acme batch:… kind:… actor:upkeep code:BAD_FILE class:transient"
)
@shared.database
@shared.output
def tail(
    count: int, types: tuple[str, ...], job: str | None, words: str, database: str | None, output: str | None,
    *, follow: bool,
) -> None:  # fmt: skip
    """The newest events, oldest of them first; none is skipped, however late its transaction commits."""
    from mulligan.cli.tailing import run_tail

    run_tail(count, types, job, words, database, output, follow=follow)
