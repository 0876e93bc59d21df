"""What must happen without anybody asking: lost workers, deadlines, unknown kinds, retention.

Safe on every worker at once: each step is small, fenced or compare-and-set, and passes over what others hold.
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
from mulligan.core.errors import StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, JobRow, Lane, State, WorkerRow
from mulligan.core.lifecycle import event_for, move
from mulligan.failures.codes import deadline_passed, unknown_kind, worker_lost
from mulligan.guards.observer import PROBE_KIND
from mulligan.manifest.declared import recent_manifests, stored_kinds, stored_queues
from mulligan.manifest.specs import KindSpec
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Move, Store, Transaction
from mulligan.worker.job_log import tell_verdicts
from mulligan.worker.liveness import kill_marked, surely_dead
from mulligan.worker.settle import settle
from mulligan.worker.settlement import error_of, frees_key, group_of

log = logging.getLogger("mulligan.upkeep")

STEP = 200
ORPHANS = 500
PROBES_KEPT = 3600 * SECOND
DAY = 86_400 * SECOND
GUARDS_KEPT = 7 * 86_400 * SECOND  # of dependencies that nobody has called since
METERS_KEPT = (
    2 * 86_400 * SECOND
)  # of owners who retried by hand: a rate is at most per day, so they are full again
ANSWERS_KEPT = 86_400 * SECOND  # to those who ask twice over HTTP
SCHEDULES_KEPT = (
    30 * 86_400 * SECOND
)  # a schedule that nobody names is remembered so long: its workers may come back


class Judge(NamedTuple):
    """Who judges, and by what it calls another worker's lease expired."""

    me: str
    boot_id: str
    expired: Callable[[WorkerRow], bool]


# -- lost workers -----------------------------------------------------------------------------------
def close_dead(store: Store, judge: Judge) -> list[WorkerRow]:
    """Close the rows of workers that are surely dead or whose lease ran out; returns them."""
    with store.read() as unit:
        others = [worker for worker in unit.workers(closed=False) if worker.id != judge.me]
    dead = [(worker, reason) for worker in others if (reason := _verdict(worker, judge))]
    return [worker for worker, reason in dead if _close(store, worker, reason)]


def _verdict(worker: WorkerRow, judge: Judge) -> str:
    if surely_dead(worker, judge.boot_id):
        return "its life file is not locked any more"
    if judge.expired(worker):
        return f"no renewal for {worker.lease / SECOND:g} s"
    return ""


def _close(store: Store, worker: WorkerRow, reason: str) -> bool:
    with store.begin() as unit:
        closed = unit.close_worker(worker.id, reason, seen=worker.renewed_at)
        if closed:
            kill_marked(
                worker.id
            )  # what is left of its processes on this host, before anybody may run its jobs again
            news = {"worker": worker.id, "host": worker.host, "pid": worker.pid, "reason": reason}
            unit.write_events([NewEvent(EventType.WORKER_LOST, data=news)])
            log.warning("worker %s on %s is gone: %s", worker.id, worker.host, reason)
    return closed


def settle_orphans(store: Store, retry: RetrySection, rng: Random) -> list[Verdict]:
    """Running jobs whose worker is closed or missing are lost: through the same door as everything else.

    They may belong to any app on this database, so their policies come from the stored manifests.
    """
    with store.read() as unit:
        leases = unit.orphans(ORPHANS)
        if not leases:
            return []
        now = unit.now()
        policies = EffectivePolicies(retry, stored_kinds(unit), stored_queues(unit, now))
    endings = [
        Ending(lease, Outcome(Ended.LOST, failure=worker_lost(lease.worker), ended_at=now))
        for lease in leases
    ]
    try:
        with store.begin() as unit:
            verdicts = settle(unit, endings, policies, now, rng, actor="upkeep")
        tell_verdicts(verdicts, policies, now)
        return verdicts
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("orphans cannot be settled together; trying each")
        return [
            verdict
            for ending in endings
            for verdict in _settle_orphan(store, ending, policies, rng)
        ]


def _settle_orphan(
    store: Store, ending: Ending, policies: EffectivePolicies, rng: Random
) -> list[Verdict]:
    try:
        with store.begin() as unit:
            return settle(unit, [ending], policies, unit.now(), rng, actor="upkeep")
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("job %s of a lost worker cannot be settled", ending.lease.id)
        return []


# -- moves without an attempt -------------------------------------------------------------------------
def expire_deadlines(store: Store) -> int:
    with store.begin() as unit:
        rows = unit.due_deadlines(STEP)
        return expired(unit, [(row, deadline_passed()) for row in rows])


def bury_unknown(store: Store, after: float) -> int:
    """Due jobs of a kind that no live worker and no recent manifest knows."""
    with store.begin() as unit:
        look = unit.look()
        known = known_kinds(unit, look.now)
        lanes = {key for key, _, _ in look.lanes if Lane.parse(key).kind not in known}
        before = look.now - round(after * SECOND)
        rows = [row for lane in sorted(lanes) for row in unit.waiting(lane, before, STEP)]
        return expired(unit, [(row, unknown_kind(row.kind)) for row in rows])


def expired(
    unit: Transaction, rows: Sequence[tuple[JobRow, Failure]], actor: str = "upkeep"
) -> int:
    """All of them before any of their batches: jobs are locked first, everywhere."""
    done = [row for row, failure in rows if expire(unit, row, failure, actor)]
    batching.complete(unit, {row.batch_id for row in done if row.batch_id is not None})
    return len(done)


def live_kinds(unit: Transaction) -> frozenset[str]:
    """Kinds that a living worker can run."""
    return frozenset(
        kind for worker in unit.workers(closed=False) for kind in json.loads(worker.kinds)
    )


def known_kinds(unit: Transaction, now: int) -> frozenset[str]:
    """Kinds that a living worker or a recent manifest knows: a job of any other kind will never run."""
    return live_kinds(unit).union(*(manifest.kinds for manifest in recent_manifests(unit, now)))


def expire(unit: Transaction, row: JobRow, failure: Failure, actor: str = "upkeep") -> bool:
    """queued or parked → dead, with the reason as its error."""
    state = move(Verb.EXPIRE, State(row.state))
    done = unit.move(
        Move(
            id=row.id,
            from_state=row.state,
            generation=row.generation,
            token=row.token,
            state=state.value,
            run_at=None,
            new_generation=False,
            finished=True,
            error=json.dumps(error_of(failure)),
            reason=failure.public,
            choice=None,
            unique_hash=None if frees_key(row.unique_cover, state) else row.unique_hash,
            max_retries=None,
            died_code=failure.code,
            died_class=failure.cls.value,
            died_group=group_of(failure),
        )
    )
    if done:
        unit.write_events(
            [
                NewEvent(
                    event_for(Verb.EXPIRE),
                    job_id=row.id,
                    batch_id=row.batch_id,
                    owner=row.owner,
                    actor=actor,
                    data=_death(row, failure),
                )
            ]
        )
    return done


def _death(row: JobRow, failure: Failure) -> dict[str, Any]:
    own = {} if row.max_retries is None else {"max_retries": row.max_retries}
    said = {"group": group_of(failure), "failures": row.failures, **own}
    return {"kind": row.kind, "queue": row.queue, **error_of(failure), **said}


# -- retention ----------------------------------------------------------------------------------------
def prune(store: Store, settings: Settings, kinds: Mapping[str, KindSpec]) -> int:
    """One small step of each kind of pruning; returns how much was removed."""
    own = {
        PROBE_KIND: PROBES_KEPT,
        **{spec.name: spec.retention for spec in kinds.values() if spec.retention is not None},
    }
    keep = settings.retention
    removed = 0
    for state, seconds in (
        ("succeeded", keep.succeeded),
        ("dead", keep.dead),
        ("cancelled", keep.cancelled),
    ):
        removed += _prune(store, state, round(seconds * SECOND), None, own)
        for kind, span in own.items():
            removed += _prune(store, state, span, kind, ())
    removed += batching.prune(store, keep.batches)
    with store.begin() as unit:
        now = unit.now()
        removed += unit.prune_events(now - round(keep.events * SECOND), STEP)
        removed += unit.prune_deeds(now - round(max(keep.audit, keep.events) * SECOND), STEP)
        removed += unit.prune_slots(now - round(keep.events * SECOND), STEP)
        removed += unit.prune_incidents(now - round(keep.events * SECOND), STEP)
        removed += unit.forget_subscriptions(now - DAY)
        removed += unit.prune_operations(now - round(keep.operations * SECOND), STEP)
        unit.forget_schedules(now - SCHEDULES_KEPT)
        unit.forget_guards(now - GUARDS_KEPT)
        unit.forget_workers(now - round(keep.workers * SECOND))
        unit.forget_meters(now - METERS_KEPT)
        unit.forget_marks(now - round(keep.records * SECOND))
        unit.prune_records(now - round(keep.records * SECOND))
        unit.forget_sessions(now)
        unit.forget_api_keys(now - round(keep.records * SECOND))
        removed += unit.prune_answers(now - ANSWERS_KEPT, STEP)
    return removed


def _prune(
    store: Store, state: str, span: int, kind: str | None, except_kinds: Iterable[str]
) -> int:
    with store.begin() as unit:
        records = unit.prune(
            state, unit.now() - span, STEP, kind=kind, except_kinds=list(except_kinds)
        )
    return sum(record.jobs for record in records)


def announce(store: Store) -> int:
    with store.begin() as unit:
        return unit.announce(STEP)
