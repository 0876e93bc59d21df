"""What may pass a closed breaker: one probe for the whole fleet; and how a hold whose time is over ends.

Each step holds the guard's row while it looks and takes, so that two workers never both do it; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.durations import length
from mulligan.core.errors import ConfigError, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, Gate, GuardRow, Lane, Micros, NewJob
from mulligan.failures.redact import scrub
from mulligan.guards import breaker
from mulligan.guards import budget as budgets
from mulligan.guards.gates import checked_concurrency, checked_rate
from mulligan.guards.lanes import closed_keys
from mulligan.guards.limits import rate_parts
from mulligan.guards.observer import PROBE_KIND, DependencyObserver, read_guard_state
from mulligan.guards.state import GuardState
from mulligan.manifest.specs import DependencySpec, checked_name
from mulligan.storage.base import Transaction

LOOKED_AT = breaker.MOST_TRIED + 10  # jobs of a lane: some of them have failed as probes already
PROBE_QUEUE = "mulligan.probes"
PROBE_LIMIT = 30 * SECOND
UNASKED = 60 * SECOND  # for which those who have a function may keep all others waiting

Open = tuple[str, int]  # lane key, priority


@dataclass
class Prober:
    worker: str
    watch: DependencyObserver
    timeouts: Mapping[str, Micros]  # of the kinds this worker knows

    def may(self, unit: Transaction, guard: GuardState, now: Micros) -> bool:
        """Is it time, and is no probe under way?"""
        probe = guard.probe
        return breaker.may_probe(guard, now) and (
            probe is None or not unit.runs(probe.job_id, probe.token)
        )

    def take(self, unit: Transaction, key: str, lanes: Sequence[Open], now: Micros) -> Lease | None:
        """`lanes`: those of it that wait for nothing else, or for others of which it is time to look too."""
        with unit.together():
            found = self._in_hand(unit, key, now)
            if found is None:
                return None
            if self._asks(key, read_guard_state(found.body), now):
                return self._started(unit, self._function(unit, key), [found], now)
            return self._job(unit, found, lanes, now)

    def _asks(self, key: str, guard: GuardState, now: Micros) -> bool:
        """A function, not a job; unless it is another app's, and nobody who has it comes by."""
        has, declared = (
            key in self.watch.own and self.watch.own[key].probe,
            self.watch.terms(key).probe,
        )
        return has or (declared and now - guard.probe_at < UNASKED)

    def _in_hand(self, unit: Transaction, key: str, now: Micros) -> GuardRow | None:
        """None: somebody else has it, or it is not time."""
        row = unit.guard(("dependency", key))
        return None if row is None or not self.may(unit, read_guard_state(row.body), now) else row

    def _started(
        self, unit: Transaction, lease: Lease | None, rows: Sequence[GuardRow], now: Micros
    ) -> Lease | None:
        """It looks for all of these."""
        if lease is None:
            return None
        for row in rows:
            guard = read_guard_state(row.body)
            self.watch.write(
                unit, row, guard, breaker.probing(guard, lease.id, lease.token, lease.kind, now), []
            )
            news = {"dependency": row.key, "kind": lease.kind}
            unit.write_events(
                [
                    NewEvent(
                        EventType.DEPENDENCY_PROBING, job_id=lease.id, actor="breaker", data=news
                    )
                ]
            )
        self.watch.probes[lease.fence] = tuple(row.key for row in rows)
        cuts = [breaker.cut(read_guard_state(row.body), lease.kind, now) for row in rows]
        usual = lease.timeout or self.timeouts.get(lease.kind) or PROBE_LIMIT
        return lease._replace(timeout=min(usual, *cuts))

    def _function(self, unit: Transaction, key: str) -> Lease | None:
        """Only a worker whose app has it can call it."""
        own = self.watch.own.get(key)
        if own is None or not own.probe:
            return None
        job = NewJob(
            id=new_id(),
            kind=PROBE_KIND,
            queue=PROBE_QUEUE,
            payload=json.dumps({"dependency": key}),
            max_retries=0,
            timeout=PROBE_LIMIT,
            deadline=10 * PROBE_LIMIT,
        )
        unit.insert([job], announce=True)
        return next(iter(unit.take(self.worker, [job.id], 1)), None)

    def _job(
        self, unit: Transaction, row: GuardRow, lanes: Sequence[Open], now: Micros
    ) -> Lease | None:
        """The first in order of the kind that is usually done soonest; one that failed before says less."""
        guard, held = read_guard_state(row.body), closed_keys(unit.gates(), now)["dependency"]
        for lane in sorted(lanes, key=lambda lane: _rank(guard, lane, held)):
            shut = sorted(held.intersection(Lane.parse(lane[0]).uses.split(",")) - {row.key})
            others = [found for key in shut if (found := self._in_hand(unit, key, now)) is not None]
            if len(others) < len(shut):
                continue
            waiting = [found[2] for found in unit.candidates([lane], LOOKED_AT)]
            fresh = [job_id for job_id in waiting if job_id not in guard.tried]
            leases = unit.take(self.worker, fresh or waiting, 1)
            if leases:
                return self._started(unit, leases[0], [row, *others], now)
        return None


def _rank(guard: GuardState, lane: Open, held: set[str]) -> tuple[int, bool, float, int, str]:
    """What uses another that is down too says least."""
    parsed = Lane.parse(lane[0])
    usual = guard.median(parsed.kind)
    shut = len(held.intersection(parsed.uses.split(",")))
    return shut, parsed.retry, float("inf") if usual is None else usual, lane[1], lane[0]


def let_go(unit: Transaction, watch: DependencyObserver, gate: Gate, now: Micros) -> bool:
    """A hold until a certain time is over: what waits comes on a ramp. False: somebody else is at it."""
    with unit.together():
        row = unit.guard(("dependency", gate.key))
        if row is None:
            return False
        found = next((one for one in unit.gates() if one[:2] == gate[:2]), None)
        if found is None or found.until is None or found.until > now:
            return found is None
        before = read_guard_state(row.body)
        changes: breaker.Changes = []
        after = breaker.let_go(
            before, found.until - found.since, watch.terms(gate.key), now, changes
        )
        watch.write(unit, row, before, after, changes)
    return True


# A dependency as code declares it, and the system job that calls its health function.

MODES = ("hold", "fail_fast")

Health = Callable[[], Any]  # sync or async; raises or returns False: it is down


def dependency_spec(key: str, **said: Any) -> DependencySpec:
    """Checked, field by field, so that a mistake is told where it was made."""
    defaults = DependencySpec(key="")
    mode = said.get("mode", defaults.mode)
    if mode not in MODES:
        message = f"dependency {key!r}: mode is one of {', '.join(MODES)}, not {mode!r}"
        raise ConfigError(message)
    probe = said.get("probe")
    if probe is not None and not callable(probe):
        message = f"dependency {key!r}: probe is a function without arguments, not {probe!r:.80}"
        raise ConfigError(message)
    slow = said.get("slow")
    return DependencySpec(
        key=checked_name("dependency", key),
        max_concurrency=checked_concurrency(said.get("max_concurrency"), "max_concurrency"),
        rate=checked_rate(said.get("rate")),
        mode=mode,
        open_at=_share("open_at", said["open_at"]),
        min_calls=_whole("min_calls", said["min_calls"]),
        window=_span("window", said["window"]),
        cool_down=_span("cool_down", said["cool_down"]),
        budget=_budget(said["budget"]),
        slow=None if slow is None else _span("slow", slow) / 1000,
        probe=probe is not None,
    )


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        message = f"{name} is a share between 0 and 1, not {value!r}"
        raise Refused(message)
    return float(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{name} must be a whole number from 1, not {value!r}"
        raise Refused(message)
    return value


def _span(name: str, value: Any) -> int:
    micros = length(name, value)
    if micros <= 0:
        message = f"{name} must be longer than nothing, not {value!r}"
        raise Refused(message)
    return micros


def _budget(value: Any) -> budgets.BudgetTerms | None:
    """A share of the first tries, "N/h", or None: nobody counts."""
    if value is None:
        return None
    parts = rate_parts(value) if isinstance(value, str) else None
    if parts is not None and parts[0] > 0:
        return budgets.per_period(*parts)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        message = f'budget is retries per success (0.1), retries per period ("100/h") or None, not {value!r}'
        raise Refused(message)
    return budgets.BudgetTerms(share=float(value))


async def ask(probes: Mapping[str, Health], dependency: str) -> dict[str, Any]:
    """What the system job returns. Whatever the function does, this ends with a word about the dependency."""
    function = probes[dependency]
    if inspect.iscoroutinefunction(function):
        answer, error = await _awaited(function())
    else:
        answer, error = await _on_a_thread(function)
        if inspect.isawaitable(answer):  # a lambda around a coroutine, an object that is called
            answer, error = await _awaited(answer)
    if error is not None:
        return {"healthy": False, "error": scrub(f"{type(error).__name__}: {error}")[:500]}
    return {"healthy": answer is not False}


Answer = tuple[Any, BaseException | None]


async def _awaited(answer: Awaitable[Any]) -> Answer:
    try:
        return await answer, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is not well
        return None, error


async def _on_a_thread(function: Health) -> Answer:
    """A thread of its own: one that hangs for ever must not take a pool's place."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()

    def finish(answer: Answer) -> None:
        if not done.done():
            done.set_result(answer)  # an error too: a future refuses to be given some of them

    def call() -> None:
        answer: Answer
        try:
            answer = function(), None
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            answer = None, error
        try:
            loop.call_soon_threadsafe(finish, answer)
        except RuntimeError:  # the loop is gone
            return

    threading.Thread(target=call, name="mulligan-probe", daemon=True).start()
    return await done
