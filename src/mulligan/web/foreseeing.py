"""What a retry by hand would do, in sentences, before anybody does it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from mulligan.engine.upkeep import live_kinds
from mulligan.engine.view import traffic_now
from mulligan.errors import MulliganError, NotFound
from mulligan.job import Job, JobRow, Micros, State, to_micros
from mulligan.policy.outlook import described
from mulligan.policy.phase import phase
from mulligan.policy.phrase import duration, moment
from mulligan.policy.retry import Policy
from mulligan.web.desk import Visited

AGAIN = (State.DEAD, State.PARKED, State.CANCELLED)


def foreseen(
    desk: Visited, job: Job, row: JobRow, said: dict[str, Any] | None = None, at: float | datetime | None = None
) -> list[str]:
    """Empty: it is not one that could be retried. `said`: overrides."""
    if job.state not in AGAIN:
        return []
    try:
        found = desk.jobs.preview_retry(job.id, overrides=said, at=at, owner=desk.owner)
    except MulliganError as refused:
        return [f"A retry would be refused: {refused}"]
    if found.refused:
        return [f"A retry would be refused: {'; '.join(str(error) for error in found.refused)}"]
    return list(_sentences(desk, job, row, said or {}, at))


def _sentences(
    desk: Visited, job: Job, row: JobRow, said: dict[str, Any], at: float | datetime | None
) -> Iterator[str]:
    begins = f"Retry begins generation {job.generation + 1}: attempt 1{_of(desk, row, said)}"
    yield f"{begins}, {_when(at)}. Its history stays."
    queue = str(said.get("queue") or job.queue)
    if waits := _held(desk, row._replace(queue=queue)):
        yield f"As things are it would wait: {waits}."
    if job.token:
        times = "once" if job.token == 1 else f"{job.token} times"
        yield f"It has run {times}: whatever it did outside may be done again."
    if job.cost:
        yield f"{job.cost:g} was spent on it so far."


def _when(at: float | datetime | None) -> str:
    if at is None:
        return "as soon as a worker is free"
    return f"not before {moment(to_micros(at))}" if isinstance(at, datetime) else f"in {duration(at)}"


def _of(desk: Visited, row: JobRow, said: dict[str, Any]) -> str:
    """Of how many, and how far apart."""
    most = said.get("max_retries", row.max_retries)
    policy = Policy.from_json(row.policy) if row.policy else None
    try:
        found = desk.policies.explain(row.kind, queue=said.get("queue") or row.queue, policy=policy, max_retries=most)
    except NotFound:
        return ""
    limit, backoff = found.field("max_retries"), found.field("backoff")
    if not limit.value:
        return " and no other"
    return (
        f" of at most {limit.value + 1} ({limit.origin}), retries after {described(backoff.value)} ({backoff.origin})"
    )


def _held(desk: Visited, row: JobRow) -> str:
    """What stands in the way of such a job that is due now."""
    with desk.store.read() as unit:
        now: Micros = unit.now()
        waiting = row._replace(state=State.QUEUED, run_at=now)
        stage, words = phase(waiting, unit.gates(), now, live_kinds(unit), traffic_now(unit, now))
    return "" if stage == "ready" else words
