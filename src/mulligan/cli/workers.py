"""What `mulligan workers` does: list, drain, check."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import click

from mulligan.cli import Family
from mulligan.cli import options as shared
from mulligan.cli.completion import worker_ids
from mulligan.cli.database import actor, existing, say, settings_with, typed
from mulligan.cli.output import chosen, show_rows
from mulligan.config import Settings
from mulligan.core.errors import AccessDenied, NotFound, Refused, StoreUnavailable, WaitTimeout
from mulligan.core.format import duration
from mulligan.core.job import SECOND, to_datetime
from mulligan.jobs.service import ambiguous
from mulligan.storage import Store, open_store
from mulligan.storage.url import sqlite_file
from mulligan.worker.liveness import (
    WorkerStatus,
    held_files,
    request_drain,
    state_folder,
    workers_seen,
)

COLUMNS = (
    "id",
    "life",
    "host",
    "pid",
    "release",
    "queues",
    "running",
    "concurrency",
    "renewed_at",
    "draining",
)
FOR_PEOPLE = ("id", "life", "host", "pid", "release", "queues", "running", "renewed")
LOOK_EVERY = 0.2  # seconds


def _record(seen: WorkerStatus) -> dict[str, Any]:
    row = seen.row
    return {
        "id": row.id,
        "life": seen.life,
        "host": row.host,
        "pid": row.pid,
        "release": row.release,
        "queues": json.loads(row.queues),
        "kinds": json.loads(row.kinds),
        "running": seen.running,
        "concurrency": row.concurrency,
        "lease": row.lease / SECOND,
        "started_at": to_datetime(row.started_at).isoformat(),
        "renewed_at": to_datetime(row.renewed_at).isoformat(),
        "draining": row.draining or row.drain_reason is not None,
        "drain_reason": row.drain_reason,
        "closed_at": None if row.closed_at is None else to_datetime(row.closed_at).isoformat(),
        "close_reason": row.close_reason,
    }


def _for_people(seen: WorkerStatus) -> dict[str, Any]:
    return _record(seen) | {
        "queues": ", ".join(json.loads(seen.row.queues)) or "all",
        "running": f"{seen.running}/{seen.row.concurrency}",
        "renewed": f"{duration(round(seen.silent_for, 1))} ago",
    }


def show_workers(database: str | None, output: str | None, *, everybody: bool) -> None:
    with existing(settings_with(database)) as store, store.read() as unit:
        found = workers_seen(unit, closed=everybody)
    people = chosen(output) == "table"
    records = [_for_people(seen) if people else _record(seen) for seen in found]
    show_rows(
        records,
        FOR_PEOPLE if people else COLUMNS,
        output,
        empty="no worker: mulligan worker APP starts one",
    )
    gone = [seen for seen in found if seen.life in {"silent", "dead"}]
    if gone:
        say(f"{len(gone)} of them will not come back by itself; a live worker takes over its jobs")


# -- drain ------------------------------------------------------------------------------------------
def run_drain(
    ids: tuple[str, ...],
    reason: str,
    database: str | None,
    output: str | None,
    *,
    dry_run: bool,
    wait: float | None,
) -> None:
    """`wait`: seconds, None: for ever."""
    with existing(settings_with(database)) as store:
        chosen_ones = [_resolve(store, given) for given in dict.fromkeys(ids)]
        if not dry_run:
            with store.begin() as unit:
                request_drain(unit, [seen.row for seen in chosen_ones], actor(), reason)
        records = [
            {"id": seen.row.id, "running": seen.running, "host": seen.row.host}
            for seen in chosen_ones
        ]
        show_rows(records, ("id", "running", "host"), output)
        if dry_run:
            say(f"would drain {len(records)}; nothing was changed")
        elif wait == 0.0:
            say(
                f"asked; they leave when their jobs have ended: {typed('workers', 'list', database=database)}"
            )
        else:
            _until_left(store, {seen.row.id for seen in chosen_ones}, wait)


def _given(worker: str) -> str:
    """An unset variable in a shell must not mean the only worker there is, or any."""
    if not worker:
        message = "the worker's id is empty; give at least its first characters"
        raise Refused(message)
    return worker


def _resolve(store: Store, given: str) -> WorkerStatus:
    _given(given)
    with store.read() as unit:
        found = [seen for seen in workers_seen(unit) if seen.row.id.startswith(given)]
    if len(found) == 1:
        return found[0]
    ids = [seen.row.id for seen in found]
    raise NotFound(
        ambiguous("worker", given, ids) if found else f"no worker {given!r} that has not left"
    )


def _until_left(store: Store, ids: set[str], wait: float | None) -> None:
    deadline = None if wait is None else time.monotonic() + wait
    while True:
        with store.read() as unit:
            left = {row.id for row in unit.workers(closed=False)} & ids
        if not left:
            say("they have left")
            return
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(
                f"after {wait:g} s not yet left: {', '.join(sorted(left))}; they drain on"
            )
        time.sleep(LOOK_EVERY)


# -- check ------------------------------------------------------------------------------------------
def run_check(worker: str | None, host: str | None, database: str | None) -> int:
    settings = settings_with(database)
    if worker is not None:
        _given(worker)
    try:
        with existing(settings) as store, store.read() as unit:
            found = workers_seen(unit)
    except AccessDenied:
        raise
    except StoreUnavailable as away:
        return _without_database(settings, worker, away)
    if worker is not None:
        return _verdict(
            [seen for seen in found if seen.row.id.startswith(worker)], f"worker {worker}"
        )
    here = host or socket.gethostname()
    return _verdict([seen for seen in found if seen.row.host == here], f"a worker on {here}")


def _verdict(found: list[WorkerStatus], what: str) -> int:
    living = [seen for seen in found if seen.living]
    for seen in living:
        say(f"{seen.row.id}: {seen.life}, renewed {duration(round(seen.silent_for, 1))} ago")
    if living:
        return 0
    told = "; ".join(f"{seen.row.id} is {seen.life}" for seen in found) or "there is none"
    say(f"not alive: {what} ({told})")
    return 1


def _without_database(settings: Settings, worker: str | None, away: StoreUnavailable) -> int:
    """Whoever holds its life file is alive, whether it can renew or not."""
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        raise away  # opening it would make it
    store = open_store(settings.database_url, schema=settings.schema_name)
    try:
        folder = state_folder(settings.worker.state_dir, store.place, store.identity)
    finally:
        store.close()
    held = [name for name in held_files(folder) if name.startswith(worker or "")]
    if not held:
        raise away
    say(f"the database does not answer; alive by its life file: {', '.join(held)}")
    return 0


# `mulligan workers …`. An id may be given by as many of its first characters as make it unique.


@click.group(cls=Family)
def workers() -> None:
    """List workers, let one drain, check that one lives."""


@workers.command("list")
@click.option("--all", "everybody", is_flag=True, help="Also those that have left.")
@shared.database
@shared.output
def list_(database: str | None, output: str | None, *, everybody: bool) -> None:
    """Who runs jobs, how many of how many, and when each was last heard of."""
    pass

    show_workers(database, output, everybody=everybody)


@workers.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=worker_ids)
@click.option("--reason", default="", help="For its log.")
@click.option("--wait", is_flag=True, help="Return once they have left.")
@click.option(
    "--timeout", type=shared.Length(), help="With --wait: give up after 30, 5m, 2h; they drain on."
)
@shared.dry_run
@shared.database
@shared.output
def drain(
    ids: tuple[str, ...],
    reason: str,
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    wait: bool,
    dry_run: bool,
) -> None:
    """Ask workers to claim nothing more, to finish what they run however long it takes, and to leave.

    They hear of it at their next heartbeat. SIGTERM, afterwards, gives what still runs its shutdown grace.
    """
    pass

    if timeout is not None and not wait:
        message = (
            "--timeout is how long --wait waits; without --wait nobody waits. Say both, or neither"
        )
        raise click.UsageError(message)
    run_drain(ids, reason, database, output, dry_run=dry_run, wait=timeout if wait else 0.0)


@workers.command()
@click.option("--id", "worker", metavar="ID", help="This worker.", shell_complete=worker_ids)
@click.option("--host", help="Any worker of this host. Default: the host we are on.")
@shared.database
def check(worker: str | None, host: str | None, database: str | None) -> int:
    """Is a worker alive? For health checks of containers: exit code 0 if so, else 1.

    Alive: its row was renewed within its lease; one that drains is alive. While the database is away nobody can
    renew, and it would be wrong to end workers for that: then a life file of this host that is held counts.
    """
    pass

    return run_check(worker, host, database)
