"""Failover of PostgreSQL: the primary dies under load and a standby is promoted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from mulligan import Mulligan
from mulligan.core.errors import StoreUnavailable
from support.postgres import free_port
from support.replication import Pair
from support.waiting import until
from support.worker import Worker

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

DATABASE = "postgres"
MAX_RESTART = 15.0  # seconds from the promotion to the first job that starts


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


@pytest.fixture
def store_url(pair: Pair) -> str:
    return pair.url(DATABASE)


class Load:
    """Enqueues jobs without a pause. Each has a unique key, so that it can be repeated."""

    def __init__(self, app: Mulligan, prefix: str) -> None:
        self._app = app
        self._prefix = prefix
        self._stopped = threading.Event()
        self.acknowledged: dict[str, str] = {}  # unique key → job id
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            key = f"{self._prefix}-{number}"
            try:
                job = self._app.enqueue("nap", {"seconds": 0.01}, unique=key)
            except StoreUnavailable:
                continue
            self.acknowledged[key] = job.id
            number += 1

    def stop(self) -> dict[str, str]:
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.acknowledged


def starts_by_job(witness: Path) -> Counter[str]:
    lines = witness.read_text().splitlines() if witness.exists() else []
    return Counter(line.split()[1] for line in lines if line.startswith("start "))


def verify(url: str, folder: Path) -> None:
    """Check every invariant of the database."""
    command = [sys.executable, "-m", "mulligan", "doctor", "--verify", "--database", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def fail_over_under_load(
    pair: Pair, app: Mulligan, load: Load, witness: Path
) -> tuple[float, dict[str, str]]:
    """Promote the standby while jobs run. Return how long no job started, and all jobs."""
    begun = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > begun + 50, 60, "load before the failover")
    pair.fail_over()
    promoted = time.monotonic()
    known = set(starts_by_job(witness))
    until(lambda: set(starts_by_job(witness)) - known, 60, "a job starts on the new primary")
    waited = time.monotonic() - promoted
    begun = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > begun + 50, 60, "load after the failover")
    return waited, load.acknowledged


@pytest.mark.parametrize("rounds", [1, 10])
def test_no_job_is_lost_or_runs_twice_when_the_standby_is_promoted(
    pair: Pair,
    app: Mulligan,
    start: Callable[..., Worker],
    tmp_path: Path,
    store_url: str,
    rounds: int,
) -> None:
    app.open()
    workers = [start(), start()]
    witness = tmp_path / "witness"
    load = Load(app, f"rounds-{rounds}")
    waits = []
    for _ in range(rounds):
        waited, _ = fail_over_under_load(pair, app, load, witness)
        waits.append(waited)
        pair.rebuild()
    jobs = load.stop()
    until(lambda: app.jobs.count("state:queued") == 0, 120, "nothing queued", interval=0.5)
    until(lambda: app.jobs.count("state:running") == 0, 60, "nothing running", interval=0.5)
    starts = starts_by_job(witness)
    assert {app.jobs.get(id_).state for id_ in jobs.values()} == {"succeeded"}
    assert {starts[id_] for id_ in jobs.values()} == {1}
    assert max(waits) < MAX_RESTART, waits
    for worker in workers:
        assert worker.end() == 0
    verify(store_url, tmp_path)


@pytest.fixture
def web(store_url: str, tmp_path: Path) -> Iterator[str]:
    """Start a web process and return its address."""
    port = free_port()
    environ = {**os.environ, "MULLIGAN_DATABASE_URL": store_url}
    command = [sys.executable, "-m", "mulligan", "web", "--port", str(port)]
    with (tmp_path / "web.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=log, stderr=log)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(30)


def test_web_processes_reconnect_to_the_promoted_standby(
    pair: Pair, app: Mulligan, web: str
) -> None:
    app.open()

    def is_ready() -> bool:
        try:
            return httpx2.get(f"{web}/readyz", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    until(is_ready, 60, "the web process is ready", interval=0.2)
    pair.primary.stop("immediate")
    until(lambda: not is_ready(), 60, "the web process has noticed", interval=0.2)
    pair.fail_over()
    until(is_ready, 30, "the web process uses the new primary", interval=0.2)
    pair.rebuild()
