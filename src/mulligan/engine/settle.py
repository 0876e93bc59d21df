"""The only door by which an attempt changes a job.

Returned, raised, timed out, killed, lease lost, worker gone, cancelled: every ending is an Outcome, meets the
same pure decision and is written under the same fence. Because the decision is pure, the whole step can be
repeated when the database asks for it or when nobody knows whether a commit arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from mulligan.engine.batching import complete
from mulligan.engine.causes import Causes
from mulligan.engine.layers import Layers
from mulligan.engine.watch import Watch
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND, Decision, Ended, Failure, Gate, Lane, Lease, Micros, Outcome, State, Verb
from mulligan.policy.classify import renamed
from mulligan.policy.decide import decide
from mulligan.policy.lifecycle import TERMINAL, event_for
from mulligan.store.base import Settlement, Unit

_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: `dumps` would make it anew each time


OURS = "mulligan."  # how the rules of our own ends begin


class Ending(NamedTuple):
    lease: Lease
    outcome: Outcome
    duration_ms: int | None = None


class Verdict(NamedTuple):
    """What became of an ending: its decision, or None where the lease was lost and nothing changed."""

    lease: Lease
    decision: Decision | None


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
    ended = {batch for lease, decision in verdicts if (batch := _ended(lease, decision))}
    if ended:
        # Who has just closed a gate waits for no batch: whoever holds that may be about to open the gate.
        holds = any(decision is not None and decision.hold for _, decision in verdicts)
        complete(unit, ended, wait=wait and not holds)
    return verdicts


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
    endings = [_ruled(ending, layers) for ending in endings]
    decisions = _decide(unit, endings, layers, now, rng, watch, causes)
    refusals = unit.settle([_row(e, decisions[e.lease.fence], layers, now, actor) for e in endings])
    refused = {(r.id, r.token) for r in refusals}
    _hold(unit, [decision for fence, decision in decisions.items() if fence not in refused], now)
    lost = {(r.id, r.token) for r in refusals if r.why == "stale"}
    again = {(r.id, r.token): r.cancel_reason for r in refusals if r.why == "cancel"}
    verdicts = [
        Verdict(e.lease, None if e.lease.fence in lost else decisions[e.lease.fence])
        for e in endings
        if e.lease.fence not in again
    ]
    unit.write_events(_stale(e, actor) for e in endings if e.lease.fence in lost)
    asked = [
        ending._replace(lease=ending.lease._replace(cancel_reason=again[ending.lease.fence]))
        for ending in endings
        if ending.lease.fence in again
    ]
    return verdicts + _settled(unit, asked, layers, now, rng, actor)


def _decide(
    unit: Unit,
    endings: Sequence[Ending],
    layers: Layers,
    now: Micros,
    rng: Random,
    watch: Watch | None,
    causes: Causes | None,
) -> dict[tuple[str, int], Decision]:
    down = {} if watch is None else watch.observe(unit, endings, now)
    decisions = {
        e.lease.fence: decide(e.lease, e.outcome, layers.of(e.lease), now, rng, down=down.get(e.lease.fence, ""))
        for e in endings
    }
    if causes is not None:
        held = causes.observe(unit, [(ending, decisions[ending.lease.fence]) for ending in endings], now)
        decisions |= {
            e.lease.fence: decide(e.lease, e.outcome, layers.of(e.lease), now, rng, held=held[e.lease.fence])
            for e in endings
            if e.lease.fence in held
        }
    return decisions


def _ruled(ending: Ending, layers: Layers) -> Ending:
    """An end of our own making, such as a time limit, as the kind's rules have it; runners have judged all others."""
    failure = ending.outcome.failure
    if failure is None or not failure.rule.startswith(OURS):
        return ending
    uses = [key for key in ending.lease.uses.split(",") if key]
    ruled = renamed(failure, layers.books(ending.lease.kind), uses)
    return ending if ruled is failure else ending._replace(outcome=replace(ending.outcome, failure=ruled))


def _row(ending: Ending, decision: Decision, layers: Layers, now: Micros, actor: str) -> Settlement:
    lease, failure = ending.lease, decision.failure
    queued = decision.state is State.QUEUED
    queue = decision.then.get("queue") if decision.then else None
    return Settlement(
        id=lease.id,
        worker=lease.worker,
        token=lease.token,
        saw_cancel=lease.cancel_reason is not None,
        state=decision.state.value,
        run_at=decision.run_at if queued else None,
        failures=decision.failures,
        losses=decision.losses,
        snoozes=decision.snoozes,
        alone=decision.alone,
        result=decision.result,
        error=json.dumps(error_of(failure)) if decision.state is State.DEAD else None,
        choices=json.dumps(decision.choices) if decision.state is State.PARKED else None,
        reason=decision.reason,
        finished=decision.state in TERMINAL,
        free_key=frees_key(lease.unique_cover, decision.state),
        cost=decision.cost,
        generation=lease.generation,
        attempt=lease.attempt,
        settled_by=actor or lease.worker,
        started_at=lease.started_at,
        ended=ending.outcome.ended.value,
        verb=decision.verb.value,
        code=failure.code if failure else None,
        cls=failure.cls.value if failure else None,
        rule=failure.rule if failure else None,
        public=failure.public if failure else None,
        evidence=_json(failure.evidence) if failure else None,
        private=_json(failure.private) if failure else None,
        fingerprint=failure.fingerprint if failure else None,
        event=event_for(decision.verb).value,
        owner=lease.owner,
        batch_id=lease.batch_id,
        data=_json(_news(ending, decision, layers)),
        counts=decision.counts,
        settings=decision.settings,
        judged=_judged(decision, _would(ending, layers, now)),
        queue=queue,
        lane=None if queue is None else _lane(lease, decision, queue, layers),
    )


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


def _lane(lease: Lease, decision: Decision, queue: str, layers: Layers) -> str:
    """In another queue: owners may take turns there, or not any more."""
    return Lane(queue, lease.kind, lease.uses, decision.failures > 0, layers.share(queue, lease.owner)).key


def _news(ending: Ending, decision: Decision, layers: Layers) -> dict[str, Any]:
    """The data of the event: the public half only."""
    news: dict[str, Any] = {"kind": ending.lease.kind, "queue": ending.lease.queue}
    if decision.reason:
        news["reason"] = decision.reason
    if ending.duration_ms is not None:
        news["duration_ms"] = ending.duration_ms
    if decision.run_at is not None and decision.state is State.QUEUED:
        news["next_retry_at"] = decision.run_at
    if decision.failure is not None:
        news |= error_of(decision.failure)
    if decision.verb in _CHARGED:
        news |= {"failures": decision.failures, "max_retries": layers.of(ending.lease).max_retries}
    if ending.outcome.ended is Ended.LOST and decision.verb is not Verb.STOP:
        news |= {"losses": decision.losses, "max_losses": layers.of(ending.lease).max_losses}
    if decision.state is State.DEAD or (decision.state is State.PARKED and decision.failure is not None):
        news["group"] = group_of(decision.failure)
    if decision.skipped:
        news["skipped"] = True
    _measured(news, ending.lease, decision)
    return news


_CHARGED = frozenset({Verb.RETRY, Verb.DIE})


def group_of(failure: Failure | None) -> str:
    """As the column of a dead job has it."""
    if failure is None:
        return "code-UNKNOWN"
    return failure.fingerprint or f"code-{failure.code}"


def _measured(news: dict[str, Any], lease: Lease, decision: Decision) -> None:
    """What is counted of an attempt beside how it ended; see observe/fold.py."""
    if lease.failures:
        news["failed_before"] = lease.failures
    if lease.uses:
        news["uses"] = lease.uses
    if decision.cost:
        news["cost"] = decision.cost
    news["wait_ms"] = max(0, lease.started_at - lease.run_at) // 1000  # last: there it is found without a parser


def error_of(failure: Failure | None) -> dict[str, Any]:
    """The public half of a failure."""
    if failure is None:
        return {"code": "UNKNOWN", "class": "unknown", "message": "", "rule": ""}
    return {
        "code": failure.code,
        "class": failure.cls.value,
        "message": failure.public,
        "rule": failure.rule,
        **failure.evidence,
    }


def frees_key(cover: str | None, state: State) -> bool:
    """A move out of the covered states frees the unique key in the same statement."""
    return cover is not None and state.value not in cover.split(",")


def _hold(unit: Unit, decisions: Iterable[Decision], now: Micros) -> None:
    """Close what handlers found down; in one order for all, so that nobody waits in a circle."""
    asked = sorted({(*d.hold, "handler" if d.failure is None else "hint") for d in decisions if d.hold is not None})
    last = {key: (until, reason, actor) for key, until, reason, actor in asked}
    for key, (until, reason, actor) in last.items():
        unit.close_gate(Gate("dependency", key, now, until, reason, actor))
        news = {"dependency": key, "until": until, "reason": reason}
        unit.write_events([NewEvent(EventType.DEPENDENCY_OPENED, actor=actor, data=news)])


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


def _json(value: Mapping[str, Any]) -> str:
    return _encode(value) if value else "{}"
