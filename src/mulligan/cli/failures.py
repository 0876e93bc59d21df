"""`mulligan failures …`: dead jobs by cause; what people say about each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mulligan.cli import bulk, complete
from mulligan.cli import options as shared
from mulligan.cli.causes import print_group, print_groups
from mulligan.cli.database import actor, existing, say, settings_with, typed
from mulligan.cli.family import Family
from mulligan.cli.listing import one_filter
from mulligan.cli.ops import begin
from mulligan.engine.failures import FailureGroup, Failures


@click.group(cls=Family)
def failures() -> None:
    """Dead jobs by cause: list, show, retry, mute, resolve."""


@contextmanager
def _failures(database: str | None) -> Iterator[Failures]:
    with existing(settings_with(database)) as store:
        yield Failures(lambda: store, actor=actor())


@failures.command("list")
@click.argument("words", metavar="[FILTER]...", nargs=-1, shell_complete=complete.filters)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@shared.database
@shared.output
def list_(words: tuple[str, ...], limit: int, database: str | None, output: str | None) -> None:
    """Groups of dead jobs that died of one cause, those that need somebody first.

    FILTER is as for `jobs list`: kind:render code:GW_5XX owner:acme since:2h "moov atom".
    """
    with _failures(database) as api:
        found = api.groups(one_filter(words) if words else "", limit=limit)
    empty = "no dead job matches; mulligan failures list shows all" if words else NOTHING
    print_groups(found, output, empty=empty)
    if found.more:
        say(f"these are the {limit} that died last; more with --limit, fewer with a filter")
    if found:
        first = found[0].fingerprint
        say(f"{typed('failures', 'show', first, database=database)}  says more of the first")


NOTHING = "no dead jobs: nothing has failed for good. A job that does is listed here with others of its cause"

_group = click.argument("group", shell_complete=complete.groups)
_note = click.option("--note", default="", help="What was done about it.")
_reason = click.option("--reason", default="", help="For everybody who wonders why.")


@failures.command()
@_group
@click.option("--private", is_flag=True, help="With message and trace of the sample, which are not for owners.")
@shared.database
@shared.output
def show(group: str, database: str | None, output: str | None, *, private: bool) -> None:
    """One group: how many, which kinds, since when, a sample, and whether retries helped."""
    with _failures(database) as api:
        found = api.get(api.resolve_name(group), private=private)
    print_group(found, output)
    say(f"{_jobs(found, database)}  lists its jobs")
    if found.count:
        dry = typed("failures", "retry", found.fingerprint, "--dry-run", database=database)
        say(f"{dry}  says what a retry of all would be")
    if found.sample is not None:
        say(f"{typed('jobs', 'explain', found.sample.job, database=database)}  tells of the last one")


@failures.command()
@_group
@click.argument("words", metavar="[FILTER]...", nargs=-1, shell_complete=complete.filters)
@click.option("--max-retries", type=int, help="Instead of what holds for these jobs.")
@_reason
@bulk.bulk_options
def retry(
    group: str,
    words: tuple[str, ...],
    database: str | None,
    output: str | None,
    max_retries: int | None,
    **said: Any,
) -> int:
    """Retry the jobs of a group, carefully: an operation, as `ops start retry group:…`."""
    with _failures(database) as api:
        name = api.resolve_name(group)
    filter_ = " ".join([f"group:{name}", *([one_filter(words)] if words else [])])
    overrides = {} if max_retries is None else {"max_retries": max_retries}
    return begin("retry", filter_, said, database, output, overrides=overrides)


@failures.command()
@_group
@click.option("--for", "until", type=shared.Length(), help="Ends by itself after: 30, 5m, 2h, 1d.")
@_reason
@shared.database
@shared.output
def mute(group: str, until: float | None, reason: str, database: str | None, output: str | None) -> None:
    """Known, and not worth a look for a while; its jobs stay dead."""
    with _failures(database) as api:
        found = api.mute(api.resolve_name(group), until=until, reason=reason)
    print_groups([found], output)
    say(f"{typed('failures', 'reopen', found.fingerprint, database=database)}  takes it back")


@failures.command()
@_group
@_note
@shared.database
@shared.output
def resolve(group: str, note: str, database: str | None, output: str | None) -> None:
    """The cause is gone; if a job dies of it again, the group has regressed."""
    with _failures(database) as api:
        found = api.resolve(api.resolve_name(group), note=note)
    print_groups([found], output)
    if found.count:
        again = typed("failures", "retry", found.fingerprint, database=database)
        say(f"its jobs stay dead until somebody retries them: {again}")


@failures.command()
@_group
@_reason
@shared.database
@shared.output
def reopen(group: str, reason: str, database: str | None, output: str | None) -> None:
    """Neither muted nor resolved any more."""
    with _failures(database) as api:
        print_groups([api.reopen(api.resolve_name(group), reason=reason)], output)


def _jobs(group: FailureGroup, database: str | None) -> str:
    return typed("jobs", "list", "state:dead", f"group:{group.fingerprint}", database=database)
