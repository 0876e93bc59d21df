"""Systems without pidfd, process 1 of a container, and cleaners of temporary folders."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from mulligan.config import Settings
from mulligan.config import WorkerSection as WorkerSettings
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.runner_process import KillReason, RunnerCommand
from mulligan.worker.supervisor.runners import Runners
from support.proc import stat_fields
from support.store import close_worker, migrated, open_worker
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

ADOPT_ORPHANS = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@asynccontextmanager
async def open_runners(folder: Path) -> AsyncIterator[Runners]:
    env = {"PYTHONPATH": str(Path(__file__).parent.parent), "WITNESS": str(folder / "witness")}
    env["MULLIGAN_DATABASE_URL"] = f"sqlite:///{folder}/mulligan.db"
    command = RunnerCommand("support.faulty:app", "w_test", folder, env=env)
    runners = Runners(command, WorkerSettings(), lambda _: None, lambda: 0)
    try:
        yield runners
    finally:
        await runners.close(KillReason.SHUTDOWN)


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for may be in another process
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_refuses_pidfd_open_still_runs_and_watches_runners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    asyncio.run(kill_a_runner(tmp_path))


def test_without_pidfd_a_dead_runner_is_noticed_while_the_shared_threads_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    done = threading.Event()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, done.wait)
        try:
            await kill_a_runner(tmp_path, done)
        finally:
            done.set()

    asyncio.run(scenario())


async def kill_a_runner(folder: Path, cleaning_allowed: threading.Event | None = None) -> None:
    async with open_runners(folder) as runners:
        runners.start()
        await runners.wait_for_manifest()
        [runner] = [found for found in runners._processes if not found.single_use]
        os.kill(runner.pid, signal.SIGKILL)
        await wait_until(lambda: runner not in runners._processes)
        if cleaning_allowed is not None:
            cleaning_allowed.set()
        await wait_until(lambda: runners.can_accept)  # another one


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_worker_that_adopts_orphans_leaves_no_zombie(
    app: Mulligan, store_url: str, tmp_path: Path
) -> None:
    jobs = [app.enqueue("leaves_a_child", {}) for _ in range(10)]
    worker = Worker(store_url, tmp_path, prefix=[sys.executable, "-c", ADOPT_ORPHANS]).ready()
    try:
        assert {app.jobs.wait(job.id, 20).state for job in jobs} == {State.SUCCEEDED}
        until(lambda: lines_in(tmp_path / "witness") == len(jobs), 10, "all children ended")
        until(lambda: not zombies_of(worker.pid), 10, "no zombies")
    finally:
        assert worker.end() == 0


def lines_in(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def zombies_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if stat_fields(int(child))[0] == "Z"]


@pytest.mark.any_store
def test_a_worker_without_its_liveness_file_keeps_its_work_directories(
    store_url: str, tmp_path: Path
) -> None:
    with migrated(store_url) as store:
        chores = Chores(store, Settings(database_url=store_url), tmp_path)
        open_worker(store, "w_live")
        work = tmp_path / "w_live.work"
        work.mkdir()
        chores.recover("w_me")
        assert work.exists()
        close_worker(store, "w_live")
        chores.recover("w_me")
        assert not work.exists()
