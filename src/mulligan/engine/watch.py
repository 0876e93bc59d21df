"""What a worker sees of the dependencies its jobs use, and how that becomes what the fleet knows.

Outcomes are counted in memory and told once a second, at once when one failed: folded into the guard's row where it is
free, else appended for whoever folds next. The worker that sees a dependency go down opens its breaker in the very
transaction that settles those failures, so that not even they are charged.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Any

from mulligan.core.attempt import Cls, Ended, Ending, Lease
from mulligan.engine.kinds import ENDPOINT
from mulligan.engine.telling import tell_guard
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND, Gate, GuardRow, Micros
from mulligan.policy import breaker
from mulligan.policy import budget as budgets
from mulligan.policy.budget import Bucket
from mulligan.policy.guard import DEFAULT, FRESH, Guard, Terms, read_guard
from mulligan.policy.seen import MOST_JOBS, NOTHING, Seen, Verdict, blame, read_seen, step_of
from mulligan.store.base import Unit

PROBE_KIND = "mulligan.probe"
OF_ENDPOINTS = Terms(min_calls=5, budget=None, most=2)  # what deliveries use: one that hangs is soon held
TOLD_EVERY = SECOND
MOST_KNOWN = 5000  # dependencies
GUARD = "breaker"  # the actor of what it does by itself

Fence = tuple[str, int]

remembered = lru_cache(maxsize=512)(read_guard)
_EVENTS = {
    "opened": EventType.DEPENDENCY_OPENED,
    "closed": EventType.DEPENDENCY_CLOSED,
    "changed": EventType.DEPENDENCY_CHANGED,
}


@dataclass(slots=True)
class Page:
    """What one flush says about one dependency, while it is counted."""

    ok: int = 0
    failed: float = 0.0
    slow: int = 0
    limited: int = 0
    first_ok: int = 0
    retry_ok: int = 0
    jobs: list[str] = field(default_factory=list)
    times: dict[str, dict[int, float]] = field(default_factory=dict)
    verdict: Verdict | None = None

    def blame(self, part: float, job_id: str) -> None:
        self.failed += part
        if part and len(self.jobs) < MOST_JOBS:
            self.jobs.append(job_id)

    def took(self, kind: str, ms: float) -> None:
        steps, step = self.times.setdefault(kind, {}), step_of(ms)
        steps[step] = steps.get(step, 0) + 1

    def seen(self) -> Seen:
        return Seen(
            self.ok, self.failed, self.slow, self.limited, self.first_ok, self.retry_ok, 0, tuple(self.jobs),
            self.times, self.verdict,
        )  # fmt: skip


@dataclass
class Watch:
    """One per worker. A turn at a time; chores come in between."""

    own: Mapping[str, Terms] = field(default_factory=dict)  # as this worker's app declares
    others: Mapping[str, Terms] = field(default_factory=dict)  # as other apps on this database do
    rng: Random = field(default_factory=lambda: Random(SystemRandom().getrandbits(64)))
    waiting: frozenset[str] = frozenset()  # dependencies of which due jobs wait
    known: dict[str, Guard] = field(default_factory=dict)  # as last read
    probes: dict[Fence, tuple[str, ...]] = field(default_factory=dict)  # of this worker, and for whom they look
    lock: threading.RLock = field(default_factory=threading.RLock)
    _seen: dict[str, Seen] = field(default_factory=dict)  # not told yet
    _told_at: Micros = 0
    _overdue: set[Fence] = field(default_factory=set)  # under way, and counted as slow already
    _slow: dict[tuple[str, str], tuple[Guard, float | None]] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)  # their guards were in another hand
    _staged: Callable[[], None] | None = None

    def terms(self, key: str) -> Terms:
        return self.own.get(key) or self.others.get(key) or (OF_ENDPOINTS if key.startswith(ENDPOINT) else DEFAULT)

    # -- in a turn ----------------------------------------------------------------------------------
    def observe(self, unit: Unit, endings: Sequence[Ending], now: Micros) -> dict[Fence, str]:
        """Count how these ended and tell it if it is time; returns what is to blame where it is down."""
        with self.lock:
            fresh = self._counted(endings)
            if not (fresh or self._seen or self._late):
                return {}
            loud = any(seen.failed or seen.verdict for seen in fresh.values()) or any(
                seen.retried and self._runs_low(key, now) for key, seen in self._seen.items()
            )
            done = [ending.lease.fence for ending in endings]
            if not loud and 0 <= now - self._told_at < TOLD_EVERY:
                self._staged = lambda: self._kept(fresh, done)
                return self._to_blame(endings, now)
            self._tell(unit, _sum(self._seen, fresh), now)
            self._staged = lambda: self._told(now, done)
            return self._to_blame(endings, now)

    def begin(self) -> None:
        """A turn begins. If the last one was not durable it is repeated, and counts again from where it was."""
        self._staged = None

    def commit(self) -> None:
        """The turn is durable."""
        with self.lock:
            staged, self._staged = self._staged, None
            if staged is not None:
                staged()

    def _keep(self, fresh: Mapping[str, Seen]) -> None:
        self._seen = _sum(self._seen, fresh)

    def _kept(self, fresh: Mapping[str, Seen], done: Sequence[Fence]) -> None:
        self._keep(fresh)
        self._overdue.difference_update(done)

    def _told(self, now: Micros, done: Sequence[Fence]) -> None:
        self._seen, self._told_at = {}, now
        self._overdue.difference_update(done)
        for fence in done:
            self.probes.pop(fence, None)
        if len(self.known) > MOST_KNOWN:  # keys may come from payloads: of those at rest nothing need be known
            self.known = {key: guard for key, guard in self.known.items() if guard.active(self.terms(key))}
            self._slow.clear()

    def _to_blame(self, endings: Sequence[Ending], now: Micros) -> dict[Fence, str]:
        found: dict[Fence, str] = {}
        for ending in endings:
            keys = _keys(ending.lease)
            if _let_down(ending, probe=ending.lease.fence in self.probes):
                down = [key for key in keys if self.known.get(key, FRESH).is_down(now)]
                if down:
                    found[ending.lease.fence] = down[0]
        return found

    def started(self, leases: Iterable[Lease]) -> None:
        """Retries cost their dependency's budget."""
        with self.lock:
            for lease in leases:
                if lease.failures:
                    self._keep({key: Seen(retried=1) for key in _keys(lease)})

    def retries_left(self, key: str, now: Micros) -> int | None:
        """How many more retries it bears; None: nobody counts them."""
        bucket, terms = self._bucket(key, now), self.terms(key).budget
        return None if bucket is None or terms is None else budgets.allows(bucket, terms, now)

    def next_retry(self, key: str, now: Micros) -> Micros | None:
        """When it bears another one; None: now."""
        bucket, terms = self._bucket(key, now), self.terms(key).budget
        return None if bucket is None or terms is None else budgets.next_token(bucket, terms, now)

    def _bucket(self, key: str, now: Micros) -> Bucket | None:
        """As far as it is known here, without what this worker has taken and not told yet."""
        terms = self.terms(key).budget
        if terms is None:
            return None
        bucket = self.known.get(key, FRESH).bucket or Bucket(terms.size, now)
        return bucket._replace(tokens=bucket.tokens - self._seen.get(key, NOTHING).retried)

    def _runs_low(self, key: str, now: Micros) -> bool:
        bucket, terms = self._bucket(key, now), self.terms(key).budget
        return bucket is not None and terms is not None and budgets.low(bucket, terms)

    def overdue(self, running: Iterable[tuple[Lease, float]]) -> bool:
        """What has run for longer (ms) than is bearable counts before its end: a hanging call may never end."""
        with self.lock:
            late = [
                lease
                for lease, ms in running
                if lease.uses and lease.fence not in self._overdue and self._is_late(lease, ms)
            ]
            for lease in late:
                self._overdue.add(lease.fence)
                keys = _keys(lease)
                self._keep(dict.fromkeys(keys, Seen(failed=1 / len(keys), slow=1, jobs=(lease.id,))))
            return bool(late)

    def _is_late(self, lease: Lease, ms: float) -> bool:
        limits = [self._slow_after(key, lease.kind) for key in _keys(lease)]
        known = [limit for limit in limits if limit is not None]
        return bool(known) and ms > min(known)

    def _slow_after(self, key: str, kind: str) -> float | None:
        guard = self.known.get(key, FRESH)
        for_whom, limit = self._slow.get((key, kind), (None, None))
        if for_whom is not guard:
            limit = guard.slow_after(kind, self.terms(key))
            self._slow[key, kind] = (guard, limit)
        return limit

    # -- counting -----------------------------------------------------------------------------------
    def _counted(self, endings: Sequence[Ending]) -> dict[str, Seen]:
        pages: dict[str, Page] = {}
        for ending in endings:
            lease = ending.lease
            for probed in self.probes.get(lease.fence, ()) if self.probes else ():
                pages.setdefault(probed, Page()).verdict = _verdict(ending, probed)
            if lease.uses:
                keys = _keys(lease)
                for key in keys:
                    self._enter(pages.setdefault(key, Page()), ending, key, len(keys))
        return {key: seen for key, page in pages.items() if (seen := page.seen()) != NOTHING}

    def _enter(self, page: Page, ending: Ending, key: str, keys: int) -> None:
        """How this one ended, as far as it says something about one of so many that it used."""
        lease, outcome = ending.lease, ending.outcome
        if outcome.skipped:  # nothing was called
            return
        if outcome.ended is Ended.RETURNED:
            self._answered(page, ending, key, keys)
        elif not _failed(ending) or outcome.failure is None:
            return
        elif outcome.failure.cls is Cls.RATE_LIMITED:
            page.limited += 1
        elif lease.fence not in self._overdue:
            page.blame(blame(outcome.failure, keys), lease.id)

    def _answered(self, page: Page, ending: Ending, key: str, keys: int) -> None:
        lease, ms = ending.lease, ending.duration_ms
        if lease.failures:
            page.retry_ok += 1
        else:
            page.first_ok += 1
        if ms is not None:
            page.took(lease.kind, ms)
        if lease.fence in self._overdue:
            return
        slow_after = self._slow_after(key, lease.kind)
        if ms is not None and slow_after is not None and ms > slow_after:
            page.slow += 1
            page.blame(1 / keys, lease.id)
        else:
            page.ok += 1

    # -- telling ------------------------------------------------------------------------------------
    def _tell(self, unit: Unit, seen: Mapping[str, Seen], now: Micros) -> None:
        for key in sorted({*seen, *self._late}):
            self.fold(unit, key, seen.get(key, NOTHING), now)

    def fold(self, unit: Unit, key: str, seen: Seen, now: Micros) -> None:
        name = ("dependency", key)
        row = unit.guard(name)
        if row is None:
            if seen != NOTHING:
                unit.append_tally(name, seen.to_json())
            self._late.add(key)
            return
        self._late.discard(key)
        told = [*map(read_seen, unit.take_tallies(name)), seen]
        before, terms = remembered(row.body), self.terms(key)
        running = _running(unit, key) if before.reduced.limited or any(one.limited for one in told) else 0
        after, changes = breaker.observed(
            before, told, terms, now, self.rng, waiting=key in self.waiting, running=running
        )
        self.write(unit, row, before, after, changes)

    def write(
        self,
        unit: Unit,
        row: GuardRow,
        before: Guard,
        after: Guard,
        changes: breaker.Changes,
        *,
        actor: str = GUARD,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """The guard as it is now, its gate and its events, in one transaction."""
        unit.write_guard(row._replace(active=after.active(self.terms(row.key)), body=after.to_json()))
        self.known[row.key] = after
        for change in changes:
            if change.what == "opened":
                unit.close_gate(Gate("dependency", row.key, after.since, None, change.reason, actor, after.probe_at))
            elif change.what == "closed":
                unit.open_gate("dependency", row.key)
            news = {"dependency": row.key, "reason": change.reason, **_more(change, after), **more}
            unit.write_events([NewEvent(_EVENTS[change.what], actor=actor, data=news)])
            tell_guard(change.what, row.key, change.reason, actor, _more(change, after))
        if after.open and before.open and after.probe_at != before.probe_at:
            unit.next_probe(("dependency", row.key), after.probe_at)

    # -- from time to time --------------------------------------------------------------------------
    def read(self, rows: Iterable[GuardRow]) -> dict[str, Guard]:
        """The guards at work, as a look has found them; of all others nothing stands in the way."""
        at_work = {row.key: remembered(row.body) for row in rows if row.scope == "dependency"}
        with self.lock:
            for key, guard in self.known.items():
                if key not in at_work and (guard.hand is not None or guard.active(self.terms(key))):
                    self.known[key] = replace(FRESH, times=guard.times, window=guard.window)
            self.known |= at_work
        return at_work

    def waits(self, unit: Unit) -> set[str]:
        """Of whom there is something to fold, or whom time may have changed."""
        left = {key for scope, key in unit.tallied() if scope == "dependency"}
        at_work = {row.key for row in unit.guards(at_work=True) if row.scope == "dependency"}
        return left | at_work | self._seen.keys() | self._late

    def taken(self) -> dict[str, Seen]:
        """What is not told yet, to be told now; a turn on another thread may count on meanwhile."""
        with self.lock:
            seen, self._seen = self._seen, {}
            return seen

    def give_back(self, seen: Mapping[str, Seen]) -> None:
        """It could not be told."""
        with self.lock:
            self._keep(seen)

    def tend(self, unit: Unit, keys: Iterable[str], seen: Mapping[str, Seen], now: Micros) -> None:
        """Fold this and what was left behind, and let guards see that time has passed."""
        with self.lock:
            self._tell(unit, {**dict.fromkeys(keys, NOTHING), **seen}, now)


def _more(change: breaker.Change, guard: Guard) -> dict[str, Micros | float | None]:
    if change.what == "opened":
        return {"probe_at": guard.probe_at}
    if change.what == "closed" and guard.ramp is not None:
        return {"rate": round(guard.ramp.rate, 3)}
    return {}


def _verdict(ending: Ending, key: str) -> Verdict:
    lease, outcome = ending.lease, ending.outcome
    if outcome.skipped:
        return Verdict(lease.id, lease.token, None)
    if outcome.ended is Ended.RETURNED:
        healthy = lease.kind != PROBE_KIND or bool(json.loads(outcome.result or "{}").get("healthy"))
        return Verdict(lease.id, lease.token, healthy)
    later = outcome.ended is Ended.RETRY or (outcome.ended is Ended.HELD and outcome.dependency == key)
    return Verdict(lease.id, lease.token, False if later or _let_down(ending, probe=True) else None)


def _let_down(ending: Ending, *, probe: bool) -> bool:
    """Is what it uses to blame? Of a probe also if that answered, but wants to be called later: so it would all."""
    failure = ending.outcome.failure
    if failure is None or not _failed(ending):
        return False
    later = failure.cls is Cls.RATE_LIMITED or (failure.cls is Cls.QUOTA and failure.retry_after is not None)
    return blame(failure, 1) > 0 or (probe and later)


def _failed(ending: Ending) -> bool:
    """A handler that says itself that its failure is final has not been let down."""
    return ending.outcome.ended is Ended.FAILED and not ending.outcome.final


def _keys(lease: Lease) -> list[str]:
    return [key for key in lease.uses.split(",") if key]


def _sum(one: Mapping[str, Seen], other: Mapping[str, Seen]) -> dict[str, Seen]:
    if not other:
        return dict(one)
    return {**one, **{key: one.get(key, NOTHING).plus(seen) for key, seen in other.items()}}


def _running(unit: Unit, key: str) -> int:
    return sum(count for _, uses, count in unit.running() if key in uses.split(","))
