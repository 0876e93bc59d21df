"""Start and restart the processes of a storm, as an init system would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNNERS = (b"mulligan.worker.runner", b"mulligan.observability.runner")  # modules of `python -m`
FORK_SERVERS = (b"mulligan.worker.runner.start",)
# Only the storm sends signals. A restarted process may get one meant for its predecessor.
EXPECTED_EXITS = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
RESTART_DELAY = 0.5  # seconds between an exit and the restart


class ManagedProcess:
    """A process that is started, watched and restarted when it exits."""

    def __init__(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str], logs: Path
    ) -> None:
        self.name = name
        self.argv, self.environ = list(argv), dict(environ)
        self.logs = logs
        self.expected = False  # the storm itself ended it
        self.restarts = True
        self.starts = 0
        self.unexpected_exits: list[str] = []
        self._restart_at = 0.0
        self._lock = threading.Lock()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        self.expected = False
        log = self.logs / f"{self.name}.log"
        self._log_offset = log.stat().st_size if log.exists() else 0
        with (self.logs / f"{self.name}.log").open("ab") as out:
            return subprocess.Popen(
                self.argv,
                env={**os.environ, **self.environ},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def restart_if_exited(self) -> None:
        with self._lock:
            if not self.restarts or self.process.poll() is None:
                return
            now = time.monotonic()
            if not self._restart_at:
                self._restart_at = now + RESTART_DELAY
                if (
                    not self.expected
                    and self.process.returncode not in EXPECTED_EXITS
                    and not self._refused()
                ):
                    self.unexpected_exits.append(
                        f"{self.name} ended with {self.process.returncode}"
                    )
            elif now > self._restart_at:
                self._restart_at = 0.0
                self.process = self._start()

    def _refused(self) -> bool:
        """True if it refused to start: another schema version, or the database is down."""
        log_tail = (self.logs / f"{self.name}.log").read_bytes()[-400:].rstrip()
        return self.process.returncode == 1 and log_tail.endswith(
            (b"[SCHEMA]", b"[STORE_UNAVAILABLE]")
        )

    def kill(self) -> None:
        with self._lock:
            self.expected = True
            self.process.kill()
            self.process.wait()

    def restart_with(self, environ: Mapping[str, str], argv: Sequence[str] | None = None) -> None:
        """Stop the process and start it with another environment or command."""
        with self._lock:
            self.expected = True
            end(self.process, 10)
            self.environ = {**self.environ, **environ}
            self.argv = list(argv or self.argv)
            self.process = self._start()

    def stop(self, timeout: float) -> int | None:
        with self._lock:
            self.restarts = False
            return end(self.process, timeout)

    @property
    def is_ready(self) -> bool:
        """True if the worker runs and has logged that it is ready."""
        log = (self.logs / f"{self.name}.log").read_bytes()[self._log_offset :]
        return self.process.poll() is None and b" concurrency " in log

    @property
    def pid(self) -> int:
        return self.process.pid

    def process_tree(self) -> list[int]:
        return process_tree(self.pid)

    def runners(self) -> list[int]:
        return [pid for pid in self.process_tree() if module(pid) in RUNNERS]

    def fork_servers(self) -> list[int]:
        """Return the pid of its fork server, if there is one now."""
        return [pid for pid in self.process_tree() if module(pid) in FORK_SERVERS]


def end(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Stop a process with SIGTERM. Return its exit code; None if it had to be killed."""
    if process.poll() is None:
        send_signal(main_pid(process.pid), signal.SIGTERM)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        for pid in reversed(process_tree(process.pid)):
            send_signal(pid, signal.SIGKILL)
        process.wait()
        return None


def process_tree(pid: int) -> list[int]:
    """Return the pids of a process and all its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(below for child in children for below in process_tree(int(child)))]


def main_pid(pid: int) -> int:
    """Return the pid to signal: the first process inside a pid namespace, not `unshare` itself."""
    below = process_tree(pid)
    return below[1] if cmdline(pid).startswith(b"unshare\0") and len(below) > 1 else pid


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def module(pid: int) -> bytes:
    """Return the module that `python -m` runs."""
    return b"".join(cmdline(pid).split(b"\0")[2:3])


def send_signal(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def pids_with_environment(text: str) -> list[int]:
    """Return the pids of other processes whose environment contains the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


class ProcessGroup:
    """All processes of a storm, by name, and the thread that restarts them."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.by_name: dict[str, ManagedProcess] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="restarts", daemon=True)
        self._thread.start()

    def start(self, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> ManagedProcess:
        process = ManagedProcess(name, argv, environ, self.logs)
        self.by_name = {**self.by_name, name: process}
        return process

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            for process in self.by_name.values():
                process.restart_if_exited()

    def with_prefix(self, prefix: str) -> list[ManagedProcess]:
        return [process for name, process in self.by_name.items() if name.startswith(prefix)]

    def unexpected_exits(self) -> list[str]:
        return [text for process in self.by_name.values() for text in process.unexpected_exits]

    def stop(self, prefix: str, timeout: float) -> dict[str, int | None]:
        """Stop all processes with this prefix at the same time. Return their exit codes."""
        found = self.with_prefix(prefix)
        codes: dict[str, int | None] = {}
        threads = [
            threading.Thread(target=_record_exit, args=(codes, process, timeout))
            for process in found
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return codes

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for process in self.by_name.values():
            process.restarts = False
            for pid in reversed(process.process_tree()):
                send_signal(pid, signal.SIGKILL)
            with contextlib.suppress(Exception):
                process.process.wait(5)


def _record_exit(codes: dict[str, int | None], process: ManagedProcess, timeout: float) -> None:
    codes[process.name] = process.stop(timeout)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def wait_until(condition: Callable[[], Any], timeout: float, every: float = 0.1) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
