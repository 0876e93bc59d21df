"""Jobs of a lost worker: those that ran are charged, those that only waited are not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from mulligan.config import Settings
from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND
from mulligan.storage import Store
from mulligan.storage.base import Transaction
from mulligan.worker import upkeep
from mulligan.worker.liveness import MARK, LivenessFile, work_folder
from mulligan.worker.queries import WorkerQueries, boot_id
from mulligan.worker.status_page import PAGE_SUFFIX, PAGES_MARK, StatusPage, read_started_attempts
from mulligan.worker.supervisor import chores as chores_module
from mulligan.worker.supervisor.chores import Chores
from support.store import (
    all_rows,
    claim,
    claim_new_job,
    close_worker,
    enqueue,
    get,
    migrated,
    open_worker,
)
from support.waiting import until
from support.worker import Worker

Start = Callable[..., Worker]
Starts = Callable[[str], list[str]]


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


def open_dead_worker(store: Store, folder: Path) -> Path:
    """Open a worker whose liveness file is not locked any more. Return its work folder."""
    life = LivenessFile(folder, "lost")
    identity = {"lock_path": str(life.path), "lock_dev": life.dev, "lock_ino": life.ino}
    open_worker(store, "lost", boot_id=boot_id(), **identity)
    os.close(life._fd)
    work = work_folder(folder, "lost")
    work.mkdir()
    (work / PAGES_MARK).touch()
    return work


def fate(store: Store, lease: Lease) -> tuple[str, int, bool]:
    row = get(store, lease.id)
    return row.state, row.losses, bool(row.alone)


def recover(store: Store, url: str, folder: Path) -> int:
    return Chores(store, Settings(database_url=url), folder).recover("me")


def test_only_the_running_jobs_of_a_lost_worker_run_alone_and_waiting_ones_are_not_charged(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    work = open_dead_worker(store, tmp_path)
    running, ended, waiting = (claim_new_job(store, worker="lost") for _ in range(3))
    with closing(StatusPage.create(2, work / f"r1{PAGE_SUFFIX}")) as page:
        page.start(0, 1, 10, running.fence)
        page.start(1, 2, 10, ended.fence)
        page.stop(1)
    recover(store, store_url, tmp_path)
    assert fate(store, running) == ("queued", 1, True)
    assert fate(store, ended) == ("queued", 1, False)
    assert fate(store, waiting) == ("queued", 0, False)


def test_processes_of_a_dead_worker_are_killed_before_the_transaction_that_closes_it(
    store: Store, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing may take seconds, and SQLite has one write lock for all."""
    open_dead_worker(store, tmp_path)
    begin = store.begin
    left = []

    def noted() -> AbstractContextManager[Transaction]:
        left.append(process.poll() is None)
        return begin()

    monkeypatch.setattr(store, "begin", noted)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: "lost/r1/a1"}) as process:
        try:
            recover(store, store_url, tmp_path)
        finally:
            process.kill()
    assert left
    assert not any(left)


def test_renewals_of_closed_workers_are_forgotten(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    for n in range(3):
        open_worker(store, f"w{n}")
        chores.recover("me")
        assert len(chores._last_renewals) == 1
        close_worker(store, f"w{n}")
    chores.recover("me")
    assert not chores._last_renewals


def test_a_long_attempt_is_known_as_running_after_thousands_of_short_ones(tmp_path: Path) -> None:
    (tmp_path / PAGES_MARK).touch()
    with closing(StatusPage.create(2, tmp_path / f"r1{PAGE_SUFFIX}")) as page:
        page.start(0, 1, 10, ("long", 1))
        for seq in range(2, 20_000):
            page.start(1, seq, 10, (f"short{seq}", 1))
            page.stop(1)
    found = read_started_attempts(tmp_path)
    assert found is not None
    assert found.running == {("long", 1)}
    assert ("short19999", 1) in found.started


@pytest.mark.parametrize("missing", ["mark", "liveness file", "other boot"])
def test_without_the_pages_of_a_lost_worker_all_its_jobs_count_as_begun(
    store: Store, store_url: str, tmp_path: Path, missing: str
) -> None:
    work = open_dead_worker(store, tmp_path)
    lease = claim_new_job(store, worker="lost")
    match missing:
        case "mark":
            (work / PAGES_MARK).unlink()
        case "liveness file":
            (tmp_path / "lost.life").unlink()
            close_worker(store, "lost")
        case "other boot":
            close_worker(store, "lost")
    recover(store, store_url, tmp_path)
    assert fate(store, lease) == ("queued", 1, True)


def test_one_sweep_recovers_all_jobs_of_a_lost_worker(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    open_worker(store, "lost")
    enqueue(store, 1200)
    leases = claim(store, 1200, worker="lost")
    close_worker(store, "lost")
    assert len(leases) > 2 * upkeep.MAX_ORPHANS
    assert recover(store, store_url, tmp_path) == 1200
    assert {(row.state, row.losses) for row in all_rows(store)} == {("queued", 1)}
    assert not any(row.alone for row in all_rows(store)), "too many for a process each"


@pytest.mark.timing
def test_3000_jobs_of_a_lost_worker_are_recovered_within_7_seconds(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    open_worker(store, "lost")
    enqueue(store, 3000)
    claim(store, 3000, worker="lost")
    close_worker(store, "lost")
    began = time.monotonic()
    assert recover(store, store_url, tmp_path) == 3000
    assert time.monotonic() - began < 7


class Passing:
    """Time that passes in the database and on the monotonic clock of the workers under test."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now = 1000.0

    def monotonic(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        self._now += seconds
        self._store.shift_clock(round(seconds * SECOND))


@pytest.fixture
def passing(store: Store, monkeypatch: pytest.MonkeyPatch) -> Passing:
    clock = Passing(store)
    monkeypatch.setattr(chores_module, "time", clock)
    return clock


def test_a_crash_loop_shorter_than_a_lease_recovers_the_jobs_of_a_dead_worker(
    store: Store, store_url: str, tmp_path: Path, passing: Passing
) -> None:
    """Each worker has its own state folder, as in containers: only leases can decide."""
    open_worker(store, "lost", lease=30 * SECOND)
    job = claim_new_job(store, worker="lost")
    recovered = []
    for n in range(6):  # each lives for ten seconds
        passing.wait(2)
        chores = Chores(store, Settings(database_url=store_url), tmp_path)
        open_worker(store, f"w{n}", lease=30 * SECOND)
        chores.recover(f"w{n}")
        passing.wait(5)
        chores.renew(f"w{n}", False)
        passing.wait(5)
        chores.renew(f"w{n}", False)
        recovered.append(chores.recover(f"w{n}"))
    assert sum(recovered) == 1
    assert fate(store, job) == ("queued", 1, True)


def test_the_first_worker_that_renews_after_an_outage_declares_no_other_lost(
    store: Store, store_url: str, tmp_path: Path, passing: Passing
) -> None:
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    lease = chores.settings.worker.lease
    open_worker(store, "me", lease=round(lease * SECOND))
    open_worker(store, "living", lease=round(lease * SECOND))
    claim_new_job(store, worker="living")
    for _ in range(10):
        passing.wait(lease / 5)
        chores.renew("me", False)
        with store.begin() as tx:
            WorkerQueries(tx).renew_worker("living", draining=False)
    passing.wait(3 * lease)  # the database does not answer
    chores.renew("me", False)
    assert chores.recover("me") == 0


def test_a_clock_set_forward_declares_no_living_worker_lost(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    lease = 30 * SECOND
    open_worker(store, "living", lease=lease)
    open_worker(store, "old", lease=lease)
    claim_new_job(store, worker="living")
    store.shift_clock(3600 * SECOND)
    open_worker(store, "new", lease=lease)
    with store.begin() as tx:
        WorkerQueries(tx).renew_worker("old", draining=False, renewing=86_400 * SECOND)
    assert recover(store, store_url, tmp_path) == 0


def renew_for_a_minute_and_die(store: Store, worker: str) -> None:
    for seconds in range(10, 61, 10):
        store.shift_clock(10 * SECOND)
        with store.begin() as tx:
            WorkerQueries(tx).renew_worker(worker, draining=False, renewing=seconds * SECOND)
    close_worker(store, worker)


def test_a_clock_set_back_declares_no_living_worker_lost(
    store: Store, store_url: str, tmp_path: Path, passing: Passing
) -> None:
    """The renewals of a worker that died before lie in the future of those that start now."""
    open_worker(store, "dead", lease=30 * SECOND)
    renew_for_a_minute_and_die(store, "dead")
    store.shift_clock(-4000 * SECOND)
    open_worker(store, "living", lease=30 * SECOND)
    claim_new_job(store, worker="living")
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    open_worker(store, "me", lease=30 * SECOND)
    assert chores.recover("me") == 0
    passing.wait(7)  # the living worker is slow, but has a lease for 23 s more
    chores.renew("me", False)
    assert chores.recover("me") == 0


def test_a_clock_set_back_and_forth_declares_no_living_worker_lost(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    open_worker(store, "dead", lease=30 * SECOND)
    renew_for_a_minute_and_die(store, "dead")
    store.shift_clock(-900 * SECOND)
    open_worker(store, "living", lease=30 * SECOND)
    claim_new_job(store, worker="living")
    store.shift_clock(901 * SECOND)
    assert recover(store, store_url, tmp_path) == 0


def test_ready_jobs_run_soon_after_the_clock_was_set_back_by_two_hours(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start(worker__concurrency="1")
    running = app.enqueue("nap", {"seconds": 1})
    until(lambda: starts(running.id))
    ready = app.enqueue("nap", {"seconds": 0})
    later = app.enqueue("nap", {"seconds": 0}, delay=60)
    app.store.shift_clock(-7200 * SECOND)
    assert app.jobs.wait(ready.id, 20).state is State.SUCCEEDED
    assert later.refresh().state is State.QUEUED


@pytest.mark.any_store
def test_a_job_whose_code_never_began_is_not_charged_for_the_loss_of_its_worker(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start(environ={"SLOW_IMPORT": "2"})
    jobs = [app.enqueue("alone", {}) for _ in range(4)]
    until(lambda: all(job.refresh().token == 1 for job in jobs), 10, "all claimed")
    worker.kill()
    waiting = [job for job in jobs if not starts(job.id)]
    assert waiting
    start()
    for job in jobs:
        assert app.jobs.wait(job.id, 20).state is State.SUCCEEDED
    for job in waiting:
        assert "job.lost" not in [event.type for event in app.jobs.history(job.id)]
