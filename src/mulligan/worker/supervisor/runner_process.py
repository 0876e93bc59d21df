"""One runner process as the supervisor sees it: start, messages, stop requests, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource  # noqa: F401 - os.wait4 imports it, perhaps when no descriptor is left
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.config import LogSection
from mulligan.core.attempt import Lease, StepFailure
from mulligan.core.durations import Micros
from mulligan.core.job import PreviousAttempts, parse_job_settings
from mulligan.failures.redact import remove_secrets
from mulligan.manifest.specs import KindSpec
from mulligan.worker.liveness import MARK, kill_marked_with_retry, kill_session, remove_workdir
from mulligan.worker.protocol import (
    CHUNK_SIZE,
    Wire,
    WireClosed,
    leases_to_wire,
    split_by_size,
)
from mulligan.worker.stacks import DUMP_SIGNAL, MAX_DUMP, Stack, parse_dump
from mulligan.worker.status_page import PAGE_SUFFIX, Running, StatusPage
from mulligan.worker.supervisor.fork_server import ForkedProcess, ForkReply, ForkServer

log = logging.getLogger("mulligan.worker")

STDERR_TAIL = 4096  # bytes kept as evidence
MAX_LINE = 262_144  # bytes of an unfinished stderr line that are held back
HOOK_GRACE = 3.0  # seconds after the time limit of a hook until its runner is killed
STALE_HEARTBEAT_NS = 1_750_000_000  # a responsive event loop writes one every 0.5 s
LOAD_LIMIT_NS = 600_000_000_000  # for importing the app and `on_start`
STACKS_LIMIT_NS = 1_500_000_000  # until the stacks of an attempt are given up
EXIT_LIMIT_NS = 10_000_000_000  # for `on_stop`
# Kernels before 5.3, and containers whose seccomp profile forbids the call.
NO_PIDFD = (errno.ENOSYS, errno.EPERM)
# Errors from decoding bytes that are not one of our messages.
GARBLED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class StopReason(StrEnum):
    """Why the supervisor requested an attempt to stop."""

    TIMEOUT = "timeout"
    STALL = "stall"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    MEMORY = "memory"
    RELEASE = "release"  # queue it again, uncharged

    @property
    def needs_stacks(self) -> bool:
        """True if the stacks of the attempt say why it had to be stopped."""
        return self in {
            StopReason.TIMEOUT,
            StopReason.STALL,
            StopReason.DEADLINE,
            StopReason.CANCEL,
        }


class KillReason(StrEnum):
    """Why the supervisor killed a runner. The value appears in the log."""

    TIME_LIMIT = "an attempt did not stop in time"
    MEMORY_LIMIT = "memory limit"
    UNRESPONSIVE = "unresponsive"
    HOOK = "a hook did not return"
    OVERDUE = "did not load or exit in time"
    LOAD_FAILED = "the app could not be loaded"
    WORKER_LOST = "its worker was declared lost"
    SHUTDOWN = "shutdown"


class RunningStep(NamedTuple):
    """A step that an attempt is in, as its runner has reported it."""

    failure: StepFailure  # to record if it is stopped or dies
    timeout: Micros | None  # its own limit, if only its worker can enforce it
    since_ns: int


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
    shared: bool = False  # while it waits: it needs no single-use runner, only a successor
    recalled: bool = False  # requested back, if it has not started
    peak_memory: int = 0  # bytes, measured only if there is a memory limit
    stacks: list[Stack] | None = None  # when it was requested to stop; None: not known yet
    thread: int = 0  # identifier of its thread, when the dump was requested
    dump_requested_ns: int = 0  # when the runner was made to write the stacks of all its threads
    steps: dict[str, RunningStep] | None = None  # steps that it is in
    late_step: RunningStep | None = None  # the step that ran over its own limit

    @property
    def timeout(self) -> Micros:
        """Time limit of this attempt: of an escalation step, else of the job, else of the kind."""
        return self._overrides().get("timeout") or self.lease.timeout or self.spec.timeout

    @property
    def memory_limit(self) -> int | None:
        """Memory limit in bytes: of an escalation step, else of the kind."""
        return self._overrides().get("memory_limit") or self.spec.memory_limit

    def begin_step(self, step: RunningStep) -> None:
        """Note that a step was called."""
        if self.steps is None:
            self.steps = {}
        self.steps[step.failure.name] = step

    def end_step(self, name: str) -> None:
        """Note that a step has ended."""
        if self.steps:
            self.steps.pop(name, None)

    def find_late_step(self, now_ns: int) -> bool:
        """Return True if a step runs over its own limit, and note which."""
        for step in (self.steps or {}).values():
            if step.timeout is not None and (now_ns - step.since_ns) // 1000 >= step.timeout:
                self.late_step = step
                return True
        return False

    def step_of_end(self, now_ns: int) -> StepFailure | None:
        """Return the step in which an attempt was stopped or died: the last one that began."""
        step = self.late_step
        if step is None:
            step = next(reversed((self.steps or {}).values()), None)
        if step is None:
            return None
        return step.failure._replace(took=max(0, now_ns - step.since_ns) // 1000)

    def awaits_stacks(self, now_ns: int) -> bool:
        """True while the stacks of an attempt that must stop may still arrive."""
        if self.stop_reason is None or not self.stop_reason.needs_stacks:
            return False
        return self.stacks is None and now_ns - self.stop_requested_ns < STACKS_LIMIT_NS

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
    hooks_off: list[str] = field(default_factory=list)  # hooks of the app that ended runners

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
            *self._hook_arguments(),
        ]

    def _hook_arguments(self) -> list[str]:
        return ["--hooks-off", ",".join(self.hooks_off)] if self.hooks_off else []

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
        self.jobs_given = 0
        self.needs_successor = False  # it nears a limit after which runners are replaced
        self.memory_excess = ""  # how much memory it uses, if that is too much
        self.recycled = False  # it has reached one: no more jobs; it exits when its last one ends
        self.retiring_since_ns = 0  # since when it gets no more jobs and is expected to exit
        self.kill_reason: KillReason | None = None
        self.load_error = ""  # why it could not load the app
        self.hooks: list[tuple[str, float]] = []  # of its app: name and time limit in seconds
        self.needs_failures = False  # that the supervisor has found: for hooks or for traces
        self._unreadable = False  # its connection failed; further messages are ignored
        self._stderr = bytearray()
        self._unfinished_line = bytearray()
        self.started_ns = time.monotonic_ns()
        # If the process cannot be started, close every descriptor: they may be the reason.
        with contextlib.ExitStack() as undo:
            self.page_file = command.folder / f"{name}{PAGE_SUFFIX}"
            self.status_page = StatusPage.create(self.slots, self.page_file)
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
            # Not on a shared thread pool: other runners would occupy its threads until they end.
            wait = partial(self._wait_for_exit, on_exit)
            threading.Thread(target=wait, name=f"mulligan-wait-{self.name}", daemon=True).start()

    def _wait_for_exit(self, on_exit: Callable[[RunnerProcess], None]) -> None:
        self.process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(on_exit, self)

    def _open_pidfd(self) -> int:
        """Return a descriptor that becomes readable at exit; -1 where the system has none.

        A process that cannot be watched is killed.
        """
        if not hasattr(os, "pidfd_open"):
            return -1
        try:
            return os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno in NO_PIDFD:
                return -1
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
        descriptors = [self.wire.fileno(), self._pidfd]
        if stderr:
            descriptors.append(stderr.fileno())
        for fd in descriptors:
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
        self.jobs_given += len(work)
        self.dependency_users.update(
            [(attempt.seq, attempt) for attempt, _ in work if attempt.lease.uses]
        )
        sizes = [_work_size(attempt, previous) for attempt, previous in work]
        for chunk in split_by_size(work, sizes, CHUNK_SIZE):
            self._send_work(chunk)

    def _send_work(self, work: Sequence[tuple[ActiveAttempt, PreviousAttempts | None]]) -> None:
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
            self.send(["stop", attempt.seq, reason.needs_stacks])

    def recall(self, attempt: ActiveAttempt) -> None:
        """Request an attempt back if it has not started. One that has started continues."""
        if not attempt.recalled and attempt.stop_reason is None:
            attempt.recalled = True
            self.send(["recall", attempt.seq])

    def set_stacks(self, seq: int, stacks: list[Stack]) -> None:
        """Keep the stacks that the runner has sent of an attempt."""
        if seq in self.attempts:
            self.attempts[seq].stacks = stacks

    def request_dump(self) -> None:
        """Make the runner write the stacks of all its threads after the end of the status page.

        It does so in a signal handler, even while a handler holds the GIL. Both processes share
        the position in the file.
        """
        page = self.status_page
        with contextlib.suppress(OSError):
            os.ftruncate(page.fd, page.size)
            os.lseek(page.fd, page.size, os.SEEK_SET)
            os.kill(self.pid, DUMP_SIGNAL)

    def read_dump(self) -> str:
        """Return what the runner has written since `request_dump`."""
        try:
            dump = os.pread(self.status_page.fd, MAX_DUMP, self.status_page.size)
        except OSError:
            return ""
        return dump.decode("utf-8", "replace")

    def read_stacks(self, attempt: ActiveAttempt) -> None:
        """Read the stacks of an attempt from the dump, if it has been written."""
        dump = self.read_dump()
        if attempt.dump_requested_ns and attempt.stacks is None and dump:
            attempt.stacks = parse_dump(dump, attempt.thread)

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
        return self.recycled or bool(self.retiring_since_ns) or self.kill_reason is not None

    @property
    def is_available(self) -> bool:
        """True if the runner accepts jobs."""
        return self.ready and not self.is_retiring

    def is_responsive(self) -> bool:
        """True if its event loop has written a heartbeat recently."""
        return time.monotonic_ns() - self.status_page.last_heartbeat_ns() < STALE_HEARTBEAT_NS

    def ever_started(self) -> frozenset[int]:
        """Return, after its death, the attempts that started and whose end never arrived.

        Not by their numbers: deliveries of messages start ahead of jobs that wait.
        """
        fences = self.status_page.started()
        started = {
            seq
            for seq, attempt in self.attempts.items()
            if (fences is None or attempt.lease.fence in fences) and not attempt.recalled
        }
        return frozenset(started - self.before_handler() | self.running().keys())

    def before_handler(self) -> set[int]:
        """Return the seqs of attempts whose hooks run, and whose handlers have not started."""
        return self.status_page.before_handler() if self.hooks else set()

    def running_hooks(self) -> dict[str, int]:
        """Return the hooks that run, by name, and since when the one that runs longest does."""
        found: dict[str, int] = {}
        for call in self.status_page.hook_calls() if self.hooks else ():
            name = self.hooks[call.number][0]
            found[name] = min(call.since_ns, found.get(name, call.since_ns))
        return found

    def busy_slots(self) -> int:
        """Return how many slots run a handler or a hook."""
        return self.status_page.busy_slots()

    def has_late_hook(self, now_ns: int) -> bool:
        """True if a hook exceeds its time limit, and the runner could not leave it behind."""
        limits = dict(self.hooks)
        return any(
            now_ns - since > (limits[name] + HOOK_GRACE) * 1e9
            for name, since in self.running_hooks().items()
        )

    def running(self) -> dict[int, Running]:
        """Return what the page says of each running attempt, by seq, without prefetched ones."""
        return {
            running.seq: running
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


def _work_size(attempt: ActiveAttempt, previous: PreviousAttempts | None) -> int:
    """Return how many characters an attempt adds to a message."""
    size = len(attempt.lease.payload)
    if previous is not None:
        size += sum(len(step.value or "") for step in previous.steps.values())
    return size


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


# --- Standard error of runners ---

MAX_PENDING = 8 * 1024 * 1024  # bytes; output beyond that is dropped while nothing reads


class StderrForwarder:
    """A daemon thread that does the writes, which may block."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []  # to be written
        self._pending = 0  # bytes, including those that are being written
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def write(self, chunk: bytes) -> None:
        """Queue output; drop it if too much is pending."""
        with self._changed:
            if self._pending + len(chunk) > MAX_PENDING:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="mulligan-stderr", daemon=True
                )
                self._thread.start()
            self._chunks.append(chunk)
            self._pending += len(chunk)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._chunks)
                output = b"".join(self._chunks)
                self._chunks = []
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(output)
                sys.stderr.buffer.flush()
            with self._changed:
                self._pending -= len(output)
                self._changed.notify_all()

    def flush(self, timeout: float = 1.0) -> None:
        """Wait until everything is written, but not longer than `timeout`; then drop the rest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, timeout)
            self._pending -= sum(map(len, self._chunks))
            self._chunks = []


stderr_forwarder = StderrForwarder()


class StderrHandler(logging.Handler):
    """Log handler that never blocks.

    Removes secrets, unless the formatter has an attribute `clean` and has done so.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        line = self.format(record)
        if not getattr(self.formatter, "clean", False):
            line = remove_secrets(line)
        stderr_forwarder.write(f"{line}\n".encode("utf-8", "replace"))
