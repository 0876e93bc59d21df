"""A Celery app with a Mulligan app attached, for tests that start the workers of both."""

from __future__ import annotations

import os
from pathlib import Path

from mulligan import Mulligan
from mulligan.integrations.celery import attach
from support.bridge_tools import celery_on_files

FOLDER = Path(os.environ["BRIDGE_FOLDER"])

celery_app = celery_on_files(FOLDER / "celery")
app = Mulligan()
attach(celery_app, app, wait=float(os.environ.get("BRIDGE_WAIT", "30")))


@celery_app.task(name="billing.charge")
def charge(order: int) -> str:
    """Fail until the folder has a file `repaired`."""
    if not (FOLDER / "repaired").exists():
        raise ConnectionRefusedError(111, "the gateway refused the connection")
    return f"charged {order}"


def fail_and_be_killed() -> None:
    """Fail three tasks, and end like a process that is killed."""
    for order in range(3):
        charge.apply((order,), task_id=f"order-{order}")
    os.kill(os.getpid(), 9)


if __name__ == "__main__":
    fail_and_be_killed()
