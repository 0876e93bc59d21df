"""Upkeep that no job triggers: lost workers, deadlines, unknown kinds, retention.

Safe on all workers at once: each step is small, fenced or compare-and-set, and skips rows that
other transactions have locked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from mulligan.batches import completion as batching
from mulligan.config import RetrySection, Settings
from mulligan.core.attempt import Ended, Ending, Failure, Outcome, Verb, Verdict
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import JobRow, Lane, State, WorkerRow
from mulligan.core.lifecycle import event_for, next_state
from mulligan.events.queries import EventQueries
from mulligan.failures.codes import deadline_passed, unknown_kind, worker_lost
from mulligan.guards.observer import PROBE_KIND
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries, Move
from mulligan.manifest.declared import load_kinds, load_queues, load_recent_manifests
from mulligan.manifest.specs import KindSpec
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Store, Transaction
from mulligan.worker.job_log import log_verdicts
from mulligan.worker.liveness import is_certainly_dead, kill_marked
from mulligan.worker.queries import RetentionQueries, WorkerQueries
from mulligan.worker.settle import SettleContext, settle
from mulligan.worker.settlement import failure_group, frees_unique_key, public_error

log = logging.getLogger("mulligan.upkeep")

BATCH_SIZE = 200  # rows per step
MAX_ORPHANS = 500  # jobs of lost workers per sweep
HOUR = 3600 * SECOND
DAY = 24 * HOUR
PROBE_RETENTION = HOUR
SUBSCRIPTION_RETENTION = DAY  # after no app declares it any more
GUARD_RETENTION = 7 * DAY  # after the last call of the dependency
# Rate limits of manual retries are at most per day, so these token buckets are full again.
TOKEN_BUCKET_RETENTION = 2 * DAY
RESPONSE_RETENTION = DAY  # responses stored for repeated HTTP requests
SCHEDULE_RETENTION = 30 * DAY  # after no app declares it: its workers may be started again


class LossDetector(NamedTuple):
    """How one worker finds out that others are lost."""

    worker: str
    boot_id: str
    is_expired: Callable[[WorkerRow], bool]  # has another worker's lease expired?


# --- Lost workers ---


def close_lost_workers(store: Store, detector: LossDetector) -> list[WorkerRow]:
    """Close the rows of workers that are dead or whose lease has expired. Return them."""
    with store.read() as tx:
        others = [
            worker
            for worker in WorkerQueries(tx).list_workers(closed=False)
            if worker.id != detector.worker
        ]
    closed = []
    for worker in others:
        reason = _loss_reason(worker, detector)
        if reason and _close(store, worker, reason):
            closed.append(worker)
    return closed


def _loss_reason(worker: WorkerRow, detector: LossDetector) -> str:
    """Return why a worker counts as lost; empty if it does not."""
    if is_certainly_dead(worker, detector.boot_id):
        return "its liveness file is not locked any more"
    if detector.is_expired(worker):
        return f"no renewal for {worker.lease / SECOND:g} s"
    return ""


def _close(store: Store, worker: WorkerRow, reason: str) -> bool:
    with store.begin() as tx:
        closed = WorkerQueries(tx).close_worker(worker.id, reason, last_renewed=worker.renewed_at)
        if closed:
            # Before the commit: its processes on this host must be gone before its jobs run again.
            kill_marked(worker.id)
            data = {"worker": worker.id, "host": worker.host, "pid": worker.pid, "reason": reason}
            EventQueries(tx).write_events([NewEvent(EventType.WORKER_LOST, data=data)])
            log.warning("worker %s on %s is lost: %s", worker.id, worker.host, reason)
    return closed


def settle_orphans(store: Store, retry: RetrySection, rng: Random) -> list[Verdict]:
    """Settle running jobs whose worker is closed or missing as lost.

    They may belong to any app on this database, so their policies come from the stored manifests.
    """
    with store.read() as tx:
        leases = WorkerQueries(tx).list_orphans(MAX_ORPHANS)
        if not leases:
            return []
        now = tx.now()
        policies = EffectivePolicies(retry, load_kinds(tx), load_queues(tx, now))
    endings = [
        Ending(lease, Outcome(Ended.LOST, failure=worker_lost(lease.worker), ended_at=now))
        for lease in leases
    ]
    try:
        with store.begin() as tx:
            verdicts = settle(tx, endings, SettleContext(policies, now, rng, "upkeep"))
        log_verdicts(verdicts, policies, now)
        return verdicts
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("jobs of lost workers cannot be settled together; trying one by one")
        return [
            verdict
            for ending in endings
            for verdict in _settle_orphan(store, ending, policies, rng)
        ]


def _settle_orphan(
    store: Store, ending: Ending, policies: EffectivePolicies, rng: Random
) -> list[Verdict]:
    try:
        with store.begin() as tx:
            return settle(tx, [ending], SettleContext(policies, tx.now(), rng, "upkeep"))
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("job %s of a lost worker cannot be settled", ending.lease.id)
        return []


# --- Moves without an attempt ---


def expire_deadlines(store: Store) -> int:
    """End queued jobs whose deadline has passed. Return how many."""
    with store.begin() as tx:
        rows = JobQueries(tx).list_due_deadlines(BATCH_SIZE)
        return expire_jobs(tx, [(row, deadline_passed()) for row in rows])


def expire_unknown_kinds(store: Store, after: float) -> int:
    """End overdue jobs of kinds that no live worker and no recent manifest has."""
    with store.begin() as tx:
        look = GuardQueries(tx).read_claim_state()
        known = known_kinds(tx, look.now)
        lanes = {key for key, _, _ in look.lanes if Lane.parse(key).kind not in known}
        before = look.now - round(after * SECOND)
        rows = [
            row
            for lane in sorted(lanes)
            for row in JobQueries(tx).list_overdue_jobs(lane, before, BATCH_SIZE)
        ]
        return expire_jobs(tx, [(row, unknown_kind(row.kind)) for row in rows])


def expire_jobs(
    tx: Transaction, rows: Sequence[tuple[JobRow, Failure]], actor: str = "upkeep"
) -> int:
    """End jobs, then complete their batches: all transactions lock jobs before batches."""
    ended = [row for row, failure in rows if expire_job(tx, row, failure, actor)]
    batching.complete_batches(tx, {row.batch_id for row in ended if row.batch_id is not None})
    return len(ended)


def live_kinds(tx: Transaction) -> frozenset[str]:
    """Return the kinds that a live worker can run."""
    return frozenset(
        kind
        for worker in WorkerQueries(tx).list_workers(closed=False)
        for kind in json.loads(worker.kinds)
    )


def known_kinds(tx: Transaction, now: int) -> frozenset[str]:
    """Return the kinds that a live worker or a recent manifest has. Others will never run."""
    return live_kinds(tx).union(*(manifest.kinds for manifest in load_recent_manifests(tx, now)))


def expire_job(tx: Transaction, row: JobRow, failure: Failure, actor: str = "upkeep") -> bool:
    """Move a queued or parked job to dead, with this failure as its error."""
    state = next_state(Verb.EXPIRE, State(row.state))
    done = JobQueries(tx).move_job(
        Move(
            id=row.id,
            from_state=row.state,
            generation=row.generation,
            token=row.token,
            state=state.value,
            run_at=None,
            new_generation=False,
            finished=True,
            error=json.dumps(public_error(failure)),
            reason=failure.public,
            choice=None,
            unique_hash=None if frees_unique_key(row.unique_cover, state) else row.unique_hash,
            max_retries=None,
            died_code=failure.code,
            died_class=failure.cls.value,
            died_group=failure_group(failure),
        )
    )
    if done:
        EventQueries(tx).write_events(
            [
                NewEvent(
                    event_for(Verb.EXPIRE),
                    job_id=row.id,
                    batch_id=row.batch_id,
                    owner=row.owner,
                    actor=actor,
                    data=_death_data(row, failure),
                )
            ]
        )
    return done


def _death_data(row: JobRow, failure: Failure) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": row.kind, "queue": row.queue, **public_error(failure)}
    data["group"] = failure_group(failure)
    data["failures"] = row.failures
    if row.max_retries is not None:
        data["max_retries"] = row.max_retries
    return data


# --- Retention ---


def prune(store: Store, settings: Settings, kinds: Mapping[str, KindSpec]) -> int:
    """Remove one batch of each sort of old rows. Return how many rows were removed."""
    by_kind = {PROBE_KIND: PROBE_RETENTION}
    by_kind |= {spec.name: spec.retention for spec in kinds.values() if spec.retention is not None}
    keep = settings.retention
    removed = 0
    for state, seconds in (
        ("succeeded", keep.succeeded),
        ("dead", keep.dead),
        ("cancelled", keep.cancelled),
    ):
        removed += _prune(store, state, round(seconds * SECOND), None, by_kind)
        for kind, span in by_kind.items():
            removed += _prune(store, state, span, kind, ())
    removed += batching.prune_batches(store, keep.batches)
    with store.begin() as tx:
        now = tx.now()
        events_before = now - round(keep.events * SECOND)
        audit_before = now - round(max(keep.audit, keep.events) * SECOND)
        records_before = now - round(keep.records * SECOND)
        removed += EventQueries(tx).prune_events(events_before, BATCH_SIZE)
        removed += EventQueries(tx).prune_audit_events(audit_before, BATCH_SIZE)
        retention = RetentionQueries(tx)
        removed += retention.prune_slots(events_before, BATCH_SIZE)
        removed += retention.prune_incidents(events_before, BATCH_SIZE)
        removed += retention.delete_orphaned_subscriptions(now - SUBSCRIPTION_RETENTION)
        removed += retention.prune_operations(now - round(keep.operations * SECOND), BATCH_SIZE)
        retention.delete_undeclared_schedules(now - SCHEDULE_RETENTION)
        retention.delete_idle_guards(now - GUARD_RETENTION)
        retention.delete_closed_workers(now - round(keep.workers * SECOND))
        retention.delete_old_token_buckets(now - TOKEN_BUCKET_RETENTION)
        retention.delete_old_group_states(records_before)
        retention.delete_prune_records(records_before)
        retention.delete_expired_sessions(now)
        retention.delete_old_api_keys(records_before)
        removed += retention.prune_stored_responses(now - RESPONSE_RETENTION, BATCH_SIZE)
    return removed


def _prune(
    store: Store, state: str, span: int, kind: str | None, except_kinds: Iterable[str]
) -> int:
    with store.begin() as tx:
        records = JobQueries(tx).prune_jobs(
            state, tx.now() - span, BATCH_SIZE, kind=kind, except_kinds=list(except_kinds)
        )
    return sum(record.jobs for record in records)


def announce_inserted(store: Store) -> int:
    """Write missing job.queued events of jobs inserted in callers' transactions."""
    with store.begin() as tx:
        return JobQueries(tx).announce_jobs(BATCH_SIZE)
