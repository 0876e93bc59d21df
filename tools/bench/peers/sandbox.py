"""Folder, empty database, agent process and workers of one measurement. All are removed after it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench import world
from bench.peers import environments, servers
from bench.peers.contenders import Contender
from bench.peers.proxy import Proxy
from bench.world import cpu_seconds, process_tree

AGENTS = Path(__file__).parent / "agents"
COMMAND_TIMEOUT = 240.0  # seconds; default timeout of a command
RUN_ENVIRON: dict[str, str] = {}  # of every agent and worker of this run, from its options


class MeasurementFailed(RuntimeError):
    """The measurement failed. The run continues."""


class BodyEvent(NamedTuple):
    """An event that a job body recorded."""

    kind: str
    job: int
    pid: int
    at: float


class Sandbox:
    """Everything that one measurement of one contender needs."""

    def __init__(
        self,
        contender: Contender,
        case: str,
        *,
        fast: bool = False,
        concurrency: int = 0,
        latency: float = 0,
    ) -> None:
        self.contender = contender
        self._python = environments.python(contender.environment)
        self.folder = Path(tempfile.mkdtemp(prefix="mulligan-bench-"))
        self._workers: list[subprocess.Popen[bytes]] = []
        self._proxy: Proxy | None = None
        self._database: str | None = None
        self._env = {
            **environments.clean(),
            "PYTHONPATH": str(AGENTS),
            "BENCH_FOLDER": str(self.folder),
            "BENCH_STORE": contender.store,
            "BENCH_CASE": case,
            "BENCH_FAST": str(int(fast)),
            "BENCH_CONCURRENCY": str(concurrency),
            "MULLIGAN_WORKER__STATE_DIR": str(self.folder / "state"),
            **RUN_ENVIRON,
            **self._database_environ(),
        }
        self._for_workers = self._env | (self._proxied_environ(latency) if latency else {})
        self._agent = self._start(
            self._env, [self._python, AGENTS / f"on_{contender.agent}.py"], "agent", piped=True
        )

    def __enter__(self) -> Self:
        try:
            self._answer("open", COMMAND_TIMEOUT)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _database_environ(self) -> dict[str, str]:
        if self.contender.store == "postgres":
            self._database = world.server().create_database()
            return {"BENCH_POSTGRES": self._database, "MULLIGAN_DATABASE_URL": self._database}
        if self.contender.store == "redis":
            return {"BENCH_REDIS": servers.redis().fresh()}
        file = self.folder / "jobs.db"
        return {"BENCH_SQLITE": str(file), "MULLIGAN_DATABASE_URL": f"sqlite:///{file}"}

    def _proxied_environ(self, latency: float) -> dict[str, str]:
        """Return the environment to reach the database through a slow proxy."""
        if self._database is None:
            raise MeasurementFailed("only a server can be reached through a proxy")
        self._proxy = Proxy(self._database, latency)
        return {"BENCH_POSTGRES": self._proxy.url, "MULLIGAN_DATABASE_URL": self._proxy.url}

    def _start(
        self, env: dict[str, str], command: list[Any], name: str, *, piped: bool = False
    ) -> Any:
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=env,
                stdin=pipe,
                stdout=pipe if piped else log,
                stderr=log,
                start_new_session=True,
            )

    # --- Agent ---
    def ask(self, do: str, *, within: float = COMMAND_TIMEOUT, **arguments: Any) -> Any:
        """Send a command to the agent and return its result."""
        self._agent.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._agent.stdin.flush()
        return self._answer(do, within)

    def _answer(self, do: str, within: float) -> Any:
        deadline = time.monotonic() + within
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select(
                [self._agent.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                raise MeasurementFailed(f"{do}: no answer within {within:.0f} s")
            part = os.read(self._agent.stdout.fileno(), 65536)
            if not part:
                raise MeasurementFailed(f"{do}: the agent exited: {self.log('agent')}")
            line += part
        answer = json.loads(line)
        if "error" in answer:
            raise MeasurementFailed(f"{do}: {answer['error']}")
        return answer["result"]

    # --- Workers ---
    def work(self) -> subprocess.Popen[bytes]:
        number = len(self._workers)
        command = self.ask("worker")
        worker = self._start(
            {**self._for_workers, "BENCH_WORKER": str(number)}, command, f"worker-{number}"
        )
        (self.folder / f"worker-{number}.pid").write_text(str(worker.pid))
        self._workers.append(worker)
        return worker  # type: ignore[no-any-return]

    def stop(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a worker with SIGTERM; kill it after 10 seconds."""
        worker.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(10)
        self.kill(worker)

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker and all its descendants."""
        pids = process_tree(worker.pid) if worker.poll() is None else []
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)

    def log(self, name: str = "worker-0", size: int = 500) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-size:] if path.exists() else ""

    # --- Observations ---
    def create_marks(self, n: int) -> None:
        """Create the file with one byte per job."""
        (self.folder / "marks").write_bytes(bytes(n))

    def count(self, what: str) -> int:
        return sum(path.stat().st_size for path in self.folder.glob(f"{what}-*"))

    def all_started(self) -> bool:
        """True if each worker has run a job."""
        return all(
            self._has("done", number) or self._has("tried", number)
            for number in range(len(self._workers))
        )

    def _has(self, what: str, number: int) -> bool:
        path = self.folder / f"{what}-{number}"
        return path.exists() and path.stat().st_size > 0

    def cpu_seconds(self) -> float:
        """Return the CPU time that all processes of the workers have used."""
        return sum(cpu_seconds(process_tree(worker.pid)) for worker in self._workers)

    def events(self, kind: str) -> list[BodyEvent]:
        path = self.folder / "events"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [
            BodyEvent(k, int(i), int(pid), int(at) / 1e9) for k, i, pid, at in lines if k == kind
        ]

    def close(self) -> None:
        for process in (*self._workers, self._agent):
            with suppress(subprocess.TimeoutExpired):
                self.kill(process)
        for pipe in (self._agent.stdin, self._agent.stdout):
            with suppress(OSError):
                pipe.close()
        self._kill_strays()
        if self._proxy:
            self._proxy.close()
        if self._database:
            world.server().drop_database(self._database)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_strays(self) -> None:
        """Kill processes that still have our folder in their environment."""
        mark = f"BENCH_FOLDER={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)


def until(condition: Callable[[], object], within: float, what: str, every: float = 0.005) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{what}: not within {within:.0f} s")
        time.sleep(every)
