"""One action on many jobs, from the keyboard: what would happen, a question where it is many, then a bar to watch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import click

from mulligan.cli import FAILED, Family
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, patiently, say, settings_with, typed
from mulligan.cli.gates import to_plain
from mulligan.cli.job_views import Draw, drawing, one_filter
from mulligan.cli.output import as_json, cell, chosen, show_rows
from mulligan.core.errors import WaitTimeout
from mulligan.core.format import per
from mulligan.operations.request import OperationPreview
from mulligan.operations.rules import Action, ItemOutcome, percent
from mulligan.operations.service import KINDS_OF_ITEM, Item, Operation, Operations
from mulligan.storage import Store

F = TypeVar("F", bound=Callable[..., Any])

ASKED_FROM = 100  # jobs that need a second thought
EVERY = 0.3  # seconds
ALONE_AFTER = 5.0  # seconds until somebody wants to know why nothing happens
NOTHING = "no job matches; nothing was started"
NOBODY = "no worker is live: operations are carried out by workers. Start one: mulligan worker APP"


@contextmanager
def operations(database: str | None) -> Iterator[tuple[Operations, Store]]:
    with existing(settings_with(database)) as store:
        yield Operations(lambda: store, actor=actor()), store


# -- options ----------------------------------------------------------------------------------------
class StepsParam(click.ParamType[list[int | str]]):
    name = "steps"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int | str]:
        del param, ctx
        parts = [part.strip() for part in str(value).split(",")]
        return [int(part) if part.isdecimal() else part for part in parts]


class ShareParam(click.ParamType[float]):
    """0.1 or 10%."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
        except ValueError:
            self.fail(f"{value!r} is no share; write 10% or 0.1", param, ctx)


def bulk_options(command: F) -> F:
    """What every command that begins an operation may say about it."""
    for option in (
        shared.output,
        shared.database,
        click.option(
            "--timeout",
            type=shared.Length(),
            help="Stop watching after: 30, 5m, 2h; the operation goes on.",
        ),
        click.option("--no-wait", is_flag=True, help="Begin it, and do not watch."),
        click.option(
            "--yes",
            is_flag=True,
            help=f"Do not ask, however many jobs there are (more than {ASKED_FROM}).",
        ),
        shared.dry_run,
        click.option("--key", help="The same key again returns the operation that has it."),
        click.option("--owner", help="Only jobs of this owner; the operation is theirs."),
        click.option(
            "--stop-if",
            type=ShareParam(),
            default="10%",
            show_default=True,
            help="Stop when more than this share of a step fails of the same cause again.",
        ),
        click.option(
            "--rate",
            metavar="N/s|N/m|N/h",
            help="Items a second; default 20 for retry and release.",
        ),
        click.option(
            "--steps",
            type=StepsParam(),
            help="How many before it is judged; default for retry: 1,10,100,rest.",
        ),
    ):
        command = option(command)
    return command


# -- begin ------------------------------------------------------------------------------------------
def run_bulk(  # noqa: PLR0913 - what, with what, where, how
    action: str,
    filter_: str,
    said: Mapping[str, Any],
    database: str | None,
    output: str | None,
    *,
    dry_run: bool = False,
    yes: bool = False,
    no_wait: bool = False,
    timeout: float | None = None,
) -> int:
    with operations(database) as (api, store):
        before = api.start(action, filter_, dry_run=True, **said)
        if dry_run:
            print_preview(before, output)
            say(f"would {action}: {_number(before)}; nothing was changed")
            return 0
        if not before.count:
            say(NOTHING)
            return 0
        _ask(before, yes=yes)
        begun = api.start(action, filter_, dry_run=False, **said)
        say(f"operation {begun.id}: {action} of {begun.total:,} jobs, {per(begun.rate)} at most")
        if no_wait:
            print_operation(begun, output)
            say(f"{_again(begun, database)}  shows how far it is")
            return 0
        return follow(api, store, begun.id, timeout, database, output)


def _ask(before: OperationPreview, *, yes: bool) -> None:
    """Whoever types the number has read it."""
    if yes or before.count <= ASKED_FROM or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for name, value in facts(before):
        say(f"{name:<10}  {value}")
    typed_in = click.prompt(
        f"{before.action} {_number(before)} jobs? Type {before.count} to go on",
        err=True,
        default="",
    )
    if typed_in.replace(",", "").strip() != str(before.count):
        say("nothing was changed")
        raise click.Abort


# -- watch ------------------------------------------------------------------------------------------
def follow(
    api: Operations,
    store: Store,
    operation: str,
    timeout: float | None,
    database: str | None,
    output: str | None,
) -> int:
    """Until it has ended. Ctrl-C leaves it running."""
    try:
        with drawing() as draw:
            ended = _watch(api, store, operation, timeout, draw)
    except (KeyboardInterrupt, WaitTimeout):
        say(f"the operation goes on; {_again(api.get(operation), database)}  shows how far it is")
        raise
    print_operation(ended, output)
    say(cell(ended.note))
    if ended.joined:
        say(f"{ended.joined:,} more came to match meanwhile; they were not touched")
    if ended.state == "stopped":
        say(
            f"{typed('ops', 'items', ended.id, '--outcome', 'same', database=database)}  lists those that failed again"
        )
    return 0 if ended.state == "finished" else FAILED


def _watch(
    api: Operations, store: Store, operation: str, timeout: float | None, draw: Draw
) -> Operation:
    began = time.monotonic()
    while True:
        now = patiently(lambda: api.get(operation))
        if not now.under_way:
            return now
        words = _words(
            now, _lonely(store) if time.monotonic() - began > ALONE_AFTER and not now.note else ""
        )
        draw(lambda now=now, words=words: _picture(now, words), words, words)
        if timeout is not None and time.monotonic() - began > timeout:
            raise WaitTimeout(f"operation {operation} is still {now.state} after {timeout:g} s")
        time.sleep(EVERY)


def _lonely(store: Store) -> str:
    with store.read() as unit:
        return "" if unit.workers(closed=False) else NOBODY


def _words(now: Operation, more: str = "") -> str:
    counted = [
        f"{getattr(now.counts, fate):,} {fate}" for fate in ItemOutcome if getattr(now.counts, fate)
    ]
    state = "" if now.state == "running" else f"{now.state}, "
    step = f"{state}step {now.step} of {max(1, len(now.steps))}"
    waiting = [f"{now.counts.sent:,} under way"] if now.counts.sent else []
    said = f"{now.counts.ended:,} of {now.total:,}, {step}: {', '.join([*counted, *waiting]) or 'begins'}"
    note = more or cell(now.note)
    return f"{said}; {note}" if note else said


def _picture(now: Operation, words: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    bar = ProgressBar(total=max(1, now.total), completed=now.counts.ended, width=24)
    return Columns([bar, Text(words)])


def _again(operation: Operation, database: str | None) -> str:
    return typed("ops", "show", operation.id, "--watch", database=database)


# -- print ------------------------------------------------------------------------------------------
COLUMNS = ("id", "action", "state", "done", "recovered", "same", "step", "actor", "filter", "note")
FOR_PEOPLE = ("id", "action", "status", "done", "same", "filter")


def print_operations(found: list[Operation], output: str | None, *, empty: str = "") -> None:
    if chosen(output) in {"json", "jsonl"}:
        show_rows([record(one) for one in found], (), output)
        return
    columns = FOR_PEOPLE if chosen(output) == "table" else COLUMNS
    show_rows([_row(one) for one in found], columns, output, empty=empty, short="filter")


def _row(one: Operation) -> dict[str, Any]:
    return {
        "id": one.id,
        "action": one.action,
        "state": one.state,
        "status": one.state,
        "done": f"{one.counts.ended}/{one.total}",
        "recovered": one.counts.recovered,
        "same": one.counts.same,
        "step": f"{one.step}/{max(1, len(one.steps))}",
        "actor": one.actor,
        "filter": one.filter,
        "note": one.note or one.reason,
    }


def print_operation(one: Operation, output: str | None) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        click.echo(as_json(record(one), 2 if form == "json" else None))
        return
    _print_facts(_operation_facts(one), form)


def record(one: Operation) -> dict[str, Any]:
    said = {name: to_plain(value) for name, value in asdict(one).items()}
    steps = [tally._asdict() for tally in one.steps]
    return {**said, "steps": steps, "counts": one.counts._asdict(), "untouched": one.untouched}


def _operation_facts(one: Operation) -> list[tuple[str, str]]:
    counts = [
        f"{getattr(one.counts, fate):,} {fate}" for fate in ItemOutcome if getattr(one.counts, fate)
    ]
    sizes = [f"{tally.ended:,} of {tally.size:,}" for tally in one.steps]
    params = ", ".join(f"{name} {value}" for name, value in one.params.items())
    return [
        ("operation", one.id),
        ("action", f"{one.action} ({params})" if params else one.action),
        ("state", one.state),
        ("filter", one.filter),
        ("means", one.fixed),
        ("owner", one.owner or ""),
        ("by", one.actor),
        ("reason", one.reason),
        ("total", f"{one.total:,}"),
        ("ended", ", ".join(counts)),
        ("under way", f"{one.counts.sent:,}" if one.counts.sent else ""),
        ("untouched", f"{one.untouched:,}"),
        ("step", f"{one.step} of {max(1, len(one.steps))}"),
        ("steps", ", ".join(sizes)),
        ("rate", per(one.rate)),
        ("stop if", f"more than {percent(one.stop_if)} of a step fail of the same cause again"),
        ("joined", f"{one.joined:,} came to match since; not touched" if one.joined else ""),
        ("began", to_plain(one.created_at)),
        ("ended at", to_plain(one.finished_at) or ""),
        ("note", one.note),
    ]


def print_preview(before: OperationPreview, output: str | None) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        said = {**asdict(before), "chances": [chance._asdict() for chance in before.chances]}
        said |= {
            "held": [one._asdict() for one in before.held],
            "refused": [one._asdict() for one in before.refused],
        }
        click.echo(as_json({**said, "chance": before.chance}, 2 if form == "json" else None))
        return
    _print_facts(facts(before), form)


def _print_facts(said: list[tuple[str, str]], form: str) -> None:
    shown = [(name, value) for name, value in said if value]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(
            f"{name:<{width}}  {cell(value)}" if form == "table" else f"{name}\t{cell(value)}"
        )


def facts(before: OperationPreview) -> list[tuple[str, str]]:
    said = [
        ("action", before.action),
        ("means", before.fixed),
        ("jobs", _number(before)),
        ("codes", _counted(before.codes)),
        ("kinds", _counted(before.kinds)),
        ("owners", _counted({name or "(none)": jobs for name, jobs in before.owners.items()})),
        ("steps", ", ".join(f"{size:,}" for size in before.steps) if before.count else ""),
        (
            "cost",
            f"{before.cost:g} so far, about {before.estimated_cost:g} more" if before.cost else "",
        ),
        ("chance", _chance(before)),
    ]
    said += [("held", f"{one.jobs:,} would wait: {one.why}") for one in before.held]
    said += [("refused", f"{one.jobs:,} would be: {one.why}") for one in before.refused]
    return [(name, value) for name, value in said if value]


def _chance(before: OperationPreview) -> str:
    if not before.chances:
        return ""
    if before.chance is None:
        return "nobody has tried yet"
    unknown = sum(one.jobs for one in before.chances if not one.retried)
    more = f"; of {unknown:,} jobs nobody has tried the like yet" if unknown else ""
    tried = f"{before.recovered:,} of {before.retried:,} that were retried before recovered"
    return f"{percent(round(before.chance, 3))}: {tried}{more}"


def _counted(counts: Mapping[str, int], most: int = 10) -> str:
    named = [f"{name} {jobs:,}" for name, jobs in list(counts.items())[:most]]
    return ", ".join([*named, f"{len(counts) - most} more"] if len(counts) > most else named)


def _number(before: OperationPreview) -> str:
    return f"{before.count:,}+" if before.capped else f"{before.count:,}"


# `mulligan ops …`: one careful action on many jobs. An id may be given by its first characters.


@click.group(cls=Family)
def ops() -> None:
    """One careful action on many jobs: start, show, items, pause, resume, abort."""


_id = click.argument("operation", metavar="ID", shell_complete=complete.operations)
_reason = click.option("--reason", default="", help="For the history.")
_owner = click.option("--owner", help="As this owner sees it.")
ITEM_COLUMNS = ("place", "job", "step", "state", "outcome", "code", "why")
NONE_YET = (
    "no operations yet; mulligan ops start retry state:dead … --dry-run  shows what one would do"
)


@ops.command("list")
@_owner
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@shared.database
@shared.output
def list_(owner: str | None, limit: int, database: str | None, output: str | None) -> None:
    """Newest first."""
    with operations(database) as (api, _):
        print_operations(api.list(owner=owner, limit=limit), output, empty=NONE_YET)


@ops.command()
@_id
@_owner
@click.option(
    "-w", "--watch", is_flag=True, help="Until it has ended. Exit code 6: it did not finish."
)
@click.option(
    "--timeout",
    type=shared.Length(),
    help="Stop watching after: 30, 5m, 2h; the operation goes on.",
)
@shared.database
@shared.output
def show(
    operation: str,
    owner: str | None,
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    watch: bool,
) -> int:
    """How far it is, what became of its jobs, and on what it waits."""
    with operations(database) as (api, store):
        found = api.get(api.resolve(operation, owner=owner), owner=owner)
        if watch:
            return follow(api, store, found.id, timeout, database, output)
        print_operation(found, output)
    return 0


@ops.command()
@_id
@click.option("--outcome", type=click.Choice(KINDS_OF_ITEM), help="Only these.")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--after", default=0, help="The next page: the place of the last one above.")
@_owner
@shared.database
@shared.output
def items(
    operation: str,
    outcome: str | None,
    limit: int,
    after: int,
    owner: str | None,
    database: str | None,
    output: str | None,
) -> None:
    """Its jobs in the order in which they are sent, each with what became of it, and why."""
    with operations(database) as (api, _):
        found = api.items(
            api.resolve(operation, owner=owner), outcome, owner=owner, limit=limit, after=after
        )
    show_rows([_item(one) for one in found], ITEM_COLUMNS, output, empty="none", short="why")
    if len(found) == limit:
        say(
            f"more: {typed('ops', 'items', operation, '--after', str(found[-1].place), database=database)}"
        )


def _item(one: Item) -> dict[str, Any]:
    return {name: to_plain(getattr(one, name)) for name in one.__dataclass_fields__}


@ops.command()
@click.argument("action", type=click.Choice([str(action) for action in Action]))
@click.argument("words", metavar="FILTER...", nargs=-1, shell_complete=complete.filters)
@click.option("--queue", help="Where `move` moves to.", shell_complete=complete.queues)
@click.option("--choice", help="Of `release`: what was decided.")
@click.option("--max-retries", type=int, help="Of `retry`: instead of what holds for these jobs.")
@_reason
@bulk_options
def start(
    action: str,
    words: tuple[str, ...],
    database: str | None,
    output: str | None,
    max_retries: int | None,
    **said: Any,
) -> int:
    """Retry, cancel, discard, release or move all jobs that FILTER finds; watch it, Ctrl-C leaves it running.

    FILTER is as for `jobs list`: state:dead kind:render code:GW_5XX group:v2-… owner:acme since:2h "moov atom".
    """
    overrides = {} if max_retries is None else {"max_retries": max_retries}
    return begin(
        action, one_filter(words) if words else "", said, database, output, overrides=overrides
    )


def begin(
    action: str,
    filter_: str,
    said: dict[str, Any],
    database: str | None,
    output: str | None,
    *,
    overrides: dict[str, Any] | None = None,
) -> int:
    how = {
        name: said.pop(name) for name in ("dry_run", "yes", "no_wait", "timeout") if name in said
    }
    if overrides:
        said["overrides"] = overrides
    return run_bulk(action, filter_, said, database, output, **how)


@ops.command()
@_id
@_reason
@shared.database
@shared.output
def pause(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """Send nothing more for now; what was sent goes on."""
    with operations(database) as (api, _):
        found = api.pause(api.resolve(operation), reason=reason)
    print_operation(found, output)
    say(f"{typed('ops', 'resume', found.id, database=database)}  lets it go on")


@ops.command()
@_id
@_reason
@shared.database
@shared.output
def resume(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """Let a paused operation go on."""
    with operations(database) as (api, _):
        print_operation(api.resume(api.resolve(operation), reason=reason), output)


@ops.command()
@_id
@_reason
@shared.database
@shared.output
def abort(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """End an operation for good: what was not sent stays untouched."""
    with operations(database) as (api, _):
        found = api.abort(api.resolve(operation), reason=reason)
    print_operation(found, output)
    say(f"{found.untouched:,} of {found.total:,} are untouched")
