"""The fork server: forked runners equal new processes, and a worker runs without it too."""

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
from support.proc import is_alive, stat_fields
from support.waiting import until
from support.worker import Worker

pytestmark = [
    pytest.mark.processes,
    pytest.mark.any_store,
    pytest.mark.skipif(sys.platform != "linux", reason="the fork server needs Linux"),
]

# These tests do not depend on the database.
only_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]
WORKER = f"w_test{os.getpid()}"  # unique, because tests run in parallel
SERVER_FAILED = "the fork server failed"
TWO_THREADS = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
SERVER_EXITS = "import sys\nif any('mulligan.worker.runner.start' in word for word in sys.orig_argv): sys.exit(3)\n"


def read_proc(pid: int, file: str) -> list[str]:
    return Path(f"/proc/{pid}/{file}").read_bytes().decode().rstrip("\0").split("\0")


def open_files(pid: int) -> dict[str, str]:
    return {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def run_job(app: Mulligan, kind: str = "alone") -> object:
    done = app.jobs.wait(app.enqueue(kind, {}).id, 15)
    assert (done.state, done.losses) == (State.SUCCEEDED, 0)
    return done.result


# --- Forked runners ---


@only_sqlite
def test_a_forked_runner_equals_one_started_as_a_new_process(app: Mulligan, start: Start) -> None:
    worker = start()
    server = worker.fork_server()
    for pid in worker.runners():
        command, environ = read_proc(pid, "cmdline"), read_proc(pid, "environ")
        [mark] = [entry for entry in environ if entry.startswith("MULLIGAN_ATTEMPT=")]
        assert command[1:4] == ["-m", "mulligan.observability.runner", "support.faulty:app"]
        assert command[command.index("--mark") + 1] == mark.partition("=")[2]
        assert command[-4:] == ["--wire", "3", "--status-page", "4"], "the command line is complete"
        assert set(environ) - {mark, ""} == {
            one for one in read_proc(server, "environ") if "MULLIGAN_ATTEMPT" not in one
        }
        parent, session = int(stat_fields(pid)[1]), int(stat_fields(pid)[3])
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
    daemon = run_job(app, "leaves_a_daemon")
    assert isinstance(daemon, int)
    until(lambda: not is_alive(daemon), 10, "killed by its mark")


def test_exit_status_and_peak_memory_of_a_runner_are_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with start_runners(tmp_path) as runners:
            runner = await start_runner(runners)
            os.kill(runner.pid, signal.SIGSEGV)
            await wait_until(lambda: stat_fields(runner.pid)[0] == "Z")
            death = runner.reap()
            runner.detach()
            assert (death.signal, death.exit_code) == (signal.SIGSEGV, None)
            assert 10_000_000 < death.peak_rss < 200_000_000

    asyncio.run(scenario())


# --- Failures of the fork server ---


@only_sqlite
def test_a_killed_fork_server_is_restarted_and_no_runner_is_harmed(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start()
    job = app.enqueue("nap_first", {"seconds": 60})
    until(lambda: starts(job.id))
    before = worker.fork_server()
    runners = worker.runners()
    os.kill(before, signal.SIGKILL)
    until(lambda: SERVER_FAILED in worker.text(), 5)
    assert set(runners) <= set(worker.runners())
    os.kill(int(starts(job.id)[0].split()[4]), signal.SIGKILL)
    assert app.jobs.wait(job.id, 15).state is State.SUCCEEDED
    until(lambda: worker.fork_server() not in (0, before), 10, "the fork server is restarted")
    run_job(app)
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
    assert not is_alive(before)
    until(lambda: worker.fork_server() not in (0, before), 10, "the fork server is restarted")
    assert worker.end() == 0


@only_sqlite
@pytest.mark.parametrize("custom", [TWO_THREADS, SERVER_EXITS])
def test_a_worker_without_a_fork_server_runs_its_jobs(
    app: Mulligan, start: Start, tmp_path: Path, custom: str
) -> None:
    """A process with two threads must not fork: locks of the other would never be released."""
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(custom)
    worker = start(environ={"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent}"})
    assert SERVER_FAILED in worker.text()
    first, second = run_job(app), run_job(app)
    assert first != second
    assert worker.end() == 0


def test_on_other_systems_than_linux_runners_start_as_new_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with start_runners(tmp_path) as runners:
            assert not runners._fork_server.ready
            assert all(
                isinstance(runner.process, subprocess.Popen) for runner in runners._processes
            )

    monkeypatch.setattr(fork_server.sys, "platform", "darwin")
    asyncio.run(scenario())


def test_a_runner_that_is_forked_too_late_exits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with start_runners(tmp_path) as runners:
            with monkeypatch.context() as patched:
                patched.setattr(fork_server, "FORK_TIMEOUT", 0.000_001)
                runner = await start_runner(runners, forked=False)
            remaining = [runner.process, *(one.process for one in runners._processes)]
            await wait_until(lambda: runners._fork_server.ready)  # restarted
            await wait_until(
                lambda: (
                    set(find_marked(WORKER))
                    == {one.pid for one in (*remaining, runners._fork_server._process)}
                )
            )
            runner.kill(KillReason.SHUTDOWN)
            runner.process.wait()
            runner.detach()

    asyncio.run(scenario())


def test_a_runner_with_another_environment_is_not_forked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with start_runners(tmp_path) as runners:
            runners.command.env["ANOTHER"] = "1"
            runner = await start_runner(runners, forked=False)
            assert "ANOTHER=1" in read_proc(runner.pid, "environ")
            runner.kill(KillReason.SHUTDOWN)
            runner.process.wait()
            runner.detach()

    asyncio.run(scenario())


# --- Exit ---


@only_sqlite
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM] * 2, [signal.SIGKILL]])
def test_the_fork_server_ends_with_its_worker(
    app: Mulligan, start: Start, starts: Starts, signals: list[signal.Signals]
) -> None:
    worker = start()
    job = app.enqueue("nap", {"seconds": 60 if len(signals) > 1 else 0})
    until(lambda: starts(job.id))
    server = worker.fork_server()
    assert is_alive(server)
    for number in signals:
        worker.signal(number)
    worker.process.wait(10)
    until(lambda: not is_alive(server) and not worker.runners_left(), 2)


def test_orphans_adopted_during_a_fork_are_reaped_and_later_ones_are_not_adopted(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with start_runners(tmp_path) as runners:
            with runners._fork_server._adopting_orphans():
                pid = create_orphan()
                assert int(stat_fields(pid)[1]) == os.getpid()
            subreaper = ctypes.c_int()
            ctypes.CDLL(None).prctl(
                fork_server.PR_GET_CHILD_SUBREAPER, ctypes.byref(subreaper), 0, 0, 0
            )
            assert not subreaper.value, "only during a fork"
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: stat_fields(pid)[0] == "Z")
            runner = await start_runner(runners)
            assert stat_fields(pid) == ["X"]
            runner.kill(KillReason.SHUTDOWN)
            runner.process.wait()
            runner.detach()

    asyncio.run(scenario())


def create_orphan() -> int:
    """Start a process whose parent, our runner, has ended."""
    code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        return int(parent.stdout.readline())


@asynccontextmanager
async def start_runners(folder: Path) -> AsyncIterator[Runners]:
    """Yield the runners of a worker; the first one is ready."""
    env = {"PYTHONPATH": str(Path(__file__).parent.parent), "WITNESS": str(folder / "witness")}
    env["MULLIGAN_DATABASE_URL"] = f"sqlite:///{folder}/mulligan.db"
    runners = Runners(
        RunnerCommand("support.faulty:app", WORKER, folder, env=env),
        WorkerSettings(),
        lambda _: None,
        lambda: 0,
    )
    try:
        runners.start()
        await runners.wait_for_manifest()
        yield runners
    finally:
        await runners.close(KillReason.SHUTDOWN)


async def start_runner(runners: Runners, *, forked: bool = True) -> RunnerProcess:
    """Start one more runner and wait until it is ready."""
    runner = RunnerProcess(
        runners.command, "x1", 1, single_use=True, fork_server=runners._fork_server
    )
    assert isinstance(runner.process, ForkedProcess if forked else subprocess.Popen)
    messages: list[str] = []
    runner.attach(
        asyncio.get_running_loop(), lambda _, message: messages.append(message[0]), lambda _: None
    )
    await wait_until(lambda: "ready" in messages)
    return runner


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for may be in another process
            await asyncio.sleep(0.01)
