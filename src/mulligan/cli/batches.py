"""How `mulligan batches` prints: a bar for people, plain columns for pipes, all of it for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

import click

from mulligan.batches.rules import BatchCounts, BatchState
from mulligan.batches.service import Batch, Batches, MemberFailures, RetriedMembers
from mulligan.cli import FAILED, Family, exit_code
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, patiently, say, settings_with, typed
from mulligan.cli.job_views import drawing, event_line
from mulligan.cli.output import as_json, bar, cell, chosen, event_record, show_rows, style
from mulligan.core.errors import IllegalMove, NothingFailed, Refused, WaitTimeout
from mulligan.core.event import Event
from mulligan.jobs.service import Jobs

COLUMNS = (
    "id",
    "state",
    "name",
    "owner",
    "total",
    "succeeded",
    "dead",
    "cancelled",
    "unfinished",
    "created_at",
)
FOR_PEOPLE = ("id", "status", "name", "owner", "ended", "members")
EVERY = 0.3  # seconds
WIDE = 24


def batch_record(batch: Batch) -> dict[str, Any]:
    """All of it, with the counts in the order in which they are read."""
    record = {
        one.name: _plain(getattr(batch, one.name))
        for one in fields(batch)
        if not one.name.startswith("_")
    }
    return {
        **record,
        "sealed": batch.sealed,
        "counts": {"total": batch.counts.total, **asdict(batch.counts)},
    }


def print_batches(batches: Sequence[Batch], output: str | None, *, empty: str = "") -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        show_rows([batch_record(batch) for batch in batches], (), output)
        return
    rows = [_row(batch) for batch in batches]
    show_rows(
        rows, FOR_PEOPLE if form == "table" else COLUMNS, output, empty=empty, short="members"
    )


def _row(batch: Batch) -> dict[str, Any]:
    counts = batch.counts
    return {
        "id": batch.id,
        "state": batch.state.value,
        "status": _status(batch),
        "name": batch.name,
        "owner": batch.owner,
        "total": counts.total,
        "succeeded": counts.succeeded,
        "dead": counts.dead,
        "cancelled": counts.cancelled,
        "unfinished": counts.unfinished,
        "created_at": batch.created_at.isoformat(),
        "ended": f"{bar(counts.share, 10)} {counts.share:.0%}" if counts.total else "",
        "members": members(counts),
    }


def _status(batch: Batch) -> str:
    if batch.state is BatchState.PROCESSING:
        return "stopping" if batch.cancelled else "processing" if batch.sealed else "open"
    return batch.state.value


def members(counts: BatchCounts) -> str:
    """2 succeeded, 1 dead, 3 queued."""
    found = ((name, count) for name, count in asdict(counts).items() if name != "missed" and count)
    words = [f"{count:,} {name}" for name, count in sorted(found, key=lambda one: -one[1])]
    return (
        ", ".join([*words, *([f"{counts.missed} must-have missed"] if counts.missed else [])])
        or "no members"
    )


def said(batch: Batch) -> str:
    """One line about how far it is."""
    if batch.outcome is not None:
        return f"{batch.state}: {members(batch.counts)}"
    waits = "" if batch.sealed else ", not sealed yet"
    return f"{batch.state}, {batch.counts.share:.0%} ended{waits}: {members(batch.counts)}"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# -- one ----------------------------------------------------------------------------------------------
def print_batch(
    batch: Batch, failures: Sequence[MemberFailures], events: Sequence[Event], output: str | None
) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        told = {
            **batch_record(batch),
            "failures": [asdict(one) for one in failures],
            "events": [event_record(event) for event in events],
        }
        click.echo(as_json(told, 2 if form == "json" else None))
        return
    for line in (*_facts(batch, people=form == "table"), *_failures(failures), *_events(events)):
        click.echo(line)


def _facts(batch: Batch, *, people: bool) -> Iterator[str]:
    facts = [
        ("id", batch.id),
        ("name", batch.name),
        ("owner", batch.owner),
        ("state", _status(batch) if people else batch.state.value),
        ("members", members(batch.counts)),
        (
            "ended",
            f"{bar(batch.counts.share, WIDE)} {batch.counts.share:.0%}"
            if people and batch.counts.total
            else "",
        ),
        ("generation", str(batch.generation) if batch.generation > 1 else ""),
        ("before", batch.previous or ""),
        ("tolerance", "" if batch.tolerance == "0" else batch.tolerance),
        ("on complete", batch.on_complete or ""),
        ("unique key", batch.unique_key or ""),
        ("created", _when(batch.created_at)),
        ("sealed", _when(batch.sealed_at)),
        ("finished", _when(batch.finished_at)),
        ("expires", _when(batch.expires_at)),
        ("expired", _when(batch.expired_at)),
        ("cancelled", f"{_when(batch.cancelled_at)} {batch.cancel_reason or ''}".strip()),
    ]
    for name, value in facts:
        if value:
            yield f"{name + ':':<13}{cell(value)}" if people else f"{name}\t{cell(value)}"


def _failures(failures: Sequence[MemberFailures]) -> Iterator[str]:
    if failures:
        yield from ("", "FAILED MEMBERS")
    for one in failures:
        yield f"  {one.count}  {cell(one.code)}  {cell(one.message)}  (the newest: {one.job})"


def _events(events: Sequence[Event]) -> Iterator[str]:
    if events:
        yield from ("", f"EVENTS ({len(events)})")
    for event in events:
        yield f"  {event_line(event)}"


def print_retried(done: RetriedMembers, output: str | None) -> None:
    if chosen(output) not in {"json", "jsonl"}:
        print_batches([done.batch], output)
        return
    refused = [
        {"id": job_id, "code": why.code, "message": str(why)}
        for job_id, why in done.refused.items()
    ]
    told = {"batch": batch_record(done.batch), "retried": list(done.jobs), "refused": refused}
    click.echo(as_json(told, 2 if chosen(output) == "json" else None))


# -- watch --------------------------------------------------------------------------------------------
def follow(api: Batches, batch_id: str, timeout: float | None) -> Batch:
    """Until it has an outcome, drawn in place where a person looks on."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with drawing() as draw:
        while True:
            batch = patiently(lambda: api.get(batch_id), deadline)
            words = said(batch)
            draw(lambda batch=batch, words=words: _picture(batch, words), words, words)
            if batch.outcome is not None:
                return batch
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"batch {batch_id} is still processing after {timeout:g} s; it goes on"
                )
            time.sleep(EVERY)


def _picture(batch: Batch, words: str) -> Any:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    told = Text.assemble((f"{cell(batch.name)} ", "bold"), (words, style(batch.state)))
    return Columns([ProgressBar(total=1.0, completed=batch.counts.share, width=WIDE), told])


def _when(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


# `mulligan batches …`. An id may be given by as many of its first characters as make it unique.

NOTHING = (
    "no batches yet; a program makes one: app.batch(name), and adds jobs: options(batch=batch)"
)


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
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="How many on this page.",
)
@click.option(
    "--cursor", metavar="ID", help="The next page: what the page before named at its end."
)
@shared.database
@shared.output
def list_(
    words: tuple[str, ...], limit: int, cursor: str | None, database: str | None, output: str | None
) -> None:
    """Newest first. FILTER: state:partial owner:acme; states: processing ready partial failed expired."""
    asked = _filter(words)
    with _batches(database) as api:
        found = api.list(
            state=asked.get("state"), owner=asked.get("owner"), limit=limit, before=cursor
        )
    empty = "no batch matches; mulligan batches list shows all" if words or cursor else NOTHING
    print_batches(found, output, empty=empty)
    if len(found) == limit:
        say(
            f"more, older: {typed('batches', 'list', *words, '--cursor', found[-1].id, database=database)}"
        )


def _filter(words: tuple[str, ...]) -> dict[str, str]:
    asked: dict[str, str] = {}
    for word in " ".join(words).split():
        name, colon, value = word.partition(":")
        if name not in {"state", "owner"} or not colon or not value:
            message = (
                f"filter {word!r} is not state:… or owner:…; its jobs: mulligan jobs list batch:ID"
            )
            raise Refused(message)
        asked[name] = value
    return asked


@batches.command()
@_id
@click.option(
    "-w", "--watch", is_flag=True, help="Follow it to its outcome. Exit code 6: not ready."
)
@click.option(
    "--timeout", type=shared.Length(), help="With --watch: give up after 30, 5m, 2h; it goes on."
)
@shared.database
@shared.output
def show(
    batch_id: str, timeout: float | None, database: str | None, output: str | None, *, watch: bool
) -> int:
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
def retry(
    batch_id: str, reason: str, database: str | None, output: str | None, *, dry_run: bool
) -> int:
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
    say(
        f"{typed('batches', 'show', whole, '--watch', database=database)}  follows it to its outcome"
    )
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
def cancel(
    batch_id: str, reason: str, database: str | None, output: str | None, *, dry_run: bool
) -> None:
    """Stop the rest: what waits is cancelled, what runs is asked to stop; it takes no new members."""
    with _batches(database) as api:
        whole = api.resolve(batch_id)
        found = api.get(whole) if dry_run else api.cancel(whole, reason=reason)
    if dry_run and found.outcome is not None:
        message = (
            f"batch {found.id} ({found.name}) is {found.state}: there is nothing left to cancel"
        )
        raise IllegalMove(message)
    print_batches([found], output)
    if dry_run:
        waiting = found.counts.queued + found.counts.parked
        say(
            f"would cancel {counted(waiting, 'member')} and ask {found.counts.running} to stop; nothing was changed"
        )
    elif found.outcome is None:
        say(f"{counted(found.counts.running, 'member')} asked to stop; {said(found)}")


def _next(found: Batch, database: str | None) -> None:
    if found.counts.dead and found.state is not BatchState.EXPIRED:
        say(
            f"{typed('batches', 'retry', found.id, database=database)}  runs its dead members once more"
        )
    say(f"{typed('jobs', 'list', f'batch:{found.id}', database=database)}  lists its members")
