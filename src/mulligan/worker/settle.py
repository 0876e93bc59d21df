"""The only door by which an attempt changes a job.

Returned, raised, timed out, killed, lease lost, worker gone, cancelled: every ending is an Outcome, meets the
same pure decision and is written under the same fence. Because the decision is pure, the whole step can be
repeated when the database asks for it or when nobody knows whether a commit arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from mulligan.batches.completion import complete
from mulligan.core.attempt import Decision, Ended, Ending, Ground, Lease, Verb, Verdict
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate, Micros
from mulligan.core.lifecycle import TERMINAL
from mulligan.failures.classify import renamed
from mulligan.guards.observer import DependencyObserver, KindObserver
from mulligan.retries.decide import decide, returned
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Around, Finished, Refusal, RetriedAttempt, Settlement, Transaction
from mulligan.worker import settlement as news
from mulligan.worker.fast.grouped_endings import GroupedEndings
from mulligan.worker.settlement import frees_key


def settle(  # noqa: PLR0913 - each says one thing about the world around an ending
    unit: Transaction,
    endings: Sequence[Ending],
    layers: EffectivePolicies,
    now: Micros,
    rng: Random,
    *,
    actor: str = "",
    watch: DependencyObserver | None = None,
    causes: KindObserver | None = None,
    wait: bool = True,
) -> list[Verdict]:
    """Decide and write. `now` is the store's clock as the caller knows it; `watch` knows what is down, `causes` what
    many died of. Without `wait` a batch in another hand is left to upkeep.
    """
    verdicts = _settled(unit, endings, GroupedEndings(layers, now, rng, actor), watch, causes)
    members = [verdict for verdict in verdicts if verdict.lease.batch_id is not None]
    ended = {batch for lease, decision, _ in members if (batch := _ended(lease, decision))}
    if ended:
        # Who has just closed a gate waits for no batch: whoever holds that may be about to open the gate.
        holds = any(decision is not None and decision.hold for _, decision, _ in verdicts)
        complete(unit, ended, wait=wait and not holds)
    return verdicts


class Written(NamedTuple):
    """What became of endings that were written in short."""

    returned: list[Lease]
    retried: list[
        tuple[Decision, list[Ending]]
    ]  # those that failed alike, by what was decided of them
    rest: list[Ending]


def finish(unit: Transaction, endings: Sequence[Ending], alike: GroupedEndings) -> Written:
    """Write those of which there is nothing to say but that they returned, and those that failed alike and are tried
    again, each set in a transaction of its own. The rest is left for `settle`: all others, also if a fence is in doubt.
    """
    worker = endings[0].lease.worker
    plain = [row for ending in endings if (row := _plainly(ending, worker)) is not None]
    held = unit.finish_alone(worker, plain) if plain else set()
    if len(held) == len(endings):
        return Written([ending.lease for ending in endings], [], [])
    returned = [ending.lease for ending in endings if ending.lease.fence in held]
    retried = _retried(unit.retry_alone, endings, alike)
    held |= {ending.lease.fence for _, group in retried for ending in group}
    return Written(
        returned, retried, [ending for ending in endings if ending.lease.fence not in held]
    )


Retry = Callable[[Settlement, Around, Sequence[RetriedAttempt]], set[tuple[str, int]]]


def _retried(
    retry: Retry, endings: Iterable[Ending], alike: GroupedEndings
) -> list[tuple[Decision, list[Ending]]]:
    """Those that were written by it."""
    written = []
    for decision, like, around, group in alike.retried(endings):
        held = retry(like, around, [own for own, _ in group])
        all_held = len(held) == len(group)
        written.append(
            (decision, [ending for _, ending in group if all_held or ending.lease.fence in held])
        )
    return written


def _plainly(ending: Ending, worker: str) -> Finished | None:
    if ending.outcome.ended is not Ended.RETURNED:
        return None
    decision = returned(ending.lease, ending.outcome)
    plain = decision.ground is Ground.RETURNED and _is_plain(ending.lease, decision, worker)
    return _finished(ending, decision) if plain else None


def _ended(lease: Lease, decision: Decision | None) -> str | None:
    """The batch of a member that has ended."""
    if lease.batch_id is None or decision is None or decision.state not in TERMINAL:
        return None
    return lease.batch_id


def _settled(
    unit: Transaction,
    endings: Sequence[Ending],
    alike: GroupedEndings,
    watch: DependencyObserver | None = None,
    causes: KindObserver | None = None,
) -> list[Verdict]:
    if not endings:
        return []
    endings = [
        e if e.words is not None or e.outcome.failure is None else _ruled(e, alike.layers)
        for e in endings
    ]
    down = {} if watch is None else watch.observe(unit, endings, alike.now)
    if alike.actor or not unit.retries_together:
        return _decided(unit, endings, alike, down, causes)
    groups = _retried(unit.retry, [ending for ending in endings if not ending.lease.uses], alike)
    again = [
        Verdict(ending.lease, decision, ending.words)
        for decision, group in groups
        for ending in group
    ]
    return again + _decided(unit, _without(endings, again), alike, down, causes)


def _without(endings: Sequence[Ending], written: Sequence[Verdict]) -> Sequence[Ending]:
    if not written or len(written) == len(endings):
        return () if written else endings
    fences = {verdict.lease.fence for verdict in written}
    return [ending for ending in endings if ending.lease.fence not in fences]


def _decided(
    unit: Transaction,
    endings: Sequence[Ending],
    alike: GroupedEndings,
    down: Mapping[tuple[str, int], str],
    causes: KindObserver | None,
) -> list[Verdict]:
    if not endings:
        return []
    decisions = _decide(unit, endings, alike, down, causes)
    decided = [*zip(endings, decisions, strict=True)]
    rest = decided if alike.actor else _unfinished(unit, decided)
    refusals = {(r.id, r.token): r for r in unit.settle([alike.row(e, d) for e, d in rest])}
    _hold(
        unit,
        [d for e, d in rest if d.hold is not None and e.lease.fence not in refusals],
        alike.now,
    )
    if not refusals:
        return [Verdict(ending.lease, decision, ending.words) for ending, decision in decided]
    return _with_refusals(unit, decided, refusals, alike)


def _with_refusals(
    unit: Transaction,
    decided: Sequence[tuple[Ending, Decision]],
    refusals: Mapping[tuple[str, int], Refusal],
    alike: GroupedEndings,
) -> list[Verdict]:
    """Who lost its lease changes nothing; whoever was asked to stop since is decided again, knowing it."""
    lost = {fence for fence, refusal in refusals.items() if refusal.why == "stale"}
    again = {
        fence: refusal.cancel_reason
        for fence, refusal in refusals.items()
        if refusal.why == "cancel"
    }
    verdicts = [
        Verdict(e.lease, None if e.lease.fence in lost else decision, e.words)
        for e, decision in decided
        if e.lease.fence not in again
    ]
    unit.write_events(_stale(e, alike.actor) for e, _ in decided if e.lease.fence in lost)
    asked = [
        ending._replace(lease=ending.lease._replace(cancel_reason=again[ending.lease.fence]))
        for ending, _ in decided
        if ending.lease.fence in again
    ]
    return verdicts + _settled(unit, asked, alike)


def _unfinished(
    unit: Transaction, decided: Sequence[tuple[Ending, Decision]]
) -> Sequence[tuple[Ending, Decision]]:
    """Write the plainest endings in their short form; what is left goes the long way, also if its fence is in doubt."""
    worker = decided[0][0].lease.worker
    plain = [
        _finished(ending, decision)
        for ending, decision in decided
        if decision.ground is Ground.RETURNED and _is_plain(ending.lease, decision, worker)
    ]
    if not plain:
        return decided
    held = unit.finish(worker, plain)
    return (
        [one for one in decided if one[0].lease.fence not in held]
        if len(held) < len(decided)
        else ()
    )


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
        lease.id,
        lease.token,
        lease.generation,
        lease.attempt,
        lease.started_at,
        decision.result,
        lease.owner,
        lease.batch_id,
        news.short(ending, decision.reason),
        lease.lies_at,
    )


def _decide(
    unit: Transaction,
    endings: Sequence[Ending],
    alike: GroupedEndings,
    down: Mapping[tuple[str, int], str],
    causes: KindObserver | None,
) -> list[Decision]:
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
        decide(
            e.lease,
            e.outcome,
            alike.layers.of(e.lease),
            alike.now,
            alike.rng,
            held=held[e.lease.fence],
        )
        if e.lease.fence in held
        else decision
        for e, decision in zip(endings, decisions, strict=True)
    ]


def _ruled(ending: Ending, layers: EffectivePolicies) -> Ending:
    """An end of our own making, such as a time limit, as the kind's rules have it; runners have judged all others."""
    failure = ending.outcome.failure
    if failure is None or not failure.by_system:
        return ending
    uses = [key for key in ending.lease.uses.split(",") if key]
    ruled = renamed(failure, layers.books(ending.lease.kind), uses)
    return (
        ending
        if ruled is failure
        else ending._replace(outcome=ending.outcome._replace(failure=ruled))
    )


def _hold(unit: Transaction, decisions: Iterable[Decision], now: Micros) -> None:
    """Close what handlers found down; in one order for all, so that nobody waits in a circle."""
    asked = sorted(
        {
            (*d.hold, "handler" if d.failure is None else "hint")
            for d in decisions
            if d.hold is not None
        }
    )
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
