"""One runner process as the supervisor sees it: start, messages, stop requests, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource  # noqa: F401 - os.wait4 imports it, perhaps when no descriptor is left
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.config import LogSection
from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.job import PreviousAttempts
from mulligan.manifest.specs import KindSpec
from mulligan.retries.policy import parse_job_settings
from mulligan.worker.liveness import MARK, kill_marked_with_retry, kill_session, remove_workdir
from mulligan.worker.protocol import StatusPage, Wire, WireClosed, leases_to_wire
from mulligan.worker.supervisor.fork_server import ForkedProcess, ForkReply, ForkServer
from mulligan.worker.supervisor.stderr import stderr_forwarder

log = logging.getLogger("mulligan.worker")

STDERR_TAIL = 4096  # bytes kept as evidence
MAX_LINE = 262_144  # bytes of an unfinished stderr line that are held back
STALE_HEARTBEAT_NS = 1_750_000_000  # a responsive event loop writes one every 0.5 s
LOAD_LIMIT_NS = 600_000_000_000  # for importing the app and `on_start`
EXIT_LIMIT_NS = 10_000_000_000  # for `on_stop`
# Errors from decoding bytes that are not one of our messages.
GARBLED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class StopReason(StrEnum):
    """Why the supervisor requested an attempt to stop."""

    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    MEMORY = "memory"
    RELEASE = "release"  # queue it again, uncharged


class KillReason(StrEnum):
    """Why the supervisor killed a runner. The value appears in the log."""

    TIME_LIMIT = "an attempt did not stop in time"
    MEMORY_LIMIT = "memory limit"
    UNRESPONSIVE = "unresponsive"
    OVERDUE = "did not load or exit in time"
    LOAD_FAILED = "the app could not be loaded"
    WORKER_LOST = "its worker was declared lost"
    SHUTDOWN = "shutdown"


@dataclass(slots=True)
class ActiveAttempt:
    """Attempt that a runner has, or that waits for a runner of its own."""

    seq: int
    lease: Lease
    spec: KindSpec
    sent_ns: int
    stop_reason: StopReason | None = None
    stop_requested_ns: int = 0
    suspect: bool = False  # one more loss would make it dead: it may be what kills runners
    recalled: bool = False  # requested back, if it has not started
    peak_memory: int = 0  # bytes, measured only if there is a memory limit

    @property
    def timeout(self) -> Micros:
        """Time limit of this attempt: of an escalation step, else of the job, else of the kind."""
        return self._overrides().get("timeout") or self.lease.timeout or self.spec.timeout

    @property
    def memory_limit(self) -> int | None:
        """Memory limit in bytes: of an escalation step, else of the kind."""
        return self._overrides().get("memory_limit") or self.spec.memory_limit

    def _overrides(self) -> dict[str, Any]:
        return parse_job_settings(self.lease.settings) if self.lease.settings else {}


class RunnerDeath(NamedTuple):
    """How a runner process ended."""

    signal: int | None
    exit_code: int | None
    peak_rss: int
    stderr: str


@dataclass(slots=True)
class RunnerCommand:
    """How to start a runner of this worker."""

    app: str
    worker: str
    folder: Path
    log: LogSection = field(default_factory=LogSection)
    runner: str = "mulligan.worker.runner"  # the module to run
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a runner, without its mark."""
        return {**os.environ, **self.env}

    def build(self, name: str, slots: int, delivery_slots: int) -> list[str]:
        """Return the command line, without the numbers of inherited file descriptors."""
        return [
            sys.executable,
            "-m",
            self.runner,
            self.app,
            "--slots",
            str(slots),
            "--delivery-slots",
            str(delivery_slots),
            "--supervisor",
            str(os.getpid()),
            "--mark",
            self.mark(name),
            "--folder",
            str(self.folder),
            "--log-level",
            self.log.level,
            "--log-format",
            self.log.format,
        ]

    def mark(self, name: str) -> str:
        """Return the mark by which all processes of a runner are found."""
        return f"{self.worker}/{name}"


class RunnerProcess:
    """A runner: its process, its connection, its status page and its attempts."""

    def __init__(
        self,
        command: RunnerCommand,
        name: str,
        slots: int,
        delivery_slots: int = 0,
        *,
        single_use: bool,
        fork_server: ForkServer | None = None,
    ) -> None:
        """Start the process. `single_use`: it runs one attempt alone and then exits."""
        self.name = name
        self.slots = slots + delivery_slots
        self.delivery_slots = delivery_slots
        self.single_use = single_use
        self.mark = command.mark(name)
        self.attempts: dict[int, ActiveAttempt] = {}
        # Attempts of jobs with dependencies: few, and read with every claim.
        self.dependency_users: dict[int, ActiveAttempt] = {}
        self.ready = False
        self.retiring_since_ns = 0  # since when it gets no more jobs and is expected to exit
        self.kill_reason: KillReason | None = None
        self.load_error = ""  # why it could not load the app
        self._unreadable = False  # its connection failed; further messages are ignored
        self._stderr = bytearray()
        self._unfinished_line = bytearray()
        self.started_ns = time.monotonic_ns()
        # If the process cannot be started, close every descriptor: they may be the reason.
        with contextlib.ExitStack() as undo:
            self.status_page = StatusPage.create(self.slots)
            undo.callback(self.status_page.close)
            started = self._fork(command, fork_server) if fork_server is not None else None
            process, connection = started or self._spawn(command)
            self.process: subprocess.Popen[bytes] | ForkedProcess = process
            self.wire = Wire.for_supervisor(connection)
            undo.pop_all()
        self.pid = self.process.pid

    def _fork(self, command: RunnerCommand, fork_server: ForkServer) -> ForkReply | None:
        arguments = command.build(self.name, self.slots, self.delivery_slots)
        return fork_server.fork_runner(
            self.mark, arguments, command.environment(), self.status_page.fd
        )

    def _spawn(self, command: RunnerCommand) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a new interpreter. Only from the main thread.

        The kernel kills the child when the thread that started it ends.
        """
        arguments = command.build(self.name, self.slots, self.delivery_slots)
        ours, theirs = socket.socketpair()
        page = self.status_page.fd
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            process = subprocess.Popen(
                [*arguments, "--wire", str(theirs.fileno()), "--status-page", str(page)],
                pass_fds=(theirs.fileno(), page),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**command.environment(), MARK: self.mark},
            )
            undo.pop_all()
        return process, ours

    # --- Watching the process ---

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[RunnerProcess, list[Any]], None],
        on_exit: Callable[[RunnerProcess], None],
    ) -> None:
        """Watch its messages, its stderr and its exit on the event loop."""
        self._loop = loop
        self._on_message = on_message
        self._pidfd = self._open_pidfd()
        stderr = self.process.stderr
        assert stderr is not None  # noqa: S101 - it was started with a pipe
        os.set_blocking(stderr.fileno(), False)
        loop.add_reader(self.wire.fileno(), self.read)
        loop.add_reader(stderr.fileno(), self._read_stderr)
        if self._pidfd >= 0:
            loop.add_reader(self._pidfd, on_exit, self)
        else:
            loop.run_in_executor(None, self.process.wait).add_done_callback(lambda _: on_exit(self))

    def _open_pidfd(self) -> int:
        """Return a descriptor that becomes readable at exit; -1 where the system has none.

        A process that cannot be watched is killed.
        """
        if not hasattr(os, "pidfd_open"):
            return -1
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            kill_session(self.pid)
            self.process.wait()
            self._pidfd = -1
            self.detach()
            raise

    def read(self) -> None:
        """Handle all messages that have arrived."""
        if self._unreadable:
            return
        try:
            for message in self.wire.receive():
                self._on_message(self, message)
        except WireClosed:
            self._stop_reading()
        except GARBLED as error:
            # A handler has written to our connection: nothing after it can be trusted. Log only
            # the type of the error, because its text may contain what the handler wrote.
            log.error(  # noqa: TRY400 - see above
                "runner %s sent a message that cannot be read (%s) and is killed",
                self.mark,
                type(error).__name__,
            )
            self._stop_reading()

    def _stop_reading(self) -> None:
        """Kill the process: without a connection, none of its results would arrive."""
        self._unreadable = True
        self._loop.remove_reader(self.wire.fileno())
        if self.process.returncode is None:
            kill_session(self.pid)

    def _read_stderr(self) -> None:
        """Forward stderr as it comes, and keep its tail as evidence."""
        stderr = self.process.stderr
        assert stderr is not None  # noqa: S101 - it was started with a pipe
        try:
            chunk = os.read(stderr.fileno(), 65536)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(stderr.fileno())
            return
        self._stderr += chunk
        del self._stderr[:-STDERR_TAIL]
        self._forward_lines(chunk)

    def _forward_lines(self, chunk: bytes) -> None:
        """Forward whole lines only, so that the output of two runners is not mixed in one line."""
        line = self._unfinished_line
        line += chunk
        end = line.rfind(b"\n") + 1
        if not end and len(line) > MAX_LINE:
            line += b"\n"
            end = len(line)
        if end:
            stderr_forwarder.write(bytes(line[:end]))
            del line[:end]

    def reap(self) -> RunnerDeath:
        """Read what is left in the pipes after the exit, and return how the process ended."""
        self.read()
        self._read_stderr()
        if self._unfinished_line:
            self._forward_lines(b"\n")
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)  # it stays readable
        peak_rss = 0
        if self.process.returncode is None:
            _, status, usage = os.wait4(self.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            unit = 1 if sys.platform == "darwin" else 1024
            peak_rss = usage.ru_maxrss * unit
        code = self.process.returncode
        stderr = self._stderr.decode("utf-8", "replace")
        if code < 0:
            return RunnerDeath(signal=-code, exit_code=None, peak_rss=peak_rss, stderr=stderr)
        return RunnerDeath(signal=None, exit_code=code, peak_rss=peak_rss, stderr=stderr)

    def detach(self) -> None:
        """Close all descriptors of this runner."""
        stderr = self.process.stderr
        for fd in (self.wire.fileno(), self._pidfd, stderr.fileno() if stderr else -1):
            if fd >= 0:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)
        if self._pidfd >= 0:
            os.close(self._pidfd)
        if stderr is not None:
            stderr.close()
        self.wire.close()
        self.status_page.close()

    # --- Sending messages ---

    def send(self, message: list[Any]) -> None:
        """Send a message. If the runner is gone, its exit is handled elsewhere."""
        with contextlib.suppress(WireClosed):
            self.wire.send(message)
            if self.wire.pending:
                self._loop.add_writer(self.wire.fileno(), self._continue_sending)

    def _continue_sending(self) -> None:
        done = True
        with contextlib.suppress(WireClosed):
            done = self.wire.flush()
        if done:
            self._loop.remove_writer(self.wire.fileno())

    def run(self, work: Sequence[tuple[ActiveAttempt, PreviousAttempts | None]]) -> None:
        """Send attempts to the runner, each with the previous attempts of its job."""
        self.attempts.update([(attempt.seq, attempt) for attempt, _ in work])
        self.dependency_users.update(
            [(attempt.seq, attempt) for attempt, _ in work if attempt.lease.uses]
        )
        history = {attempt.seq: previous for attempt, previous in work if previous is not None}
        seqs = [attempt.seq for attempt, _ in work]
        self.send(leases_to_wire(seqs, [attempt.lease for attempt, _ in work], history))

    def remove_attempts(self, seqs: Sequence[int]) -> list[ActiveAttempt | None]:
        """Forget ended attempts. Return them; None for one that is unknown or named twice."""
        if self.dependency_users:
            for seq in seqs:
                self.dependency_users.pop(seq, None)
        return [self.attempts.pop(seq, None) for seq in seqs]

    def request_stop(self, attempt: ActiveAttempt, reason: StopReason) -> None:
        """Request one attempt to stop. A second reason does not replace the first."""
        if attempt.stop_reason is None:
            attempt.stop_reason = reason
            attempt.stop_requested_ns = time.monotonic_ns()
            self.send(["stop", attempt.seq])

    def recall(self, attempt: ActiveAttempt) -> None:
        """Request an attempt back if it has not started. One that has started continues."""
        if not attempt.recalled and attempt.stop_reason is None:
            attempt.recalled = True
            self.send(["recall", attempt.seq])

    def drain(self) -> None:
        """Let the runner exit once it has no attempts."""
        self.send(["drain"])

    def kill(self, reason: KillReason) -> None:
        """Kill all processes of the runner's session."""
        self.kill_reason = self.kill_reason or reason
        kill_session(self.pid)

    # --- State ---

    @property
    def is_retiring(self) -> bool:
        """True if the runner gets no more jobs and is expected to exit."""
        return bool(self.retiring_since_ns) or self.kill_reason is not None

    @property
    def is_available(self) -> bool:
        """True if the runner accepts jobs."""
        return self.ready and not self.is_retiring

    def is_responsive(self) -> bool:
        """True if its event loop has written a heartbeat recently."""
        return time.monotonic_ns() - self.status_page.last_heartbeat_ns() < STALE_HEARTBEAT_NS

    def ever_started(self) -> frozenset[int]:
        """Return, after its death, the attempts that started and whose end never arrived."""
        highest = self.status_page.highest_started()
        started = {
            seq for seq, attempt in self.attempts.items() if seq <= highest and not attempt.recalled
        }
        return frozenset(started | self.running_since().keys())

    def running_since(self) -> dict[int, int]:
        """Return when each running attempt started, by seq. Prefetched ones are not included."""
        return {
            running.seq: running.since_ns
            for running in self.status_page.running()
            if running.seq in self.attempts
        }

    def is_overdue(self, now_ns: int) -> bool:
        """True if the runner did not exit, or did not load the app, in time."""
        if not self.ready and now_ns - self.started_ns > LOAD_LIMIT_NS:
            return True
        if not self.retiring_since_ns or self.attempts:
            return False
        return now_ns - self.retiring_since_ns > EXIT_LIMIT_NS


# --- After the death of a runner ---


def death_evidence(death: RunnerDeath) -> dict[str, int]:
    """Return the signal or exit code, as it is stored with the event."""
    if death.signal is not None:
        return {"signal": death.signal}
    return {} if death.exit_code is None else {"exit_code": death.exit_code}


def describe_death(death: RunnerDeath) -> str:
    """Return the signal or exit code for a log line."""
    return f"signal {death.signal}" if death.signal is not None else f"exit code {death.exit_code}"


def clean_up(command: RunnerCommand, mark: str, lost: Sequence[ActiveAttempt]) -> None:
    """Kill what is left of a runner's processes and remove the work directories of its attempts."""
    kill_marked_with_retry(mark)
    for attempt in lost:
        remove_workdir(command.folder, attempt.lease)
