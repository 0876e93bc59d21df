"""A stored job as people see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from mulligan.core.format import moment
from mulligan.core.job import (
    SAID,
    AttemptRow,
    Job,
    JobRow,
    Limit,
    Micros,
    NewJob,
    NewJobColumns,
    State,
    to_datetime,
)
from mulligan.guards.capacity import running_under
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.limits import effective, lasts, tighter
from mulligan.guards.observer import read_guard_state
from mulligan.guards.state import DEFAULT
from mulligan.jobs.why import NO_TRAFFIC, Traffic, phase
from mulligan.manifest.declared import holding_manifests, limits_of_all, terms_of_all
from mulligan.storage.base import Transaction
from mulligan.worker.upkeep import live_kinds


def jobs_of(
    unit: Transaction, rows: Sequence[JobRow], again: Callable[[str], Job] | None = None
) -> list[Job]:
    """Complete rows with what lies in other tables, one question each for all of them."""
    if not rows:
        return []
    now = unit.now()
    waiting = any(row.state == State.QUEUED for row in rows)
    gates = unit.gates() if waiting else []
    known = live_kinds(unit) if waiting else None
    traffic = traffic_now(unit, now) if waiting else NO_TRAFFIC
    latest = unit.latest_attempts(
        [row.id for row in rows if row.token > 0 and row.state != State.SUCCEEDED]
    )
    return [
        job_of(row, latest.get(row.id), phase(row, gates, now, known, traffic), again)
        for row in rows
    ]


def traffic_now(unit: Transaction, now: Micros) -> Traffic:
    manifests = holding_manifests(unit, now)
    said = {
        (row.scope, row.key): Limit(row.concurrency, row.rate)
        for row in unit.limits()
        if lasts(row, now)
    }
    limits = effective(limits_of_all(manifests), said)
    at_work = {
        row.key: read_guard_state(row.body)
        for row in unit.guards(at_work=True)
        if row.scope == "dependency"
    }
    terms = terms_of_all(manifests) if at_work else {}
    kept = {
        key: GuardedDependency(guard, terms.get(key, DEFAULT)) for key, guard in at_work.items()
    }
    for key, guard in at_work.items():
        if guard.reduced.limit is not None:
            name = ("dependency", key)
            limits[name] = tighter(limits.get(name, Limit()), guard.reduced.limit, None, None)
    return Traffic(limits, running_under(unit.running()) if limits else {}, kept)


def job_of(
    row: JobRow,
    latest: AttemptRow | None,
    shown: tuple[str, str],
    again: Callable[[str], Job] | None = None,
) -> Job:
    state = State(row.state)
    stage, why = shown
    return Job(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        owner=row.owner,
        state=state,
        phase=stage,
        why=why,
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
        started_at=_moment(row.started_at),
        finished_at=_moment(row.finished_at),
        deadline_at=_moment(row.deadline_at),
        error=_error(row, latest),
        next_retry_at=to_datetime(row.run_at)
        if state is State.QUEUED and row.attempt > 0
        else None,
        deduplicated=False,
        cost=row.cost,
        _again=again,
    )


def fresh_job(new: NewJob, now: Micros, again: Callable[[str], Job]) -> Job:
    """One that was inserted at this moment."""
    return _made(_fresh(new, now, _decode(new.payload)[0], again))


_decode = json.JSONDecoder().raw_decode  # of a text we wrote: nothing stands around it


def fresh_jobs(new: NewJobColumns, now: Micros, again: Callable[[str], Job]) -> list[Job]:
    """The same for several: what they share is made once, their payloads are read as one text if they must be."""
    fields = _fresh(new.like, now, None, again)
    payloads = json.loads(f"[{','.join(new.payloads)}]") if new.values is None else new.values
    return [
        _made({**fields, "id": id_, "payload": one})
        for id_, one in zip(new.ids, payloads, strict=True)
    ]


def _made(fields: dict[str, Any]) -> Job:
    made = object.__new__(Job)
    object.__setattr__(made, "__dict__", fields)  # as its own beginning would, one by one
    return made


def _fresh(new: NewJob, now: Micros, payload: Any, again: Callable[[str], Job]) -> dict[str, Any]:
    """The fields of a Job."""
    created_at = run_at = to_datetime(now)
    fields = {
        **_said(new.kind, new.queue, new[SAID]),
        "id": new.id,
        "payload": payload,
        "created_at": created_at,
    }
    if new.delay or new.run_at is not None:
        due = now + new.delay if new.run_at is None else new.run_at
        run_at = to_datetime(due)
        if due > now:
            fields |= {"phase": "scheduled", "why": f"scheduled for {moment(due)}"}
    if new.deadline is not None or new.deadline_at is not None:
        fields["deadline_at"] = _moment(
            new.deadline_at if new.deadline is None else now + new.deadline
        )
    fields["run_at"] = run_at
    fields["_again"] = again
    return fields


@lru_cache(maxsize=512)
def _said(kind: str, queue: str, said: tuple[Any, ...]) -> dict[str, Any]:
    """The fields that do not tell one fresh job from another of which the same is said, and places for the others."""
    new = NewJob("", kind, queue, "", *said)
    return {
        "id": "",
        "kind": kind,
        "queue": queue,
        "owner": new.owner,
        "state": State.QUEUED,
        "phase": "ready",
        "why": "waiting for a free worker",
        "payload": None,
        "result": None,
        "priority": new.priority,
        "progress": None,
        "attempt": 0,
        "attempts": 0,
        "failures": 0,
        "losses": 0,
        "max_retries": new.max_retries,
        "generation": 1,
        "token": 0,
        "batch_id": new.batch_id,
        "unique_key": new.unique_key,
        "uses": tuple(filter(None, new.uses.split(","))) if new.uses else (),
        "created_at": None,
        "run_at": None,
        "started_at": None,
        "finished_at": None,
        "deadline_at": None,
        "error": None,
        "next_retry_at": None,
        "deduplicated": False,
        "cost": 0.0,
        "_again": None,
    }


def _error(row: JobRow, latest: AttemptRow | None) -> Mapping[str, Any] | None:
    """The final error of a dead job; before that, what the latest attempt said."""
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


def _moment(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)
