"""`mulligan workers list, drain, check`."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Sequence
from typing import Any

import click

from mulligan.cli import CommandGroup
from mulligan.cli import options as shared
from mulligan.cli.completion import complete_worker_ids
from mulligan.cli.database import (
    cli_actor,
    command_line,
    deadline_after,
    is_past,
    load_settings,
    open_existing,
    print_notice,
)
from mulligan.cli.output import output_format, print_rows
from mulligan.config import Settings
from mulligan.core.durations import SECOND, optional_datetime, to_datetime
from mulligan.core.errors import AccessDenied, NotFound, Refused, StoreUnavailable, WaitTimeout
from mulligan.core.format import format_duration, format_size
from mulligan.jobs.service import describe_ambiguous_id
from mulligan.storage import Store, open_store, sqlite_path
from mulligan.worker.liveness import live_worker_ids, state_folder
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.service import WorkerStatus, drain_workers, worker_statuses


@click.group(cls=CommandGroup)
def workers() -> None:
    """List and drain workers; check that one is alive."""


def _check_id(worker_id: str) -> None:
    """Refuse an empty id: an unset shell variable must not match any worker."""
    if not worker_id:
        message = "the worker id is empty. Give at least its first characters."
        raise Refused(message)


# --- mulligan workers list ---

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
    "memory",
)
TABLE_COLUMNS = ("id", "life", "host", "pid", "release", "running", "memory", "queues", "renewed")


@workers.command("list")
@click.option("--all", "include_stopped", is_flag=True, help="Include stopped workers.")
@shared.database_option
@shared.output_option
def list_workers(database: str | None, output: str | None, *, include_stopped: bool) -> None:
    """List workers: running jobs, concurrency, and last heartbeat."""
    with open_existing(load_settings(database)) as store, store.read() as tx:
        found = worker_statuses(tx, closed=include_stopped)
    if output_format(output) == "table":
        rows = [_table_row(worker) for worker in found]
        empty = "No workers. Start one with: mulligan worker APP"
        print_rows(rows, TABLE_COLUMNS, output, empty=empty)
    else:
        print_rows([_record(worker) for worker in found], COLUMNS, output)
    lost = [worker for worker in found if worker.life in {"silent", "dead"}]
    if lost:
        print_notice(f"{len(lost)} of them no longer answer; a live worker takes over their jobs")


def _record(worker: WorkerStatus) -> dict[str, Any]:
    row = worker.row
    closed_at = optional_datetime(row.closed_at)
    return {
        "id": row.id,
        "life": worker.life,
        "host": row.host,
        "pid": row.pid,
        "release": row.release,
        "queues": json.loads(row.queues),
        "kinds": json.loads(row.kinds),
        "running": worker.running,
        "concurrency": row.concurrency,
        "memory": row.memory,
        "lease": row.lease / SECOND,
        "started_at": to_datetime(row.started_at).isoformat(),
        "renewed_at": to_datetime(row.renewed_at).isoformat(),
        "draining": row.draining or row.drain_reason is not None,
        "drain_reason": row.drain_reason,
        "closed_at": closed_at and closed_at.isoformat(),
        "close_reason": row.close_reason,
    }


def _table_row(worker: WorkerStatus) -> dict[str, Any]:
    return _record(worker) | {
        "queues": ", ".join(json.loads(worker.row.queues)) or "all",
        "running": f"{worker.running}/{worker.row.concurrency}",
        "memory": format_size(worker.row.memory) if worker.row.memory else "",
        "renewed": f"{_format_silence(worker)} ago",
    }


def _format_silence(worker: WorkerStatus) -> str:
    return format_duration(round(worker.silent_for, 1))


# --- mulligan workers drain ---

DRAIN_COLUMNS = ("id", "running", "host")
POLL_INTERVAL = 0.2  # seconds


@workers.command("drain")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_worker_ids)
@click.option("--reason", default="", help="Written to the worker's log.")
@click.option("--wait", is_flag=True, help="Return when the workers have stopped.")
@click.option(
    "--timeout",
    type=shared.DurationParam(),
    help="With --wait: stop waiting after 30, 5m, 2h. The workers continue to drain.",
)
@shared.dry_run_option
@shared.database_option
@shared.output_option
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
    """Drain workers: claim nothing more, finish running jobs however long they take, then stop.

    Workers notice it at their next heartbeat. A SIGTERM sent later gives running jobs only the
    shutdown grace.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    with open_existing(load_settings(database)) as store:
        chosen = [_resolve(store, prefix) for prefix in dict.fromkeys(ids)]
        if not dry_run:
            drain_workers(store, [worker.row.id for worker in chosen], cli_actor(), reason)
        records = [
            {"id": worker.row.id, "running": worker.running, "host": worker.row.host}
            for worker in chosen
        ]
        print_rows(records, DRAIN_COLUMNS, output)
        if dry_run:
            print_notice(f"would drain {len(records)}; nothing was changed")
        elif wait:
            _wait_until_stopped(store, {worker.row.id for worker in chosen}, timeout)
        else:
            command = command_line("workers", "list", database=database)
            print_notice(f"Draining. They stop when their jobs have ended. Check with: {command}")


def _resolve(store: Store, prefix: str) -> WorkerStatus:
    _check_id(prefix)
    with store.read() as tx:
        found = [worker for worker in worker_statuses(tx) if worker.row.id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = [worker.row.id for worker in found]
        raise NotFound(describe_ambiguous_id("worker", prefix, ids))
    raise NotFound(
        f'unknown or stopped worker {prefix!r}. Run "mulligan workers list" to see live workers.'
    )


def _wait_until_stopped(store: Store, ids: Collection[str], timeout: float | None) -> None:
    deadline = deadline_after(timeout)
    while True:
        with store.read() as tx:
            remaining = {
                row.id for row in WorkerQueries(tx).list_workers(closed=False)
            }.intersection(ids)
        if not remaining:
            print_notice("All have stopped.")
            return
        if is_past(deadline):
            names = ", ".join(sorted(remaining))
            raise WaitTimeout(f"still draining after {timeout:g} s: {names}; they continue")
        time.sleep(POLL_INTERVAL)


# --- mulligan workers check ---


@workers.command("check")
@click.option(
    "--id", "worker_id", metavar="ID", help="Check this worker.", shell_complete=complete_worker_ids
)
@click.option("--host", help="Check for any worker on this host. Default: this host.")
@shared.database_option
def check(worker_id: str | None, host: str | None, database: str | None) -> int:
    """Check that a worker is alive, for health checks of containers. Exit code 0 if so, else 1.

    A worker is alive if it renewed its row within its lease, also while it drains. While the
    database is unreachable no worker can renew; then a locked liveness file on this host counts.
    """
    settings = load_settings(database)
    if worker_id is not None:
        _check_id(worker_id)
    try:
        with open_existing(settings) as store, store.read() as tx:
            found = worker_statuses(tx)
    except AccessDenied:
        raise
    except StoreUnavailable as error:
        return _check_liveness_files(settings, worker_id, error)
    if worker_id is not None:
        matching = [worker for worker in found if worker.row.id.startswith(worker_id)]
        return _report_alive(matching, f"worker {worker_id}")
    host_name = host or socket.gethostname()
    on_host = [worker for worker in found if worker.row.host == host_name]
    return _report_alive(on_host, f"worker on {host_name}")


def _report_alive(found: Sequence[WorkerStatus], subject: str) -> int:
    alive = [worker for worker in found if worker.is_live]
    for worker in alive:
        silence = _format_silence(worker)
        print_notice(f"{worker.row.id}: {worker.life}, renewed {silence} ago")
    if alive:
        return 0
    states = "; ".join(f"{worker.row.id} is {worker.life}" for worker in found)
    print_notice(f"no live {subject} ({states or 'none found'})")
    return 1


def _check_liveness_files(
    settings: Settings, worker_id: str | None, unavailable: StoreUnavailable
) -> int:
    """Report workers of this host that hold the lock of their liveness file."""
    file = sqlite_path(settings.database_url)
    if file is not None and not file.exists():
        raise unavailable  # opening it would create it
    store = open_store(settings.database_url, schema=settings.schema_name)
    try:
        folder = state_folder(settings.worker.state_dir, store.lock_directory, store.identity)
    finally:
        store.close()
    alive = [name for name in live_worker_ids(folder) if name.startswith(worker_id or "")]
    if not alive:
        raise unavailable
    print_notice(f"the database does not answer; alive by liveness file: {', '.join(alive)}")
    return 0
