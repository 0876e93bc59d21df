"""Where runners come from: they are what they would be without it, and a worker needs it for nothing but speed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from mulligan.config import WorkerSection as WorkerSettings
from mulligan.worker.liveness import find_marked
from mulligan.worker.supervisor import fork_server
from mulligan.worker.supervisor.fork_server import ForkedProcess
from mulligan.worker.supervisor.runner_process import KillReason, RunnerCommand, RunnerProcess
from mulligan.worker.supervisor.runners import Runners
from support.waiting import until
from support.worker import Worker

pytestmark = [
    pytest.mark.processes,
    pytest.mark.any_store,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is none"),
]

only_sqlite = pytest.mark.parametrize(
    "store_url", ["sqlite"], indirect=True
)  # it is not about the store

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]
WORKER = f"w_test{os.getpid()}"  # others run at the same time
ONLY_PLAIN = "the fork server failed"
TWO_THREADS = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
NEVER_BEGINS = "import sys\nif any('mulligan.worker.runner.start' in word for word in sys.orig_argv): sys.exit(3)\n"


def told(pid: int, file: str) -> list[str]:
    return Path(f"/proc/{pid}/{file}").read_bytes().decode().rstrip("\0").split("\0")


def open_files(pid: int) -> dict[str, str]:
    return {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def alive(pid: int) -> bool:
    return stat(pid)[0] not in "ZX"


def runs(app: Mulligan, kind: str = "alone") -> object:
    done = app.jobs.wait(app.enqueue(kind, {}).id, 15)
    assert (done.state, done.losses) == (State.SUCCEEDED, 0)
    return done.result


# -- what a runner is ----------------------------------------------------------------------------
@only_sqlite
def test_a_forked_runner_equals_one_started_as_a_new_process(
    app: Mulligan, start: Start
) -> None:
    worker = start()
    server = worker.fork_server()
    for pid in worker.runners():
        command, environ = told(pid, "cmdline"), told(pid, "environ")
        [mark] = [entry for entry in environ if entry.startswith("MULLIGAN_ATTEMPT=")]
        assert command[1:4] == ["-m", "mulligan.observability.runner", "support.faulty:app"]
        assert command[command.index("--mark") + 1] == mark.partition("=")[2]
        assert command[-4:] == ["--wire", "3", "--status-page", "4"], "none of it is cut off"
        assert set(environ) - {mark, ""} == {
            one for one in told(server, "environ") if "MULLIGAN_ATTEMPT" not in one
        }
        parent, session = int(stat(pid)[1]), int(stat(pid)[3])
        assert (parent, session) == (worker.pid, pid)
        assert open_files(pid)["0"] == os.devnull
        shared = {file for file in open_files(pid).values() if file in open_files(server).values()}
        assert not [file for file in shared if file.startswith(("socket:", "pipe:", "/memfd:"))]


@only_sqlite
def test_the_fork_server_has_nothing_that_a_fork_must_not_share(start: Start) -> None:
    server = start().fork_server()
    assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1
    loaded = Path(f"/proc/{server}/maps").read_text()
    assert "pydantic_core" in loaded
    assert not [name for name in ("apsw", "psycopg") if name in loaded]
    assert len([file for file in open_files(server).values() if file.startswith("socket:")]) == 1


@only_sqlite
def test_a_process_that_a_handler_moved_to_another_session_is_killed_with_its_runner(
    app: Mulligan, start: Start
) -> None:
    start()
    daemon = runs(app, "leaves_a_daemon")
    assert isinstance(daemon, int)
    until(lambda: not alive(daemon), 10, "killed by its mark")


def test_exit_status_and_peak_memory_of_a_runner_are_recorded(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_fleet(tmp_path) as fleet:
            child = await another(fleet)
            os.kill(child.pid, signal.SIGSEGV)
            await moment(lambda: stat(child.pid)[0] == "Z")
            death = child.reap()
            child.detach()
            assert (death.signal, death.exit_code) == (signal.SIGSEGV, None)
            assert 10_000_000 < death.peak_rss < 200_000_000

    asyncio.run(story())


# -- without it ----------------------------------------------------------------------------------
@only_sqlite
def test_a_killed_fork_server_is_restarted_and_no_runner_is_harmed(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start()
    job = app.enqueue("nap_first", {"seconds": 60})
    until(lambda: starts(job.id))
    before, runners = worker.fork_server(), worker.runners()
    os.kill(before, signal.SIGKILL)
    until(lambda: ONLY_PLAIN in worker.text(), 5)
    assert set(runners) <= set(worker.runners())
    os.kill(int(starts(job.id)[0].split()[4]), signal.SIGKILL)
    assert app.jobs.wait(job.id, 15).state is State.SUCCEEDED
    until(lambda: worker.fork_server() not in (0, before), 10, "another one")
    runs(app)
    assert worker.end() == 0


@only_sqlite
def test_a_frozen_fork_server_is_replaced_and_runners_start_without_it(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start()
    job = app.enqueue("nap_first", {"seconds": 60})
    until(lambda: starts(job.id))
    before = worker.fork_server()
    os.kill(before, signal.SIGSTOP)
    os.kill(int(starts(job.id)[0].split()[4]), signal.SIGKILL)
    done = app.jobs.wait(job.id, 15)
    assert (done.state, done.losses) == (State.SUCCEEDED, 0)
    assert "the fork server failed: timed out" in worker.text()
    assert not alive(before)
    until(lambda: worker.fork_server() not in (0, before), 10, "another one")
    assert worker.end() == 0


@only_sqlite
@pytest.mark.parametrize("custom", [TWO_THREADS, NEVER_BEGINS])
def test_a_worker_without_a_fork_server_runs_its_jobs(
    app: Mulligan, start: Start, tmp_path: Path, custom: str
) -> None:
    """A fork of a process with two threads would hold for ever what the other one held."""
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(custom)
    worker = start(environ={"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent}"})
    assert ONLY_PLAIN in worker.text()
    first, second = runs(app), runs(app)
    assert first != second
    assert worker.end() == 0


def test_on_other_systems_than_linux_runners_start_as_new_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_fleet(tmp_path) as fleet:
            assert not fleet._fork_server.ready
            assert all(isinstance(child.process, subprocess.Popen) for child in fleet._processes)

    monkeypatch.setattr(fork_server.sys, "platform", "darwin")
    asyncio.run(story())


def test_a_runner_that_is_forked_too_late_exits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_fleet(tmp_path) as fleet:
            with monkeypatch.context() as hurry:
                hurry.setattr(fork_server, "FORK_TIMEOUT", 0.000_001)
                child = await another(fleet, forked=False)
            kept = [child.process, *(one.process for one in fleet._processes)]
            await moment(lambda: fleet._fork_server.ready)  # another one
            await moment(
                lambda: set(find_marked(WORKER)) == {one.pid for one in (*kept, fleet._fork_server._process)}
            )
            child.kill(KillReason.SHUTDOWN)
            child.process.wait()
            child.detach()

    asyncio.run(story())


def test_a_runner_with_another_environment_is_not_forked(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_fleet(tmp_path) as fleet:
            fleet.command.env["ANOTHER"] = "1"
            child = await another(fleet, forked=False)
            assert "ANOTHER=1" in told(child.pid, "environ")
            child.kill(KillReason.SHUTDOWN)
            child.process.wait()
            child.detach()

    asyncio.run(story())


# -- what is left --------------------------------------------------------------------------------
@only_sqlite
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM] * 2, [signal.SIGKILL]])
def test_the_fork_server_ends_with_its_worker(
    app: Mulligan, start: Start, starts: Starts, signals: list[signal.Signals]
) -> None:
    worker = start()
    job = app.enqueue("nap", {"seconds": 60 if len(signals) > 1 else 0})
    until(lambda: starts(job.id))
    server = worker.fork_server()
    assert alive(server)
    for number in signals:
        worker.signal(number)
    worker.process.wait(10)
    until(lambda: not alive(server) and not worker.runners_left(), 2)


def test_orphans_adopted_during_a_fork_are_reaped_and_later_ones_are_not_adopted(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_fleet(tmp_path) as fleet:
            with fleet._fork_server._adopting():
                pid = an_orphan()
                assert int(stat(pid)[1]) == os.getpid()
            asked = ctypes.c_int()
            ctypes.CDLL(None).prctl(fork_server.PR_GET_CHILD_SUBREAPER, ctypes.byref(asked), 0, 0, 0)
            assert not asked.value, "only for as long as it takes"
            os.kill(pid, signal.SIGKILL)
            await moment(lambda: stat(pid)[0] == "Z")
            child = await another(fleet)
            assert stat(pid) == ["X"]
            child.kill(KillReason.SHUTDOWN)
            child.process.wait()
            child.detach()

    asyncio.run(story())


def an_orphan() -> int:
    """A child of a child of ours that has ended."""
    code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        return int(parent.stdout.readline())


@asynccontextmanager
async def a_fleet(folder: Path) -> AsyncIterator[Runners]:
    """With its first runner, from its server."""
    env = {"PYTHONPATH": str(Path(__file__).parent.parent), "WITNESS": str(folder / "witness")}
    env["MULLIGAN_DATABASE_URL"] = f"sqlite:///{folder}/mulligan.db"
    fleet = Runners(
        RunnerCommand("support.faulty:app", WORKER, folder, env=env),
        WorkerSettings(),
        lambda _: None,
        lambda: 0,
    )
    try:
        fleet.start()
        await fleet.wait_for_manifest()
        yield fleet
    finally:
        await fleet.close(KillReason.SHUTDOWN)


async def another(fleet: Runners, *, forked: bool = True) -> RunnerProcess:
    """One more runner, ready."""
    child = RunnerProcess(fleet.command, "x1", 1, single_use=True, fork_server=fleet._fork_server)
    assert isinstance(child.process, ForkedProcess if forked else subprocess.Popen)
    heard: list[str] = []
    child.attach(
        asyncio.get_running_loop(), lambda _, message: heard.append(message[0]), lambda _: None
    )
    await moment(lambda: "ready" in heard)
    return child


async def moment(happens: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not happens():  # noqa: ASYNC110 - what is waited for may be in another process
            await asyncio.sleep(0.01)
