"""Service of workers: list them with their state, drain them, mark them after a restore."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mulligan.core.durations import SECOND
from mulligan.core.errors import NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import WorkerRow
from mulligan.events.queries import EventQueries
from mulligan.storage.base import Store, Transaction
from mulligan.worker.liveness import is_certainly_dead
from mulligan.worker.queries import WorkerQueries, boot_id

LIVE_STATES = ("live", "draining")


class WorkerStatus(NamedTuple):
    """A registered worker and whether it is alive."""

    row: WorkerRow
    running: int
    silent_for: float  # seconds since its last renewal
    life: str  # live, draining, silent (lease expired), dead (its file is unlocked), left

    @property
    def is_live(self) -> bool:
        """True if it runs jobs."""
        return self.life in LIVE_STATES


def worker_statuses(tx: Transaction, *, closed: bool = False) -> list[WorkerStatus]:
    """Return all registered workers with their status."""
    running = WorkerQueries(tx).count_running_by_worker()
    now = tx.now()
    return [
        WorkerStatus(
            row,
            running=running.get(row.id, 0),
            silent_for=max(0, now - row.renewed_at) / SECOND,
            life=_life(tx, row),
        )
        for row in WorkerQueries(tx).list_workers(closed=closed)
    ]


def _life(tx: Transaction, row: WorkerRow) -> str:
    if row.closed_at is not None:
        return "left"
    if is_certainly_dead(row, boot_id()):
        return "dead"
    if WorkerQueries(tx).is_expired(row):
        return "silent"
    return "draining" if row.draining or row.drain_reason is not None else "live"


def drain_workers(
    store: Store, ids: Iterable[str], actor: str, reason: str = ""
) -> list[WorkerStatus]:
    """Request workers to finish their jobs and exit. Return their status afterwards.

    A worker that was already requested to drain stays as it is. Raises NotFound for a worker that
    is unknown or has stopped, and then requests nothing.
    """
    with store.begin() as tx:
        wanted = sorted(set(ids))
        for worker in _find_workers(tx, wanted):
            _request_drain(tx, worker.row, actor, reason)
        return _find_workers(tx, wanted)


def _find_workers(tx: Transaction, ids: Iterable[str]) -> list[WorkerStatus]:
    known = {worker.row.id: worker for worker in worker_statuses(tx)}
    for worker_id in ids:
        if worker_id not in known:
            raise NotFound(f"unknown or stopped worker {worker_id!r:.80}")
    return [known[worker_id] for worker_id in ids]


def _request_drain(tx: Transaction, row: WorkerRow, actor: str, reason: str) -> None:
    if row.drain_reason is not None:
        return
    note = f"{actor}: {reason}" if reason else actor
    if not WorkerQueries(tx).request_drain(row.id, note):
        return  # it has stopped meanwhile
    data = {
        "worker": row.id,
        "host": row.host,
        "pid": row.pid,
        "reason": reason,
        "before": {"draining": bool(row.draining)},
        "after": {"draining": True},
    }
    event = NewEvent(EventType.WORKER_DRAIN_REQUESTED, actor=actor, data=data)
    EventQueries(tx).write_events([event])


# --- After a restore from a backup: stored workers and tokens are out of date ---

TOKEN_INCREMENT = 1_000_000  # more claims than one job has between a backup and its restore


class Restored(NamedTuple):
    """Result of `mark_restored`."""

    workers: int  # workers that were closed
    jobs: int  # jobs whose token was raised


def mark_restored(store: Store, actor: str = "python", reason: str = "") -> Restored:
    """Close all stored workers and raise all tokens after a restore.

    Tokens that were used after the backup must not be used again: other systems may know them.
    """
    with store.begin() as tx:
        queries = WorkerQueries(tx)
        workers = queries.list_workers(closed=False)
        alive = [worker.id for worker in workers if not queries.is_expired(worker)]
        if alive:
            message = (
                f"workers may be running: {', '.join(alive)}. Stop them and run this again. "
                "If they are workers of the backup, wait until their leases have expired."
            )
            raise Refused(message)
        closed = [
            queries.close_worker(worker.id, "from before a restore", last_renewed=None)
            for worker in workers
        ]
        restored = Restored(sum(closed), queries.raise_tokens(TOKEN_INCREMENT))
        data = {
            **restored._asdict(),
            "reason": reason,
            "before": {"workers": restored.workers},
            "after": {"workers": 0},
        }
        EventQueries(tx).write_events(
            [NewEvent(EventType.DATABASE_RESTORED, actor=actor, data=data)]
        )
        return restored
