"""`mulligan batches …`. An id may be given by as many of its first characters as make it unique."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from mulligan.cli import FAILED, complete, exit_code
from mulligan.cli import options as shared
from mulligan.cli.batch_views import counted, follow, print_batch, print_batches, print_retried, said
from mulligan.cli.database import actor, existing, say, settings_with, typed
from mulligan.cli.family import Family
from mulligan.engine.batches import Batch, Batches
from mulligan.engine.jobs import Jobs
from mulligan.errors import IllegalMove, NothingFailed, Refused
from mulligan.policy.batch import BatchState

NOTHING = "no batches yet; a program makes one: app.batch(name), and adds jobs: options(batch=batch)"


@click.group(cls=Family)
def batches() -> None:
    """Batches of jobs: list, show, seal, retry what failed, cancel. An ID may be given by its first characters."""


@contextmanager
def _batches(database: str | None) -> Iterator[Batches]:
    settings = settings_with(database)
    with existing(settings) as store:
        yield Batches(lambda: store, Jobs(lambda: store, settings, actor=actor()), actor=actor())


_id = click.argument("batch_id", metavar="ID", shell_complete=complete.batch_ids)
_reason = click.option("--reason", default="", help="For the history.")


@batches.command("list")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many on this page.")
@click.option("--cursor", metavar="ID", help="The next page: what the page before named at its end.")
@shared.database
@shared.output
def list_(words: tuple[str, ...], limit: int, cursor: str | None, database: str | None, output: str | None) -> None:
    """Newest first. FILTER: state:partial owner:acme; states: processing ready partial failed expired."""
    asked = _filter(words)
    with _batches(database) as api:
        found = api.list(state=asked.get("state"), owner=asked.get("owner"), limit=limit, before=cursor)
    empty = "no batch matches; mulligan batches list shows all" if words or cursor else NOTHING
    print_batches(found, output, empty=empty)
    if len(found) == limit:
        say(f"more, older: {typed('batches', 'list', *words, '--cursor', found[-1].id, database=database)}")


def _filter(words: tuple[str, ...]) -> dict[str, str]:
    asked: dict[str, str] = {}
    for word in " ".join(words).split():
        name, colon, value = word.partition(":")
        if name not in {"state", "owner"} or not colon or not value:
            message = f"filter {word!r} is not state:… or owner:…; its jobs: mulligan jobs list batch:ID"
            raise Refused(message)
        asked[name] = value
    return asked


@batches.command()
@_id
@click.option("-w", "--watch", is_flag=True, help="Follow it to its outcome. Exit code 6: not ready.")
@click.option("--timeout", type=shared.Length(), help="With --watch: give up after 30, 5m, 2h; it goes on.")
@shared.database
@shared.output
def show(batch_id: str, timeout: float | None, database: str | None, output: str | None, *, watch: bool) -> int:
    """How far it is, what its members came to, what failed, and what happened to it."""
    with _batches(database) as api:
        whole = api.resolve(batch_id)
        found = follow(api, whole, timeout) if watch else api.get(whole)
        print_batch(found, api.failures(whole), api.history(whole), output)
    _next(found, database)
    return FAILED if watch and found.outcome is not BatchState.READY else 0


@batches.command()
@_id
@_reason
@shared.database
@shared.output
def seal(batch_id: str, reason: str, database: str | None, output: str | None) -> None:
    """No more members: its outcome comes with the end of the last one."""
    with _batches(database) as api:
        print_batches([api.seal(api.resolve(batch_id), reason=reason)], output)


@batches.command()
@_id
@_reason
@shared.dry_run
@shared.database
@shared.output
def retry(batch_id: str, reason: str, database: str | None, output: str | None, *, dry_run: bool) -> int:
    """Run every dead member once more; the batch goes on to its next outcome."""
    with _batches(database) as api:
        whole = api.resolve(batch_id)
        if dry_run:
            _would_retry(api, api.get(whole), output)
            return 0
        done = api.retry_failed(whole, reason=reason)
    print_retried(done, output)
    for job_id, why in done.refused.items():
        say(f"{job_id}: {why} [{why.code}]")
    say(f"retry: {len(done.jobs)} of {len(done.jobs) + len(done.refused)}")
    say(f"{typed('batches', 'show', whole, '--watch', database=database)}  follows it to its outcome")
    return exit_code(next(iter(done.refused.values()))) if done.refused else 0


def _would_retry(api: Batches, batch: Batch, output: str | None) -> None:
    if not batch.counts.dead:
        message = f"batch {batch.id}: no member is dead, so there is nothing to retry"
        raise NothingFailed(message)
    print_batch(batch, api.failures(batch.id), (), output)
    say(f"would retry {counted(batch.counts.dead, 'member')}; nothing was changed")


@batches.command()
@_id
@_reason
@shared.dry_run
@shared.database
@shared.output
def cancel(batch_id: str, reason: str, database: str | None, output: str | None, *, dry_run: bool) -> None:
    """Stop the rest: what waits is cancelled, what runs is asked to stop; it takes no new members."""
    with _batches(database) as api:
        whole = api.resolve(batch_id)
        found = api.get(whole) if dry_run else api.cancel(whole, reason=reason)
    if dry_run and found.outcome is not None:
        message = f"batch {found.id} ({found.name}) is {found.state}: there is nothing left to cancel"
        raise IllegalMove(message)
    print_batches([found], output)
    if dry_run:
        waiting = found.counts.queued + found.counts.parked
        say(f"would cancel {counted(waiting, 'member')} and ask {found.counts.running} to stop; nothing was changed")
    elif found.outcome is None:
        say(f"{counted(found.counts.running, 'member')} asked to stop; {said(found)}")


def _next(found: Batch, database: str | None) -> None:
    if found.counts.dead and found.state is not BatchState.EXPIRED:
        say(f"{typed('batches', 'retry', found.id, database=database)}  runs its dead members once more")
    say(f"{typed('jobs', 'list', f'batch:{found.id}', database=database)}  lists its members")
