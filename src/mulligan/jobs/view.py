"""Build the public `Job` from stored rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mulligan.core.durations import Micros, to_datetime
from mulligan.core.errors import unknown_job
from mulligan.core.job import (
    AttemptRow,
    Gate,
    Job,
    JobRow,
    Limit,
    LimitKey,
    State,
)
from mulligan.guards.capacity import count_running
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.limits import is_limit_active, merge_limits, tighten_limit
from mulligan.guards.observer import load_guard
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import DEFAULT_BREAKER, GuardState
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.why import NO_LIMITS, LimitState, Phase, derive_phase
from mulligan.manifest.declared import (
    load_active_manifests,
    merge_breaker_configs,
    merge_declared_limits,
)
from mulligan.storage.base import Transaction
from mulligan.worker.upkeep import live_kinds


def load_job_views(
    tx: Transaction, rows: Sequence[JobRow], reload: Callable[[str], Job] | None = None
) -> list[Job]:
    """Return the public view of each row. Related tables are read once for all rows."""
    if not rows:
        return []
    now = tx.now()
    gates: Sequence[Gate] = ()
    known_kinds = None
    limit_state = NO_LIMITS
    if any(row.state == State.QUEUED for row in rows):
        gates = GuardQueries(tx).list_gates()
        known_kinds = live_kinds(tx)
        limit_state = load_limit_state(tx, now)
    unfinished = [row.id for row in rows if row.token > 0 and row.state != State.SUCCEEDED]
    latest = JobQueries(tx).get_latest_attempts(unfinished)
    views = []
    for row in rows:
        phase = derive_phase(row, gates, now, known_kinds, limit_state)
        views.append(build_job_view(row, latest.get(row.id), phase, reload))
    return views


def view_holder(tx: Transaction, job_id: str, reload: Callable[[str], Job]) -> Job:
    """Return the job that holds the unique key of a duplicate, marked as deduplicated."""
    row = JobQueries(tx).get_job(job_id)
    if row is None:
        raise unknown_job(job_id)
    return replace(load_job_views(tx, [row], reload)[0], deduplicated=True)


def load_limit_state(tx: Transaction, now: Micros) -> LimitState:
    """Read the limits and dependency guards that delay jobs now."""
    manifests = load_active_manifests(tx, now)
    stored = {}
    queries = GuardQueries(tx)
    for row in queries.list_limits():
        if is_limit_active(row, now):
            stored[row.scope, row.key] = Limit(row.concurrency, row.rate)
    limits = merge_limits(merge_declared_limits(manifests), stored)
    guards = {}
    for guard in queries.list_guards(active_only=True):
        if guard.scope == "dependency":
            guards[guard.key] = load_guard(guard.body)
    dependencies = {}
    if guards:
        terms = merge_breaker_configs(manifests)
        for key, state in guards.items():
            dependencies[key] = GuardedDependency(state, terms.get(key, DEFAULT_BREAKER))
            _apply_reduced_limit(limits, key, state)
    running = count_running(queries.count_running()) if limits else {}
    return LimitState(limits, running, dependencies)


def _apply_reduced_limit(limits: dict[LimitKey, Limit], key: str, guard: GuardState) -> None:
    """Lower the dependency's limit where its guard has reduced it after rate-limit errors."""
    if guard.throttle.limit is not None:
        name = ("dependency", key)
        limits[name] = tighten_limit(limits.get(name, Limit()), guard.throttle.limit, None, None)


def build_job_view(
    row: JobRow,
    latest: AttemptRow | None,
    phase: Phase,
    reload: Callable[[str], Job] | None = None,
) -> Job:
    """Return the public view of one row. `latest` is its latest attempt, if it has one."""
    state = State(row.state)
    next_retry_at = None
    if state is State.QUEUED and row.attempt > 0:
        next_retry_at = to_datetime(row.run_at)
    return Job(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        owner=row.owner,
        state=state,
        phase=phase.name,
        why=phase.why,
        payload=json.loads(row.payload),
        result=None if row.result is None else json.loads(row.result),
        priority=row.priority,
        progress=row.progress,
        attempt=row.attempt,
        attempts=row.attempt,
        failures=row.failures,
        losses=row.losses,
        max_retries=row.max_retries,
        generation=row.generation,
        token=row.token,
        batch_id=row.batch_id,
        unique_key=row.unique_key,
        uses=tuple(filter(None, row.uses.split(","))),
        created_at=to_datetime(row.created_at),
        run_at=to_datetime(row.run_at),
        started_at=_optional_datetime(row.started_at),
        finished_at=_optional_datetime(row.finished_at),
        deadline_at=_optional_datetime(row.deadline_at),
        error=_error(row, latest),
        next_retry_at=next_retry_at,
        deduplicated=False,
        cost=row.cost,
        _reload=reload,
    )


def _error(row: JobRow, latest: AttemptRow | None) -> Mapping[str, Any] | None:
    """Return the final error of a dead job, or else the error of its latest attempt."""
    if row.error is not None:
        return {**json.loads(row.error), "final": True}
    if latest is None or latest.code is None:
        return None
    return {
        "code": latest.code,
        "class": latest.cls,
        "message": latest.public,
        "rule": latest.rule,
        **json.loads(latest.evidence or "{}"),
        "final": False,
    }


def _optional_datetime(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)
