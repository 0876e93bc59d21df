"""Tools for tests of bridges: wait until reports are delivered, and real host queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.contrib.testing.worker import start_worker

from mulligan import Job, Mulligan
from mulligan.doctor.verify import verify
from mulligan.integrations.bridge.bridge import Bridge, all_bridges
from support.waiting import until

PATIENCE = 30.0  # seconds that a task is kept until its report is written: tests lose none


def bridge_of(app: Mulligan) -> Bridge:
    """Return the only bridge of an app."""
    [bridge] = [bridge for bridge in all_bridges() if bridge.app is app]
    return bridge


def wait_until_delivered(app: Mulligan) -> None:
    """Wait until every report that was written is in the database."""
    courier = bridge_of(app).courier
    until(lambda: courier.spool.is_empty, 20)


def assert_sound(app: Mulligan) -> None:
    """Check the stored history against the invariants."""
    violations = [str(violation) for violation in verify(app.store).violations]
    assert not violations, "\n".join(violations)


def only_job(app: Mulligan) -> Job:
    [job] = app.jobs.list()
    return job


def celery_on_files(folder: Path) -> Celery:
    """Return a Celery app whose broker and results are folders."""
    folder.mkdir(exist_ok=True)
    (folder / "results").mkdir(exist_ok=True)
    app = Celery("host", broker="filesystem://", backend=f"file://{folder}/results")
    app.conf.update(
        broker_transport_options={
            "data_folder_in": str(folder / "queue"),
            "data_folder_out": str(folder / "queue"),
            "control_folder": str(folder / "control"),
            "store_processed": False,
        },
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )
    (folder / "queue").mkdir(exist_ok=True)
    return app


@contextmanager
def celery_worker(app: Celery) -> Iterator[Any]:
    """Run a real worker of Celery on a thread."""
    with start_worker(
        app, pool="solo", perform_ping_check=False, shutdown_timeout=30, loglevel="ERROR"
    ) as worker:
        yield worker


SIGNALS = (
    signals.task_failure,
    signals.task_retry,
    signals.task_success,
    signals.worker_init,
    signals.worker_ready,
)


@contextmanager
def restored_signals() -> Iterator[None]:
    """Forget the receivers of the block: signals are global in Celery."""
    before = [[*signal.receivers] for signal in SIGNALS]
    yield
    for signal, receivers in zip(SIGNALS, before, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()
