"""Settle finished attempts: decide what happens to each job and write it under its fence.

This is the only way an attempt changes a job. Returned, raised, timed out, killed, lease lost,
worker gone, cancelled: every ending is an `Outcome`, gets its `Decision` from pure rules and is
written under the fence (job, worker, token). Because deciding is pure, the whole step can be
repeated: when the database asks for it, or when it is unknown whether a commit arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from mulligan.batches.completion import complete_batches
from mulligan.core.attempt import Decision, Ended, Ending, Ground, Lease, Verb, Verdict
from mulligan.core.durations import Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate
from mulligan.core.lifecycle import TERMINAL
from mulligan.failures.classify import apply_verdict_rules
from mulligan.guards.observer import DependencyObserver, KindObserver
from mulligan.guards.queries import GuardQueries
from mulligan.retries.decide import decide, decide_success
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import (
    Refusal,
    RetryRow,
    Settlement,
    SharedRetryTexts,
    SuccessRow,
    Transaction,
)
from mulligan.worker.fast.grouped_endings import GroupedEndings
from mulligan.worker.settlement import frees_unique_key, success_data

Fence = tuple[str, int]  # job id, token


def settle(  # noqa: PLR0913 - each is one thing that a decision depends on
    unit: Transaction,
    endings: Sequence[Ending],
    policies: EffectivePolicies,
    now: Micros,
    rng: Random,
    *,
    actor: str = "",
    observer: DependencyObserver | None = None,
    kind_observer: KindObserver | None = None,
    wait_for_batches: bool = True,
) -> list[Verdict]:
    """Decide and write all endings. Return one verdict for each.

    An ending whose lease was taken over changes nothing: its verdict has no decision, and a
    `job.stale_refused` event is written. `observer` knows which dependencies are down,
    `kind_observer` which kinds die of one cause. Without `wait_for_batches`, a batch that another
    transaction has locked is completed later, by upkeep.
    """
    grouped = GroupedEndings(policies, now, rng, actor)
    verdicts = _settle(unit, endings, grouped, observer, kind_observer)
    ended_batches = _ended_batches(verdicts)
    if ended_batches:
        # A transaction that closed a gate must not wait for a batch: the transaction that has
        # locked the batch may be waiting to open the gate.
        closed_gate = any(
            verdict.decision is not None and verdict.decision.hold for verdict in verdicts
        )
        complete_batches(unit, ended_batches, wait=wait_for_batches and not closed_gate)
    return verdicts


def _ended_batches(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the batches of which a member has reached a terminal state."""
    return {
        lease.batch_id
        for lease, decision, _ in verdicts
        if lease.batch_id is not None and decision is not None and decision.state in TERMINAL
    }


def _settle(
    unit: Transaction,
    endings: Sequence[Ending],
    grouped: GroupedEndings,
    observer: DependencyObserver | None = None,
    kind_observer: KindObserver | None = None,
) -> list[Verdict]:
    if not endings:
        return []
    endings = [
        ending if ending.outcome.failure is None else _apply_system_rules(ending, grouped.policies)
        for ending in endings
    ]
    down = {} if observer is None else observer.observe(unit, endings, grouped.now)
    if grouped.actor or not unit.supports_settle_retries:
        return _decide_and_write(unit, endings, grouped, down, kind_observer)
    groups = _write_retry_groups(
        unit.settle_retries, [ending for ending in endings if not ending.lease.uses], grouped
    )
    retried = [
        Verdict(ending.lease, decision, ending.message)
        for decision, group in groups
        for ending in group
    ]
    rest = _without(endings, retried)
    return retried + _decide_and_write(unit, rest, grouped, down, kind_observer)


def _without(endings: Sequence[Ending], written: Sequence[Verdict]) -> Sequence[Ending]:
    """Return the endings that have no verdict yet."""
    if not written:
        return endings
    if len(written) == len(endings):
        return ()
    fences = {verdict.lease.fence for verdict in written}
    return [ending for ending in endings if ending.lease.fence not in fences]


def _decide_and_write(
    unit: Transaction,
    endings: Sequence[Ending],
    grouped: GroupedEndings,
    down: Mapping[Fence, str],
    kind_observer: KindObserver | None,
) -> list[Verdict]:
    if not endings:
        return []
    decisions = _decide_all(unit, endings, grouped, down, kind_observer)
    decided = [*zip(endings, decisions, strict=True)]
    rest = decided if grouped.actor else _write_simple_successes(unit, decided)
    rows = [grouped.settlement_row(ending, decision) for ending, decision in rest]
    refusals = {(refusal.id, refusal.token): refusal for refusal in unit.settle(rows)}
    holds = [
        decision
        for ending, decision in rest
        if decision.hold is not None and ending.lease.fence not in refusals
    ]
    _close_gates(unit, holds, grouped.now)
    if not refusals:
        return [Verdict(ending.lease, decision, ending.message) for ending, decision in decided]
    return _settle_refused(unit, decided, refusals, grouped)


def _settle_refused(
    unit: Transaction,
    decided: Sequence[tuple[Ending, Decision]],
    refusals: Mapping[Fence, Refusal],
    grouped: GroupedEndings,
) -> list[Verdict]:
    """Handle rows that the fence refused.

    A lost lease changes nothing. If a cancellation was requested meanwhile, decide again with it.
    """
    lost = {fence for fence, refusal in refusals.items() if refusal.why == "stale"}
    cancelled = {
        fence: refusal.cancel_reason
        for fence, refusal in refusals.items()
        if refusal.why == "cancel"
    }
    verdicts = []
    stale = []
    decide_again = []
    for ending, decision in decided:
        lease = ending.lease
        if lease.fence in cancelled:
            changed = lease._replace(cancel_reason=cancelled[lease.fence])
            decide_again.append(ending._replace(lease=changed))
        elif lease.fence in lost:
            stale.append(_stale_event(ending, grouped.actor))
            verdicts.append(Verdict(lease, None, ending.message))
        else:
            verdicts.append(Verdict(lease, decision, ending.message))
    unit.write_events(stale)
    return verdicts + _settle(unit, decide_again, grouped)


def _decide_all(
    unit: Transaction,
    endings: Sequence[Ending],
    grouped: GroupedEndings,
    down: Mapping[Fence, str],
    kind_observer: KindObserver | None,
) -> list[Decision]:
    decisions = [
        decide_success(ending.lease, ending.outcome)
        if ending.outcome.ended is Ended.RETURNED
        else grouped.decide(ending, down.get(ending.lease.fence, "") if down else "")
        for ending in endings
    ]
    if kind_observer is None:
        return decisions
    held = kind_observer.observe(unit, endings, decisions, grouped.now)
    if not held:
        return decisions
    return [
        _decide_held(ending, held[ending.lease.fence], grouped)
        if ending.lease.fence in held
        else decision
        for ending, decision in zip(endings, decisions, strict=True)
    ]


def _decide_held(ending: Ending, kind_held: str, grouped: GroupedEndings) -> Decision:
    """Decide an ending whose kind was just held because many of its jobs die of one cause."""
    policy = grouped.policies.for_job(ending.lease)
    return decide(
        ending.lease, ending.outcome, policy, grouped.now, grouped.rng, kind_held=kind_held
    )


def _apply_system_rules(ending: Ending, policies: EffectivePolicies) -> Ending:
    """Apply the kind's rules to an end without an exception, such as a time limit.

    Runners have already classified all failures that have an exception.
    """
    failure = ending.outcome.failure
    if failure is None or ending.message is not None or not failure.by_system:
        return ending
    uses = [key for key in ending.lease.uses.split(",") if key]
    ruled = apply_verdict_rules(failure, policies.rulebooks(ending.lease.kind), uses)
    if ruled is failure:
        return ending
    return ending._replace(outcome=ending.outcome._replace(failure=ruled))


def _close_gates(unit: Transaction, holds: Iterable[Decision], now: Micros) -> None:
    """Close the gates of dependencies that handlers found down.

    In one order for all transactions, so that they cannot deadlock. Of several holds of one
    dependency, the last in that order counts.
    """
    requests = sorted(
        {
            (*decision.hold, "handler" if decision.failure is None else "hint")
            for decision in holds
            if decision.hold is not None
        }
    )
    last = {key: (until, reason, actor) for key, until, reason, actor in requests}
    for key, (until, reason, actor) in last.items():
        GuardQueries(unit).close_gate(Gate("dependency", key, now, until, reason, actor))
        data = {"dependency": key, "until": until, "reason": reason}
        unit.write_events([NewEvent(EventType.DEPENDENCY_OPENED, actor=actor, data=data)])


def _stale_event(ending: Ending, actor: str) -> NewEvent:
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


# --- Accelerators: simple successes, and groups of equal retries ---


class SimpleResult(NamedTuple):
    """Endings that `finish_simple` wrote, and the rest."""

    returned: list[Lease]
    retried: list[tuple[Decision, list[Ending]]]  # groups of equal failures with their decision
    rest: list[Ending]


def finish_simple(
    unit: Transaction, endings: Sequence[Ending], grouped: GroupedEndings
) -> SimpleResult:
    """Write simple successes and groups of equal retries, each set in its own transaction.

    Everything else is left for `settle`, including endings whose fence is in doubt.
    """
    worker = endings[0].lease.worker
    rows = []
    for ending in endings:
        row = _simple_success(ending, worker)
        if row is not None:
            rows.append(row)
    written = unit.settle_successes_by_location(worker, rows) if rows else set()
    if len(written) == len(endings):
        return SimpleResult([ending.lease for ending in endings], [], [])
    returned = [ending.lease for ending in endings if ending.lease.fence in written]
    retried = _write_retry_groups(unit.settle_retries_by_location, endings, grouped)
    written |= {ending.lease.fence for _, group in retried for ending in group}
    rest = [ending for ending in endings if ending.lease.fence not in written]
    return SimpleResult(returned, retried, rest)


RetryStatement = Callable[[Settlement, SharedRetryTexts, Sequence[RetryRow]], set[Fence]]


def _write_retry_groups(
    retry: RetryStatement, endings: Iterable[Ending], grouped: GroupedEndings
) -> list[tuple[Decision, list[Ending]]]:
    """Write each group of equal retries with one statement. Return what was written."""
    written = []
    for decision, row, texts, group in grouped.retry_groups(endings):
        fences = retry(row, texts, [attempt for attempt, _ in group])
        all_written = len(fences) == len(group)
        written.append(
            (
                decision,
                [ending for _, ending in group if all_written or ending.lease.fence in fences],
            )
        )
    return written


def _simple_success(ending: Ending, worker: str) -> SuccessRow | None:
    if ending.outcome.ended is not Ended.RETURNED:
        return None
    decision = decide_success(ending.lease, ending.outcome)
    if not _is_simple_success(ending.lease, decision, worker):
        return None
    return _finished_row(ending, decision)


def _write_simple_successes(
    unit: Transaction, decided: Sequence[tuple[Ending, Decision]]
) -> Sequence[tuple[Ending, Decision]]:
    """Write simple successes in their short form. Return the rest, and any refused by its fence."""
    worker = decided[0][0].lease.worker
    rows = [
        _finished_row(ending, decision)
        for ending, decision in decided
        if _is_simple_success(ending.lease, decision, worker)
    ]
    if not rows:
        return decided
    written = unit.settle_successes(worker, rows)
    if len(written) == len(decided):
        return ()
    return [pair for pair in decided if pair[0].lease.fence not in written]


def _is_simple_success(lease: Lease, decision: Decision, worker: str) -> bool:
    """True if the attempt returned and nothing else about the job changes."""
    return (
        decision.ground is Ground.RETURNED
        and lease.worker == worker
        and decision.verb is Verb.SUCCEED
        and not (decision.cost or lease.alone)
        and (lease.unique_cover is None or not frees_unique_key(lease.unique_cover, decision.state))
    )


def _finished_row(ending: Ending, decision: Decision) -> SuccessRow:
    lease = ending.lease
    return SuccessRow(
        lease.id,
        lease.token,
        lease.generation,
        lease.attempt,
        lease.started_at,
        decision.result,
        lease.owner,
        lease.batch_id,
        success_data(ending, decision.reason),
        lease.row_location,
    )
