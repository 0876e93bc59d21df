"""Client process that runs the same source as the workers: `python -m mutants.client ACTION …`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from mulligan.doctor.verify import Clients
from mutants.app import app

CLIENTS = Clients(os.environ["MUTANT_CLIENTS"])


def enqueue(kind: str, payload: dict[str, Any], **options: Any) -> str | None:
    request = {"key": options["unique"]} if "unique" in options else {}
    with CLIENTS.call("enqueue", kind=kind, payload=payload, **request) as call:
        job = app.enqueue(kind, payload, **options)
        call.ok(job)
        return job.id
    return None


def enqueue_and_die(count: str) -> None:
    """Enqueue jobs, and kill this process right after the last answer."""
    for n in range(int(count)):
        enqueue("light", {"n": n})
    os.kill(os.getpid(), signal.SIGKILL)


def same_keys(count: str, at_once: str) -> None:
    """Enqueue the same unique keys from many threads at the same time."""
    gate = threading.Barrier(int(at_once))

    def enqueue_all() -> None:
        for n in range(int(count)):
            gate.wait()
            enqueue("light", {"n": n}, unique=f"key-{n}")

    _run_together(int(at_once), enqueue_all)


def retry_at_once(job: str, at_once: str) -> None:
    """Retry one job from many threads at the same time."""
    gate = threading.Barrier(int(at_once))

    def retry() -> None:
        gate.wait()
        try:
            with CLIENTS.call("retry", job=job) as call:
                app.jobs.retry(job, reason="at once")
                call.ok(job)
        except Exception:  # noqa: BLE001, S110 - recorded by the call
            pass

    _run_together(int(at_once), retry)


def _run_together(n: int, work: Callable[[], None]) -> None:
    app.open()
    threads = [threading.Thread(target=work) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    {"enqueue_and_die": enqueue_and_die, "same_keys": same_keys, "retry_at_once": retry_at_once}[
        sys.argv[1]
    ](*sys.argv[2:])
