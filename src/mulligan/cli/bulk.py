"""One action on many jobs, from the keyboard: what would happen, a question where it is many, then a bar to watch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import click

from mulligan.cli import FAILED
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, patiently, say, settings_with, typed
from mulligan.cli.output import as_json, cell, chosen, show_rows
from mulligan.cli.setting import plain
from mulligan.cli.watching import Draw, drawing
from mulligan.engine.operations import Operation, Operations
from mulligan.engine.preview import Preview
from mulligan.errors import WaitTimeout
from mulligan.policy.operation import Fate, percent
from mulligan.policy.phrase import per
from mulligan.store import Store

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
class Steps(click.ParamType[list[int | str]]):
    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int | str]:
        del param, ctx
        parts = [part.strip() for part in str(value).split(",")]
        return [int(part) if part.isdecimal() else part for part in parts]


class Share(click.ParamType[float]):
    """0.1 or 10%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
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
        click.option("--timeout", type=shared.Length(), help="Stop watching after: 30, 5m, 2h; the operation goes on."),
        click.option("--no-wait", is_flag=True, help="Begin it, and do not watch."),
        click.option("--yes", is_flag=True, help=f"Do not ask, however many jobs there are (more than {ASKED_FROM})."),
        shared.dry_run,
        click.option("--key", help="The same key again returns the operation that has it."),
        click.option("--owner", help="Only jobs of this owner; the operation is theirs."),
        click.option("--stop-if", type=Share(), default="10%", show_default=True, help="Stop when more than this share "
                     "of a step fails of the same cause again."),
        click.option("--rate", metavar="N/s|N/m|N/h", help="Items a second; default 20 for retry and release."),
        click.option("--steps", type=Steps(), help="How many before it is judged; default for retry: 1,10,100,rest."),
    ):  # fmt: skip
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


def _ask(before: Preview, *, yes: bool) -> None:
    """Whoever types the number has read it."""
    if yes or before.count <= ASKED_FROM or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for name, value in facts(before):
        say(f"{name:<10}  {value}")
    typed_in = click.prompt(
        f"{before.action} {_number(before)} jobs? Type {before.count} to go on", err=True, default=""
    )
    if typed_in.replace(",", "").strip() != str(before.count):
        say("nothing was changed")
        raise click.Abort


# -- watch ------------------------------------------------------------------------------------------
def follow(
    api: Operations, store: Store, operation: str, timeout: float | None, database: str | None, output: str | None
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
        say(f"{typed('ops', 'items', ended.id, '--outcome', 'same', database=database)}  lists those that failed again")
    return 0 if ended.state == "finished" else FAILED


def _watch(api: Operations, store: Store, operation: str, timeout: float | None, draw: Draw) -> Operation:
    began = time.monotonic()
    while True:
        now = patiently(lambda: api.get(operation))
        if not now.under_way:
            return now
        words = _words(now, _lonely(store) if time.monotonic() - began > ALONE_AFTER and not now.note else "")
        draw(lambda now=now, words=words: _picture(now, words), words, words)
        if timeout is not None and time.monotonic() - began > timeout:
            raise WaitTimeout(f"operation {operation} is still {now.state} after {timeout:g} s")
        time.sleep(EVERY)


def _lonely(store: Store) -> str:
    with store.read() as unit:
        return "" if unit.workers(closed=False) else NOBODY


def _words(now: Operation, more: str = "") -> str:
    counted = [f"{getattr(now.counts, fate):,} {fate}" for fate in Fate if getattr(now.counts, fate)]
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
    said = {name: plain(value) for name, value in asdict(one).items()}
    steps = [tally._asdict() for tally in one.steps]
    return {**said, "steps": steps, "counts": one.counts._asdict(), "untouched": one.untouched}


def _operation_facts(one: Operation) -> list[tuple[str, str]]:
    counts = [f"{getattr(one.counts, fate):,} {fate}" for fate in Fate if getattr(one.counts, fate)]
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
        ("began", plain(one.created_at)),
        ("ended at", plain(one.finished_at) or ""),
        ("note", one.note),
    ]


def print_preview(before: Preview, output: str | None) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        said = {**asdict(before), "chances": [chance._asdict() for chance in before.chances]}
        said |= {"held": [one._asdict() for one in before.held], "refused": [one._asdict() for one in before.refused]}
        click.echo(as_json({**said, "chance": before.chance}, 2 if form == "json" else None))
        return
    _print_facts(facts(before), form)


def _print_facts(said: list[tuple[str, str]], form: str) -> None:
    shown = [(name, value) for name, value in said if value]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {cell(value)}" if form == "table" else f"{name}\t{cell(value)}")


def facts(before: Preview) -> list[tuple[str, str]]:
    said = [
        ("action", before.action),
        ("means", before.fixed),
        ("jobs", _number(before)),
        ("codes", _counted(before.codes)),
        ("kinds", _counted(before.kinds)),
        ("owners", _counted({name or "(none)": jobs for name, jobs in before.owners.items()})),
        ("steps", ", ".join(f"{size:,}" for size in before.steps) if before.count else ""),
        ("cost", f"{before.cost:g} so far, about {before.estimated_cost:g} more" if before.cost else ""),
        ("chance", _chance(before)),
    ]
    said += [("held", f"{one.jobs:,} would wait: {one.why}") for one in before.held]
    said += [("refused", f"{one.jobs:,} would be: {one.why}") for one in before.refused]
    return [(name, value) for name, value in said if value]


def _chance(before: Preview) -> str:
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


def _number(before: Preview) -> str:
    return f"{before.count:,}+" if before.capped else f"{before.count:,}"
