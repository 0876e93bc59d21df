"""One runner process, seen from the supervisor: started, spoken to, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource  # noqa: F401 - os.wait4 imports it, perhaps when no descriptor is left to do so
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.config import LogSection
from mulligan.core.attempt import Lease
from mulligan.core.job import Micros, PreviousAttempts
from mulligan.manifest.specs import KindSpec
from mulligan.retries.policy import given
from mulligan.worker.fast.lease_batch import LeaseBatch
from mulligan.worker.liveness import MARK, kill_session, remove_workdir, surely_kill_marked
from mulligan.worker.protocol import StatusPage, Wire, WireClosed, work_to_wire
from mulligan.worker.supervisor.fork_server import ForkedProcess, ForkReply, ForkServer
from mulligan.worker.supervisor.stderr import relay

log = logging.getLogger("mulligan.worker")

STDERR_TAIL = 4096
# What comes of reading, as a message of ours, something that is none.
GARBLED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
LONGEST_LINE = 262_144  # bytes of a line that are waited for
STALE_BEAT_NS = 1_750_000_000  # a living loop beats every 0.5 s


class StopReason(StrEnum):
    """Why we asked an attempt to stop."""

    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    MEMORY = "memory"
    RELEASE = "release"  # give it back unharmed


@dataclass(slots=True)
class Flight:
    """One dispatch under way."""

    seq: int
    lease: Lease
    spec: KindSpec
    sent_ns: int
    asked: StopReason | None = None
    asked_ns: int = 0
    suspect: bool = False  # one more loss and it is dead: it may be what takes its neighbours down
    recalled: bool = False  # asked back if it has not started
    peak: int = 0  # bytes, sampled where a memory limit is set

    @property
    def timeout(self) -> Micros:
        """Of this attempt: an escalation's, else the job's, else the kind's. Few live long enough to be asked."""
        return self._given().get("timeout") or self.lease.timeout or self.spec.timeout

    @property
    def memory_limit(self) -> int | None:
        return self._given().get("memory_limit") or self.spec.memory_limit

    def _given(self) -> dict[str, Any]:
        return given(self.lease.settings) if self.lease.settings else {}


class RunnerDeath(NamedTuple):
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
    runner: str = "mulligan.worker.runner"  # the module it begins with
    env: dict[str, str] = field(default_factory=dict)

    def environ(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def command(self, name: str, slots: int, tellers: int) -> list[str]:
        """All but the numbers of its descriptors."""
        return [
            sys.executable,
            "-m",
            self.runner,
            self.app,
            "--slots",
            str(slots),
            "--tellers",
            str(tellers),
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
        return f"{self.worker}/{name}"


class RunnerProcess:
    def __init__(
        self,
        recipe: RunnerCommand,
        name: str,
        slots: int,
        tellers: int = 0,
        *,
        solo: bool,
        nursery: ForkServer | None = None,
    ) -> None:
        self.name = name
        self.slots = slots + tellers
        self.tellers = tellers  # of its slots: for messages
        self.solo = solo  # made for one attempt alone
        self.mark = recipe.mark(name)
        self.flights: dict[int, Flight] = {}
        self.users: dict[
            int, Flight
        ] = {}  # those of them whose jobs use something: few, and asked for all the time
        self.ready = False
        self.doomed_ns = 0  # since when it takes no more jobs and waits for its end
        self.killed = ""  # why we killed it ourselves
        self._deaf = False  # nothing of what it says is heard any more
        self.broken = ""  # what it said before it could not start
        self._stderr = bytearray()
        self._line = bytearray()  # begun and not ended yet
        self.born_ns = time.monotonic_ns()
        with (
            contextlib.ExitStack() as undo
        ):  # what cannot be started must not keep descriptors: they may be the reason
            self.board = StatusPage.create(self.slots)
            undo.callback(self.board.close)
            born = self._forked(recipe, nursery) if nursery is not None else None
            process, wire = born or self._start(recipe)
            self.process: subprocess.Popen[bytes] | ForkedProcess = process
            self.wire = Wire.of_supervisor(wire)
            undo.pop_all()
        self.pid = self.process.pid

    def _forked(self, recipe: RunnerCommand, nursery: ForkServer) -> ForkReply | None:
        command = recipe.command(self.name, self.slots, self.tellers)
        return nursery.runner(self.mark, command, recipe.environ(), self.board.fd)

    def _start(self, recipe: RunnerCommand) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """From the main thread only: the parent-death signal is tied to the thread that started the child."""
        command = recipe.command(self.name, self.slots, self.tellers)
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            process = subprocess.Popen(
                [*command, "--wire", str(theirs.fileno()), "--board", str(self.board.fd)],
                pass_fds=(theirs.fileno(), self.board.fd),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**recipe.environ(), MARK: self.mark},
            )
            undo.pop_all()
        return process, ours

    # -- watch ------------------------------------------------------------------------------------
    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[RunnerProcess, list[Any]], None],
        on_exit: Callable[[RunnerProcess], None],
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._pidfd = self._watched()
        stderr = self.process.stderr
        assert stderr is not None  # noqa: S101 - a PIPE was asked for
        os.set_blocking(stderr.fileno(), False)
        loop.add_reader(self.wire.fileno(), self.read)
        loop.add_reader(stderr.fileno(), self._read_stderr)
        if self._pidfd >= 0:
            loop.add_reader(self._pidfd, on_exit, self)
        else:
            loop.run_in_executor(None, self.process.wait).add_done_callback(lambda _: on_exit(self))

    def _watched(self) -> int:
        """A descriptor that tells its exit; one that cannot be watched is not kept."""
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
        if self._deaf:
            return
        try:
            for message in self.wire.receive():
                self._on_message(self, message)
        except WireClosed:
            self._give_up()
        except (
            GARBLED
        ) as error:  # a handler has written on our line: nothing that comes after it can be trusted
            what = type(error).__name__  # its words may be the handler's
            log.error("runner %s sent what cannot be read (%s) and is killed", self.mark, what)  # noqa: TRY400 - see above
            self._give_up()

    def _give_up(self) -> None:
        self._deaf = True
        self._loop.remove_reader(self.wire.fileno())
        if self.process.returncode is None:
            kill_session(
                self.pid
            )  # gone already, or a handler has closed our line: nobody will ever hear of it

    def _read_stderr(self) -> None:
        """Hand it on as it comes; keep the tail as evidence."""
        stderr = self.process.stderr
        assert stderr is not None  # noqa: S101 - as above
        try:
            chunk = os.read(stderr.fileno(), 65536)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(stderr.fileno())
            return
        self._stderr += chunk
        del self._stderr[:-STDERR_TAIL]
        self._relay_lines(chunk)

    def _relay_lines(self, chunk: bytes) -> None:
        """Whole ones: two runners that write at once must not make one line of two."""
        self._line += chunk
        end = self._line.rfind(b"\n") + 1
        if not end and len(self._line) > LONGEST_LINE:
            self._line += b"\n"
            end = len(self._line)
        if end:
            relay.write(bytes(self._line[:end]))
            del self._line[:end]

    def reap(self) -> RunnerDeath:
        """After its exit: what it left in the pipes, how it ended, how much memory it had at most."""
        self.read()
        self._read_stderr()
        if self._line:
            self._relay_lines(b"\n")
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)  # it stays readable for ever
        peak = 0
        if self.process.returncode is None:
            _, status, usage = os.wait4(self.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        code = self.process.returncode
        text = self._stderr.decode("utf-8", "replace")
        return RunnerDeath(-code if code < 0 else None, code if code >= 0 else None, peak, text)

    def detach(self) -> None:
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
        self.board.close()

    # -- speak ------------------------------------------------------------------------------------
    def send(self, message: list[Any]) -> None:
        with contextlib.suppress(WireClosed):  # its exit will tell the rest
            self.wire.send(message)
            if self.wire.pending:
                self._loop.add_writer(self.wire.fileno(), self._writable)

    def _writable(self) -> None:
        done = True
        with contextlib.suppress(WireClosed):
            done = self.wire.flush()
        if done:
            self._loop.remove_writer(self.wire.fileno())

    def run(
        self, flights: Sequence[Flight], lot: LeaseBatch, memories: Mapping[str, PreviousAttempts]
    ) -> None:
        """`lot`: their leases, in the same order."""
        seqs = [flight.seq for flight in flights]
        self.flights.update(zip(seqs, flights, strict=True))
        if any(lot.columns.uses):
            self.users |= {flight.seq: flight for flight in flights if flight.lease.uses}
        ran = [flight for flight in flights if flight.lease.id in memories] if memories else []
        self.send(
            work_to_wire(
                seqs, lot.columns, {flight.seq: memories[flight.lease.id] for flight in ran}
            )
        )

    def run_some(self, work: Sequence[tuple[Flight, PreviousAttempts | None]]) -> None:
        flights = [flight for flight, _ in work]
        memories = {flight.lease.id: memory for flight, memory in work if memory is not None}
        self.run(flights, LeaseBatch([flight.lease for flight in flights]), memories)

    def land(self, seqs: Sequence[int]) -> list[Flight | None]:
        """They are not under way any more; None: it was not, or is named twice."""
        for seq in seqs if self.users else ():
            self.users.pop(seq, None)
        return [self.flights.pop(seq, None) for seq in seqs]

    def ask(self, flight: Flight, why: StopReason) -> None:
        """Ask one attempt to stop; a second reason does not replace the first."""
        if flight.asked is None:
            flight.asked = why
            flight.asked_ns = time.monotonic_ns()
            self.send(["stop", flight.seq])

    def recall(self, flight: Flight) -> None:
        """Ask for it back if it still waits in line; one that has started is left alone."""
        if not flight.recalled and flight.asked is None:
            flight.recalled = True
            self.send(["recall", flight.seq])

    def drain(self) -> None:
        self.send(["drain"])

    def kill(self, why: str) -> None:
        self.killed = self.killed or why
        kill_session(self.pid)

    # -- judge ------------------------------------------------------------------------------------
    @property
    def open(self) -> bool:
        return self.ready and not self.doomed_ns and not self.killed

    def answers(self) -> bool:
        return time.monotonic_ns() - self.board.last_beat_ns() < STALE_BEAT_NS

    def begun(self) -> frozenset[int]:
        """After its death: all that were started and never reported, also those whose last words were lost."""
        top = self.board.top()
        return frozenset(
            seq for seq, flight in self.flights.items() if seq <= top and not flight.recalled
        ) | frozenset(self.started())

    def started(self) -> dict[int, int]:
        """seq → start, for what really runs; the rest only waits in line."""
        return {
            running.seq: running.since_ns
            for running in self.board.running()
            if running.seq in self.flights
        }


# What is said of a runner that is gone, and what is left to clean up after it.

LOAD_LIMIT_NS = 600_000_000_000  # importing the app and its on_start may take this long
LEAVE_NS = 10_000_000_000  # `on_stop` may take this long


def left_over(child: RunnerProcess, now_ns: int) -> bool:
    """Told to leave and still there, or never there at all."""
    gone = child.doomed_ns and not child.flights and now_ns - child.doomed_ns > LEAVE_NS
    return bool(gone) or (not child.ready and now_ns - child.born_ns > LOAD_LIMIT_NS)


def facts(death: RunnerDeath) -> dict[str, int]:
    facts = {"signal": death.signal, "exit_code": death.exit_code}
    return {name: value for name, value in facts.items() if value is not None}


def how(death: RunnerDeath) -> str:
    return f"signal {death.signal}" if death.signal is not None else f"exit code {death.exit_code}"


def clean(recipe: RunnerCommand, mark: str, lost: Sequence[Flight]) -> None:
    surely_kill_marked(mark)
    for flight in lost:
        remove_workdir(recipe.folder, flight.lease)
