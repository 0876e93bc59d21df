"""Jobs start on time however bad the connection to the database is: the poll needs no listener."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from mulligan import Mulligan
from mulligan.config import read_settings
from support.network import Network, network_to
from support.proc import cpu_seconds
from support.waiting import until
from support.worker import FAST, Worker

pytestmark = [pytest.mark.processes, pytest.mark.slow]

POLL = 0.5
SLACK = 1.0  # seconds more than a poll until a job starts
Starts = Callable[..., list[str]]


@pytest.fixture
def network(postgres_url: str) -> Iterator[Network]:
    with network_to(postgres_url) as network:
        yield network


@pytest.fixture
def app(postgres_url: str, tmp_path: Path) -> Iterator[Mulligan]:
    """App on a direct connection, to enqueue and read jobs."""
    environ = {**FAST, "MULLIGAN_DATABASE_URL": postgres_url}
    app = Mulligan(settings=read_settings(environ=environ, file=tmp_path / "none.toml"))
    yield app
    app.close()


@pytest.fixture
def worker(network: Network, tmp_path: Path) -> Iterator[Worker]:
    """Worker behind the network, with leases long enough for a slow one."""
    worker = Worker(
        network.url,
        tmp_path,
        worker__poll=str(POLL),
        worker__lease="30",
        worker__heartbeat="5",
        worker__sweep="5",
    )
    yield worker
    worker.process.kill()
    worker.process.wait()


def check_starts(
    app: Mulligan, worker: Worker, starts: Starts, seconds: float, within: float
) -> None:
    """Enqueue a job each second; each must start in time, at less than a fifth of a core."""
    cpu_before = cpu_seconds(worker.pid)
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        enqueued = time.monotonic()
        job = app.enqueue("nap", {"seconds": 0})
        until(lambda: starts(job.id), within, "the job starts in time")  # noqa: B023
        rest = enqueued + 1 - time.monotonic()
        until(lambda: time.monotonic() >= enqueued + 1, max(1.0, rest))  # noqa: B023
    cpu_used = cpu_seconds(worker.pid) - cpu_before
    assert cpu_used < 0.2 * (time.monotonic() - began)


def wait_until_listening(app: Mulligan, network: Network, worker: Worker, starts: Starts) -> None:
    worker.ready()
    until(lambda: network.listening, 20, "the worker listens")
    job = app.enqueue("nap", {"seconds": 0})
    until(lambda: starts(job.id), 20)


@pytest.mark.timeout(240)
def test_jobs_start_within_a_poll_while_the_listening_connection_hangs(
    app: Mulligan, network: Network, worker: Worker, starts: Starts
) -> None:
    wait_until_listening(app, network, worker, starts)
    network.mute_listeners = True
    check_starts(app, worker, starts, 120, POLL + SLACK)


def test_jobs_start_within_a_poll_while_the_server_cuts_the_listening_connection(
    app: Mulligan, network: Network, worker: Worker, starts: Starts, postgres_url: str
) -> None:
    wait_until_listening(app, network, worker, starts)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for _ in range(5):
            connection.execute(cut)
            check_starts(app, worker, starts, 2, POLL + SLACK)


def test_a_job_starts_within_a_poll_and_two_seconds_at_a_round_trip_of_300_ms(
    app: Mulligan, network: Network, worker: Worker, starts: Starts
) -> None:
    wait_until_listening(app, network, worker, starts)
    network.delay = 0.15
    check_starts(app, worker, starts, 15, POLL + 2)


def test_working_connections_that_hang_are_replaced(
    app: Mulligan, network: Network, worker: Worker, starts: Starts
) -> None:
    wait_until_listening(app, network, worker, starts)
    network.mute_existing()
    job = app.enqueue("nap", {"seconds": 0})
    # At most 12 s for a statement that hangs, then 2 s for each other connection, and a renewal.
    until(lambda: starts(job.id), 28, "the job starts over a new connection")
    assert app.jobs.wait(job.id, 20).state == "succeeded"
