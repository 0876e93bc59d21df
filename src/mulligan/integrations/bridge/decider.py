"""Decide for a host queue: when it runs a task again, and whether a task may run now.

Each process of the host has one decider. It counts what tasks do to their dependencies, so that
the circuit breakers and retry budgets of the fleet cover the host queue too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from random import Random
from typing import NamedTuple, TypeVar

from mulligan.app.mulligan import Mulligan
from mulligan.core.attempt import Decision, Ground
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Gate, State, split_uses
from mulligan.guards.observer import DependencyObserver
from mulligan.guards.queries import GuardQueries
from mulligan.integrations.bridge.recorder import RecordContext, Recorded, record
from mulligan.integrations.bridge.report import TaskReport
from mulligan.manifest.specs import KindSpec

log = logging.getLogger("mulligan.bridge")

T = TypeVar("T")

GATES_TTL = 1.0  # seconds for which closed gates are cached
DEFAULT_POSTPONE = 30.0  # seconds, for a gate without an end
MAX_JITTER = 5.0  # seconds added to a postponement, so that not all tasks return at once
BUSY_PAUSE = 0.02  # seconds
PROBE_TOKEN = 0  # of a call that another queue made: it has no lease

GetContext = Callable[..., RecordContext]


class HostOrder(NamedTuple):
    """Decision about a task that failed, as the host must carry it out."""

    retry_in: float | None  # seconds; None: give it up
    reason: str


class Decider:
    """Decides about the failures of tasks in this process."""

    def __init__(self, app: Mulligan, context_of: GetContext) -> None:
        self._app = app
        self._context_of = context_of
        self._rng = Random()
        self._gates: tuple[float, Sequence[Gate]] = (0.0, ())
        self._clock_offset: Micros = 0  # of the database's clock
        self.observer = DependencyObserver()

    # --- Failures ---

    def decide(self, report: TaskReport) -> HostOrder | None:
        """Record a failure and return the order. None: it was decided before."""
        self.observer.declared = {
            key: spec.breaker_config for key, spec in self._app.registry.dependencies.items()
        }
        context = self._context_of(report, decide=True)
        result, decision = record(self._app.store, report, context)
        while result is Recorded.BUSY:
            time.sleep(BUSY_PAUSE)
            result, decision = record(self._app.store, report, context)
        if decision is None:
            return None
        self._gates = (0.0, ())
        keys = split_uses(context.new_job.uses)
        self._judge(keys, passed=False)
        return HostOrder(self._retry_in(decision, keys), decision.reason)

    def _retry_in(self, decision: Decision, keys: Iterable[str]) -> float | None:
        if decision.state is not State.QUEUED:
            return None
        self._closed_gates()  # with the time of the database
        now = self._now()
        until = max(now, decision.run_at or now)
        if decision.hold is not None:
            until = max(until, decision.hold[1])
        wait = (until - now) / SECOND
        if decision.ground is Ground.DEPENDENCY_DOWN:
            wait = max(wait, self._closed_for([("dependency", key) for key in keys]))
        return wait

    # --- Gates ---

    def closed_for(self, spec: KindSpec) -> float:
        """Return for how many seconds a task of this kind must not start; 0: it may."""
        scopes = [("kind", spec.name), ("queue", spec.queue)]
        scopes += [("dependency", key) for key in split_uses(spec.uses)]
        return self._closed_for(scopes)

    def _closed_for(self, scopes: Sequence[tuple[str, str]]) -> float:
        now = self._now()
        waits = [
            self._closed_until(gate, now) - now
            for gate in self._closed_gates()
            if (gate.scope, gate.key) in scopes
        ]
        wait = max(waits, default=0) / SECOND
        return wait + self._rng.uniform(0, min(MAX_JITTER, wait / 4)) if wait > 0 else 0.0

    def _closed_until(self, gate: Gate, now: Micros) -> Micros:
        """Return when a task may run into a closed gate: as the probe, or when it opens."""
        if gate.probe_at is not None:
            return gate.probe_at
        if gate.until is not None:
            return gate.until
        return now + round(DEFAULT_POSTPONE * SECOND)

    def _closed_gates(self) -> Sequence[Gate]:
        read_at, gates = self._gates
        if time.monotonic() - read_at > GATES_TTL:
            with self._app.store.read() as tx:
                gates = GuardQueries(tx).list_gates()
                self._clock_offset = tx.now() - time.time_ns() // 1000
            self._gates = (time.monotonic(), gates)
        return gates

    # --- Successes ---

    def count_success(self, spec: KindSpec) -> None:
        """Count a success in memory. If a breaker is open, it may be the probe."""
        keys = split_uses(spec.uses)
        if not keys:
            return
        self.observer.count_successes(keys)
        closed = {gate.key for gate in self._gates[1] if gate.scope == "dependency"}
        if closed.intersection(keys):
            threading.Thread(target=self._judge_passed, args=(keys,), daemon=True).start()

    def _judge_passed(self, keys: Sequence[str]) -> None:
        try:
            self._judge(keys, passed=True)
        except Exception:  # the next success is a probe too
            log.exception("a success was not taken as a probe")

    def _judge(self, keys: Sequence[str], *, passed: bool) -> None:
        if not keys or all(gate.scope != "dependency" for gate in self._closed_gates()):
            return
        with self._app.store.begin() as tx:
            for key in sorted(keys):
                fence = (f"host-{self._rng.getrandbits(64):x}", PROBE_TOKEN)
                self.observer.judge_call(tx, key, fence, tx.now(), passed=passed)
        self._gates = (0.0, ())

    def flush(self) -> None:
        """Write what was counted. Called by the courier every few seconds."""
        if not self.observer.has_pending:
            return
        with self._app.store.begin() as tx:
            self.observer.observe(tx, [], tx.now())
        self.observer.commit()

    def _now(self) -> Micros:
        return time.time_ns() // 1000 + self._clock_offset


def call_within(seconds: float, call: Callable[[], T]) -> T | None:
    """Return the result of a call, or None if it raised or took too long. It then continues."""
    results: SimpleQueue[T | None] = SimpleQueue()

    def work() -> None:
        try:
            results.put(call())
        except Exception as error:  # noqa: BLE001 - the host goes on without us
            log.warning("Mulligan cannot decide: %s", error)
            results.put(None)

    threading.Thread(target=work, name="mulligan-decider", daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except Empty:
        log.warning("Mulligan has not decided within %s s", seconds)
        return None
