"""A short scenario of clients and workers in one process. It commits every kind of transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import storm.app as module

from mulligan.config import Settings
from mulligan.core.attempt import Ending, Lease
from mulligan.core.durations import SECOND
from mulligan.core.errors import MulliganError, StoreUnavailable
from mulligan.core.job import PreviousAttempts
from mulligan.doctor.verify import records
from mulligan.guards.kind_observer import build_kind_observer
from mulligan.jobs.queries import SearchQueries
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker import liveness as alive
from mulligan.worker.claim import create_claimer
from mulligan.worker.queries import new_worker_row
from mulligan.worker.runner.context import Context
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions

app = module.app
ROUNDS = 6
UNAVAILABLE_TRIES = 5  # tries of a call while the database is unavailable


class RollBack(Exception):
    """Raised to roll a transaction back."""


class Scenario:
    """Run clients, an inline worker, manual actions, then the transactions of a supervisor."""

    def __init__(self, settings: Settings, folder: Path, seed: int) -> None:
        self.settings, self.folder = settings, folder
        self.rng = Random(seed)
        self.records = records.Clients(folder / "clients.jsonl", "life")
        self.known: dict[str, str] = {}
        self.number = 0

    def run(self) -> None:
        module.WITNESS = str(self.folder / "witness.jsonl")
        module.FOLDER = self.folder
        with app.redirected(self.settings):
            self._enqueue_all()
            run_inline()
            self._manual_actions()
            supervise(self.settings)
            advance_clock(5)
            run_inline()
            self._bulk()
            supervise(self.settings)

    # --- Clients ---
    def _record(self, what: str, request: dict[str, Any], act: Callable[[], Any]) -> Any:
        """Make a call and record its answer. Return None if it is refused."""
        with suppress(MulliganError), self.records.call(what, **request) as call:
            answer = act()
            jobs = answer if isinstance(answer, list) else [answer]
            call.ok(*(job for job in jobs if job is not None))
            return answer
        return None

    def enqueue(self, kind: str, *, options: dict[str, Any] | None = None, **payload: Any) -> Any:
        arguments = {"n": self._next()} | payload if kind != "once" else payload
        job = self._record(
            "enqueue",
            {"kind": kind, "payload": arguments},
            lambda: app.enqueue(kind, arguments, **(options or {})),
        )
        if job is not None:
            self.known[kind] = job.id
        return job

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _enqueue_all(self) -> None:
        self.enqueue("plain")
        self.enqueue("fails", times=1)
        self.enqueue("dies")
        self.enqueue("parent", children=2)
        self.enqueue("keeps")
        self.enqueue("calls")
        for outcome in ("retry", "snooze", "park"):
            self.enqueue("asks", outcome=outcome)
        for _ in range(2):
            self.enqueue("once", key="one")
        self._enqueue_many()
        self._in_transactions()
        self._batch()
        self.enqueue("sleeps", seconds=0.0, options={"delay": 60})

    def _enqueue_many(self) -> None:
        payloads = [{"n": self._next()} for _ in range(4)]
        request = {"kind": "plain", "payloads": payloads}
        self._record(
            "enqueue_many",
            request,
            lambda: app.insert([app.build_job("plain", one) for one in payloads]),
        )

    def _in_transactions(self) -> None:
        payload = {"n": self._next()}

        def insert() -> Any:
            with app.transaction() as connection:
                return app.enqueue("plain", payload, connection=connection)

        self._record("enqueue", {"kind": "plain", "payload": payload}, insert)
        unwanted = {"n": self._next()}
        with (
            suppress(MulliganError),
            self.records.call("enqueue", kind="plain", payload=unwanted) as call,
        ):
            ids: list[str] = []
            try:
                with app.transaction() as connection:
                    ids.append(app.enqueue("plain", unwanted, connection=connection).id)
                    raise RollBack
            except RollBack:
                call.rolled_back(*ids)

    def _batch(self) -> None:
        with suppress(MulliganError):
            batch = app.batch("three", on_complete="completed", tolerance=1)
            for fate in ("well", "fails", "dies", "splits"):
                self.enqueue("member", fate=fate, options={"batch": batch})
            self._record("seal", {"batch": batch.id}, lambda: batch.seal() and None)

    def _manual_actions(self) -> None:
        moves: list[tuple[str, str, Callable[[str], Any]]] = [
            ("retry", "dies", lambda job: app.jobs.retry(job, reason="again")),
            ("release", "asks", lambda job: app.jobs.release(job, choice="go", reason="go")),
            ("cancel", "sleeps", lambda job: app.jobs.cancel(job, reason="no")),
            ("discard", "member", lambda job: app.jobs.discard(job, reason="no")),
        ]
        for what, kind, act in moves:
            if (job := self.known.get(kind)) is not None:
                self._record(what, {"job": job}, lambda act=act, job=job: act(job))
        with suppress(MulliganError):
            app.queues.pause("async", reason="storm")
            app.queues.resume("async")

    def _bulk(self) -> None:
        with suppress(MulliganError):
            app.operations.start("retry", "state:dead", steps=["rest"], reason="storm")
        for _ in range(3):
            self.enqueue("plain")
        self.enqueue("fails", times=5)


# --- Workers ---
def run_inline() -> None:
    """Run jobs in an inline worker; start another one after an outage."""
    for _ in range(UNAVAILABLE_TRIES):
        with suppress(StoreUnavailable):
            app.run_inline()
            advance_clock(2)
            app.run_inline()
            return


def advance_clock(seconds: int) -> None:
    """Move the database clock forward, so that delayed jobs are due."""
    for _ in range(UNAVAILABLE_TRIES):
        with suppress(StoreUnavailable):
            app.store.shift_clock(seconds * SECOND)
            return


class SupervisorStub:
    """The chores and transactions of a supervisor, with handlers run in this process."""

    def __init__(self, settings: Settings) -> None:
        store = app.store
        manifest = app.manifest("storm")
        self.inline = app.inline(1)
        self.worker = self.inline.worker
        folder = alive.state_folder(settings.worker.state_dir, store.lock_directory, store.identity)
        self.file = alive.LivenessFile(folder, self.worker)
        self.chores = Chores(store, settings, folder)
        self.row = new_worker_row(self.worker, self.file, manifest, settings, frozenset(), 5)
        self.manifest = manifest
        policies = EffectivePolicies(settings.retry, manifest.kinds_with_rules, manifest.queues)
        self.transactions = LoopTransactions(
            store,
            policies,
            create_claimer(self.worker, manifest),
            build_kind_observer(settings.guards),
        )
        self.endings: list[Ending] = []
        self.uncertain = False

    def _retry_unavailable(self, act: Callable[[], Any]) -> Any:
        """Call `act`; repeat while the database is unavailable, as the supervisor does."""
        for _ in range(UNAVAILABLE_TRIES):
            try:
                return act()
            except StoreUnavailable:
                self.uncertain = True
        return None

    def work(self, runner: asyncio.Runner) -> None:
        self._retry_unavailable(lambda: self.chores.recover_at_start(self.worker))
        self._retry_unavailable(lambda: self.chores.register(self.row, self.manifest))
        for _ in range(ROUNDS):
            self._retry_unavailable(lambda: self.chores.renew(self.worker, False))
            self._turn(runner)
            self._retry_unavailable(lambda: self.chores.sweep(self.worker))
            self._retry_unavailable(self.chores.run_operations)
        self._retry_unavailable(lambda: self.transactions.release_all(self.endings, _now()))
        self._retry_unavailable(lambda: self.chores.close_worker(self.worker))
        self.file.close()

    def _turn(self, runner: asyncio.Runner) -> None:
        known = {ending.lease.fence for ending in self.endings} if self.uncertain else None
        try:
            turn = self.transactions.settle_and_claim(self.endings, 5, _now(), known)
        except StoreUnavailable:
            self.uncertain = True
            return
        self.uncertain = False
        self.endings = [
            self._run_handler(runner, lease, turn.previous_attempts.get(lease.id))
            for lease in turn.leases
        ]

    def _run_handler(
        self, runner: asyncio.Runner, lease: Lease, previous: PreviousAttempts | None
    ) -> Ending:
        handler = app.registry.handlers[lease.kind]
        context = Context(self.inline, 0, lease, previous or PreviousAttempts({}, None))
        outcome = self.inline._execute(runner, handler, context)  # noqa: SLF001 - what a runner does
        return Ending(lease, outcome, 1)


def _now() -> int:
    with app.store.read() as tx:
        return tx.now()


def supervise(settings: Settings) -> None:
    with suppress(StoreUnavailable), asyncio.Runner() as runner:
        SupervisorStub(settings).work(runner)


# --- Recovery ---
def recover(settings: Settings, folder: Path) -> None:
    """Run another worker on the database until every job has ended."""
    module.WITNESS = str(folder / "witness.jsonl")
    module.FOLDER = folder
    with app.redirected(settings):
        for _ in _until_settled():
            app.run_inline()
            advance_clock(70)


def _until_settled() -> Iterator[int]:
    for number in range(8):
        with app.store.read() as tx:
            left = SearchQueries(tx).count_jobs({"state": "queued"}, 100) + SearchQueries(
                tx
            ).count_jobs({"state": "running"}, 100)
        if number > 1 and not left:
            return
        yield number
