"""What a worker sees of the dependencies its jobs use, and how that becomes what the fleet knows.

Outcomes are counted in memory and told once a second, at once when one failed: folded into the guard's row where it is
free, else appended for whoever folds next. The worker that sees a dependency go down opens its breaker in the very
transaction that settles those failures, so that not even they are charged.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Any

from mulligan.config import GuardSection
from mulligan.core.attempt import Cls, Decision, Ended, Ending, Lease, Verb
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, Gate, GuardRow, Micros
from mulligan.guards import breaker
from mulligan.guards import budget as budgets
from mulligan.guards import kind_breaker as cause
from mulligan.guards.budget import Bucket
from mulligan.guards.kind_breaker import (
    DEFAULT_KIND_TERMS,
    KindBreakerTerms,
    KindDeath,
    KindHold,
    KindState,
    Success,
    read_deaths,
    read_kind_body,
)
from mulligan.guards.state import DEFAULT, FRESH, BreakerTerms, GuardState, read_guard
from mulligan.guards.window import (
    MOST_JOBS,
    NOTHING,
    DependencyTally,
    ProbeVerdict,
    blame,
    read_seen,
    step_of,
)
from mulligan.manifest.specs import ENDPOINT
from mulligan.storage.base import Store, Transaction

PROBE_KIND = "mulligan.probe"
OF_ENDPOINTS = BreakerTerms(
    min_calls=5, budget=None, most=2
)  # what deliveries use: one that hangs is soon held
TOLD_EVERY = SECOND
MOST_KNOWN = 5000  # dependencies
GUARD = "breaker"  # the actor of what it does by itself

Fence = tuple[str, int]

read_guard_state = lru_cache(maxsize=512)(read_guard)
_EVENTS = {
    "opened": EventType.DEPENDENCY_OPENED,
    "closed": EventType.DEPENDENCY_CLOSED,
    "changed": EventType.DEPENDENCY_CHANGED,
}


@dataclass(slots=True)
class DependencyPage:
    """What one flush says about one dependency, while it is counted."""

    ok: int = 0
    failed: float = 0.0
    slow: int = 0
    limited: int = 0
    first_ok: int = 0
    retry_ok: int = 0
    jobs: list[str] = field(default_factory=list)
    times: dict[str, dict[int, float]] = field(default_factory=dict)
    verdict: ProbeVerdict | None = None

    def blame(self, part: float, job_id: str) -> None:
        self.failed += part
        if part and len(self.jobs) < MOST_JOBS:
            self.jobs.append(job_id)

    def took(self, kind: str, ms: float) -> None:
        steps, step = self.times.setdefault(kind, {}), step_of(ms)
        steps[step] = steps.get(step, 0) + 1

    def seen(self) -> DependencyTally:
        return DependencyTally(
            self.ok,
            self.failed,
            self.slow,
            self.limited,
            self.first_ok,
            self.retry_ok,
            0,
            tuple(self.jobs),
            self.times,
            self.verdict,
        )


@dataclass
class DependencyObserver:
    """One per worker. A turn at a time; chores come in between."""

    own: Mapping[str, BreakerTerms] = field(default_factory=dict)  # as this worker's app declares
    others: Mapping[str, BreakerTerms] = field(
        default_factory=dict
    )  # as other apps on this database do
    rng: Random = field(default_factory=lambda: Random(SystemRandom().getrandbits(64)))
    waiting: frozenset[str] = frozenset()  # dependencies of which due jobs wait
    known: dict[str, GuardState] = field(default_factory=dict)  # as last read
    probes: dict[Fence, tuple[str, ...]] = field(
        default_factory=dict
    )  # of this worker, and for whom they look
    lock: threading.RLock = field(default_factory=threading.RLock)
    _seen: dict[str, DependencyTally] = field(default_factory=dict)  # not told yet
    _told_at: Micros = 0
    _overdue: set[Fence] = field(default_factory=set)  # under way, and counted as slow already
    _slow: dict[tuple[str, str], tuple[GuardState, float | None]] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)  # their guards were in another hand
    _staged: Callable[[], None] | None = None

    def terms(self, key: str) -> BreakerTerms:
        return (
            self.own.get(key)
            or self.others.get(key)
            or (OF_ENDPOINTS if key.startswith(ENDPOINT) else DEFAULT)
        )

    # -- in a turn ----------------------------------------------------------------------------------
    def observe(
        self, unit: Transaction, endings: Sequence[Ending], now: Micros
    ) -> dict[Fence, str]:
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

    def _keep(self, fresh: Mapping[str, DependencyTally]) -> None:
        self._seen = _sum(self._seen, fresh)

    def _kept(self, fresh: Mapping[str, DependencyTally], done: Sequence[Fence]) -> None:
        self._keep(fresh)
        self._overdue.difference_update(done)

    def _told(self, now: Micros, done: Sequence[Fence]) -> None:
        self._seen, self._told_at = {}, now
        self._overdue.difference_update(done)
        for fence in done:
            self.probes.pop(fence, None)
        if (
            len(self.known) > MOST_KNOWN
        ):  # keys may come from payloads: of those at rest nothing need be known
            self.known = {
                key: guard for key, guard in self.known.items() if guard.active(self.terms(key))
            }
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
                    self._keep({key: DependencyTally(retried=1) for key in _keys(lease)})

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
                self._keep(
                    dict.fromkeys(
                        keys, DependencyTally(failed=1 / len(keys), slow=1, jobs=(lease.id,))
                    )
                )
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
    def _counted(self, endings: Sequence[Ending]) -> dict[str, DependencyTally]:
        pages: dict[str, DependencyPage] = {}
        for ending in endings:
            lease = ending.lease
            for probed in self.probes.get(lease.fence, ()) if self.probes else ():
                pages.setdefault(probed, DependencyPage()).verdict = _verdict(ending, probed)
            if lease.uses:
                keys = _keys(lease)
                for key in keys:
                    self._enter(pages.setdefault(key, DependencyPage()), ending, key, len(keys))
        return {key: seen for key, page in pages.items() if (seen := page.seen()) != NOTHING}

    def _enter(self, page: DependencyPage, ending: Ending, key: str, keys: int) -> None:
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

    def _answered(self, page: DependencyPage, ending: Ending, key: str, keys: int) -> None:
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
    def _tell(self, unit: Transaction, seen: Mapping[str, DependencyTally], now: Micros) -> None:
        for key in sorted({*seen, *self._late}):
            self.fold(unit, key, seen.get(key, NOTHING), now)

    def fold(self, unit: Transaction, key: str, seen: DependencyTally, now: Micros) -> None:
        name = ("dependency", key)
        row = unit.guard(name)
        if row is None:
            if seen != NOTHING:
                unit.append_tally(name, seen.to_json())
            self._late.add(key)
            return
        self._late.discard(key)
        told = [*map(read_seen, unit.take_tallies(name)), seen]
        before, terms = read_guard_state(row.body), self.terms(key)
        running = (
            _running(unit, key) if before.reduced.limited or any(one.limited for one in told) else 0
        )
        after, changes = breaker.observed(
            before, told, terms, now, self.rng, waiting=key in self.waiting, running=running
        )
        self.write(unit, row, before, after, changes)

    def write(
        self,
        unit: Transaction,
        row: GuardRow,
        before: GuardState,
        after: GuardState,
        changes: breaker.Changes,
        *,
        actor: str = GUARD,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """The guard as it is now, its gate and its events, in one transaction."""
        unit.write_guard(
            row._replace(active=after.active(self.terms(row.key)), body=after.to_json())
        )
        self.known[row.key] = after
        for change in changes:
            if change.what == "opened":
                unit.close_gate(
                    Gate(
                        "dependency",
                        row.key,
                        after.since,
                        None,
                        change.reason,
                        actor,
                        after.probe_at,
                    )
                )
            elif change.what == "closed":
                unit.open_gate("dependency", row.key)
            news = {"dependency": row.key, "reason": change.reason, **_more(change, after), **more}
            unit.write_events([NewEvent(_EVENTS[change.what], actor=actor, data=news)])
            tell_guard(change.what, row.key, change.reason, actor, _more(change, after))
        if after.open and before.open and after.probe_at != before.probe_at:
            unit.next_probe(("dependency", row.key), after.probe_at)

    # -- from time to time --------------------------------------------------------------------------
    def read(self, rows: Iterable[GuardRow]) -> dict[str, GuardState]:
        """The guards at work, as a look has found them; of all others nothing stands in the way."""
        at_work = {row.key: read_guard_state(row.body) for row in rows if row.scope == "dependency"}
        with self.lock:
            for key, guard in self.known.items():
                if key not in at_work and (guard.hand is not None or guard.active(self.terms(key))):
                    self.known[key] = replace(FRESH, times=guard.times, window=guard.window)
            self.known |= at_work
        return at_work

    def waits(self, unit: Transaction) -> set[str]:
        """Of whom there is something to fold, or whom time may have changed."""
        left = {key for scope, key in unit.tallied() if scope == "dependency"}
        at_work = {row.key for row in unit.guards(at_work=True) if row.scope == "dependency"}
        return left | at_work | self._seen.keys() | self._late

    def taken(self) -> dict[str, DependencyTally]:
        """What is not told yet, to be told now; a turn on another thread may count on meanwhile."""
        with self.lock:
            seen, self._seen = self._seen, {}
            return seen

    def give_back(self, seen: Mapping[str, DependencyTally]) -> None:
        """It could not be told."""
        with self.lock:
            self._keep(seen)

    def tend(
        self,
        unit: Transaction,
        keys: Iterable[str],
        seen: Mapping[str, DependencyTally],
        now: Micros,
    ) -> None:
        """Fold this and what was left behind, and let guards see that time has passed."""
        with self.lock:
            self._tell(unit, {**dict.fromkeys(keys, NOTHING), **seen}, now)


def _more(change: breaker.BreakerChange, guard: GuardState) -> dict[str, Micros | float | None]:
    if change.what == "opened":
        return {"probe_at": guard.probe_at}
    if change.what == "closed" and guard.ramp is not None:
        return {"rate": round(guard.ramp.rate, 3)}
    return {}


def _verdict(ending: Ending, key: str) -> ProbeVerdict:
    lease, outcome = ending.lease, ending.outcome
    if outcome.skipped:
        return ProbeVerdict(lease.id, lease.token, None)
    if outcome.ended is Ended.RETURNED:
        healthy = lease.kind != PROBE_KIND or bool(
            json.loads(outcome.result or "{}").get("healthy")
        )
        return ProbeVerdict(lease.id, lease.token, healthy)
    later = outcome.ended is Ended.RETRY or (
        outcome.ended is Ended.HELD and outcome.dependency == key
    )
    return ProbeVerdict(
        lease.id, lease.token, False if later or _let_down(ending, probe=True) else None
    )


def _let_down(ending: Ending, *, probe: bool) -> bool:
    """Is what it uses to blame? Of a probe also if that answered, but wants to be called later: so it would all."""
    failure = ending.outcome.failure
    if failure is None or not _failed(ending):
        return False
    later = failure.cls is Cls.RATE_LIMITED or (
        failure.cls is Cls.QUOTA and failure.retry_after is not None
    )
    return blame(failure, 1) > 0 or (probe and later)


def _failed(ending: Ending) -> bool:
    """A handler that says itself that its failure is final has not been let down."""
    return ending.outcome.ended is Ended.FAILED and not ending.outcome.final


def _keys(lease: Lease) -> list[str]:
    return [key for key in lease.uses.split(",") if key]


def _sum(
    one: Mapping[str, DependencyTally], other: Mapping[str, DependencyTally]
) -> dict[str, DependencyTally]:
    if not other:
        return dict(one)
    return {**one, **{key: one.get(key, NOTHING).plus(seen) for key, seen in other.items()}}


def _running(unit: Transaction, key: str) -> int:
    return sum(count for _, uses, count in unit.running() if key in uses.split(","))


# Kinds whose jobs die of one cause: counted as they are settled, remembered by the fleet, held by one worker for all.

KIND_GUARD = "guard"  # the actor of what it does by itself
LOOKED_AT = 10_000  # successes of all kinds: the newest


read_kind_state = lru_cache(maxsize=512)(read_kind_body)


@dataclass
class KindObserver:
    """One per worker."""

    terms: KindBreakerTerms = DEFAULT_KIND_TERMS

    def observe(
        self,
        unit: Transaction,
        endings: Sequence[Ending],
        decisions: Sequence[Decision],
        now: Micros,
    ) -> dict[Fence, str]:
        """Count who died; returns whom it spares, and the kind that is held: those died of what it is held for."""
        deaths = self._deaths(endings, decisions, now) if self.terms.jobs else {}
        if not deaths:
            return {}
        worked = {ending.lease.kind for ending in endings if ending.outcome.ended is Ended.RETURNED}
        spared: dict[Fence, str] = {}
        for kind, dead in sorted(deaths.items()):
            held = self.fold(unit, kind, list(dead.values()), now, worked=kind in worked)
            spared |= {
                fence: kind
                for fence, one in dead.items()
                if held and one.fingerprint == held.fingerprint
            }
        return spared

    def _deaths(
        self, endings: Sequence[Ending], decisions: Sequence[Decision], now: Micros
    ) -> dict[str, dict[Fence, KindDeath]]:
        deaths: dict[str, dict[Fence, KindDeath]] = {}
        for ending, decision in zip(endings, decisions, strict=True):
            one = cause.death(ending.lease, decision, now) if decision.verb is Verb.DIE else None
            if one is not None:
                deaths.setdefault(ending.lease.kind, {})[ending.lease.fence] = one
        return deaths

    def fold(
        self,
        unit: Transaction,
        kind: str,
        dead: Sequence[KindDeath],
        now: Micros,
        *,
        worked: bool = False,
    ) -> KindHold | None:
        """What is remembered of it, with these; returns for what it is held."""
        name = ("kind", kind)
        row = unit.guard(name)
        if row is None:  # in another hand: who has it, or the next one, takes these along
            if dead:
                unit.append_tally(name, json.dumps(dead, separators=(",", ":")))
            return None
        told = [one for body in unit.take_tallies(name) for one in read_deaths(body)]
        before = read_kind_state(row.body)
        if before.held is not None:
            return before.held
        after = cause.counted(before, [*told, *dead], self.terms, now)
        if worked or cause.suspicious(after, self.terms, now):
            success = Success(now, now) if worked else Success(*unit.last_success(kind, LOOKED_AT))
            after = cause.judged(after, success, self.terms, now)
        write(unit, row, after)
        if after.held is not None:
            _hold(unit, kind, after.held, now)
        return after.held

    def waits(self, unit: Transaction) -> list[str]:
        """Kinds of which deaths were left behind."""
        return (
            sorted(kind for scope, kind in unit.tallied() if scope == "kind")
            if self.terms.jobs
            else []
        )

    def tend(self, unit: Transaction, kinds: Iterable[str], now: Micros) -> None:
        for kind in kinds:
            self.fold(unit, kind, (), now)


def causes_of(guards: GuardSection) -> KindObserver:
    return KindObserver(
        KindBreakerTerms(guards.same_cause, guards.same_cause_owners, guards.same_cause_alone)
    )


def write(unit: Transaction, row: GuardRow, memory: KindState) -> None:
    """Claims never ask it: its gate says all they need."""
    unit.write_guard(row._replace(active=False, body=memory.to_json()))


def _hold(unit: Transaction, kind: str, held: KindHold, now: Micros) -> None:
    unit.close_gate(Gate("kind", kind, now, None, held.reason, KIND_GUARD))
    alert: dict[str, Any] = {"kind": kind, **held._asdict()}
    unit.write_events(
        [
            NewEvent(
                EventType.KIND_HELD, actor=KIND_GUARD, data={"kind": kind, "reason": held.reason}
            ),
            NewEvent(EventType.ALERT_FIRED, job_id=held.job, actor=KIND_GUARD, data=alert),
        ]
    )


# What time alone does to guards, and what was left behind for them: folded by whoever comes by.


def tend(store: Store, watch: DependencyObserver, causes: KindObserver) -> None:
    """Quick where no guard is at work."""
    with store.read() as unit:
        keys, kinds = watch.waits(unit), causes.waits(unit)
    if keys or kinds:
        _fold(store, watch, causes, keys, kinds)


def _fold(
    store: Store,
    watch: DependencyObserver,
    causes: KindObserver,
    keys: Iterable[str],
    kinds: Iterable[str],
) -> None:
    seen = watch.taken()
    try:
        with store.begin() as unit:
            now = unit.now()
            watch.tend(unit, keys, seen, now)
            causes.tend(unit, kinds, now)
    except BaseException:
        watch.give_back(seen)
        raise


def tell_guard(what: str, key: str, reason: str, actor: str, more: Mapping[str, Any]) -> None:
    """A breaker that opens or closes, or a limit it has changed."""
    level = logging.WARNING if what == "opened" else logging.INFO
    _guards.log(
        level,
        "dependency %s %s: %s",
        key,
        what,
        reason,
        extra={"dependency": key, "change": what, "reason": reason, "actor": actor, **more},
    )


_guards = logging.getLogger("mulligan.guards")
