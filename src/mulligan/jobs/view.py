"""Build the public `Job` from stored rows, and titles of jobs for lists, messages and pages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mulligan.core.durations import Micros, optional_datetime, to_datetime
from mulligan.core.errors import unknown_job
from mulligan.core.format import cut_end, one_line
from mulligan.core.job import (
    AttemptRow,
    Gate,
    Job,
    JobRow,
    JobService,
    Limit,
    LimitKey,
    State,
    split_uses,
)
from mulligan.core.json import scalar_text
from mulligan.core.waits import NEVER
from mulligan.failures.redact import mask_secrets
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.limits import (
    count_running,
    is_limit_active,
    merge_limits,
    tighten_limit,
)
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import DEFAULT_BREAKER, GuardState, load_guard
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.why import NO_LIMITS, LimitState, Phase, derive_phase
from mulligan.manifest.declared import (
    load_active_manifests,
    load_kinds,
    merge_breaker_configs,
    merge_declared_limits,
)
from mulligan.manifest.specs import ARGUMENT_FIELD, KindSpec, schema_defaults
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries


def load_job_views(
    tx: Transaction, rows: Sequence[JobRow], service: JobService | None = None
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
        known_kinds = WorkerQueries(tx).live_kinds()
        limit_state = load_limit_state(tx, now)
    unfinished = [row.id for row in rows if row.token > 0 and row.state != State.SUCCEEDED]
    queries = JobQueries(tx)
    latest = queries.get_latest_attempts(unfinished)
    releases = queries.get_releases([row.id for row in rows if row.token > 0])
    views = []
    for row in rows:
        phase = derive_phase(row, gates, now, known_kinds, limit_state)
        release = releases.get(row.id, "")
        views.append(build_job_view(row, latest.get(row.id), phase, service, release))
    return views


def view_holder(tx: Transaction, job_id: str, service: JobService) -> Job:
    """Return the job that holds the unique key of a duplicate, marked as deduplicated."""
    row = JobQueries(tx).get_job(job_id)
    if row is None:
        raise unknown_job(job_id)
    return replace(load_job_views(tx, [row], service)[0], deduplicated=True)


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
    service: JobService | None = None,
    release: str = "",
) -> Job:
    """Return the public view of one row. `latest` is its latest attempt, if it has one."""
    state = State(row.state)
    result = None if row.result is None else json.loads(row.result)
    next_retry_at = None
    if state is State.QUEUED and row.attempt > 0 and row.run_at != NEVER:
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
        result=result,
        priority=row.priority,
        progress=row.progress,
        progress_message=row.progress_message,
        attempt=row.attempt,
        attempts=row.attempt,
        retries=_count_retries(row, latest),
        failures=row.failures,
        losses=row.losses,
        max_retries=row.max_retries,
        generation=row.generation,
        token=row.token,
        batch_id=row.batch_id,
        unique_key=row.unique_key,
        uses=tuple(split_uses(row.uses)),
        created_at=to_datetime(row.created_at),
        run_at=to_datetime(row.run_at),
        started_at=optional_datetime(row.started_at),
        finished_at=optional_datetime(row.finished_at),
        deadline_at=optional_datetime(row.deadline_at),
        error=_error(row, latest),
        next_retry_at=next_retry_at,
        cost=row.cost,
        release=release,
        version=row.version,
        _service=service,
    )


def _count_retries(row: JobRow, latest: AttemptRow | None) -> int:
    """Return after how many charged failures of this generation a retry was scheduled.

    After every one of them, except the failure that ended the job.
    """
    if latest is None or latest.generation != row.generation:
        return row.failures
    is_fatal = "fatal" in json.loads(latest.judged or "{}")
    return row.failures - is_fatal


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


# --- Titles ---

# A title is made when it is shown, from the newest declaration of the kind, so that a changed title
# holds for old jobs too. Secrets in arguments are masked.
MAX_TITLE = 120  # characters
MAX_VALUE = 40  # characters of one argument
ARGUMENTS_SHOWN = 2  # of a job whose kind has no title
# A number with more digits than anybody reads. Text that looks like one is treated alike.
LONG_FLOAT = re.compile(r"-?\d{1,4}\.\d{3,}")
MISSING = "…"  # in place of an argument that the job does not have


def make_title(template: str, payload: Any) -> str:
    """Fill the title of a kind with the arguments of a job: "Invoice {order} for {customer}"."""
    arguments = mask_secrets(payload)

    def value_of(field: re.Match[str]) -> str:
        text = _argument_text(arguments, field[1])
        return MISSING if text is None else text

    return cut_end(one_line(ARGUMENT_FIELD.sub(value_of, template)), MAX_TITLE)


def _argument_text(arguments: Any, path: str) -> str | None:
    """Return one argument as titles show it: long text is cut, 13.84512460864411 is 13.85."""
    text = scalar_text(arguments, path)
    if text is None:
        return None
    if LONG_FLOAT.fullmatch(text):
        text = f"{float(text):.4g}"
    return cut_end(one_line(text), MAX_VALUE)


def describe_arguments(payload: Any) -> str:
    """Return the first arguments of a job that are a text or number: "customer 23 · order 7023"."""
    if not isinstance(payload, Mapping):
        return ""
    arguments = mask_secrets(payload)
    shown: list[str] = []
    for name in arguments:
        text = _argument_text(arguments, name)
        if text and len(shown) < ARGUMENTS_SHOWN:
            shown.append(f"{name} {text}")
    return " · ".join(shown)


class Titles:
    """The titles of all kinds, for one page of jobs."""

    def __init__(self, kinds: Mapping[str, KindSpec]) -> None:
        self._kinds = kinds

    @classmethod
    def load(cls, tx: Transaction) -> Titles:
        """Read the declarations of all kinds."""
        return cls(load_kinds(tx))

    def declared(self, kind: str, payload: Any) -> str:
        """Return the title of a job, or "" if its kind declares none."""
        spec = self._kinds.get(kind)
        if spec is None or not spec.title:
            return ""
        if isinstance(payload, Mapping):
            payload = {**schema_defaults(spec.schema), **payload}
        return make_title(spec.title, payload)

    def of(self, kind: str, payload: Any) -> str:
        """Return the title of a job, or its first arguments if its kind declares none."""
        return self.declared(kind, payload) or describe_arguments(payload)
