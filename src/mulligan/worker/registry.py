"""Registered workers: the row of this worker, and the state of all of them as others see it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

from mulligan.config import Settings
from mulligan.core.durations import SECOND
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import WorkerRow
from mulligan.manifest.specs import Manifest
from mulligan.storage.base import Transaction
from mulligan.storage.url import boot_id
from mulligan.worker.liveness import LivenessFile, is_certainly_dead

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


def worker_statuses(unit: Transaction, *, closed: bool = False) -> list[WorkerStatus]:
    """Return all registered workers with their status."""
    running = unit.count_running_by_worker()
    now = unit.now()
    return [
        WorkerStatus(
            row,
            running=running.get(row.id, 0),
            silent_for=max(0, now - row.renewed_at) / SECOND,
            life=_life(unit, row),
        )
        for row in unit.list_workers(closed=closed)
    ]


def _life(unit: Transaction, row: WorkerRow) -> str:
    if row.closed_at is not None:
        return "left"
    if is_certainly_dead(row, boot_id()):
        return "dead"
    if unit.is_expired(row):
        return "silent"
    return "draining" if row.draining or row.drain_reason is not None else "live"


def request_drain(unit: Transaction, workers: Iterable[WorkerRow], actor: str, reason: str) -> None:
    """Request workers to finish their jobs and exit. Ignores those that have left or are asked."""
    for row in sorted(workers, key=lambda row: row.id):
        note = f"{actor}: {reason}" if reason else actor
        if row.drain_reason is None and unit.request_drain(row.id, note):
            data = {
                "worker": row.id,
                "host": row.host,
                "pid": row.pid,
                "reason": reason,
                "before": {"draining": row.draining},
                "after": {"draining": True},
            }
            unit.write_events([NewEvent(EventType.WORKER_DRAIN_REQUESTED, actor=actor, data=data)])


def worker_row(
    worker: str,
    life: LivenessFile,
    manifest: Manifest,
    settings: Settings,
    queues: frozenset[str],
    concurrency: int,
) -> WorkerRow:
    """Return the row of a new worker. The store sets its times."""
    return WorkerRow(
        id=worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        lease=round(settings.worker.lease * SECOND),
        started_at=0,
        renewed_at=0,
        renewed_mono=time.monotonic_ns() // 1000,
        closed_at=None,
        close_reason="",
        lock_path=str(life.path),
        lock_dev=life.dev,
        lock_ino=life.ino,
        kinds=json.dumps(sorted(manifest.kinds)),
        queues=json.dumps(sorted(queues)),
        concurrency=concurrency,
        release=manifest.release,
        draining=False,
    )
