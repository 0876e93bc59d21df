"""`mulligan jobs …`. An id may be given by as many of its first characters as make it unique."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import click

from mulligan.cli import options as shared
from mulligan.cli.complete import filters, job_ids, kinds, queues
from mulligan.cli.family import Family

FILTER = (
    "FILTER: state:dead,parked phase:held kind:render queue:pdf owner:acme batch:… since:2h code:GW_5XX class:timeout "
    "group:v2-… arg.customer:42"
)


@click.group(cls=Family)
def jobs() -> None:
    """List, show, explain, watch, export and repair jobs. An ID may be given by its first characters."""


filter_words = click.argument("words", metavar="[FILTER]...", nargs=-1, shell_complete=filters)
one_id = click.argument("job_id", metavar="ID", shell_complete=job_ids)
many_ids = click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=job_ids)


# -- look -------------------------------------------------------------------------------------------
@jobs.command("list", help=f"Newest first. {FILTER}")
@filter_words
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many on this page.")
@click.option("--cursor", metavar="ID", help="The next page: what the page before named at its end.")
@click.option("--page", is_flag=True, help="With -o json: an object with jobs, cursor, partial and count.")
@shared.database
@shared.output
def list_(
    words: tuple[str, ...], limit: int, cursor: str | None, database: str | None, output: str | None, *, page: bool
) -> None:
    from mulligan.cli.listing import show_list

    show_list(words, limit, cursor, database, output, page=page)


@jobs.command()
@one_id
@shared.database
@shared.output
def show(job_id: str, database: str | None, output: str | None) -> None:
    """Everything about one job: facts, why, attempts (newest first, with their private half), events."""
    from mulligan.cli.database import desk
    from mulligan.cli.story import show_story

    with desk(database) as at:
        show_story(at, at.jobs.resolve(job_id), output)


@jobs.command()
@one_id
@click.option("--private", is_flag=True, help="With messages and traces, which are not for owners.")
@shared.database
@shared.output
def explain(job_id: str, database: str | None, output: str | None, *, private: bool) -> None:
    """A job's story in sentences, why it is where it is, what holds for it, and what to type next."""
    from mulligan.cli.explaining import show_explanation

    show_explanation(job_id, database, output, private=private)


@jobs.command(help=f"Every job as one line of JSON, newest first: a stream, however many there are. {FILTER}")
@filter_words
@click.option("--attempts", is_flag=True, help="With every finished attempt, both halves of its failure.")
@shared.database
def export(words: tuple[str, ...], database: str | None, *, attempts: bool) -> None:
    from mulligan.cli.exporting import run_export

    run_export(words, database, attempts=attempts)


@jobs.command("import")
@click.argument("file", type=click.File("rb"))
@shared.dry_run
@shared.database
@shared.output
def import_(file: BinaryIO, database: str | None, output: str | None, *, dry_run: bool) -> int:
    """Enqueue what `jobs export` wrote: one job per line of FILE (-: standard input), run as new.

    A line is a JSON object with kind and payload, perhaps owner, queue, priority, max_retries, unique_key. Of jobs that
    say their state only dead, parked and cancelled ones are taken. One that has no unique key gets import:ID, so that a
    file read twice makes no job twice. Exit code 1: some lines were refused; they are told, the others are in.
    """
    from mulligan.cli.importing import run_import

    return run_import(file, database, output, dry_run=dry_run)


@jobs.command()
@click.argument("kind", shell_complete=kinds)
@shared.database
def index(kind: str, database: str | None) -> None:
    """Let `arg.` filters find jobs of KIND that were enqueued before it declared its index."""
    from mulligan.cli.importing import run_index

    run_index(kind, database)


# -- watch ------------------------------------------------------------------------------------------
@jobs.command(help=f"Follow one job, or all that a FILTER finds, to the end. Exit code 6: not all succeeded. {FILTER}")
@click.argument("words", metavar="ID | [FILTER]...", nargs=-1, shell_complete=job_ids)
@click.option("--timeout", type=shared.Length(), help="Give up after: 30, 5m, 2h; the jobs go on.")
@click.option("-f", "--follow", is_flag=True, help="Go on when nothing waits or runs any more, until Ctrl-C.")
@shared.database
@shared.output
def watch(
    words: tuple[str, ...], timeout: float | None, database: str | None, output: str | None, *, follow: bool
) -> int:
    from mulligan.cli import watching

    if len(words) == 1 and ":" not in words[0]:
        return watching.watch_job(words[0], timeout, database, output)
    return watching.watch_filter(words, timeout, database, output, follow=follow)


# -- repair -----------------------------------------------------------------------------------------
def repair(name: str, words: str, *more: Callable[[Any], Any]) -> None:
    """One command per verb, all alike."""

    def run(
        ids: tuple[str, ...],
        database: str | None,
        output: str | None,
        *,
        dry_run: bool,
        filter_: str | None,
        yes: bool,
        **said: Any,
    ) -> int:
        from mulligan.cli.repairing import run_repair, run_repair_of_many

        if bool(ids) == (filter_ is not None):
            message = "name jobs by their ids, or all that a --filter finds; one of both"
            raise click.UsageError(message)
        if filter_ is not None:
            return run_repair_of_many(name, filter_, said, database, output, dry_run=dry_run, yes=yes)
        return run_repair(name, ids, said, database, output, dry_run=dry_run)

    decorated: Any = run
    for option in (shared.output, shared.database, _yes, shared.dry_run, _filter, *more, many_ids):
        decorated = option(decorated)
    jobs.command(name, help=words)(decorated)


_filter = click.option("--filter", "filter_", metavar="FILTER", help="All that it finds: an operation, as `ops start`.")
_yes = click.option("--yes", is_flag=True, help="With --filter: do not ask, however many jobs there are.")
_reason = click.option("--reason", default="", help="For the history.")
_must_reason = click.option("--reason", required=True, help="The last thing anybody will read about this job.")
_choice = click.option("--choice", help="What was decided; the handler reads it as ctx.choice.")
_retry = (
    _reason,
    click.option("--at", type=shared.When(), help="Not at once: 5m, 2h, or 2026-03-01T06:00+01:00."),
    click.option(
        "--set", "fields", metavar="FIELD=VALUE", multiple=True,
        help="Change a field of the payload that its kind calls editable. May be repeated.",
    ),
    click.option("--timeout", type=shared.Length(), help="Limit of one attempt from now on: 30, 5m, 2h."),
    click.option("--priority", type=int, help="From -9 (first) to 9 (last)."),
    click.option("--queue", help="Instead of the one it was enqueued for.", shell_complete=queues),
    click.option("--max-retries", type=int, help="Instead of what holds for this job."),
)  # fmt: skip

repair("retry", "Run dead, parked or cancelled jobs again, with fresh counters; their history stays.", *_retry)
repair("cancel", "Stop jobs: at once while they wait, once their code has stopped while they run.", _reason)
repair("release", "Let parked jobs go on, perhaps with a choice.", _choice, _reason)
repair("discard", "Nobody wants these dead or parked jobs any more.", _must_reason)
