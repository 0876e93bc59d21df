"""Outages of the database server and frozen or restarted workers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from mulligan.worker.queries import WorkerQueries
from support.postgres import PostgresServer
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]

only_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


class Client:
    """Enqueues steadily from a thread; remembers what it was promised."""

    def __init__(self, app: Mulligan, seconds: float) -> None:
        self.accepted: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(app, seconds))
        self._thread.start()

    def _run(self, app: Mulligan, seconds: float) -> None:
        while not self._stop.is_set():
            try:
                self.accepted.append(app.enqueue("nap", {"seconds": seconds}).id)
            except StoreUnavailable:
                self._stop.wait(0.05)
            self._stop.wait(0.01)

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.accepted


def every_one_ended_once_and_uncharged(app: Mulligan, accepted: list[str]) -> None:
    for job_id in accepted:
        done = app.jobs.wait(job_id, 30)
        assert (done.state, done.failures, done.losses) == (State.SUCCEEDED, 0, 0), (
            app.jobs.history(job_id)
        )
        assert len([e for e in app.jobs.history(job_id) if e.type == "job.succeeded"]) == 1


@pytest.mark.slow
@only_postgres
def test_ten_immediate_restarts_of_the_server_under_load_cost_no_job(
    app: Mulligan, start: Start, postgres_server: PostgresServer
) -> None:
    worker = start()
    before = worker.runners()
    client = Client(app, 0.05)
    for _ in range(10):
        mark = len(client.accepted)
        until(lambda mark=mark: len(client.accepted) > mark + 10, 20, "load between restarts")
        postgres_server.restart("immediate")
    mark = len(client.accepted)
    until(lambda: len(client.accepted) > mark + 10, 20)
    accepted = client.stop()
    every_one_ended_once_and_uncharged(app, accepted)
    assert len(accepted) > 100
    assert worker.process.poll() is None
    assert worker.runners() == before


@pytest.mark.slow
@only_postgres
def test_a_server_gone_for_longer_than_a_lease_costs_no_job(
    app: Mulligan, start: Start, starts: Starts, postgres_server: PostgresServer
) -> None:
    workers = [start(), start()]
    before = [worker.runners() for worker in workers]
    jobs = [app.enqueue("nap", {"seconds": 7.0}) for _ in range(12)]
    until(lambda: all(starts(job.id) for job in jobs))
    postgres_server.stop("immediate")
    gone = time.monotonic()
    until(lambda: all(starts(job.id, "end") for job in jobs) and time.monotonic() - gone > 6, 15)
    postgres_server.start()
    every_one_ended_once_and_uncharged(app, [job.id for job in jobs])
    assert all(len(starts(job.id)) == 1 for job in jobs)
    assert [worker.runners() for worker in workers] == before


@pytest.mark.slow
@pytest.mark.any_store
def test_a_fleet_that_was_frozen_charges_no_job_more_than_one_loss(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    workers = [start(), start()]
    jobs = [app.enqueue("nap", {"seconds": 6.0}) for _ in range(8)]
    until(lambda: all(starts(job.id) for job in jobs))
    for worker in workers:
        worker.stop_all(signal.SIGSTOP)
    frozen = time.monotonic()
    until(lambda: time.monotonic() - frozen > 5, 10)
    for worker in workers:
        worker.stop_all(signal.SIGCONT)
    for job in jobs:
        done = app.jobs.wait(job.id, 30)
        assert (done.state, done.losses, done.failures) == (State.SUCCEEDED, 0, 0)


@pytest.mark.slow
@pytest.mark.any_store
def test_a_step_of_the_clock_makes_no_worker_declare_another_lost(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    workers = [start(), start()]
    before = [worker.runners() for worker in workers]
    jobs = [app.enqueue("nap", {"seconds": 5.0}) for _ in range(6)]
    until(lambda: all(starts(job.id) for job in jobs))
    app.store.shift_clock(3600 * SECOND)
    for job in jobs:
        done = app.jobs.wait(job.id, 20)
        assert (done.state, done.losses, done.failures) == (State.SUCCEEDED, 0, 0)
    assert all(len(starts(job.id)) == 1 for job in jobs)
    assert [worker.runners() for worker in workers] == before


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
def test_workers_in_separate_pid_namespaces_never_declare_each_other_dead(
    app: Mulligan, store_url: str, tmp_path: Path, start: Start, starts: Starts
) -> None:
    contained = [
        Worker(
            store_url,
            tmp_path,
            prefix=["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"],
        )
        for _ in range(2)
    ]
    try:
        for worker in contained:
            worker.ready()
        jobs = [app.enqueue("nap", {"seconds": 6.0}) for _ in range(16)]
        until(lambda: all(starts(job.id) for job in jobs), 15)
        start()  # a third one, outside, looks around too
        for job in jobs:
            done = app.jobs.wait(job.id, 30)
            assert (done.state, done.losses) == (State.SUCCEEDED, 0)
            assert len(starts(job.id)) == 1
        with app.store.read() as tx:
            assert all(
                worker.closed_at is None for worker in WorkerQueries(tx).list_workers(closed=True)
            )
    finally:
        for worker in contained:
            subprocess.run(["pkill", "-KILL", "-P", str(worker.pid)], check=False)
            worker.process.kill()
            worker.process.wait()
