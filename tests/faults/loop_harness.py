"""Run the claim/settle loop on a real runner process and a real store, without a supervisor."""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mulligan.config import WorkerSection
from mulligan.core.attempt import Ending, Lease, Outcome
from mulligan.core.durations import Micros
from mulligan.core.errors import StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.core.job import PreviousAttempts
from mulligan.manifest.specs import KindSpec, Manifest
from mulligan.storage import Store
from mulligan.storage.base import HintListener
from mulligan.worker.claim import Claimer
from mulligan.worker.protocol import outcome_to_wire
from mulligan.worker.supervisor.loop import WorkLoop
from mulligan.worker.supervisor.runner_process import KillReason, RunnerCommand, RunnerProcess
from mulligan.worker.supervisor.runners import Runners
from mulligan.worker.supervisor.transactions import LoopTransactions, TransactionResult
from support.store import KINDS, POLICIES, RETURNED, now, open_worker

MANIFEST = Manifest("app", "1", {name: KindSpec(name) for name in KINDS})
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
        self, leases: Sequence[Lease], previous_attempts: Mapping[str, PreviousAttempts]
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
    """Transactions of the loop; records of each its endings, free slots and thread."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recorded: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def settle_and_claim(
        self, endings: Sequence[Ending], free: int, *arguments: Any, **options: Any
    ) -> TransactionResult:
        self.recorded.append((len(endings), free))
        self.threads.add(threading.current_thread().name)
        return super().settle_and_claim(endings, free, *arguments, **options)


class SilentListener(HintListener):
    """Listener that gives a hint only if a test does."""

    def __init__(self) -> None:
        self.hinted = threading.Event()
        self._reading, self._writing = os.pipe()

    def hint(self) -> None:
        self.hinted.set()
        os.write(self._writing, b"x")

    def wait(self, seconds: float, wake: int = -1) -> bool:
        poll = select.poll()
        for fd in (wake, self._reading):
            poll.register(fd, select.POLLIN)
        poll.poll(seconds * 1000)
        if not self.hinted.is_set():
            return False
        self.hinted.clear()
        os.read(self._reading, 1)
        return True

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


class Scene:
    """A claim/settle loop on a store, and a runner process to work for."""

    runners: RecordedRunners
    loop: WorkLoop

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int = 4,
        poll: float = 60,
        listener: HintListener | None = None,
    ) -> None:
        # Unique on this machine: runners are killed with every process that carries the mark of its dead runner.
        self._worker = new_id()
        open_worker(store, self._worker)
        self.store = store
        self.may_claim = True
        self.clocks: list[Micros] = []  # times of the store that the event loop was given
        self.transactions = RecordedTransactions(
            store.dedicated(), POLICIES, Claimer(self._worker, KINDS)
        )
        self._listener = listener
        self._settings = WorkerSection(concurrency=concurrency, poll=poll, runners=1)

    def play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        """Run `act` while the loop runs, then let the loop leave."""
        asyncio.run(self._play(act))

    async def _play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        self._now = now(self.store)
        self._began_ns = time.monotonic_ns()
        self.loop = WorkLoop(
            self._settings,
            self.clock,
            self.clocks.append,
            lambda: self.may_claim and self.runners.can_accept,
            self._open_listener,
        )
        async with self._runner() as self.runners:
            self.loop.attach(self.runners, self.transactions, MANIFEST)
            self.loop.start()
            await self.until(lambda: self.transactions.recorded and self.loop.all_written)
            self.transactions.recorded.clear()  # the first poll
            try:
                await asyncio.wait_for(act(self), 30)
            finally:
                self.loop.stop()
                await self.loop.run()

    def _open_listener(self) -> HintListener:
        return self._listener or self.store.open_listener()

    def clock(self) -> Micros:
        """Return the time of the database, estimated from the begin of the scene."""
        return self._now + (time.monotonic_ns() - self._began_ns) // 1000

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

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the loop runs; `play` sets the deadline."""
        while not condition():  # noqa: ASYNC110 - the condition may be a row of the database
            await asyncio.sleep(0.001)


class StoreFault:
    """Make transactions of a real store fail while `active`, before they begin or after they commit."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
        self._committed = committed
        self.active = False
        self.failures = 0
        dedicated = store.dedicated()
        for method in ("begin", "single_statement"):
            monkeypatch.setattr(dedicated, method, self._faulty(getattr(dedicated, method)))

    def _faulty(self, transaction: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def begin() -> Iterator[Any]:
            if self.active and not self._committed:
                self._fail("the database does not answer")
            with transaction() as tx:
                yield tx
            if self.active:
                self._fail("the connection broke before the answer came")

        return begin

    def _fail(self, message: str) -> None:
        self.failures += 1
        raise StoreUnavailable(message)
