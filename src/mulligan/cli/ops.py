"""`mulligan ops …`: one careful action on many jobs. An id may be given by its first characters."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli import bulk, complete
from mulligan.cli import options as shared
from mulligan.cli.database import say, typed
from mulligan.cli.family import Family
from mulligan.cli.listing import one_filter
from mulligan.cli.output import show_rows
from mulligan.cli.setting import plain
from mulligan.engine.operations import KINDS_OF_ITEM, Item
from mulligan.policy.operation import Action


@click.group(cls=Family)
def ops() -> None:
    """One careful action on many jobs: start, show, items, pause, resume, abort."""


_id = click.argument("operation", metavar="ID", shell_complete=complete.operations)
_reason = click.option("--reason", default="", help="For the history.")
_owner = click.option("--owner", help="As this owner sees it.")
ITEM_COLUMNS = ("place", "job", "step", "state", "outcome", "code", "why")
NONE_YET = "no operations yet; mulligan ops start retry state:dead … --dry-run  shows what one would do"


@ops.command("list")
@_owner
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@shared.database
@shared.output
def list_(owner: str | None, limit: int, database: str | None, output: str | None) -> None:
    """Newest first."""
    with bulk.operations(database) as (api, _):
        bulk.print_operations(api.list(owner=owner, limit=limit), output, empty=NONE_YET)


@ops.command()
@_id
@_owner
@click.option("-w", "--watch", is_flag=True, help="Until it has ended. Exit code 6: it did not finish.")
@click.option("--timeout", type=shared.Length(), help="Stop watching after: 30, 5m, 2h; the operation goes on.")
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
    with bulk.operations(database) as (api, store):
        found = api.get(api.resolve(operation, owner=owner), owner=owner)
        if watch:
            return bulk.follow(api, store, found.id, timeout, database, output)
        bulk.print_operation(found, output)
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
    with bulk.operations(database) as (api, _):
        found = api.items(api.resolve(operation, owner=owner), outcome, owner=owner, limit=limit, after=after)
    show_rows([_item(one) for one in found], ITEM_COLUMNS, output, empty="none", short="why")
    if len(found) == limit:
        say(f"more: {typed('ops', 'items', operation, '--after', str(found[-1].place), database=database)}")


def _item(one: Item) -> dict[str, Any]:
    return {name: plain(getattr(one, name)) for name in one.__dataclass_fields__}


@ops.command()
@click.argument("action", type=click.Choice([str(action) for action in Action]))
@click.argument("words", metavar="FILTER...", nargs=-1, shell_complete=complete.filters)
@click.option("--queue", help="Where `move` moves to.", shell_complete=complete.queues)
@click.option("--choice", help="Of `release`: what was decided.")
@click.option("--max-retries", type=int, help="Of `retry`: instead of what holds for these jobs.")
@_reason
@bulk.bulk_options
def start(
    action: str, words: tuple[str, ...], database: str | None, output: str | None, max_retries: int | None, **said: Any
) -> int:
    """Retry, cancel, discard, release or move all jobs that FILTER finds; watch it, Ctrl-C leaves it running.

    FILTER is as for `jobs list`: state:dead kind:render code:GW_5XX group:v2-… owner:acme since:2h "moov atom".
    """
    overrides = {} if max_retries is None else {"max_retries": max_retries}
    return begin(action, one_filter(words) if words else "", said, database, output, overrides=overrides)


def begin(
    action: str,
    filter_: str,
    said: dict[str, Any],
    database: str | None,
    output: str | None,
    *,
    overrides: dict[str, Any] | None = None,
) -> int:
    how = {name: said.pop(name) for name in ("dry_run", "yes", "no_wait", "timeout") if name in said}
    if overrides:
        said["overrides"] = overrides
    return bulk.run_bulk(action, filter_, said, database, output, **how)


@ops.command()
@_id
@_reason
@shared.database
@shared.output
def pause(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """Send nothing more for now; what was sent goes on."""
    with bulk.operations(database) as (api, _):
        found = api.pause(api.resolve(operation), reason=reason)
    bulk.print_operation(found, output)
    say(f"{typed('ops', 'resume', found.id, database=database)}  lets it go on")


@ops.command()
@_id
@_reason
@shared.database
@shared.output
def resume(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """Let a paused operation go on."""
    with bulk.operations(database) as (api, _):
        bulk.print_operation(api.resume(api.resolve(operation), reason=reason), output)


@ops.command()
@_id
@_reason
@shared.database
@shared.output
def abort(operation: str, reason: str, database: str | None, output: str | None) -> None:
    """End an operation for good: what was not sent stays untouched."""
    with bulk.operations(database) as (api, _):
        found = api.abort(api.resolve(operation), reason=reason)
    bulk.print_operation(found, output)
    say(f"{found.untouched:,} of {found.total:,} are untouched")
