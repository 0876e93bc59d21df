"""`mulligan jobs …`: list, show, explain, watch, export, import and repair jobs.

This module only declares the commands, so that help and completion are quick. Their code is in
`job_views.py`, `job_transfer.py` and `job_repair.py`, imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import click

from mulligan.cli import CommandGroup
from mulligan.cli import options as shared
from mulligan.cli.completion import (
    complete_filters,
    complete_job_ids,
    complete_kinds,
    complete_queues,
)

FILTER_HELP = (
    "FILTER: state:dead,parked phase:held kind:render queue:pdf owner:acme batch:… since:2h "
    "code:GW_5XX class:timeout group:v2-… arg.customer:42"
)


@click.group(cls=CommandGroup)
def jobs() -> None:
    """List, show, explain, watch, export and repair jobs. A unique prefix of an ID is enough."""


filter_argument = click.argument(
    "terms", metavar="[FILTER]...", nargs=-1, shell_complete=complete_filters
)
id_argument = click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
ids_argument = click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete_job_ids)


# --- Show ---


@jobs.command("list", help=f"List jobs, newest first. {FILTER_HELP}")
@filter_argument
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Number of jobs on this page.",
)
@click.option("--cursor", metavar="ID", help="Next page, as printed at the end of the last page.")
@click.option(
    "--page", is_flag=True, help="With -o json: an object with jobs, cursor, partial and count."
)
@shared.database_option
@shared.output_option
def list_jobs(
    terms: tuple[str, ...],
    limit: int,
    cursor: str | None,
    database: str | None,
    output: str | None,
    *,
    page: bool,
) -> None:
    from mulligan.cli.job_views import show_list

    show_list(terms, limit, cursor, database, output, page=page)


@jobs.command("show")
@id_argument
@click.option(
    "--log",
    is_flag=True,
    help="Show the log and stacks of the last failed attempt.",
)
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="With --log: the attempt with token N."
)
@shared.database_option
@shared.output_option
def show(
    job_id: str, attempt: int | None, database: str | None, output: str | None, *, log: bool
) -> None:
    """Show one job in full: fields, why, attempts with private details, events."""
    from mulligan.cli.job_views import show_job, show_log

    if log:
        show_log(job_id, attempt, database, output)
    elif attempt is not None:
        raise click.UsageError("--attempt needs --log")
    else:
        show_job(job_id, database, output)


@jobs.command("explain")
@id_argument
@click.option(
    "--private", is_flag=True, help="Include messages and traces, which owners must not see."
)
@shared.database_option
@shared.output_option
def explain(job_id: str, database: str | None, output: str | None, *, private: bool) -> None:
    """Explain a job: what happened, why it is in its state, its limits, and what to type next."""
    from mulligan.cli.job_views import show_explanation

    show_explanation(job_id, database, output, private=private)


@jobs.command(
    "watch",
    help=(
        "Follow one job, or all jobs that match FILTER, until they end. "
        f"Exit code 6: not all succeeded. {FILTER_HELP}"
    ),
)
@click.argument("terms", metavar="ID | [FILTER]...", nargs=-1, shell_complete=complete_job_ids)
@click.option(
    "--timeout",
    type=shared.DurationParam(),
    help="Stop watching after this time: 30, 5m, 2h. The jobs continue.",
)
@click.option(
    "-f", "--follow", is_flag=True, help="Continue until Ctrl-C, even if nothing waits or runs."
)
@click.option("--log", is_flag=True, help="With an ID: print the log of each failed attempt.")
@shared.database_option
@shared.output_option
def watch(
    terms: tuple[str, ...],
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
    log: bool,
) -> int:
    from mulligan.cli.status import watch_filter, watch_job

    if len(terms) == 1 and ":" not in terms[0]:
        return watch_job(terms[0], timeout, database, output, log=log)
    if log:
        raise click.UsageError("--log needs the ID of one job")
    return watch_filter(terms, timeout, database, output, follow=follow)


# --- Export, import, index ---


@jobs.command("export", help=f"Print every job as one line of JSON, newest first. {FILTER_HELP}")
@filter_argument
@click.option(
    "--attempts",
    is_flag=True,
    help="Include every finished attempt, with the private part of its failure.",
)
@shared.database_option
def export(terms: tuple[str, ...], database: str | None, *, attempts: bool) -> None:
    from mulligan.cli.job_transfer import run_export

    run_export(terms, database, attempts=attempts)


@jobs.command("import")
@click.argument("file", type=click.File("rb"))
@shared.dry_run_option
@shared.database_option
@shared.output_option
def import_jobs(file: BinaryIO, database: str | None, output: str | None, *, dry_run: bool) -> int:
    """Enqueue the jobs that `jobs export` wrote: one job per line of FILE (-: standard input).

    A line is a JSON object with kind and payload, and optionally owner, queue, priority,
    max_retries and unique_key. If a line has a state, it must be dead, parked or cancelled. A job
    without a unique key gets import:ID as its key, so that importing a file twice creates no
    duplicates. Exit code 1: some lines were refused and reported; the others were imported.
    """
    from mulligan.cli.job_transfer import run_import

    return run_import(file, database, output, dry_run=dry_run)


@jobs.command("index")
@click.argument("kind", shell_complete=complete_kinds)
@shared.database_option
def index(kind: str, database: str | None) -> None:
    """Index jobs of KIND that were enqueued before it declared its index, for `arg.` filters."""
    from mulligan.cli.job_transfer import run_index

    run_index(kind, database)


# --- Answer ---


@jobs.command("tell")
@id_argument
@click.argument("name")
@click.argument("value", required=False)
@click.option("--key", is_flag=True, help="ID is the unique key of the job.")
@click.option("--actor", default="", help="Who answers; default: you.")
@shared.reason_option
@shared.database_option
@shared.output_option
def tell(
    job_id: str,
    name: str,
    value: str | None,
    actor: str,
    reason: str,
    database: str | None,
    output: str | None,
    *,
    key: bool,
) -> None:
    """Answer what a job waits for (`ctx.wait`). The first answer counts.

    VALUE is JSON, or else a text. Without VALUE the answer is null. Exit code 5: the wait was
    answered before, or its time is over.
    """
    from mulligan.cli.job_repair import answer_job

    options = {"actor": actor, "reason": reason}
    answer_job(job_id, name, value, options, database, output, by_key=key)


# --- Repair ---


def _add_repair_command(name: str, help_text: str, *options: Callable[[Any], Any]) -> None:
    """Add one of retry, cancel, release and discard: for jobs by id, or for a --filter."""

    def run(
        ids: tuple[str, ...],
        database: str | None,
        output: str | None,
        *,
        dry_run: bool,
        filter_: str | None,
        limit: int | None,
        yes: bool,
        **options: Any,
    ) -> int:
        from mulligan.cli.job_repair import (
            RepairRequest,
            repair_by_filter,
            repair_by_id,
            repair_newest,
        )

        if bool(ids) == (filter_ is not None):
            raise click.UsageError("name jobs by ID, or choose them with --filter FILTER")
        request = RepairRequest(name, options, dry_run=dry_run)
        if limit is not None and filter_ is None:
            raise click.UsageError("--limit needs --filter; it chooses the newest jobs that match")
        if limit is not None:
            return repair_newest(request, filter_ or "", limit, database, output)
        if filter_ is not None:
            return repair_by_filter(request, filter_, database, output, yes=yes)
        return repair_by_id(request, ids, database, output)

    command = shared.add_options(
        run,
        shared.output_option,
        shared.database_option,
        _yes_option,
        shared.dry_run_option,
        _limit_option,
        _filter_option,
        *options,
        ids_argument,
    )
    jobs.command(name, help=help_text)(command)


_filter_option = click.option(
    "--filter",
    "filter_",
    metavar="FILTER",
    help="Act on all jobs that match, as an operation (see `ops start`).",
)
_limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    help="With --filter: only this many jobs, the newest first.",
)
_yes_option = click.option(
    "--yes", is_flag=True, help="With --filter: do not ask for confirmation."
)
_required_reason = click.option("--reason", required=True, help="Recorded in the history.")

_add_repair_command(
    "retry",
    "Run dead, parked or cancelled jobs again, with counters reset. Their history stays.",
    shared.reason_option,
    click.option(
        "--at",
        type=shared.TimeParam(),
        help="Run later: 5m, 2h, or 2026-03-01T06:00+01:00. Default: now.",
    ),
    click.option(
        "--set",
        "fields",
        metavar="FIELD=VALUE",
        multiple=True,
        help="Change a payload field that the kind declares editable. May be repeated.",
    ),
    click.option(
        "--timeout",
        type=shared.DurationParam(),
        help="New time limit of one attempt: 30, 5m, 2h.",
    ),
    click.option("--priority", type=int, help="New priority, from -9 (first) to 9 (last)."),
    click.option("--queue", help="New queue.", shell_complete=complete_queues),
    click.option("--max-retries", type=int, help="New retry limit for this job."),
    click.option(
        "--from-step", metavar="STEP", help="Call this step, and those that ended after it, again."
    ),
    click.option(
        "--step",
        "step_results",
        metavar="STEP=VALUE",
        multiple=True,
        help="Set the result of a step, so that it is not called. May be repeated.",
    ),
)
_add_repair_command(
    "cancel",
    "Cancel jobs. A waiting job ends at once, a running job when its code has stopped.",
    shared.reason_option,
)
_add_repair_command(
    "release",
    "Release parked jobs, optionally with a choice.",
    click.option("--choice", help="The decision. The handler reads it as ctx.choice."),
    click.option("--value", help='Result of a step in doubt (JSON), with --choice "it happened".'),
    shared.reason_option,
)
_add_repair_command(
    "discard",
    "Give up dead or parked jobs for good: they become cancelled.",
    _required_reason,
)
_add_repair_command(
    "undo",
    "Undo the finished steps of dead, cancelled or parked jobs, which then end again.",
    shared.reason_option,
)
_add_repair_command(
    "undiscard",
    "Undo a discard: the jobs are dead or parked again, and do not run.",
    shared.reason_option,
)


@jobs.command("rerun")
@id_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def rerun(job_id: str, reason: str, database: str | None, output: str | None) -> None:
    """Run a succeeded job again: enqueue a copy and print its id. The job and its result stay."""
    from mulligan.cli.job_repair import rerun_job

    rerun_job(job_id, reason, database, output)
