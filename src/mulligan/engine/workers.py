"""A worker's row, as it enters it."""

from __future__ import annotations

import json
import os
import socket
import time

from mulligan.config import Settings
from mulligan.engine.kinds import Manifest
from mulligan.engine.life import LifeFile
from mulligan.job import SECOND, WorkerRow
from mulligan.store.host import boot_id


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
