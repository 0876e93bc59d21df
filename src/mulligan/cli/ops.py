"""`mulligan ops …`: operations, that is, one action on many jobs.

Starting one shows what would happen, asks for confirmation if there are many jobs, then follows
the operation until it ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mulligan.cli import EXIT_NOT_SUCCEEDED, CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import (
    command_line,
    open_services,
    print_hint,
    print_notice,
    wait_for_database,
)
from mulligan.cli.job_views import join_filter
from mulligan.cli.output import (
    Frame,
    ShowFrame,
    format_cell,
    is_json,
    json_value,
    live_display,
    output_format,
    print_facts,
    print_json,
    print_rows,
)
from mulligan.core.errors import WaitTimeout
from mulligan.core.format import format_rate
from mulligan.operations.rules import ITEM_FILTERS, Action, ItemCounts, ItemOutcome, format_percent
from mulligan.worker.queries import WorkerQueries

if TYPE_CHECKING:
    from mulligan.operations.request import OperationPreview
    from mulligan.operations.service import Item, Operation, Operations
    from mulligan.storage import Store

F = TypeVar("F", bound=Callable[..., Any])

CONFIRM_ABOVE = 100  # jobs
WATCH_INTERVAL = 0.3  # seconds
NO_WORKER_AFTER = 5.0  # seconds without progress before a missing worker is reported
MAX_LISTED = 10  # codes, kinds or owners in a preview
NO_MATCHING_JOBS = "No job matches. Nothing was started."
NO_LIVE_WORKER = "no live worker, and operations are run by workers. Start one: mulligan worker APP"
NO_OPERATIONS = (
    "No operations yet. Preview one with: mulligan ops start retry state:dead … --dry-run"
)


@click.group(cls=CommandGroup)
def ops() -> None:
    """Start, list, show, pause, resume and abort operations: one action on many jobs."""


_id_argument = click.argument(
    "operation", metavar="ID", shell_complete=complete.complete_operations
)
_owner_option = click.option("--owner", help="Only what this owner may see.")


# --- Options of commands that start an operation ---


def bulk_options(command: F) -> F:
    """Add the options of every command that starts an operation."""
    return shared.add_options(
        command,
        shared.output_option,
        shared.database_option,
        click.option(
            "--timeout",
            type=shared.DurationParam(),
            help="Stop watching after this time: 30, 5m, 2h. The operation continues.",
        ),
        click.option("--no-wait", is_flag=True, help="Start it and return without watching."),
        click.option(
            "--yes",
            is_flag=True,
            help=f"Do not ask for confirmation above {CONFIRM_ABOVE} jobs.",
        ),
        shared.dry_run_option,
        click.option("--key", help="Idempotency key: a second start returns the same operation."),
        click.option("--owner", help="Only jobs of this owner, who then owns the operation."),
        click.option(
            "--stop-if",
            type=shared.ShareParam(),
            default="10%",
            show_default=True,
            help="Stop if more than this share of a step fails again with the same cause.",
        ),
        click.option(
            "--rate",
            metavar="N/s|N/m|N/h",
            help="Jobs per second, minute or hour. Default: 20/s for retry and release.",
        ),
        click.option(
            "--steps",
            type=shared.StepsParam(),
            help="Sizes of the steps, each judged before the next. Default for retry: "
            "1,10,100,rest.",
        ),
    )


# --- mulligan ops start ---


@ops.command("start")
@click.argument("action", type=click.Choice([str(action) for action in Action]))
@click.argument("terms", metavar="FILTER...", nargs=-1, shell_complete=complete.complete_filters)
@click.option("--queue", help="For move: the new queue.", shell_complete=complete.complete_queues)
@click.option("--choice", help="For release: the decision.")
@click.option("--max-retries", type=int, help="For retry: new retry limit for these jobs.")
@click.option("--from-step", help="For retry: call this step, and those after it, again.")
@shared.reason_option
@bulk_options
def start(
    action: str,
    terms: tuple[str, ...],
    database: str | None,
    output: str | None,
    max_retries: int | None,
    **options: Any,
) -> int:
    """Retry, cancel, discard, release or move all jobs that match FILTER, and follow the progress.

    Ctrl-C stops watching; the operation continues. FILTER as for `jobs list`:
    state:dead kind:render code:GW_5XX group:v2-… owner:acme since:2h "moov atom".
    """
    filter_ = join_filter(terms)
    overrides = retry_overrides(max_retries)
    return start_operation(action, filter_, options, database, output, overrides=overrides)


def retry_overrides(max_retries: int | None) -> dict[str, Any]:
    """Return the fields that a retry changes on every job."""
    return {} if max_retries is None else {"max_retries": max_retries}


def start_operation(
    action: str,
    filter_: str,
    options: Mapping[str, Any],
    database: str | None,
    output: str | None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> int:
    """Start an operation with the options of a command, and follow it. Return the exit code."""
    start_options = dict(options)
    dry_run = start_options.pop("dry_run", False)
    yes = start_options.pop("yes", False)
    no_wait = start_options.pop("no_wait", False)
    timeout = start_options.pop("timeout", None)
    if overrides:
        start_options["overrides"] = overrides
    with open_services(database) as services:
        preview = services.operations.start(action, filter_, dry_run=True, **start_options)
        if dry_run:
            print_preview(preview, output)
            print_notice(f"would {action} {_format_count(preview)}; nothing was changed")
            return 0
        if not preview.count:
            print_notice(NO_MATCHING_JOBS)
            return 0
        _confirm(preview, yes=yes)
        operation = services.operations.start(action, filter_, dry_run=False, **start_options)
        rate = format_rate(operation.rate)
        print_notice(f"operation {operation.id}: {action} {operation.total:,} jobs, at most {rate}")
        if no_wait:
            print_operation(operation, output)
            print_hint(_watch_command(operation.id, database), "follow its progress")
            return 0
        return _follow(services.operations, services.store, operation.id, timeout, database, output)


def _confirm(preview: OperationPreview, *, yes: bool) -> None:
    """Ask for the number of jobs: a person who types it has read it."""
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if yes or preview.count <= CONFIRM_ABOVE or not is_terminal:
        return
    for name, value in preview_facts(preview):
        print_notice(f"{name:<10}  {value}")
    question = f"{preview.action} {_format_count(preview)} jobs? Type {preview.count} to confirm"
    answer = click.prompt(question, err=True, default="")
    if answer.replace(",", "").strip() != str(preview.count):
        print_notice("nothing was changed")
        raise click.Abort


# --- mulligan ops list, show, items ---


@ops.command("list")
@_owner_option
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@shared.database_option
@shared.output_option
def list_operations(
    owner: str | None, limit: int, database: str | None, output: str | None
) -> None:
    """List operations, newest first."""
    with open_services(database) as services:
        print_operations(
            services.operations.list(owner=owner, limit=limit), output, empty=NO_OPERATIONS
        )


@ops.command("show")
@_id_argument
@_owner_option
@click.option(
    "-w", "--watch", is_flag=True, help="Follow it until it ends. Exit code 6: it did not finish."
)
@click.option(
    "--timeout",
    type=shared.DurationParam(),
    help="With --watch: stop watching after 30, 5m, 2h. The operation continues.",
)
@shared.database_option
@shared.output_option
def show(
    operation: str,
    owner: str | None,
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    watch: bool,
) -> int:
    """Show an operation: progress, outcomes of its jobs, and what it waits for."""
    with open_services(database) as services:
        found = services.operations.get(
            services.operations.resolve(operation, owner=owner), owner=owner
        )
        if watch:
            return _follow(services.operations, services.store, found.id, timeout, database, output)
        print_operation(found, output)
    return 0


ITEM_COLUMNS = ("place", "job", "step", "state", "outcome", "code", "why")


@ops.command("items")
@_id_argument
@click.option("--outcome", type=click.Choice(ITEM_FILTERS), help="Only jobs with this outcome.")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--after", default=0, help="Next page: the place of the last job above.")
@_owner_option
@shared.database_option
@shared.output_option
def items(
    operation: str,
    outcome: str | None,
    limit: int,
    after: int,
    owner: str | None,
    database: str | None,
    output: str | None,
) -> None:
    """List the jobs of an operation in order, with outcome and reason."""
    with open_services(database) as services:
        full_id = services.operations.resolve(operation, owner=owner)
        found = services.operations.items(full_id, outcome, owner=owner, limit=limit, after=after)
    records = [_item_record(item) for item in found]
    print_rows(records, ITEM_COLUMNS, output, empty="No jobs.", truncate="why")
    if len(found) == limit:
        after_option = ("--after", str(found[-1].place))
        command = command_line("ops", "items", operation, *after_option, database=database)
        print_notice(f"Next page: {command}")


def _item_record(item: Item) -> dict[str, Any]:
    return {name: json_value(getattr(item, name)) for name in item.__dataclass_fields__}


# --- mulligan ops pause, resume, abort ---


@ops.command("pause")
@_id_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def pause(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """Pause an operation. Jobs that it has already moved continue."""
    with open_services(database) as services:
        paused = services.operations.pause(services.operations.resolve(operation), reason=reason)
    print_operation(paused, output)
    print_hint(command_line("ops", "resume", paused.id, database=database), "resume it")


@ops.command("resume")
@_id_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def resume(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """Resume a paused operation."""
    with open_services(database) as services:
        print_operation(
            services.operations.resume(services.operations.resolve(operation), reason=reason),
            output,
        )


@ops.command("abort")
@_id_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def abort(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """End an operation for good. Jobs that it has not moved yet stay untouched."""
    with open_services(database) as services:
        aborted = services.operations.abort(services.operations.resolve(operation), reason=reason)
    print_operation(aborted, output)
    print_notice(f"{aborted.untouched:,} of {aborted.total:,} jobs are untouched")


# --- Follow an operation ---


def _follow(
    service: Operations,
    store: Store,
    operation_id: str,
    timeout: float | None,
    database: str | None,
    output: str | None,
) -> int:
    """Follow an operation until it ends. Ctrl-C and a timeout leave it running."""
    try:
        with live_display() as show_frame:
            ended = _watch(service, store, operation_id, timeout, show_frame)
    except (KeyboardInterrupt, WaitTimeout):
        command = _watch_command(operation_id, database)
        print_notice(f"The operation continues. Follow it with: {command}")
        raise
    print_operation(ended, output)
    print_notice(format_cell(ended.note))
    if ended.joined:
        print_notice(f"{ended.joined:,} more jobs match the filter now; they were not touched")
    if ended.state == "stopped":
        outcome_option = ("--outcome", "same")
        command = command_line("ops", "items", ended.id, *outcome_option, database=database)
        print_hint(command, "list the jobs that failed again")
    return 0 if ended.state == "finished" else EXIT_NOT_SUCCEEDED


def _watch(
    service: Operations,
    store: Store,
    operation_id: str,
    timeout: float | None,
    show_frame: ShowFrame,
) -> Operation:
    started = time.monotonic()
    while True:
        operation = wait_for_database(lambda: service.get(operation_id))
        if not operation.under_way:
            return operation
        elapsed = time.monotonic() - started
        note = operation.note
        if not note and elapsed > NO_WORKER_AFTER and not _has_workers(store):
            note = NO_LIVE_WORKER
        show_frame(_operation_frame(operation, note))
        if timeout is not None and elapsed > timeout:
            message = f"operation {operation_id} is still {operation.state} after {timeout:g} s"
            raise WaitTimeout(message)
        time.sleep(WATCH_INTERVAL)


def _has_workers(store: Store) -> bool:
    with store.read() as tx:
        return bool(WorkerQueries(tx).list_workers(closed=False))


def _operation_frame(operation: Operation, note: str) -> Frame:
    text = _describe_progress(operation)
    if note:
        text = f"{text}; {format_cell(note)}"
    return Frame(text, lambda: _draw_operation(operation, text), text)


def _describe_progress(operation: Operation) -> str:
    """Return a line such as: 3 of 10, step 2 of 3: 2 recovered, 1 same, 1 in progress."""
    counts = operation.counts
    parts = _outcome_counts(counts)
    if counts.sent:
        parts.append(f"{counts.sent:,} in progress")
    state = "" if operation.state == "running" else f"{operation.state}, "
    progress = f"{counts.ended:,} of {operation.total:,}, {state}step {_format_step(operation)}"
    return f"{progress}: {', '.join(parts) or 'starting'}"


def _outcome_counts(counts: ItemCounts) -> list[str]:
    by_outcome = {outcome: getattr(counts, outcome) for outcome in ItemOutcome}
    return [f"{count:,} {outcome}" for outcome, count in by_outcome.items() if count]


def _format_step(operation: Operation) -> str:
    return f"{operation.step} of {max(1, len(operation.steps))}"


def _draw_operation(operation: Operation, text: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    total = max(1, operation.total)
    bar = ProgressBar(total=total, completed=operation.counts.ended, width=24)
    return Columns([bar, Text(text)])


def _watch_command(operation_id: str, database: str | None) -> str:
    return command_line("ops", "show", operation_id, "--watch", database=database)


# --- Output of operations ---

COLUMNS = ("id", "action", "state", "done", "recovered", "same", "step", "actor", "filter", "note")
TABLE_COLUMNS = ("id", "action", "status", "done", "same", "filter")


def print_operations(
    operations: Sequence[Operation], output: str | None, *, empty: str = ""
) -> None:
    """Print operations as rows."""
    if is_json(output):
        print_rows([operation_record(operation) for operation in operations], (), output)
        return
    columns = TABLE_COLUMNS if output_format(output) == "table" else COLUMNS
    rows = [_row(operation) for operation in operations]
    print_rows(rows, columns, output, empty=empty, truncate="filter")


def _row(operation: Operation) -> dict[str, Any]:
    counts = operation.counts
    return {
        "id": operation.id,
        "action": operation.action,
        "state": operation.state,
        "status": operation.state,
        "done": f"{counts.ended}/{operation.total}",
        "recovered": counts.recovered,
        "same": counts.same,
        "step": f"{operation.step}/{max(1, len(operation.steps))}",
        "actor": operation.actor,
        "filter": operation.filter,
        "note": operation.note or operation.reason,
    }


def print_operation(operation: Operation, output: str | None) -> None:
    """Print one operation in full."""
    if is_json(output):
        print_json(operation_record(operation), output)
    else:
        print_facts(_operation_facts(operation), output)


def operation_record(operation: Operation) -> dict[str, Any]:
    """Return every field of an operation, with its counts per step."""
    return {
        **{name: json_value(value) for name, value in asdict(operation).items()},
        "steps": [counts._asdict() for counts in operation.steps],
        "counts": operation.counts._asdict(),
        "untouched": operation.untouched,
    }


def _operation_facts(operation: Operation) -> list[tuple[str, str]]:
    counts = operation.counts
    step_sizes = [f"{step.ended:,} of {step.size:,}" for step in operation.steps]
    limit = format_percent(operation.stop_if)
    joined = f"{operation.joined:,} more match now; not touched" if operation.joined else ""
    under_way = f"{counts.sent:,}" if counts.sent else ""
    return [
        ("operation", operation.id),
        ("action", _format_action(operation)),
        ("state", operation.state),
        ("filter", operation.filter),
        ("means", operation.fixed),
        ("owner", operation.owner or ""),
        ("by", operation.actor),
        ("reason", operation.reason),
        ("total", f"{operation.total:,}"),
        ("ended", ", ".join(_outcome_counts(counts))),
        ("under way", under_way),
        ("untouched", f"{operation.untouched:,}"),
        ("step", _format_step(operation)),
        ("steps", ", ".join(step_sizes)),
        ("rate", format_rate(operation.rate)),
        ("stop if", f"more than {limit} of a step fail again with the same cause"),
        ("joined", joined),
        ("began", json_value(operation.created_at)),
        ("ended at", json_value(operation.finished_at) or ""),
        ("note", operation.note),
    ]


def _format_action(operation: Operation) -> str:
    params = ", ".join(f"{name} {value}" for name, value in operation.params.items())
    return f"{operation.action} ({params})" if params else operation.action


# --- Output of previews ---


def print_preview(preview: OperationPreview, output: str | None) -> None:
    """Print what an operation would do."""
    if not is_json(output):
        print_facts(preview_facts(preview), output)
        return
    record = {
        **asdict(preview),
        "chances": [chance._asdict() for chance in preview.chances],
        "held": [obstacle._asdict() for obstacle in preview.held],
        "refused": [obstacle._asdict() for obstacle in preview.refused],
        "chance": preview.chance,
    }
    print_json(record, output)


def preview_facts(preview: OperationPreview) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of a preview that are not empty."""
    owners = {owner or "(none)": jobs for owner, jobs in preview.owners.items()}
    cost = ""
    if preview.cost:
        cost = f"{preview.cost:g} so far, about {preview.estimated_cost:g} more"
    step_sizes = []
    if preview.count:
        step_sizes = [f"{size:,}" for size in preview.steps]
    facts = [
        ("action", preview.action),
        ("means", preview.fixed),
        ("jobs", _format_count(preview)),
        ("codes", _list_counts(preview.codes)),
        ("kinds", _list_counts(preview.kinds)),
        ("owners", _list_counts(owners)),
        ("steps", ", ".join(step_sizes)),
        ("cost", cost),
        ("chance", _describe_chance(preview)),
    ]
    for held in preview.held:
        facts.append(("held", f"{held.jobs:,} would wait: {held.why}"))
    for refused in preview.refused:
        facts.append(("refused", f"{refused.jobs:,} would be refused: {refused.why}"))
    return [(name, value) for name, value in facts if value]


def _describe_chance(preview: OperationPreview) -> str:
    if not preview.chances:
        return ""
    if preview.chance is None:
        return "unknown: no job with these causes was retried before"
    share = format_percent(round(preview.chance, 3))
    text = f"{share}: {preview.recovered:,} of {preview.retried:,} retried before recovered"
    unknown = sum(chance.jobs for chance in preview.chances if not chance.retried)
    if unknown:
        text += f"; unknown for {unknown:,} jobs, whose cause was never retried"
    return text


def _list_counts(counts: Mapping[str, int]) -> str:
    listed = list(counts.items())[:MAX_LISTED]
    parts = [f"{name} {jobs:,}" for name, jobs in listed]
    if len(counts) > MAX_LISTED:
        parts.append(f"{len(counts) - MAX_LISTED} more")
    return ", ".join(parts)


def _format_count(preview: OperationPreview) -> str:
    return f"{preview.count:,}+" if preview.capped else f"{preview.count:,}"
