"""A small life of clients and workers in one process: everything that commits, once or a few times."""

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
from mulligan.guards.observer import build_kind_observer
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker import liveness as alive
from mulligan.worker.claim import create_claimer
from mulligan.worker.liveness import worker_row
from mulligan.worker.runner.context import Context
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions

app = module.app
ROUNDS = 6
AWAY = 5  # how often somebody tries again who was told that the database is away


class Unwanted(Exception):
    """The transaction is to be rolled back."""


class Life:
    """Clients, then a worker, clients again, a supervisor's turns and chores; on one store."""

    def __init__(self, settings: Settings, folder: Path, seed: int) -> None:
        self.settings, self.folder = settings, folder
        self.rng = Random(seed)
        self.book = records.Clients(folder / "clients.jsonl", "life")
        self.known: dict[str, str] = {}
        self.number = 0

    def lead(self) -> None:
        module.WITNESS = str(self.folder / "witness.jsonl")
        module.FOLDER = self.folder
        with app.redirected(self.settings):
            self._enqueue_all()
            run_inline()
            self._by_hand()
            supervise(self.settings)
            later(5)
            run_inline()
            self._bulk()
            supervise(self.settings)

    # -- clients ----------------------------------------------------------------------------------
    def _told(self, what: str, asked: dict[str, Any], act: Callable[[], Any]) -> Any:
        """A call, noted; whatever it is told, this life goes on."""
        with suppress(MulliganError), self.book.call(what, **asked) as call:
            answer = act()
            jobs = answer if isinstance(answer, list) else [answer]
            call.ok(*(job for job in jobs if job is not None))
            return answer
        return None

    def enqueue(self, kind: str, *, options: dict[str, Any] | None = None, **payload: Any) -> Any:
        said = {"n": self._next()} | payload if kind != "once" else payload
        job = self._told(
            "enqueue",
            {"kind": kind, "payload": said},
            lambda: app.enqueue(kind, said, **(options or {})),
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
        self._together()
        self._in_transactions()
        self._batch()
        self.later = self.enqueue("sleeps", seconds=0.0, options={"delay": 60})

    def _together(self) -> None:
        payloads = [{"n": self._next()} for _ in range(4)]
        asked = {"kind": "plain", "payloads": payloads}
        self._told(
            "enqueue_many",
            asked,
            lambda: app.insert([app.prepared("plain", one) for one in payloads]),
        )

    def _in_transactions(self) -> None:
        payload = {"n": self._next()}

        def inserted() -> Any:
            with app.transaction() as connection:
                return app.enqueue("plain", payload, connection=connection)

        self._told("enqueue", {"kind": "plain", "payload": payload}, inserted)
        unwanted = {"n": self._next()}
        with (
            suppress(MulliganError),
            self.book.call("enqueue", kind="plain", payload=unwanted) as call,
        ):
            ids: list[str] = []
            try:
                with app.transaction() as connection:
                    ids.append(app.enqueue("plain", unwanted, connection=connection).id)
                    raise Unwanted
            except Unwanted:
                call.rolled_back(*ids)

    def _batch(self) -> None:
        with suppress(MulliganError):
            batch = app.batch("three", on_complete="completed", tolerance=1)
            for fate in ("well", "fails", "dies", "splits"):
                self.enqueue("member", fate=fate, options={"batch": batch})
            self._told("seal", {"batch": batch.id}, lambda: batch.seal() and None)

    def _by_hand(self) -> None:
        moves: list[tuple[str, str, Callable[[str], Any]]] = [
            ("retry", "dies", lambda job: app.jobs.retry(job, reason="again")),
            ("release", "asks", lambda job: app.jobs.release(job, choice="go", reason="go")),
            ("cancel", "sleeps", lambda job: app.jobs.cancel(job, reason="no")),
            ("discard", "member", lambda job: app.jobs.discard(job, reason="no")),
        ]
        for what, kind, act in moves:
            if (job := self.known.get(kind)) is not None:
                self._told(what, {"job": job}, lambda act=act, job=job: act(job))
        with suppress(MulliganError):
            app.queues.pause("async", reason="for a moment")
            app.queues.resume("async")

    def _bulk(self) -> None:
        with suppress(MulliganError):
            app.operations.start("retry", "state:dead", steps=["rest"], reason="storm")
        for _ in range(3):
            self.enqueue("plain")
        self.enqueue("fails", times=5)


# -- workers -------------------------------------------------------------------------------------
def run_inline() -> None:
    """A worker that meets an outage goes away; the next one comes."""
    for _ in range(AWAY):
        with suppress(StoreUnavailable):
            app.run_inline()
            later(2)
            app.run_inline()
            return


def later(seconds: int) -> None:
    """What was put off is due."""
    for _ in range(AWAY):
        with suppress(StoreUnavailable):
            app.store.shift_clock(seconds * SECOND)
            return


class Hands:
    """A supervisor's parts, without its processes: chores and turns, with the handlers run in between."""

    def __init__(self, settings: Settings) -> None:
        store = app.store
        manifest = app.manifest("storm")
        self.inline = app.inline(1)
        self.worker = self.inline.worker
        folder = alive.state_folder(settings.worker.state_dir, store.lock_directory, store.identity)
        self.file = alive.LivenessFile(folder, self.worker)
        self.chores = Chores(store, settings, folder)
        self.row = worker_row(self.worker, self.file, manifest, settings, frozenset(), 5)
        self.manifest = manifest
        policies = EffectivePolicies(settings.retry, manifest.ruled, manifest.queues)
        self.turns = LoopTransactions(
            store, policies, create_claimer(self.worker, manifest), build_kind_observer(settings.guards)
        )
        self.endings: list[Ending] = []
        self.doubt = False

    def _insistent(self, act: Callable[[], Any]) -> Any:
        """As the supervisor does: what fails because the database is away is tried again."""
        for _ in range(AWAY):
            try:
                return act()
            except StoreUnavailable:
                self.doubt = True
        return None

    def work(self, runner: asyncio.Runner) -> None:
        self._insistent(lambda: self.chores.recover_at_start(self.worker))
        self._insistent(lambda: self.chores.register(self.row, self.manifest))
        for _ in range(ROUNDS):
            self._insistent(lambda: self.chores.renew(self.worker, False))
            self._turn(runner)
            self._insistent(lambda: self.chores.sweep(self.worker))
            self._insistent(self.chores.run_operations)
        self._insistent(lambda: self.turns.release_all(self.endings, _now()))
        self._insistent(lambda: self.chores.close_worker(self.worker))
        self.file.close()

    def _turn(self, runner: asyncio.Runner) -> None:
        known = {ending.lease.fence for ending in self.endings} if self.doubt else None
        try:
            turn = self.turns.settle_and_claim(self.endings, 5, _now(), known)
        except StoreUnavailable:
            self.doubt = True
            return
        self.doubt = False
        self.endings = [
            self._ran(runner, lease, turn.previous_attempts.get(lease.id)) for lease in turn.leases
        ]

    def _ran(self, runner: asyncio.Runner, lease: Lease, memory: PreviousAttempts | None) -> Ending:
        handler = app.registry.handlers[lease.kind]
        context = Context(self.inline, 0, lease, memory or PreviousAttempts({}, None))
        outcome = self.inline._execute(runner, handler, context)  # noqa: SLF001 - a runner's part, in this process
        return Ending(lease, outcome, 1)


def _now() -> int:
    with app.store.read() as unit:
        return unit.now()


def supervise(settings: Settings) -> None:
    with suppress(StoreUnavailable), asyncio.Runner() as runner:
        Hands(settings).work(runner)


# -- afterwards ----------------------------------------------------------------------------------
def recover(settings: Settings, folder: Path) -> None:
    """Somebody else comes: he finds what was left, and everything comes to an end."""
    module.WITNESS = str(folder / "witness.jsonl")
    module.FOLDER = folder
    with app.redirected(settings):
        for _ in _until_calm():
            app.run_inline()
            later(70)


def _until_calm() -> Iterator[int]:
    for number in range(8):
        with app.store.read() as unit:
            left = unit.count_jobs({"state": "queued"}, 100) + unit.count_jobs(
                {"state": "running"}, 100
            )
        if number > 1 and not left:
            return
        yield number
