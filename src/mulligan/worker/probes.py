"""Probes of open breakers, expiry of timed holds, and declarations of dependencies.

The fleet runs one probe at a time. Each step locks the guard's row while it checks and claims,
so that two workers never probe at once. A worker does not wait for a locked row.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mulligan.core.attempt import Ended, Ending, Lease, Outcome
from mulligan.core.durations import SECOND, Micros, check_duration
from mulligan.core.errors import ConfigError, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.ids import new_id
from mulligan.core.job import Gate, GuardRow, Lane, LaneRef, NewJob, State
from mulligan.events.queries import EventQueries
from mulligan.failures.codes import dependency_unavailable
from mulligan.failures.redact import scrub
from mulligan.guards import breaker
from mulligan.guards import budget as budgets
from mulligan.guards.capacity import LOCK_RETRY
from mulligan.guards.kind_breaker import KindTrial
from mulligan.guards.kind_observer import load_kind_state, write_kind_state
from mulligan.guards.lanes import LaneView, find_closed_keys, is_closed
from mulligan.guards.limits import parse_rate_parts
from mulligan.guards.observer import (
    BREAKER_ACTOR,
    PROBE_KIND,
    DependencyObserver,
)
from mulligan.guards.operator_limits import check_concurrency, check_rate
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import GuardState, load_guard
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.specs import DependencySpec, Manifest, allows_no_retries, check_name
from mulligan.storage.base import Transaction
from mulligan.worker.queries import LeaseQueries

# More than the jobs that may have failed as probes already, so that an untried one is among them.
MAX_PROBE_CANDIDATES = breaker.MAX_TRIED_JOBS + 10
PROBE_QUEUE = "mulligan.probes"
PROBE_TIMEOUT = 30 * SECOND
# How long workers without the app's health check leave a due probe to workers that have it.
PROBE_FUNCTION_GRACE = 60 * SECOND

MAX_FAIL_FAST = 100  # jobs of one lane that a fail-fast breaker ends in one claim

# --- Probes ---


@dataclass
class Prober:
    """Serves the breakers of dependencies that are down: claims probes, and ends jobs fast."""

    worker: str
    observer: DependencyObserver
    timeouts: Mapping[str, Micros] = field(default_factory=dict)  # of the kinds this worker knows
    never_probe: frozenset[str] = frozenset()  # kinds with once=True, or of another job queue
    last_resort: frozenset[str] = frozenset()  # kinds with max_retries=0: they fail with the probe
    settle_endings: Callable[[Transaction, Sequence[Ending]], None] = lambda *_: None

    def apply_manifest(self, manifest: Manifest) -> None:
        """Use the kinds of the app as it is now."""
        kinds = manifest.kinds.items()
        self.timeouts = {name: spec.timeout for name, spec in kinds}
        self.never_probe = frozenset(name for name, spec in kinds if spec.once or spec.hosted)
        self.last_resort = frozenset(name for name, spec in kinds if allows_no_retries(spec))

    def find_work(
        self, tx: Transaction, view: LaneView, guards: Mapping[str, GuardState]
    ) -> list[str]:
        """Return the dependencies that can be probed now, or have jobs that must fail fast."""
        return [key for key in guards if self._has_work(tx, view, key, guards)]

    def serve(
        self,
        tx: Transaction,
        view: LaneView,
        guards: Mapping[str, GuardState],
        keys: Iterable[str],
    ) -> list[Lease]:
        """Start the probes of these dependencies, and end the jobs that must fail fast."""
        probes = []
        for key in keys:
            lanes = self._probe_lanes(view, key, guards)
            probe = self.claim_probe(tx, key, lanes, view.state.now)
            if probe is not None:
                probes.append(probe)
            if self._fails_fast(key):
                self._fail_fast(tx, key, guards[key], view.due_lanes_behind(key))
        return probes

    def _has_work(
        self, tx: Transaction, view: LaneView, key: str, guards: Mapping[str, GuardState]
    ) -> bool:
        guard = guards[key]
        now = view.state.now
        if not guard.is_down(now):
            return False
        if self._fails_fast(key) and view.due_lanes_behind(key):
            return True
        if not breaker.is_probe_due(guard, now):
            return False
        if not self._has_health_check(key) and not self._probe_lanes(view, key, guards):
            return False
        return self.is_probe_due(tx, guard, now)

    def _probe_lanes(
        self, view: LaneView, key: str, guards: Mapping[str, GuardState]
    ) -> list[LaneRef]:
        """Return due lanes whose jobs can probe `key`.

        Nothing else may hold such a lane, except dependencies that jobs may probe now as well.
        """
        also_probed = {
            other
            for other, guard in guards.items()
            if breaker.is_probe_due(guard, view.state.now)
            and not self.observer.config_for(other).probe
        }
        lanes = view.due_lanes_behind(key, also_probed)
        if not self.never_probe:
            return lanes
        return [lane for lane in lanes if Lane.parse(lane[0]).kind not in self.never_probe]

    def _fails_fast(self, key: str) -> bool:
        return self.observer.config_for(key).mode == "fail_fast"

    def _fail_fast(
        self, tx: Transaction, key: str, guard: GuardState, lanes: Sequence[LaneRef]
    ) -> None:
        """Claim the due jobs behind a fail-fast breaker and end them at once."""
        failure = dependency_unavailable(key, guard.reason)
        outcome = Outcome(Ended.FAILED, failure=failure, final=True)
        with tx.atomically():
            due = GuardQueries(tx).list_due_jobs(lanes, MAX_FAIL_FAST)
            leases = LeaseQueries(tx).claim_candidates(self.worker, due)
            self.settle_endings(tx, [Ending(lease, outcome) for lease in leases])

    def is_probe_due(self, tx: Transaction, guard: GuardState, now: Micros) -> bool:
        """Return True if it is time to probe and no other probe is running."""
        if not breaker.is_probe_due(guard, now):
            return False
        probe = guard.probe
        return probe is None or not GuardQueries(tx).is_running(probe.job_id, probe.token)

    def claim_probe(
        self, tx: Transaction, key: str, lanes: Sequence[LaneRef], now: Micros
    ) -> Lease | None:
        """Claim a health check or a waiting job as the probe of a dependency.

        `lanes` wait for this dependency only, or also for others that are due for a probe.
        """
        with tx.atomically():
            row = self._lock_due_guard(tx, key, now)
            if row is None:
                return None
            if self._uses_health_check(key, load_guard(row.body), now):
                lease = self._claim_health_check(tx, key)
                return None if lease is None else self._start(tx, lease, [row], now)
            return self._claim_job(tx, row, lanes, now)

    def _uses_health_check(self, key: str, guard: GuardState, now: Micros) -> bool:
        """Return True if the probe is the app's health check instead of a job.

        If only another app declares the check, wait for its workers, but not for long.
        """
        if self._has_health_check(key):
            return True
        overdue = now - guard.probe_at
        return self.observer.config_for(key).probe and overdue < PROBE_FUNCTION_GRACE

    def _has_health_check(self, key: str) -> bool:
        config = self.observer.declared.get(key)
        return config is not None and config.probe

    def _lock_due_guard(self, tx: Transaction, key: str, now: Micros) -> GuardRow | None:
        """Lock a guard that is due for a probe; None if it is not due or locked by another."""
        row = GuardQueries(tx).lock_guard(("dependency", key))
        if row is None or not self.is_probe_due(tx, load_guard(row.body), now):
            return None
        return row

    def _start(self, tx: Transaction, lease: Lease, rows: Sequence[GuardRow], now: Micros) -> Lease:
        """Record a claimed job as the probe of all these guards and limit its time."""
        timeout = lease.timeout or self.timeouts.get(lease.kind) or PROBE_TIMEOUT
        for row in rows:
            before = load_guard(row.body)
            config = self.observer.config_for(row.key)
            timeout = min(timeout, breaker.probe_timeout(before, lease.kind, config, now))
            after = breaker.start_probe(before, lease.fence, lease.kind, config, now)
            self.observer.write(tx, row, before, after, [])
            event = NewEvent(
                EventType.DEPENDENCY_PROBING,
                job_id=lease.id,
                actor=BREAKER_ACTOR,
                data={"dependency": row.key, "kind": lease.kind},
            )
            EventQueries(tx).write_events([event])
        self.observer.probes[lease.fence] = tuple(row.key for row in rows)
        return lease._replace(timeout=timeout)

    def _claim_health_check(self, tx: Transaction, key: str) -> Lease | None:
        """Enqueue and claim the job that calls the health check, if this app declares it."""
        if not self._has_health_check(key):
            return None
        job = NewJob(
            id=new_id(),
            kind=PROBE_KIND,
            queue=PROBE_QUEUE,
            payload=json.dumps({"dependency": key}),
            max_retries=0,
            timeout=PROBE_TIMEOUT,
            deadline=10 * PROBE_TIMEOUT,
        )
        JobQueries(tx).insert_jobs([job], announce=True)
        leases = LeaseQueries(tx).claim_jobs(self.worker, [job.id], 1)
        return leases[0] if leases else None

    def _claim_job(
        self, tx: Transaction, row: GuardRow, lanes: Sequence[LaneRef], now: Micros
    ) -> Lease | None:
        """Claim the waiting job that is the best probe: of the fastest kind, and not tried yet."""
        guard = load_guard(row.body)
        held = find_closed_keys(GuardQueries(tx).list_gates(), now).dependencies
        ranks = {lane: _probe_rank(guard, lane, held, self.last_resort) for lane in lanes}
        for lane in sorted(lanes, key=ranks.__getitem__):
            uses = Lane.parse(lane[0]).dependencies
            other_keys = sorted(held.intersection(uses) - {row.key})
            locked = [self._lock_due_guard(tx, key, now) for key in other_keys]
            others = [other for other in locked if other is not None]
            if len(others) < len(other_keys):
                continue
            due = [
                candidate.id
                for candidate in GuardQueries(tx).list_due_jobs([lane], MAX_PROBE_CANDIDATES)
            ]
            untried = [job_id for job_id in due if job_id not in guard.tried_jobs]
            leases = LeaseQueries(tx).claim_jobs(self.worker, untried or due, 1)
            if leases:
                return self._start(tx, leases[0], [row, *others], now)
        return None


def claim_trials(tx: Transaction, worker: str, view: LaneView) -> list[Lease]:
    """Claim the jobs of held kinds that operators try."""
    leases: list[Lease] = []
    for row in view.state.guards:
        if row.scope == "kind":
            leases += _claim_trial(tx, worker, view, row)
    return leases


def _claim_trial(tx: Transaction, worker: str, view: LaneView, row: GuardRow) -> list[Lease]:
    trial = load_kind_state(row.body).trial
    if trial is None or not view.may_try(trial.lane):
        return []
    with tx.atomically():
        locked = GuardQueries(tx).lock_guard(("kind", row.key))
        if locked is None or load_kind_state(locked.body).trial != trial:
            return []
        leases = LeaseQueries(tx).claim_jobs(worker, [trial.job], 1)
        if not leases and _still_waits(tx, trial):
            return []
        state = replace(load_kind_state(locked.body), trial=trial._replace(claimed=True))
        write_kind_state(tx, locked, state)
    return leases


def _still_waits(tx: Transaction, trial: KindTrial) -> bool:
    """True if the job of a trial can be claimed later: another transaction has locked it."""
    job = GuardQueries(tx).get_trial_job(trial.job, trial.token)
    return job is not None and job.state == State.QUEUED and job.token < trial.token


class _ProbeRank(NamedTuple):
    """Sort key of lanes for a probe: the smallest is the best."""

    fails_with_probe: bool  # its only run would be spent on the probe
    held_dependencies: int  # a job that needs another held dependency proves least
    retry: bool
    usual_ms: float
    priority: int
    lane: str


def _probe_rank(
    guard: GuardState, lane: LaneRef, held: frozenset[str], last_resort: frozenset[str]
) -> _ProbeRank:
    key, priority = lane
    parsed = Lane.parse(key)
    usual_ms = guard.median_ms(parsed.kind)
    return _ProbeRank(
        fails_with_probe=parsed.kind in last_resort,
        held_dependencies=len(held.intersection(parsed.dependencies)),
        retry=parsed.retry,
        usual_ms=float("inf") if usual_ms is None else usual_ms,
        priority=priority,
        lane=key,
    )


def open_expired_holds(
    tx: Transaction, observer: DependencyObserver, gates: Iterable[Gate], now: Micros
) -> list[Gate]:
    """End the expired holds of dependencies by starting their ramps. Return those that stay.

    A hold that another worker is ending at the same time counts as closed for now.
    """
    expired = [gate for gate in gates if gate.scope == "dependency" and not is_closed(gate, now)]
    kept = [gate for gate in expired if not expire_hold(tx, observer, gate, now)]
    return [gate._replace(until=now + LOCK_RETRY) for gate in kept]


def expire_hold(tx: Transaction, observer: DependencyObserver, gate: Gate, now: Micros) -> bool:
    """Open a gate whose time is over; waiting jobs start on a ramp.

    Return False if the gate stays: another worker has locked its guard, or it was extended.
    """
    with tx.atomically():
        row = GuardQueries(tx).lock_guard(("dependency", gate.key))
        if row is None:
            return False
        current = _read_gate(tx, gate.key)
        if current is None:
            return True
        if current.until is None or current.until > now:
            return False
        before = load_guard(row.body)
        held = current.until - current.since
        changes: breaker.Changes = []
        after = breaker.expire_hold(before, held, observer.config_for(gate.key), now, changes)
        observer.write(tx, row, before, after, changes)
    return True


def _read_gate(tx: Transaction, dependency: str) -> Gate | None:
    for gate in GuardQueries(tx).list_gates():
        if gate.scope == "dependency" and gate.key == dependency:
            return gate
    return None


# --- Declarations ---

MODES = ("hold", "fail_fast")

HealthCheck = Callable[[], Any]  # sync or async; unhealthy if it raises or returns False


def build_dependency_spec(key: str, **options: Any) -> DependencySpec:
    """Check the options of `app.dependency()`, so that the error names the wrong one."""
    defaults = DependencySpec(key="")
    mode = options.get("mode", defaults.mode)
    if mode not in MODES:
        message = f"dependency {key!r}: mode must be {' or '.join(MODES)}, not {mode!r}"
        raise ConfigError(message)
    probe = options.get("probe")
    if probe is not None and not callable(probe):
        message = (
            f"dependency {key!r}: probe must be a function without arguments, not {probe!r:.80}"
        )
        raise ConfigError(message)
    slow = options.get("slow")
    return DependencySpec(
        key=check_name("dependency", key),
        max_concurrency=check_concurrency(options.get("max_concurrency"), "max_concurrency"),
        rate=check_rate(options.get("rate")),
        mode=mode,
        open_at=_check_share("open_at", options["open_at"]),
        min_calls=_check_count("min_calls", options["min_calls"]),
        window=_check_positive_duration("window", options["window"]),
        cool_down=_check_positive_duration("cool_down", options["cool_down"]),
        budget=_parse_budget(options["budget"]),
        slow=None if slow is None else _check_positive_duration("slow", slow) / 1000,
        probe=probe is not None,
    )


def _check_share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        message = f"{name} must be a share between 0 and 1, not {value!r}"
        raise Refused(message)
    return float(value)


def _check_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{name} must be a whole number of at least 1, not {value!r}"
        raise Refused(message)
    return value


def _check_positive_duration(name: str, value: Any) -> int:
    micros = check_duration(name, value)
    if micros <= 0:
        message = f"{name} must be above 0 s, not {value!r}"
        raise Refused(message)
    return micros


def _parse_budget(value: Any) -> budgets.BudgetConfig | None:
    """Parse a share of first attempts, a text like "100/h", or None for no budget."""
    if value is None:
        return None
    if isinstance(value, str):
        parts = parse_rate_parts(value)
        if parts is not None and parts[0] > 0:
            return budgets.per_period(*parts)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        message = (
            "budget must be retries per success (0.1), retries per period"
            f' ("100/h") or None, not {value!r}'
        )
        raise Refused(message)
    return budgets.BudgetConfig(share=float(value))


# --- Health checks ---


async def run_health_check(probes: Mapping[str, HealthCheck], dependency: str) -> dict[str, Any]:
    """Call the health check of a dependency. Never raises: any error means unhealthy."""
    function = probes[dependency]
    if inspect.iscoroutinefunction(function):
        answer, error = await _await_answer(function())
    else:
        answer, error = await _call_on_thread(function)
        if inspect.isawaitable(answer):  # a lambda that returns a coroutine, a callable object
            answer, error = await _await_answer(answer)
    if error is not None:
        return {"healthy": False, "error": scrub(f"{type(error).__name__}: {error}")[:500]}
    return {"healthy": answer is not False}


Answer = tuple[Any, BaseException | None]


async def _await_answer(answer: Awaitable[Any]) -> Answer:
    try:
        return await answer, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - any error means unhealthy
        return None, error


async def _call_on_thread(function: HealthCheck) -> Answer:
    """Call a function on a new thread: one that hangs for ever must not occupy a pool."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()

    def finish(answer: Answer) -> None:
        if not done.done():
            # An error is a result too: futures refuse some exceptions, such as StopIteration.
            done.set_result(answer)

    def call() -> None:
        answer: Answer
        try:
            answer = function(), None
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            answer = None, error
        try:
            loop.call_soon_threadsafe(finish, answer)
        except RuntimeError:  # the loop was closed
            return

    threading.Thread(target=call, name="mulligan-probe", daemon=True).start()
    return await done
