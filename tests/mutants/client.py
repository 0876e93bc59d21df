"""A client in a process of its own, with the same engine as the workers: `python -m mutants.client WHAT …`."""

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
    asked = {"key": options["unique"]} if "unique" in options else {}
    with CLIENTS.call("enqueue", kind=kind, payload=payload, **asked) as call:
        job = app.enqueue(kind, payload, **options)
        call.ok(job)
        return job.id
    return None


def enqueue_and_die(count: str) -> None:
    """As soon as the last answer is there."""
    for n in range(int(count)):
        enqueue("light", {"n": n})
    os.kill(os.getpid(), signal.SIGKILL)


def same_keys(count: str, at_once: str) -> None:
    """All of them want the same keys at the same time."""
    gate = threading.Barrier(int(at_once))

    def ask() -> None:
        for n in range(int(count)):
            gate.wait()
            enqueue("light", {"n": n}, unique=f"key-{n}")

    _together(int(at_once), ask)


def press(job: str, at_once: str) -> None:
    """As many people press retry at the same moment."""
    gate = threading.Barrier(int(at_once))

    def retry() -> None:
        gate.wait()
        try:
            with CLIENTS.call("retry", job=job) as call:
                app.jobs.retry(job, reason="pressed")
                call.ok(job)
        except Exception:  # noqa: BLE001, S110 - it is written down
            pass

    _together(int(at_once), retry)


def _together(n: int, work: Callable[[], None]) -> None:
    app.open()
    threads = [threading.Thread(target=work) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    {"enqueue_and_die": enqueue_and_die, "same_keys": same_keys, "press": press}[sys.argv[1]](
        *sys.argv[2:]
    )
