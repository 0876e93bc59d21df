"""The processes of a storm: workers, the web server, clients. Who falls is started again, as an init system would."""

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
RUNNERS = (b"mulligan.worker.runner", b"mulligan.observability.runner")  # what follows `python -m`
NURSERY = (b"mulligan.worker.runner.start",)
# Only we send signals; who was started again meanwhile may get one that was meant for the one before.
BY_SIGNAL = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
AGAIN = 0.5  # seconds until somebody who fell is started again


class Member:
    """One process that is wanted: started, watched, and started again when it has fallen."""

    def __init__(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str], logs: Path
    ) -> None:
        self.name = name
        self.argv, self.environ = list(argv), dict(environ)
        self.logs = logs
        self.expected = False  # somebody of ours ended it
        self.wanted = True
        self.starts = 0
        self.fell: list[str] = []  # exits that nobody had asked for
        self._again = 0.0
        self._lock = threading.Lock()
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        self.expected = False
        log = self.logs / f"{self.name}.log"
        self._said = log.stat().st_size if log.exists() else 0
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

    def tend(self) -> None:
        with self._lock:
            if not self.wanted or self.process.poll() is None:
                return
            now = time.monotonic()
            if not self._again:
                self._again = now + AGAIN
                if (
                    not self.expected
                    and self.process.returncode not in BY_SIGNAL
                    and not self._refused()
                ):
                    self.fell.append(f"{self.name} ended with {self.process.returncode}")
            elif now > self._again:
                self._again = 0.0
                self.process = self._started()

    def _refused(self) -> bool:
        """At its start, as documented: the schema is of another version, or the database is not there."""
        said = (self.logs / f"{self.name}.log").read_bytes()[-400:].rstrip()
        return self.process.returncode == 1 and said.endswith((b"[SCHEMA]", b"[STORE_UNAVAILABLE]"))

    def kill(self) -> None:
        with self._lock:
            self.expected = True
            self.process.kill()
            self.process.wait()

    def again_with(self, environ: Mapping[str, str], argv: Sequence[str] | None = None) -> None:
        """Ended in order, then started with something else about it."""
        with self._lock:
            self.expected = True
            end(self.process, 10)
            self.environ = {**self.environ, **environ}
            self.argv = list(argv or self.argv)
            self.process = self._started()

    def stop(self, timeout: float) -> int | None:
        with self._lock:
            self.wanted = False
            return end(self.process, timeout)

    @property
    def settled(self) -> bool:
        """A worker: has it said that it is at work?"""
        said = (self.logs / f"{self.name}.log").read_bytes()[self._said :]
        return self.process.poll() is None and b" concurrency " in said

    @property
    def pid(self) -> int:
        return self.process.pid

    def family(self) -> list[int]:
        return family(self.pid)

    def runners(self) -> list[int]:
        return [pid for pid in self.family() if module(pid) in RUNNERS]

    def nurseries(self) -> list[int]:
        """Where its runners come from: one, or none at this moment."""
        return [pid for pid in self.family() if module(pid) in NURSERY]


def end(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Its exit code; None: it had to be killed."""
    if process.poll() is None:
        signalled(inner(process.pid), signal.SIGTERM)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        for pid in reversed(family(process.pid)):
            signalled(pid, signal.SIGKILL)
        process.wait()
        return None


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(below for child in children for below in family(int(child)))]


def inner(pid: int) -> int:
    """Who is meant: the first process in a namespace rather than the one that made it."""
    below = family(pid)
    return below[1] if cmdline(pid).startswith(b"unshare\0") and len(below) > 1 else pid


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def module(pid: int) -> bytes:
    """What `python -m` was told."""
    return b"".join(cmdline(pid).split(b"\0")[2:3])


def signalled(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def marked(mark: str) -> list[int]:
    """Living processes that carry this in their environment; not this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


class Crew:
    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.members: dict[str, Member] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="crew", daemon=True)
        self._thread.start()

    def hire(self, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> Member:
        member = Member(name, argv, environ, self.logs)
        self.members = {**self.members, name: member}
        return member

    def _tend(self) -> None:
        while not self._stop.wait(0.1):
            for member in self.members.values():
                member.tend()

    def named(self, start: str) -> list[Member]:
        return [member for name, member in self.members.items() if name.startswith(start)]

    def fell(self) -> list[str]:
        return [exit_ for member in self.members.values() for exit_ in member.fell]

    def stop(self, start: str, timeout: float) -> dict[str, int | None]:
        """Together, not one after the other."""
        found = self.named(start)
        codes: dict[str, int | None] = {}
        threads = [
            threading.Thread(target=_note, args=(codes, member, timeout)) for member in found
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return codes

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for member in self.members.values():
            member.wanted = False
            for pid in reversed(member.family()):
                signalled(pid, signal.SIGKILL)
            with contextlib.suppress(Exception):
                member.process.wait(5)


def _note(codes: dict[str, int | None], member: Member, timeout: float) -> None:
    codes[member.name] = member.stop(timeout)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def until(moment: Callable[[], Any], timeout: float, every: float = 0.1) -> bool:
    deadline = time.monotonic() + timeout
    while not moment():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
