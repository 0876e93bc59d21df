"""Settle finished attempts: decide what happens to each job and write it under its fence.

This is the only way an attempt changes a job. Returned, raised, timed out, killed, lease lost,
worker gone, cancelled: every ending is an `Outcome`, gets its `Decision` from pure rules and is
written under the fence (job, worker, token). Because deciding is pure, the whole step can be
repeated: when the database asks for it, or when it is unknown whether a commit arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from mulligan.batches.completion import complete_batches
from mulligan.core.attempt import Decision, Ending, Verdict
from mulligan.core.durations import Micros
from mulligan.core.lifecycle import TERMINAL
from mulligan.events.queries import EventQueries
from mulligan.failures.classify import apply_verdict_rules
from mulligan.guards.observer import DependencyObserver, KindObserver, close_gates
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Transaction
from mulligan.worker.queries import LeaseQueries, Refusal, RefusalReason
from mulligan.worker.settlement import settlement_row, stale_event

Fence = tuple[str, int]  # job id, token


@dataclass(frozen=True, slots=True)
class SettleContext:
    """Everything besides the endings that a settlement depends on."""

    policies: EffectivePolicies
    now: Micros
    rng: Random
    actor: str = ""  # of the attempts and events; empty: the worker of each lease
    observer: DependencyObserver | None = None  # knows which dependencies are down
    kind_observer: KindObserver | None = None  # knows which kinds die of one cause
    # False: a batch that another transaction has locked is completed later, by upkeep.
    wait_for_batches: bool = True


def settle(tx: Transaction, endings: Sequence[Ending], context: SettleContext) -> list[Verdict]:
    """Decide and write all endings in one transaction. Return one verdict per ending, in order.

    An ending whose lease was taken over changes nothing: its verdict has no decision, and a
    `job.stale_refused` event is written.
    """
    verdicts = _settle_endings(tx, endings, context)
    _complete_batches(tx, verdicts, wait=context.wait_for_batches)
    return verdicts


def _settle_endings(
    tx: Transaction, endings: Sequence[Ending], context: SettleContext
) -> list[Verdict]:
    if not endings:
        return []
    endings = [_apply_system_rules(ending, context.policies) for ending in endings]
    decisions = _decide_all(tx, endings, context)
    decided = [*zip(endings, decisions, strict=True)]
    rows = [
        settlement_row(ending, decision, context.policies, context.now, context.actor)
        for ending, decision in decided
    ]
    refusals = {(refusal.id, refusal.token): refusal for refusal in LeaseQueries(tx).settle(rows)}
    holds = [
        decision
        for ending, decision in decided
        if decision.hold is not None and ending.lease.fence not in refusals
    ]
    close_gates(tx, holds, context.now)
    if not refusals:
        return [Verdict(ending.lease, decision) for ending, decision in decided]
    return _settle_refused(tx, decided, refusals, context)


# --- Decide ---


def _apply_system_rules(ending: Ending, policies: EffectivePolicies) -> Ending:
    """Apply the kind's rules to an end without an exception, such as a time limit.

    Runners have already classified all failures that have an exception.
    """
    failure = ending.outcome.failure
    if failure is None or not failure.by_system:
        return ending
    uses = [key for key in ending.lease.uses.split(",") if key]
    ruled = apply_verdict_rules(failure, policies.rulebooks(ending.lease.kind), uses)
    if ruled is failure:
        return ending
    return ending._replace(outcome=ending.outcome._replace(failure=ruled))


def _decide_all(
    tx: Transaction, endings: Sequence[Ending], context: SettleContext
) -> list[Decision]:
    """Decide each ending. Failures caused by an outage, or of a held kind, are not charged."""
    down: Mapping[Fence, str] = {}
    if context.observer is not None:
        down = context.observer.observe(tx, endings, context.now)
    decisions = [
        _decide(ending, context, dependency_down=down.get(ending.lease.fence, ""))
        for ending in endings
    ]
    if context.kind_observer is None:
        return decisions
    held = context.kind_observer.observe(tx, endings, decisions, context.now)
    return [
        _decide(ending, context, kind_held=held[ending.lease.fence])
        if ending.lease.fence in held
        else decision
        for ending, decision in zip(endings, decisions, strict=True)
    ]


def _decide(ending: Ending, context: SettleContext, **uncharged: str) -> Decision:
    policy = context.policies.for_job(ending.lease)
    return decide(ending.lease, ending.outcome, policy, context.now, context.rng, **uncharged)


# --- Refused by the fence ---


def _settle_refused(
    tx: Transaction,
    decided: Sequence[tuple[Ending, Decision]],
    refusals: Mapping[Fence, Refusal],
    context: SettleContext,
) -> list[Verdict]:
    """Handle rows that the fence refused.

    A lost lease changes nothing. If a cancellation was requested meanwhile, decide again with it.
    """
    verdicts: dict[Fence, Verdict] = {}
    stale = []
    decide_again = []
    for ending, decision in decided:
        lease = ending.lease
        refusal = refusals.get(lease.fence)
        verdicts[lease.fence] = Verdict(lease, decision)
        if refusal is None or refusal.reason is RefusalReason.SETTLED:
            continue
        if refusal.reason is RefusalReason.CANCEL:
            changed = lease._replace(cancel_reason=refusal.cancel_reason)
            decide_again.append(ending._replace(lease=changed))
        else:
            stale.append(stale_event(ending, context.actor))
            verdicts[lease.fence] = Verdict(lease, None)
    EventQueries(tx).write_events(stale)
    # The observers have counted these endings already.
    again = _settle_endings(tx, decide_again, replace(context, observer=None, kind_observer=None))
    verdicts |= {verdict.lease.fence: verdict for verdict in again}
    return [verdicts[ending.lease.fence] for ending, _ in decided]


# --- Batches ---


def _complete_batches(tx: Transaction, verdicts: Sequence[Verdict], *, wait: bool) -> None:
    """Complete the batches of which a member has reached a terminal state."""
    ended = {
        lease.batch_id
        for lease, decision in verdicts
        if lease.batch_id is not None and decision is not None and decision.state in TERMINAL
    }
    if not ended:
        return
    # A transaction that closed a gate must not wait for a batch: the transaction that has
    # locked the batch may be waiting to open the gate.
    closed_gate = any(decision is not None and decision.hold for _, decision in verdicts)
    complete_batches(tx, ended, wait=wait and not closed_gate)
