"""Upkeep that no job triggers: lost workers, deadlines, unknown kinds, retention.

Safe on all workers at once: each step is small, fenced or compare-and-set, and skips rows that
other transactions have locked.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from mulligan.batches import completion as batching
from mulligan.config import RetrySection, Settings
from mulligan.core.attempt import Ended, Ending, Failure, Lease, Outcome, Verb, Verdict
from mulligan.core.attempt_log import AttemptLog
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import StatementAborted, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import JobRow, Lane, State, WorkerRow
from mulligan.core.lifecycle import EVENTS, next_state
from mulligan.events.queries import EventQueries
from mulligan.failures.codes import deadline_passed, unknown_kind, worker_lost
from mulligan.guards.observer import PROBE_KIND
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries, Move
from mulligan.jobs.repair import undo_by_move
from mulligan.manifest.declared import (
    load_kinds,
    load_queues,
    load_recent_manifests,
    prune_manifests,
)
from mulligan.manifest.specs import DEFAULT_RECORDS, KindSpec
from mulligan.releases.chore import count_of_lost_workers
from mulligan.releases.queries import ReleaseQueries
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.undo import cause_of_move, must_undo, read_cause
from mulligan.storage.base import Store, Transaction
from mulligan.worker.job_log import log_verdicts
from mulligan.worker.liveness import find_work_folder, is_certainly_dead, kill_marked
from mulligan.worker.queries import RetentionQueries, WorkerQueries, boot_id
from mulligan.worker.recording import build_log, encode_records
from mulligan.worker.settle import SettleContext, settle
from mulligan.worker.settlement import failure_group, frees_unique_key, public_error
from mulligan.worker.status_page import Fence, read_records, read_started_attempts

log = logging.getLogger("mulligan.upkeep")

BATCH_SIZE = 200  # rows per step
MAX_SUSPECTS = 100  # jobs of one lost worker that each run in their own process next
MAX_ORPHANS = 500  # jobs of lost workers in one transaction
HOUR = 3600 * SECOND
DAY = 24 * HOUR
PROBE_RETENTION = HOUR
SUBSCRIPTION_RETENTION = DAY  # after no app declares it any more
GUARD_RETENTION = 7 * DAY  # after the last call of the dependency
# Rate limits of manual retries are at most per day, so these token buckets are full again.
HOOK_FAULT_RETENTION = 30 * DAY
TOKEN_BUCKET_RETENTION = 2 * DAY
RESPONSE_RETENTION = DAY  # responses stored for repeated HTTP requests
MAX_CAUSES = 10_000  # that are kept without a dead job
SCHEDULE_RETENTION = 30 * DAY  # after no app declares it: its workers may be started again


class LossDetector(NamedTuple):
    """How one worker finds out that others are lost."""

    worker: str
    boot_id: str
    is_expired: Callable[[WorkerRow], bool]  # has another worker's lease expired?


# --- Lost workers ---


def close_lost_workers(
    store: Store, detector: LossDetector, retry: RetrySection, rng: Random
) -> list[WorkerRow]:
    """Close the rows of workers that are dead or whose lease has expired. Return them.

    Their jobs that had not begun, and those that had ended, are settled at once. Those that were
    running stay for `settle_orphans`.
    """
    with store.read() as tx:
        others = [
            worker
            for worker in WorkerQueries(tx).list_workers(closed=False)
            if worker.id != detector.worker
        ]
    closed = []
    for worker in others:
        reason = _loss_reason(worker, detector)
        if not reason:
            continue
        if is_certainly_dead(worker, detector.boot_id):
            # Not in the transaction: it may take seconds, and SQLite has one write lock for all.
            kill_marked(worker.id)
        with store.begin() as tx:
            if not _close(tx, worker, reason):
                continue
            verdicts = _settle_not_running(tx, worker, detector.boot_id, retry, rng)
        log.info("worker %s: %d of its jobs were not running", worker.id, len(verdicts))
        closed.append(worker)
    return closed


def renewed_time_after(workers: Iterable[WorkerRow], since: Micros, now: Micros) -> Micros:
    """Return for how long workers that started after a time have renewed, without overlaps.

    Each stretch was measured by a monotonic clock, and the database answered all the while. Where
    it lies is known only by the database's clock. Stretches that end in the future were measured
    before that clock was set back: they say nothing.
    """
    total = 0
    end = since
    stretches = sorted(
        (row.renewed_at - row.renewing, row.renewed_at) for row in workers if row.renewed_at <= now
    )
    for begin, last in stretches:
        if begin > since:
            total += max(0, last - max(begin, end))
            end = max(end, last)
    return total


def _loss_reason(worker: WorkerRow, detector: LossDetector) -> str:
    """Return why a worker counts as lost; empty if it does not."""
    if is_certainly_dead(worker, detector.boot_id):
        return "its liveness file is not locked any more"
    if detector.is_expired(worker):
        return f"no renewal for {worker.lease / SECOND:g} s"
    return ""


def _close(tx: Transaction, worker: WorkerRow, reason: str) -> bool:
    closed = WorkerQueries(tx).close_worker(worker.id, reason, last_renewed=worker.renewed_at)
    if closed:
        # Before the commit: its processes on this host must be gone before its jobs run again.
        kill_marked(worker.id)
        data = {"worker": worker.id, "host": worker.host, "pid": worker.pid, "reason": reason}
        EventQueries(tx).write_events([NewEvent(EventType.WORKER_LOST, data=data)])
        log.warning("worker %s on %s is lost: %s", worker.id, worker.host, reason)
    return closed


def _settle_not_running(
    tx: Transaction, worker: WorkerRow, boot_id: str, retry: RetrySection, rng: Random
) -> list[Verdict]:
    """Settle the jobs of a lost worker that were not running, by the pages of its runners.

    In the transaction that closes the worker: later another one would settle them as lost.
    """
    folder = find_work_folder(worker, boot_id)
    found = None if folder is None else read_started_attempts(folder)
    if found is None:
        return []
    now = tx.now()
    released = Outcome(Ended.RELEASED, reason="its worker was lost before it began", ended_at=now)
    lost = Outcome(Ended.LOST, failure=worker_lost(worker.id), ended_at=now, suspect=False)
    endings = [
        Ending(lease, lost if lease.fence in found.started else released)
        for lease in WorkerQueries(tx).list_leases(worker.id)
        if lease.fence not in found.running
    ]
    policies = EffectivePolicies(retry, load_kinds(tx), load_queues(tx, now))
    return _settle_lost(tx, endings, SettleContext(policies, now, rng, "upkeep"))


def _settle_lost(
    tx: Transaction, endings: Sequence[Ending], context: SettleContext
) -> list[Verdict]:
    """Settle attempts of lost workers and count them for the releases of those workers."""
    verdicts = settle(tx, endings, context)
    count_of_lost_workers(tx, verdicts)
    return verdicts


def settle_all_orphans(store: Store, retry: RetrySection, rng: Random) -> int:
    """Settle the jobs of lost workers, a batch at a time. Return how many."""
    total = 0
    while True:
        settled = len(settle_orphans(store, retry, rng))
        total += settled
        if settled < MAX_ORPHANS:  # none left, or some that cannot be settled
            return total


def settle_orphans(store: Store, retry: RetrySection, rng: Random) -> list[Verdict]:
    """Settle running jobs whose worker is closed or missing as lost.

    They may belong to any app on this database, so their policies come from the stored manifests.
    """
    with store.read() as tx:
        leases = WorkerQueries(tx).list_orphans(MAX_ORPHANS)
        if not leases:
            return []
        now = tx.now()
        kinds = load_kinds(tx)
        policies = EffectivePolicies(retry, kinds, load_queues(tx, now))
        logs = _read_logs(tx, leases, kinds)
    # A worker runs far fewer jobs than it can hold: of so many, hardly any caused its end.
    held = Counter(lease.worker for lease in leases)
    endings = [
        Ending(
            lease,
            Outcome(
                Ended.LOST,
                failure=worker_lost(lease.worker),
                ended_at=now,
                suspect=lease.losses > 0 or held[lease.worker] <= MAX_SUSPECTS,
                log=logs.get(lease.fence),
            ),
        )
        for lease in leases
    ]
    try:
        with store.begin() as tx:
            verdicts = _settle_lost(tx, endings, SettleContext(policies, now, rng, "upkeep"))
        log_verdicts(verdicts, policies, now)
        return verdicts
    except StatementAborted:
        log.warning("jobs of lost workers cannot be settled in time; trying the first ones")
        return _settle_first_orphans(store, endings, policies, rng)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("jobs of lost workers cannot be settled together; trying one by one")
        return [
            verdict
            for ending in endings
            for verdict in _settle_orphan(store, ending, policies, rng)
        ]


def _read_logs(
    tx: Transaction, leases: Iterable[Lease], kinds: Mapping[str, KindSpec]
) -> dict[Fence, AttemptLog | None]:
    """Read the logs of attempts whose workers died on this host, from their runners' pages."""
    limits: dict[str, dict[Fence, int]] = {}
    for lease in leases:
        limit = kinds[lease.kind].log if lease.kind in kinds else DEFAULT_RECORDS
        limits.setdefault(lease.worker, {})[lease.fence] = limit
    logs: dict[Fence, AttemptLog | None] = {}
    for worker in WorkerQueries(tx).list_workers(closed=True):
        folder = find_work_folder(worker, boot_id()) if worker.id in limits else None
        if folder is not None:
            for fence, records in read_records(folder, limits[worker.id]).items():
                logs[fence] = build_log(encode_records(records), "")
    return logs


def _settle_first_orphans(
    store: Store, endings: Sequence[Ending], policies: EffectivePolicies, rng: Random
) -> list[Verdict]:
    """Settle orphans one by one until the database aborts one: the sweep must not stand still."""
    verdicts: list[Verdict] = []
    try:
        for ending in rng.sample(endings, len(endings)):  # the aborted one is not always first
            verdicts += _settle_orphan(store, ending, policies, rng)
    except StatementAborted as error:
        log.warning("a job of a lost worker cannot be settled in time: %s", error)
    return verdicts


def _settle_orphan(
    store: Store, ending: Ending, policies: EffectivePolicies, rng: Random
) -> list[Verdict]:
    try:
        with store.begin() as tx:
            return _settle_lost(tx, [ending], SettleContext(policies, tx.now(), rng, "upkeep"))
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("job %s of a lost worker cannot be settled", ending.lease.id)
        return []


# --- Moves without an attempt ---


def advance_ready_jobs(store: Store, old_clock: Micros) -> int:
    """Make jobs due that were ready before the clock was set back. Return how many."""
    with store.begin() as tx:
        return WorkerQueries(tx).advance_ready_jobs(old_clock)


def expire_deadlines(store: Store) -> int:
    """End queued jobs whose deadline has passed. Return how many."""
    with store.begin() as tx:
        rows = JobQueries(tx).list_due_deadlines(BATCH_SIZE)
        return expire_jobs(tx, [(row, deadline_passed()) for row in rows])


def expire_unknown_kinds(store: Store, after: float) -> int:
    """End overdue jobs of kinds that no live worker and no recent manifest has."""
    with store.read() as tx:  # without the write lock: there may be very many lanes
        state = GuardQueries(tx).read_claim_state()
        before = state.now - round(after * SECOND)
        live = WorkerQueries(tx).live_kinds()
        overdue = {key for key, _, run_at in state.lanes if run_at <= before}
        lanes = [key for key in overdue if Lane.parse(key).kind not in live]
        known = known_kinds(tx, state.now) if lanes else live
    unknown = sorted(key for key in lanes if Lane.parse(key).kind not in known)
    if not unknown:
        return 0
    with store.begin() as tx:
        rows = [
            row
            for lane in unknown[:BATCH_SIZE]
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


def known_kinds(tx: Transaction, now: int) -> frozenset[str]:
    """Return the kinds that a live worker or a recent manifest has. Others will never run."""
    live_kinds = WorkerQueries(tx).live_kinds()
    return live_kinds.union(*(manifest.kinds for manifest in load_recent_manifests(tx, now)))


def expire_job(tx: Transaction, row: JobRow, failure: Failure, actor: str = "upkeep") -> bool:
    """Move a queued or parked job to dead, with this failure as its error.

    A job with steps to undo is queued to undo them first.
    """
    if read_cause(row.settings) is not None:
        return False  # it ends when its steps are undone
    if must_undo(row.settings):
        undo_by_move(tx, row, cause_of_move(Verb.DIE, failure.public, failure), actor)
        return False
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
                    EVENTS[Verb.EXPIRE],
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


def prune(
    store: Store,
    settings: Settings,
    kinds: Mapping[str, KindSpec],
    is_over: Callable[[], bool] = lambda: True,
) -> int:
    """Remove one batch of each sort of old rows. Return how many rows were removed.

    Until the time is over, remove more of the jobs of a kind before the next kind: each kind with
    its own retention costs three transactions, also if nothing of it is old.
    """
    by_kind = {PROBE_KIND: PROBE_RETENTION}
    by_kind |= {spec.name: spec.retention for spec in kinds.values() if spec.retention is not None}
    keep = settings.retention
    removed = 0
    for state, seconds in (
        ("succeeded", keep.succeeded),
        ("dead", keep.dead),
        ("cancelled", keep.cancelled),
    ):
        span = round(seconds * SECOND)
        prune_rest = partial(_prune, store, state, span, None, by_kind)
        removed += _prune_while_full(prune_rest, is_over)
        for kind, kind_span in by_kind.items():
            prune_kind = partial(_prune, store, state, kind_span, kind, ())
            removed += _prune_while_full(prune_kind, is_over)
    removed += batching.prune_batches(store, keep.batches)
    with store.begin() as tx:
        now = tx.now()
        events_before = now - round(keep.events * SECOND)
        audit_before = now - round(max(keep.audit, keep.events) * SECOND)
        records_before = now - round(keep.records * SECOND)
        removed += EventQueries(tx).prune_events(events_before, BATCH_SIZE)
        removed += EventQueries(tx).prune_audit_events(audit_before, BATCH_SIZE)
        retention = RetentionQueries(tx)
        removed += prune_manifests(tx, now, BATCH_SIZE)
        removed += retention.prune_slots(events_before, BATCH_SIZE)
        removed += retention.prune_attempt_logs(now - round(keep.logs * SECOND), BATCH_SIZE)
        removed += retention.prune_incidents(events_before, BATCH_SIZE)
        removed += retention.delete_orphaned_subscriptions(now - SUBSCRIPTION_RETENTION)
        removed += retention.prune_operations(now - round(keep.operations * SECOND), BATCH_SIZE)
        retention.delete_undeclared_schedules(now - SCHEDULE_RETENTION)
        retention.delete_idle_guards(now - GUARD_RETENTION)
        retention.delete_closed_workers(now - round(keep.workers * SECOND))
        retention.delete_old_token_buckets(now - TOKEN_BUCKET_RETENTION)
        retention.delete_old_hook_faults(now - HOOK_FAULT_RETENTION)
        retention.delete_old_group_states(records_before)
        retention.delete_old_causes(records_before, MAX_CAUSES)
        ReleaseQueries(tx).delete_old_releases(records_before)
        retention.delete_prune_records(records_before)
        retention.delete_expired_sessions(now)
        retention.delete_old_api_keys(records_before)
        removed += retention.prune_stored_responses(now - RESPONSE_RETENTION, BATCH_SIZE)
    return removed


def _prune_while_full(step: Callable[[], int], is_over: Callable[[], bool]) -> int:
    """Repeat a step while it fills its batch. Return the total count."""
    total = count = step()
    while count == BATCH_SIZE and not is_over():
        count = step()
        total += count
    return total


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
