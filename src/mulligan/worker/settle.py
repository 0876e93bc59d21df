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
from mulligan.core.attempt import Decision, Ending, Failure, Lease, Verb, Verdict
from mulligan.core.durations import Micros
from mulligan.core.json import decode
from mulligan.core.lifecycle import TERMINAL
from mulligan.events.queries import EventQueries
from mulligan.failures.codes import PAYLOAD_REFUSED_RULE
from mulligan.failures.matcher import apply_verdict_rules
from mulligan.guards.kind_observer import KindObserver
from mulligan.guards.observer import DependencyObserver, close_gates
from mulligan.manifest.declared import (
    RefusedPayload,
    find_accepting_release,
    find_release_of_version,
)
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.steps.queries import StepQueries, failed_step
from mulligan.storage.base import Transaction
from mulligan.waits.begin import begin_waits
from mulligan.worker.queries import AttemptLogRow, LeaseQueries, Refusal, RefusalReason
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
    endings = [
        _apply_system_rules(ending, ending.outcome.failure, context.policies)
        if ending.outcome.failure is not None and ending.outcome.failure.by_system
        else ending
        for ending in endings
    ]
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
    _write_logs_and_steps(tx, endings, refusals)
    waits = [
        (ending, decision)
        for ending, decision in decided
        if decision.verb is Verb.WAIT and ending.lease.fence not in refusals
    ]
    if waits:
        begin_waits(tx, waits, context.now)
    if holds:
        close_gates(tx, holds, context.now)
    if not refusals:
        return [Verdict(ending.lease, decision) for ending, decision in decided]
    return _settle_refused(tx, decided, refusals, context)


def _write_logs_and_steps(
    tx: Transaction, endings: Sequence[Ending], refusals: Mapping[Fence, Refusal]
) -> None:
    """Write the logs of failed attempts and their failed steps. A step in doubt keeps its mark."""
    settled = [(lease, outcome) for lease, outcome, _ in endings if lease.fence not in refusals]
    logs = [
        AttemptLogRow(*lease.fence, *outcome.log)
        for lease, outcome in settled
        if outcome.log is not None
    ]
    LeaseQueries(tx).write_logs(logs)
    steps = [
        failed_step(lease, outcome.step, outcome.failure)
        for lease, outcome in settled
        if outcome.step is not None and not outcome.step.in_doubt
    ]
    if steps:
        StepQueries(tx).save_failed(steps)


# --- Decide ---


def _apply_system_rules(ending: Ending, failure: Failure, policies: EffectivePolicies) -> Ending:
    """Apply the kind's rules to an end without an exception, such as a time limit.

    Runners have already classified all failures that have an exception.
    """
    uses = [key for key in ending.lease.uses.split(",") if key]
    ruled = apply_verdict_rules(failure, policies.rulebooks(ending.lease.kind), uses)
    return ending._replace(outcome=ending.outcome._replace(failure=ruled))


def _decide_all(
    tx: Transaction, endings: Sequence[Ending], context: SettleContext
) -> list[Decision]:
    """Decide each ending. Failures caused by an outage, or of a held kind, are not charged."""
    policies, now, rng = context.policies, context.now, context.rng
    down: Mapping[Fence, str] = {}
    if context.observer is not None:
        down = context.observer.observe(tx, endings, now)
    decisions = []
    for lease, outcome, _ in endings:
        uncharged = {}
        if down:
            uncharged["dependency_down"] = down.get(lease.fence, "")
        if outcome.failure is not None and outcome.failure.origin == PAYLOAD_REFUSED_RULE:
            uncharged["other_release"] = _find_other_release(tx, lease, context)
        policy = policies.for_outcome(lease, outcome)
        decisions.append(decide(lease, outcome, policy, now, rng, **uncharged))
    if context.kind_observer is None:
        return decisions
    held = context.kind_observer.observe(tx, endings, decisions, now)
    for place, (lease, outcome, _) in enumerate(endings if held else ()):
        if kind := held.get(lease.fence):
            policy = policies.for_outcome(lease, outcome)
            decisions[place] = decide(lease, outcome, policy, now, rng, kind_held=kind)
    return decisions


def _find_other_release(tx: Transaction, lease: Lease, context: SettleContext) -> str:
    """Return a release that accepts a payload which this one has refused; empty if none does."""
    spec = context.policies.kind(lease.kind)
    if not spec.takes_version(lease.version):
        return find_release_of_version(tx, spec, lease.version, context.now)
    waited = context.now - lease.first_started_at
    payload = RefusedPayload(decode(lease.payload), lease.version)
    return find_accepting_release(tx, spec, payload, context.now, waited)


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
