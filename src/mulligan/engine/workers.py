"""A worker's row, as it enters it and as others see it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

from mulligan.config import Settings
from mulligan.engine.kinds import Manifest
from mulligan.engine.life import LifeFile, surely_dead
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND, WorkerRow
from mulligan.store.base import Unit
from mulligan.store.host import boot_id

LIVING = ("live", "draining")


class Seen(NamedTuple):
    """A worker as others see it."""

    row: WorkerRow
    running: int
    silent_for: float  # seconds since its last renewal
    life: str  # live, draining, silent (beyond its lease), dead (its life file is free), left

    @property
    def living(self) -> bool:
        return self.life in LIVING


def workers_seen(unit: Unit, *, closed: bool = False) -> list[Seen]:
    """Every worker, as far as it can be seen from here."""
    running, now = unit.busy(), unit.now()
    return [
        Seen(row, running.get(row.id, 0), max(0, now - row.renewed_at) / SECOND, _life(unit, row))
        for row in unit.workers(closed=closed)
    ]


def _life(unit: Unit, row: WorkerRow) -> str:
    if row.closed_at is not None:
        return "left"
    if surely_dead(row, boot_id()):
        return "dead"
    if unit.expired(row):
        return "silent"
    return "draining" if row.draining or row.drain_reason is not None else "live"


def request_drain(unit: Unit, workers: Iterable[WorkerRow], actor: str, reason: str) -> None:
    """Ask them to finish what they run, and leave; one that has left, or was asked, stays as it is."""
    for row in sorted(workers, key=lambda row: row.id):
        if row.drain_reason is None and unit.request_drain(row.id, f"{actor}: {reason}" if reason else actor):
            seen = {"before": {"draining": row.draining}, "after": {"draining": True}}
            news = {"worker": row.id, "host": row.host, "pid": row.pid, "reason": reason, **seen}
            unit.write_events([NewEvent(EventType.WORKER_DRAIN_REQUESTED, actor=actor, data=news)])


def worker_row(
    worker: str, life: LifeFile, manifest: Manifest, settings: Settings, queues: frozenset[str], concurrency: int
) -> WorkerRow:
    return WorkerRow(
        id=worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        lease=round(settings.worker.lease * SECOND),
        started_at=0,  # stamped by the store
        renewed_at=0,
        renewed_mono=time.monotonic_ns() // 1000,
        closed_at=None,
        close_reason="",
        life_path=str(life.path),
        life_dev=life.dev,
        life_ino=life.ino,
        kinds=json.dumps(sorted(manifest.kinds)),
        queues=json.dumps(sorted(queues)),
        concurrency=concurrency,
        release=manifest.release,
        draining=False,
    )
