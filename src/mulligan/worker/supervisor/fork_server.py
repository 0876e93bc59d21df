"""Where runners come from in milliseconds: a process that has imported Mulligan, nothing of the app, and is forked.

Whatever is the matter with it (it is slow, it is gone, it cannot be), runners are started without it, as they are where
there is no Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from mulligan.worker.liveness import MARK

log = logging.getLogger("mulligan.worker")

MODULE = "mulligan.worker.runner.start"
PATIENCE = 1.0  # seconds for one runner; the supervisor does nothing else meanwhile
END = 5.0  # seconds for a kill
PAUSES = 1.0, 600.0  # seconds until another one is tried: the first time, and at most
ROOM = 96  # bytes: the numbers of its descriptors, and numbers that grow
SPACE_FOR_MARK = "/" * 16
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


class ForkedProcess:
    """A child process that came from the nursery: as much of a Popen as is asked for."""

    def __init__(self, pid: int, stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkReply(NamedTuple):
    process: ForkedProcess
    wire: socket.socket


class ForkServer:
    def __init__(
        self,
        runner: str,
        worker: str,
        on_change: Callable[[], None],
        runners: Callable[[], set[int]],
    ) -> None:
        """`runner`: the module runners begin with; `on_change`: it is ready, or gone; `runners`: their pids."""
        self.ready = False
        self._runner = runner
        self._mark = f"{worker}/nursery{SPACE_FOR_MARK}"
        self._on_change = on_change
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environ: Mapping[str, str] = {}
        self._example: Sequence[str] = ()
        self._pause = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._strangers: set[int] = set()  # orphans of others that came to us

    # -- life -------------------------------------------------------------------------------------
    def open(self, environ: Mapping[str, str], example: Sequence[str]) -> bool:
        """From the main thread only, as runners are; `example`: a command line as long as theirs. False: none comes."""
        self._environ, self._example = environ, example
        if sys.platform != "linux":
            return False
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            self._put_off()
            return False
        with theirs:
            try:
                self._process = self._start(theirs.fileno())
            except OSError:
                ours.close()
                self._put_off()
                return False
        self._control = ours
        ours.settimeout(PATIENCE)
        self._loop.add_reader(ours.fileno(), self._readable)
        return True

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            MODULE,
            "--control",
            str(control),
            "--supervisor",
            str(os.getpid()),
            "--runner",
            self._runner,
        ]
        room = len("\0".join(self._example)) - len("\0".join(command)) + ROOM
        return subprocess.Popen(
            [*command, " " * max(1, room)],
            pass_fds=(control,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**self._environ, MARK: self._mark},
        )

    def _readable(self) -> None:
        """It is ready, or gone."""
        control = self._control
        if control is None:
            return
        try:
            told = control.recv(16)
        except OSError:
            told = b""
        self.ready = bool(told)
        if not told:
            self._lose("it has ended")
        self._on_change()

    def _lose(self, why: str) -> None:
        self._end()
        self._put_off()
        log.warning("the nursery is given up: %s; runners start without it, more slowly", why)

    def _put_off(self) -> None:
        self._pause = min(PAUSES[1], max(PAUSES[0], self._pause * 2))
        self._again = self._loop.call_later(self._pause, self.open, self._environ, self._example)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._end()

    def _end(self) -> None:
        self.ready = False
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(END)
            except (
                subprocess.TimeoutExpired
            ):  # the kernel holds it: whenever it ends, it is buried like a stranger
                self._strangers.add(self._process.pid)
            self._process = None

    # -- runners ----------------------------------------------------------------------------------
    def runner(
        self, mark: str, command: Sequence[str], environ: Mapping[str, str], board: int
    ) -> ForkReply | None:
        """A new one, begun like this; None: start it without us."""
        self.bury_strangers()
        if self._control is None or not self.ready or environ != self._environ:
            return None
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                undo.enter_context(ours)
                undo.enter_context(theirs)
                stderr, its_stderr = _pipe()
                undo.enter_context(stderr)
                undo.enter_context(its_stderr)
            except OSError:  # no descriptors: not its fault
                return None
            try:
                with self._adopting():
                    request = json.dumps([mark, list(command)]).encode()
                    socket.send_fds(
                        self._control, [request], [its_stderr.fileno(), theirs.fileno(), board]
                    )
                    theirs.close()  # so that nobody but a runner holds it, and its end is heard
                    pid = _hello(ours)
            except OSError as error:
                self._lose(str(error) or type(error).__name__)
                return None
            its_stderr.close()
            undo.pop_all()
            self._strangers.discard(pid)
            self._pause = 0.0
            return ForkReply(ForkedProcess(pid, stderr), ours)

    @contextlib.contextmanager
    def _adopting(self) -> Iterator[None]:
        """Who loses its parent meanwhile is a child of ours: the runner, and perhaps somebody else."""
        before, were_ours = _subreaper(), _children()
        _set_subreaper(1)
        try:
            yield
        finally:
            _set_subreaper(before)
            now_ours = _children()
            if were_ours is not None and now_ours is not None:
                self._strangers |= now_ours - were_ours

    def bury_strangers(self) -> None:
        """An orphan that has ended waits for whoever it came to."""
        self._strangers -= (
            self._runners()
        )  # never one of those: how it ended is somebody's evidence
        for pid in list(self._strangers):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._strangers.discard(pid)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    heard, said = os.pipe()
    return open(heard, "rb"), open(said, "wb")  # noqa: PTH123 - descriptors, for their owner to close


def _hello(wire: socket.socket) -> int:
    """Its number, once it is a child of ours. It goes on only if it hears that we have heard."""
    wire.settimeout(PATIENCE)
    told = wire.recv(4)
    if len(told) != 4:
        message = "it has not forked"
        raise ConnectionError(message)
    pid = int.from_bytes(told)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it is not
    wire.sendall(b"\0")
    return pid


def _children() -> set[int] | None:
    """Of the main thread, to which orphans come; None where the kernel does not tell."""
    try:
        return {
            int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        }
    except OSError:
        return None


def _subreaper() -> int:
    found = ctypes.c_int()
    _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found))
    return found.value


def _set_subreaper(on: int) -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on))


def _prctl(option: int, argument: object) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
