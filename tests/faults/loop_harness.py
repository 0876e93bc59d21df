"""Run the claim/settle loop on a real runner process, with a listener thread and no supervisor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mulligan.config import WorkerSection
from mulligan.core.attempt import Lease, Outcome
from mulligan.core.durations import Micros
from mulligan.core.errors import StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.core.job import PreviousAttempts
from mulligan.storage import Store
from mulligan.worker.claim import Claimer
from mulligan.worker.fast.loop import LeaseBatch
from mulligan.worker.protocol import outcome_to_wire
from mulligan.worker.supervisor.loop import WorkLoop
from mulligan.worker.supervisor.runner_process import KillReason, RunnerCommand, RunnerProcess
from mulligan.worker.supervisor.runners import Runners
from mulligan.worker.supervisor.transactions import LoopTransactions, TransactionResult
from support.store import KINDS, POLICIES, RETURNED, now, open_worker

LISTENER = "listener"
LOOP_THREAD = "loop_0"
NEVER = float("-inf")
LONG = 10_000  # ms: after jobs this long, the loop claims nothing ahead


class RecordedRunners(Runners):
    """Real runners that record what it dispatches. A test reports when an attempt ends.

    The loop claims more or less according to how long jobs take, so the test states the duration.
    Outcome and duration arrive as a message of the runner.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dispatched: list[tuple[str, int]] = []
        self.most_active = 0

    async def start_runner(self) -> None:
        self._refill()
        await self.wait_for_manifest()

    def dispatch(
        self, leases: LeaseBatch, previous_attempts: Mapping[str, PreviousAttempts]
    ) -> None:
        super().dispatch(leases, previous_attempts)
        self.dispatched += [lease.fence for lease in leases]
        self.most_active = max(self.most_active, self.count)

    @property
    def leases(self) -> list[Lease]:
        """Return the leases that are in attempt, oldest first."""
        return [attempt.lease for attempt in self.active_attempts()]

    @property
    def runner(self) -> RunnerProcess:
        (runner,) = self._processes
        return runner

    def end(
        self, leases: Iterable[Lease], outcome: Outcome = RETURNED, duration_ms: int = LONG
    ) -> None:
        """Report the end of these attempts as their runner does."""
        fences = {lease.fence for lease in leases}
        seqs = [
            seq for seq, attempt in self.runner.attempts.items() if attempt.lease.fence in fences
        ]
        assert len(seqs) == len(fences)
        self._on_message(
            self.runner, ["ended", [outcome_to_wire(seq, outcome, duration_ms) for seq in seqs]]
        )

    def end_some(self, rng: Random, share: float, duration_ms: int) -> None:
        """Report the end of a random share of the attempts in attempt."""
        if ended := [lease for lease in self.leases if rng.random() < share]:
            self.end(ended, duration_ms=duration_ms)


class RecordedTransactions(LoopTransactions):
    """Transactions of the loop; records the thread of each one and whether two overlapped."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.threads: list[str] = []
        self.overlaps = 0
        self._busy = threading.Lock()

    def settle_and_claim(self, *arguments: Any, **options: Any) -> TransactionResult:
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
        self.threads.append(threading.current_thread().name)
        try:
            return super().settle_and_claim(*arguments, **options)
        finally:
            self._busy.release()


class Scene:
    """A claim/settle loop, a runner process to work for, and a thread that listens for hints."""

    runners: RecordedRunners
    loop: WorkLoop

    def __init__(
        self, store: Store, *, concurrency: int = 4, side_writer: bool = False, poll: float = 60
    ) -> None:
        # Unique on this machine: runners are killed with every process that carries the mark of its dead runner.
        self._worker = new_id()
        open_worker(store, self._worker)
        self.store = store
        self.may_claim = True
        self.transactions = RecordedTransactions(store, POLICIES, Claimer(self._worker, KINDS))
        self.listener = ThreadPoolExecutor(1, initializer=_name_thread, initargs=(LISTENER,))
        self._thread = ThreadPoolExecutor(1, initializer=_name_thread, initargs=(LOOP_THREAD,))
        self._side_thread = ThreadPoolExecutor(1) if side_writer else None
        self._settings = WorkerSection(concurrency=concurrency, poll=poll, runners=1)

    def play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        """Run `act` while the loop runs, then let the loop leave."""
        asyncio.run(self._play(act))

    async def _play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        self._now = now(self.store)
        self.loop = WorkLoop(
            self._settings,
            self._thread,
            self.clock,
            lambda _: None,
            lambda: self.may_claim,
            self._side_thread,
        )
        async with self._runner() as self.runners:
            self.loop.attach(self.runners, self.transactions)
            self.loop.wake.clear()  # the runner became ready before the loop was there to notice
            loop = asyncio.create_task(self.loop.run())
            await self.until(lambda: self.loop._offered)
            try:
                await asyncio.wait_for(act(self), 60)
            finally:
                self.loop.stopping = True
                self.loop.wake.set()
                await loop
                self._close_threads()

    def clock(self) -> Micros:
        """Return the time of the database when the scene began."""
        return self._now

    @asynccontextmanager
    async def _runner(self) -> AsyncIterator[RecordedRunners]:
        with TemporaryDirectory() as folder:
            env = {
                "PYTHONPATH": str(Path(__file__).parent.parent),
                "MULLIGAN_DATABASE_URL": f"sqlite:///{folder}/unused.db",
            }
            command = RunnerCommand("support.inert:app", self._worker, Path(folder), env=env)
            runners = RecordedRunners(command, self._settings, self.loop.add_endings, self.clock)
            try:
                await runners.start_runner()
                yield runners
            finally:
                await runners.close(KillReason.SHUTDOWN)

    def _close_threads(self) -> None:
        for thread in (self.listener, self._thread, self._side_thread):
            if thread is not None:
                thread.shutdown()

    async def hint(self) -> None:
        """Announce new work on the listener's thread."""
        await asyncio.get_running_loop().run_in_executor(self.listener, self.loop.on_hint)

    async def quiet(self) -> None:
        """Let the listener report silence, after so long that it has to look for work itself."""
        await asyncio.get_running_loop().run_in_executor(self.listener, self.report_silence)

    def report_silence(self) -> None:
        self.loop._last_poll = self.loop._last_listener_poll = NEVER
        self.loop.on_quiet()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the loop runs; `play` sets the deadline."""
        while not condition():  # noqa: ASYNC110 - the condition may be a row of the database
            await asyncio.sleep(0.001)


def _name_thread(name: str) -> None:
    threading.current_thread().name = name


class StoreFault:
    """Make transactions of a real store fail while `active`, before they begin or after they commit."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
        self._committed = committed
        self.active = False
        self.failures = 0
        for method in ("begin", "single_statement"):
            monkeypatch.setattr(store, method, self._faulty(getattr(store, method)))

    def _faulty(self, transaction: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def begin() -> Iterator[Any]:
            if self.active and not self._committed:
                self._fail("the database does not answer")
            with transaction() as unit:
                yield unit
            if self.active:
                self._fail("the connection broke before the answer came")

        return begin

    def _fail(self, message: str) -> None:
        self.failures += 1
        raise StoreUnavailable(message)
