"""The supervisor's side of the fork server, from which runners start in milliseconds.

The fork server (worker/runner/start.py) has imported Mulligan and nothing of the app. If it is
slow, gone or not possible (it needs Linux), runners are started as new processes instead.
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
FORK_TIMEOUT = 1.0  # seconds for one runner; the supervisor's event loop blocks meanwhile
KILL_TIMEOUT = 5.0  # seconds
RESTART_DELAYS = 1.0, 600.0  # seconds until the fork server is started again: first, and at most
PADDING = 96  # bytes for descriptor numbers and growing counters in the command line
MARK_PADDING = "/" * 16
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


class ForkedProcess:
    """A forked runner, with the part of the interface of Popen that is needed."""

    def __init__(self, pid: int, stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait until it ends and return its exit code."""
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkReply(NamedTuple):
    """A new runner and the supervisor's end of its connection."""

    process: ForkedProcess
    wire: socket.socket


class ForkServer:
    """Starts the fork server, asks it for runners, and restarts it if it fails."""

    def __init__(
        self,
        runner: str,
        worker: str,
        on_change: Callable[[], None],
        runner_pids: Callable[[], set[int]],
    ) -> None:
        """Create it. `runner`: the module to run; `on_change`: called when it is ready or gone."""
        self.ready = False
        self._runner = runner
        self._mark = f"{worker}/fork-server{MARK_PADDING}"
        self._on_change = on_change
        self._runner_pids = runner_pids
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environ: Mapping[str, str] = {}
        self._example: Sequence[str] = ()
        self._restart_delay = 0.0
        self._restart_timer: asyncio.TimerHandle | None = None
        self._orphans: set[int] = set()  # other processes that became children of this one

    # --- Start and end ---

    def open(self, environ: Mapping[str, str], example: Sequence[str]) -> bool:
        """Start the fork server. False if it cannot be started now. Only from the main thread.

        `example`: a command line as long as those of the runners.
        """
        self._environ = environ
        self._example = example
        if sys.platform != "linux":
            return False
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            self._restart_later()
            return False
        with theirs:
            try:
                self._process = self._start(theirs.fileno())
            except OSError:
                ours.close()
                self._restart_later()
                return False
        self._control = ours
        ours.settimeout(FORK_TIMEOUT)
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
        # A fork overwrites this command line with its own, so it must be as long.
        padding = len("\0".join(self._example)) - len("\0".join(command)) + PADDING
        return subprocess.Popen(
            [*command, " " * max(1, padding)],
            pass_fds=(control,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**self._environ, MARK: self._mark},
        )

    def _readable(self) -> None:
        """Handle its only message (ready), or the end of the connection."""
        control = self._control
        if control is None:
            return
        try:
            message = control.recv(16)
        except OSError:
            message = b""
        self.ready = bool(message)
        if not message:
            self._give_up("it has ended")
        self._on_change()

    def _give_up(self, why: str) -> None:
        self._kill()
        self._restart_later()
        log.warning(
            "the fork server failed: %s; runners start without it, more slowly. "
            "Restarting it in %g s",
            why,
            self._restart_delay,
        )

    def _restart_later(self) -> None:
        first, longest = RESTART_DELAYS
        self._restart_delay = min(longest, max(first, self._restart_delay * 2))
        self._restart_timer = self._loop.call_later(
            self._restart_delay, self.open, self._environ, self._example
        )

    def close(self) -> None:
        """End the fork server."""
        if self._restart_timer is not None:
            self._restart_timer.cancel()
        self._kill()

    def _kill(self) -> None:
        self.ready = False
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(KILL_TIMEOUT)
            except subprocess.TimeoutExpired:  # blocked in the kernel: reap it when it ends
                self._orphans.add(self._process.pid)
            self._process = None

    # --- Runners ---

    def fork_runner(
        self, mark: str, command: Sequence[str], environ: Mapping[str, str], status_page: int
    ) -> ForkReply | None:
        """Fork a runner. None: start it as a new process instead."""
        self.reap_orphans()
        if self._control is None or not self.ready or environ != self._environ:
            return None
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                undo.enter_context(ours)
                undo.enter_context(theirs)
                stderr, its_stderr = _open_pipe()
                undo.enter_context(stderr)
                undo.enter_context(its_stderr)
            except OSError:  # no descriptors left, which is not the fork server's fault
                return None
            descriptors = [its_stderr.fileno(), theirs.fileno(), status_page]
            request = json.dumps([mark, list(command)]).encode()
            try:
                with self._adopting_orphans():
                    socket.send_fds(self._control, [request], descriptors)
                    theirs.close()  # only the runner may hold it, so that we notice its end
                    pid = _wait_for_pid(ours)
            except OSError as error:
                self._give_up(str(error) or type(error).__name__)
                return None
            its_stderr.close()
            undo.pop_all()
            self._orphans.discard(pid)
            self._restart_delay = 0.0
            return ForkReply(ForkedProcess(pid, stderr), ours)

    @contextlib.contextmanager
    def _adopting_orphans(self) -> Iterator[None]:
        """Make this process the parent of orphans meanwhile: of the runner, and perhaps others."""
        before = _get_subreaper()
        children_before = _main_thread_children()
        _set_subreaper(1)
        try:
            yield
        finally:
            _set_subreaper(before)
            children = _main_thread_children()
            if children_before is not None and children is not None:
                self._orphans |= children - children_before

    def reap_orphans(self) -> None:
        """Reap adopted orphans that have ended."""
        if _adopts_all_orphans():
            self._orphans |= _main_thread_children() or set()
        if self._process is not None:
            self._orphans.discard(self._process.pid)
        # Never a runner: its exit status is evidence.
        self._orphans -= self._runner_pids()
        for pid in list(self._orphans):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._orphans.discard(pid)


def _open_pipe() -> tuple[IO[bytes], IO[bytes]]:
    read_end, write_end = os.pipe()
    return open(read_end, "rb"), open(write_end, "wb")  # noqa: PTH123 - the caller closes them


def _wait_for_pid(wire: socket.socket) -> int:
    """Return the pid that a new runner sends, and confirm it: without that the runner exits."""
    wire.settimeout(FORK_TIMEOUT)
    data = wire.recv(4)
    if len(data) != 4:
        message = "it did not fork"
        raise ConnectionError(message)
    pid = int.from_bytes(data)
    # Raises ChildProcessError if it is not our child.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    wire.sendall(b"\0")
    return pid


def _adopts_all_orphans() -> bool:
    """True if orphans of all our processes become our children, as for process 1 of a container."""
    return sys.platform == "linux" and (os.getpid() == 1 or _get_subreaper() == 1)


def _main_thread_children() -> set[int] | None:
    """Return the children of the main thread, which adopts orphans; None if unknown."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return None
    return {int(pid) for pid in text.split()}


def _get_subreaper() -> int:
    value = ctypes.c_int()
    _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value))
    return value.value


def _set_subreaper(value: int) -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(value))


def _prctl(option: int, argument: object) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
