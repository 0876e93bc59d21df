"""A real worker process that tests kill, stop and observe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import apsw

from support.waiting import until

HERE = Path(__file__).parent
# Modules of runner processes, without and with the configured logging.
RUNNERS = (b"mulligan.worker.runner", b"mulligan.observability.runner")
FORK_SERVER = b"mulligan.worker.runner.start"
FAST = {
    "MULLIGAN_WORKER__LEASE": "4",
    "MULLIGAN_WORKER__HEARTBEAT": "1",
    "MULLIGAN_WORKER__SWEEP": "0.5",
    "MULLIGAN_WORKER__POLL": "0.2",
    "MULLIGAN_WORKER__KILL_GRACE": "0.5",
    "MULLIGAN_WORKER__NEIGHBOUR_GRACE": "3",
    "MULLIGAN_WORKER__SHUTDOWN_GRACE": "3",
}


class Worker:
    """`python -m mulligan worker support.faulty:app`, in its own session."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        prefix: Sequence[str] = (),
        app: str = "support.faulty:app",
        program: Sequence[str] = ("-m", "mulligan", "worker"),
        environ: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.log = folder / f"worker-{len(list(folder.glob('worker-*.log')))}.log"
        env = {
            **os.environ,
            **FAST,
            "MULLIGAN_DATABASE_URL": url,
            "MULLIGAN_WORKER__STATE_DIR": str(folder / "state"),
            "WITNESS": str(folder / "witness"),
            "PYTHONPATH": str(HERE.parent),
            **(environ or {}),
            **{f"MULLIGAN_{name.upper()}": value for name, value in settings.items()},
        }
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, *program, app],
                env=env,
                cwd=folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def ready(self) -> Worker:
        """Wait until it is ready."""
        until(self._is_ready, 60, "worker ready")
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"the worker has ended: {self.text()}"
        return "concurrency" in self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self.process.pid

    def runners(self) -> list[int]:
        """Return the pids of its runners."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children if _module(int(pid)) in RUNNERS]

    def fork_server(self) -> int:
        """Return the pid of its fork server; 0 if there is none."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return next((int(pid) for pid in children if _module(int(pid)) == FORK_SERVER), 0)

    def runners_left(self) -> list[int]:
        """Return the pids of runners and fork server that outlived this worker."""
        return [pid for pid in marked_processes(f"--supervisor {self.pid} ") if _cmdline(pid)]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop_all(self, number: signal.Signals) -> None:
        """Send a signal to supervisor and runners, as a frozen or resumed machine would."""
        for pid in (self.pid, *self.runners()):
            os.kill(pid, number)

    def freeze(self, url: str) -> None:
        """Stop all its processes, at a time when it does not hold SQLite's write lock."""

        def frozen() -> bool:
            self.stop_all(signal.SIGSTOP)
            if is_writable(url):
                return True
            self.stop_all(signal.SIGCONT)
            return False

        until(frozen, 20, "frozen between two transactions")

    def end(self, timeout: float = 10.0) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        """Kill the supervisor with SIGKILL; its runners must end by themselves."""
        self.process.kill()
        self.process.wait()


def is_writable(url: str) -> bool:
    if not url.startswith("sqlite"):
        return True
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(300)
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _module(pid: int) -> bytes:
    """Return the module that `python -m` runs."""
    return (_cmdline(pid).split(b"\0") + [b""] * 3)[2]


def marked_processes(text: str) -> list[int]:
    """Return the pids of processes whose command line contains this text."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if text.encode() in _cmdline(pid).replace(b"\0", b" ")]
