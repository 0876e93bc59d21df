"""The only door by which an attempt changes a job.

Returned, raised, timed out, killed, lease lost, worker gone, cancelled: every ending is an Outcome, meets the
same pure decision and is written under the same fence. Because the decision is pure, the whole step can be
repeated when the database asks for it or when nobody knows whether a commit arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple

from mulligan.engine import news
from mulligan.engine.batching import complete
from mulligan.engine.causes import Causes
from mulligan.engine.layers import Layers
from mulligan.engine.watch import Watch
from mulligan.engine.wording import Wording
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND, Decision, Ended, Failure, Gate, Lane, Lease, Micros, Outcome, State, Verb
from mulligan.plain_json import encode as _encode
from mulligan.policy.classify import renamed
from mulligan.policy.decide import RETURNED, decide, returned
from mulligan.policy.lifecycle import TERMINAL, event_for
from mulligan.store.base import Finished, Refusal, Settlement, Unit

OURS = "mulligan."  # how the rules of our own ends begin


class Ending(NamedTuple):
    lease: Lease
    outcome: Outcome
    duration_ms: int | None = None
    words: str | None = None  # its own, where all else of its failure is that of others: see wording.py


class Verdict(NamedTuple):
    """What became of an ending: its decision, or None where the lease was lost and nothing changed."""

    lease: Lease
    decision: Decision | None
    words: str | None = None  # as in its ending


def settle(  # noqa: PLR0913 - each says one thing about the world around an ending
    unit: Unit,
    endings: Sequence[Ending],
    layers: Layers,
    now: Micros,
    rng: Random,
    *,
    actor: str = "",
    watch: Watch | None = None,
    causes: Causes | None = None,
    wait: bool = True,
) -> list[Verdict]:
    """Decide and write. `now` is the store's clock as the caller knows it; `watch` knows what is down, `causes` what
    many died of. Without `wait` a batch in another hand is left to upkeep.
    """
    verdicts = _settled(unit, endings, layers, now, rng, actor, watch, causes)
    members = [verdict for verdict in verdicts if verdict.lease.batch_id is not None]
    ended = {batch for lease, decision, _ in members if (batch := _ended(lease, decision))}
    if ended:
        # Who has just closed a gate waits for no batch: whoever holds that may be about to open the gate.
        holds = any(decision is not None and decision.hold for _, decision, _ in verdicts)
        complete(unit, ended, wait=wait and not holds)
    return verdicts


def finish(unit: Unit, endings: Sequence[Ending]) -> tuple[list[Lease], list[Ending]]:
    """Write those of which there is nothing to say but that they returned, in a transaction of their own; the leases of
    these, and what is left for `settle`: all others, also those whose fence is in doubt.
    """
    worker = endings[0].lease.worker
    plain = [row for ending in endings if (row := _plainly(ending, worker)) is not None]
    held = unit.finish_alone(worker, plain) if plain else set()
    if len(held) == len(endings):
        return [ending.lease for ending in endings], []
    written = [ending.lease for ending in endings if ending.lease.fence in held]
    return written, [ending for ending in endings if ending.lease.fence not in held]


def _plainly(ending: Ending, worker: str) -> Finished | None:
    if ending.outcome.ended is not Ended.RETURNED:
        return None
    decision = returned(ending.lease, ending.outcome)
    plain = decision.reason is RETURNED and _is_plain(ending.lease, decision, worker)
    return _finished(ending, decision) if plain else None


def _ended(lease: Lease, decision: Decision | None) -> str | None:
    """The batch of a member that has ended."""
    if lease.batch_id is None or decision is None or decision.state not in TERMINAL:
        return None
    return lease.batch_id


def _settled(
    unit: Unit,
    endings: Sequence[Ending],
    layers: Layers,
    now: Micros,
    rng: Random,
    actor: str,
    watch: Watch | None = None,
    causes: Causes | None = None,
) -> list[Verdict]:
    if not endings:
        return []
    endings = [ending if ending.outcome.failure is None else _ruled(ending, layers) for ending in endings]
    alike = Alike(layers, now, rng, actor)
    decisions = _decide(unit, endings, alike, watch, causes)
    decided = [*zip(endings, decisions, strict=True)]
    rest = decided if actor else _unfinished(unit, decided)
    refusals = {(r.id, r.token): r for r in unit.settle([alike.row(e, d) for e, d in rest])}
    _hold(unit, [d for e, d in rest if d.hold is not None and e.lease.fence not in refusals], now)
    if not refusals:
        return [Verdict(ending.lease, decision, ending.words) for ending, decision in decided]
    return _with_refusals(unit, decided, refusals, layers, now, rng, actor)


def _with_refusals(
    unit: Unit,
    decided: Sequence[tuple[Ending, Decision]],
    refusals: Mapping[tuple[str, int], Refusal],
    layers: Layers,
    now: Micros,
    rng: Random,
    actor: str,
) -> list[Verdict]:
    """Who lost its lease changes nothing; whoever was asked to stop since is decided again, knowing it."""
    lost = {fence for fence, refusal in refusals.items() if refusal.why == "stale"}
    again = {fence: refusal.cancel_reason for fence, refusal in refusals.items() if refusal.why == "cancel"}
    verdicts = [
        Verdict(e.lease, None if e.lease.fence in lost else decision, e.words)
        for e, decision in decided
        if e.lease.fence not in again
    ]
    unit.write_events(_stale(e, actor) for e, _ in decided if e.lease.fence in lost)
    asked = [
        ending._replace(lease=ending.lease._replace(cancel_reason=again[ending.lease.fence]))
        for ending, _ in decided
        if ending.lease.fence in again
    ]
    return verdicts + _settled(unit, asked, layers, now, rng, actor)


def _unfinished(unit: Unit, decided: Sequence[tuple[Ending, Decision]]) -> Sequence[tuple[Ending, Decision]]:
    """Write the plainest endings in their short form; what is left goes the long way, also if its fence is in doubt."""
    worker = decided[0][0].lease.worker
    plain = [
        _finished(ending, decision)
        for ending, decision in decided
        if decision.reason is RETURNED and _is_plain(ending.lease, decision, worker)
    ]
    if not plain:
        return decided
    held = unit.finish(worker, plain)
    return [one for one in decided if one[0].lease.fence not in held] if len(held) < len(decided) else ()


def _is_plain(lease: Lease, decision: Decision, worker: str) -> bool:
    """It returned, and nothing but that changes."""
    return (
        lease.worker == worker
        and decision.verb is Verb.SUCCEED
        and not (decision.cost or lease.alone)
        and (lease.unique_cover is None or not frees_key(lease.unique_cover, decision.state))
    )


def _finished(ending: Ending, decision: Decision) -> Finished:
    lease = ending.lease
    return Finished(
        lease.id, lease.token, lease.generation, lease.attempt, lease.started_at, decision.result, lease.owner,
        lease.batch_id, news.short(ending, decision.reason), lease.lies_at,
    )  # fmt: skip


def _decide(
    unit: Unit, endings: Sequence[Ending], alike: Alike, watch: Watch | None, causes: Causes | None
) -> list[Decision]:
    down = {} if watch is None else watch.observe(unit, endings, alike.now)
    decisions = [
        returned(e.lease, e.outcome)  # whatever the policy is
        if e.outcome.ended is Ended.RETURNED
        else alike.decide(e, down.get(e.lease.fence, "") if down else "")
        for e in endings
    ]
    held = {} if causes is None else causes.observe(unit, endings, decisions, alike.now)
    if not held:
        return decisions
    return [
        decide(e.lease, e.outcome, alike.layers.of(e.lease), alike.now, alike.rng, held=held[e.lease.fence])
        if e.lease.fence in held
        else decision
        for e, decision in zip(endings, decisions, strict=True)
    ]


class _Drawn:
    """A source of chance that knows whether it was asked."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.asked = False

    def random(self) -> float:
        self.asked = True
        return self._rng.random()

    def uniform(self, a: float, b: float) -> float:
        self.asked = True
        return self._rng.uniform(a, b)


class Alike:
    """The endings of one moment. Of failures that differ in nothing but their words and their jobs one is decided, and
    one row is made: the others have it too. Not where chance has a say, or how long a job has waited.
    """

    def __init__(self, layers: Layers, now: Micros, rng: Random, actor: str = "") -> None:
        self.layers = layers
        self.now = now
        self.rng = rng
        self._actor = actor
        self._decided: dict[tuple[int, tuple[Any, ...]], Decision] = {}
        self._shared: set[int] = set()  # decisions, by identity: who settles holds them all
        self._rows: dict[int, _Parts] = {}

    def decide(self, ending: Ending, down: str = "") -> Decision:
        lease, outcome, _, words = ending
        if down or words is None:
            return decide(lease, outcome, self.layers.of(lease), self.now, self.rng, down=down)
        key = (id(outcome), _alike(lease))
        known = self._decided.get(key)
        if known is None:
            drawn, policy = _Drawn(self.rng), self.layers.of(lease)
            known = decide(lease, outcome, policy, self.now, drawn)
            if not drawn.asked and policy.max_age is None and self.layers.shadow(lease) is None:
                self._decided[key] = known
                self._shared.add(id(known))
        return known

    def row(self, ending: Ending, decision: Decision) -> Settlement:
        known = self._rows.get(id(decision))
        if known is not None:
            return known.of(ending)
        row = _row(ending, decision, self.layers, self.now, self._actor)
        if id(decision) in self._shared:
            self._rows[id(decision)] = _Parts(row, ending.lease, decision, self.layers)
        return row


_OF_ONE = {
    "id",
    "payload",
    "created_at",
    "run_at",
    "started_at",
    "first_started_at",
    "choice",
    "unique_key",
    "trace",
    "lies_at",
}
_alike = itemgetter(*[place for place, name in enumerate(Lease._fields) if name not in _OF_ONE])
_STARTED, _PRIVATE, _DATA = map(Settlement._fields.index, ("started_at", "private", "data"))


class _Parts:
    """A row in parts: between them stands what each of those alike has of its own."""

    def __init__(self, row: Settlement, lease: Lease, decision: Decision, layers: Layers) -> None:
        self._decision = decision
        self._layers = layers
        self._parts = row[1:_STARTED], row[_STARTED + 1 : _PRIVATE], row[_PRIVATE + 1 : _DATA], row[_DATA + 1 :]
        self._told = news.middle(lease, decision, layers)

    def of(self, ending: Ending) -> Settlement:
        lease, failure = ending.lease, self._decision.failure
        private = None if failure is None else _private(failure, ending.words)
        if self._told is None:
            data = news.data_of(ending, self._decision, self._layers)
        else:
            data = f"{news.beginning(ending, self._decision.reason)}{self._told}{news.end(lease)}"
        first, second, third, last = self._parts
        return Settlement._make((lease.id, *first, lease.started_at, *second, private, *third, data, *last))


def _ruled(ending: Ending, layers: Layers) -> Ending:
    """An end of our own making, such as a time limit, as the kind's rules have it; runners have judged all others."""
    failure = ending.outcome.failure
    if failure is None or not failure.rule.startswith(OURS):
        return ending
    uses = [key for key in ending.lease.uses.split(",") if key]
    ruled = renamed(failure, layers.books(ending.lease.kind), uses)
    return ending if ruled is failure else ending._replace(outcome=ending.outcome._replace(failure=ruled))


def _row(ending: Ending, decision: Decision, layers: Layers, now: Micros, actor: str) -> Settlement:
    lease, failure, state = ending.lease, decision.failure, decision.state
    told = _NOTHING if failure is None else _columns(failure, ending.words)
    queue = decision.then.get("queue") if decision.then else None
    return Settlement(  # by position: by name it costs three times as much
        lease.id,
        lease.worker,
        lease.token,
        lease.cancel_reason is not None,  # saw_cancel
        news.TEXT[state],
        decision.run_at if state is State.QUEUED else None,
        decision.failures,
        decision.losses,
        decision.snoozes,
        decision.alone,
        decision.result,
        json.dumps(news.error_of(failure)) if state is State.DEAD else None,
        json.dumps(decision.choices) if state is State.PARKED else None,
        decision.reason,
        state in TERMINAL,  # finished
        lease.unique_cover is not None and frees_key(lease.unique_cover, state),
        decision.cost,
        lease.generation,
        lease.attempt,
        actor or lease.worker,  # settled_by
        lease.started_at,
        news.TEXT[ending.outcome.ended],
        news.TEXT[decision.verb],
        *told,
        news.TEXT[event_for(decision.verb)],
        lease.owner,
        lease.batch_id,
        news.data_of(ending, decision, layers),
        decision.counts,
        decision.settings,
        _judged(decision, None if failure is None else _would(ending, layers, now)),
        queue,
        None if queue is None else _lane(lease, decision, queue, layers),
    )


_Columns = tuple[str | None, str | None, str | None, str | None, str | None, str | None, str | None]
_NOTHING: _Columns = (None, None, None, None, None, None, None)


def _columns(failure: Failure, words: str | None) -> _Columns:
    """From `code` to `fingerprint`."""
    return (
        failure.code, news.TEXT[failure.cls], failure.rule, failure.public, news.as_json(failure.evidence),
        _private(failure, words), failure.fingerprint,
    )  # fmt: skip


def _private(failure: Failure, words: str | None) -> str:
    private = failure.private
    return private.text(words) if words is not None and isinstance(private, Wording) else news.as_json(private)


def _would(ending: Ending, layers: Layers, now: Micros) -> dict[str, Any] | None:
    """What the policy in shadow would have decided; it draws from a source of its own, so that it disturbs nothing."""
    policy = layers.shadow(ending.lease) if ending.outcome.failure is not None else None
    if policy is None:
        return None
    would = decide(ending.lease, ending.outcome, policy, now, Random(ending.lease.token))
    wait = {} if would.run_at is None else {"wait": round((would.run_at - now) / SECOND, 1)}
    return {"verb": would.verb.value, "reason": would.reason, **wait}


def _judged(decision: Decision, would: Mapping[str, Any] | None) -> str | None:
    """How the verdict came about, and how the next attempt differs; of most attempts there is nothing to say."""
    failure = decision.failure
    if failure is not None and would is None and not (failure.terms or decision.then or decision.skipped):
        return _only_judged(failure.judged)
    said: dict[str, Any] = {} if failure is None else dict(failure.judged)
    if failure is not None and failure.terms:
        said["terms"] = dict(failure.terms)
    if would is not None:
        said["shadow_policy"] = would
    if decision.then:
        said["then"] = dict(decision.then)
    if decision.skipped:
        said["skipped"] = True
    return _encode(said) if said else None


def _only_judged(judged: Mapping[str, Any]) -> str | None:
    table = judged.get("table")
    if len(judged) == 1 and type(table) is str:
        return _table(table)
    return _encode(dict(judged)) if judged else None


@lru_cache(maxsize=64)
def _table(version: str) -> str:
    return _encode({"table": version})


def _lane(lease: Lease, decision: Decision, queue: str, layers: Layers) -> str:
    """In another queue: owners may take turns there, or not any more."""
    return Lane(queue, lease.kind, lease.uses, decision.failures > 0, layers.share(queue, lease.owner)).key


def frees_key(cover: str | None, state: State) -> bool:
    """A move out of the covered states frees the unique key in the same statement."""
    return cover is not None and state.value not in cover.split(",")


def _hold(unit: Unit, decisions: Iterable[Decision], now: Micros) -> None:
    """Close what handlers found down; in one order for all, so that nobody waits in a circle."""
    asked = sorted({(*d.hold, "handler" if d.failure is None else "hint") for d in decisions if d.hold is not None})
    last = {key: (until, reason, actor) for key, until, reason, actor in asked}
    for key, (until, reason, actor) in last.items():
        unit.close_gate(Gate("dependency", key, now, until, reason, actor))
        told = {"dependency": key, "until": until, "reason": reason}
        unit.write_events([NewEvent(EventType.DEPENDENCY_OPENED, actor=actor, data=told)])


def _stale(ending: Ending, actor: str) -> NewEvent:
    lease = ending.lease
    return NewEvent(
        EventType.JOB_STALE_REFUSED,
        job_id=lease.id,
        batch_id=lease.batch_id,
        owner=lease.owner,
        attempt=lease.attempt,
        token=lease.token,
        actor=actor or lease.worker,
        data={"kind": lease.kind, "ended": ending.outcome.ended.value, "worker": lease.worker},
    )
