"""A context for unit tests: call a handler directly, without a database or a worker."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, Self

from mulligan.batches.calls import ChildCall, ChildKind
from mulligan.config import LimitSection, RetrySection
from mulligan.core.attempt import Lease, StepFailure
from mulligan.core.durations import Micros, check_duration_or_time, to_micros
from mulligan.core.errors import DurationOrTime, Refused
from mulligan.core.ids import new_id
from mulligan.core.job import Job, PreviousAttempts, RecordedStep
from mulligan.core.tracing import NO_TRACER
from mulligan.manifest.arguments import to_json
from mulligan.retries.effective import EffectivePolicies
from mulligan.steps.rules import ClosedGate, StepKind, StepRecord, StepState
from mulligan.worker.runner.context import Context

DEFAULT_KIND = "test"


class UnitContext(Context):
    """A `Context` that keeps in memory what the handler does with it.

    `reports` has each progress, `spent` the cost. `request_stop()` sets `cancelled`. Sleeps are
    over at once, and a wait has the answer that was passed, or else its default.
    """

    answers: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, lease: Lease, previous: PreviousAttempts, state: Any) -> None:
        self.reports: list[tuple[float | None, str]] = []
        self._memory = _MemoryHost(state)
        super().__init__(self._memory, 0, lease, previous)

    def sleep(self, name: str, duration: DurationOrTime) -> None:
        """Return at once, as the attempt after the sleep would."""
        check_duration_or_time("duration", duration)
        self._steps.begin(name, StepKind.SLEEP)

    async def sleep_async(self, name: str, duration: DurationOrTime) -> None:
        """Return at once, as the attempt after the sleep would."""
        self.sleep(name, duration)

    def wait(self, name: str, *, timeout: DurationOrTime | None = None, default: Any = None) -> Any:
        """Return the answer that was passed to `context`, or else the default."""
        del timeout
        self._steps.begin(name, StepKind.WAIT)
        return self.answers.get(name, default)

    def call(self, name: str, kind: ChildKind, /, **payload: Any) -> Any:
        """Return the answer that was passed to `context` as the result of this child."""
        kind.call(**payload)
        self._steps.begin(name, StepKind.CALL)
        return self.answers.get(name)

    def gather(
        self,
        name: str,
        calls: Iterable[ChildCall],
        *,
        tolerance: float | str = 0,
        on_death: Literal["fail", "wait"] = "fail",
    ) -> list[Any]:
        """Return the answer that was passed to `context` as the results of these children."""
        del tolerance, on_death
        results = [None for _ in calls]
        self._steps.begin(name, StepKind.CALL)
        return list(self.answers.get(name, results))

    async def wait_async(
        self,
        name: str,
        *,
        timeout: DurationOrTime | None = None,  # noqa: ASYNC109 - as in `Context`
        default: Any = None,
    ) -> Any:
        """Return the answer that was passed to `context`, or else the default."""
        return self.wait(name, timeout=timeout, default=default)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clean_up()


class _MemoryHost:
    """Services of a context without a worker. Implements `AttemptHost`."""

    def __init__(self, state: Any) -> None:
        self.state = SimpleNamespace(**state) if isinstance(state, Mapping) else state
        self.policies = EffectivePolicies(RetrySection(), {})
        self.result_limit = LimitSection().result
        self.tracer = NO_TRACER

    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        if isinstance(context, UnitContext):
            context.reports.append((fraction, message))

    def save_step(self, context: Context, record: StepRecord) -> bool:
        del context, record
        return True

    async def save_step_async(self, context: Context, record: StepRecord) -> bool:
        return self.save_step(context, record)

    def find_closed_gate(self, context: Context, keys: Sequence[str]) -> ClosedGate | None:
        del context, keys
        return None

    async def find_closed_gate_async(
        self, context: Context, keys: Sequence[str]
    ) -> ClosedGate | None:
        return self.find_closed_gate(context, keys)

    def step_began(self, context: Context, step: StepFailure, timeout: Micros | None) -> None:
        """Do nothing: a unit test has no limits."""

    def step_ended(self, context: Context, name: str) -> None:
        """Do nothing: a unit test has no limits."""

    def workdir(self, context: Context) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="mulligan-"))
        weakref.finalize(context, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def remove_workdir(self, context: Context) -> None:
        shutil.rmtree(context.workdir, ignore_errors=True)

    def mark(self, context: Context) -> str:
        return f"test/{context.lease.id}"


def context(  # noqa: PLR0913 - one keyword per fact that a handler can read
    job: Job | None = None,
    *,
    payload: Mapping[str, Any] | None = None,
    kind: str = DEFAULT_KIND,
    queue: str = "default",
    owner: str = "",
    attempt: int = 1,
    token: int = 1,
    failures: int | None = None,
    max_retries: int | None = None,
    choice: str | None = None,
    previous: Mapping[str, Any] | None = None,
    checkpoints: Mapping[str, Any] | None = None,
    steps: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    state: Any = None,
    batch_id: str | None = None,
) -> UnitContext:
    """Return a context to call a handler with in a unit test: `render(context(), clip=7)`.

    The arguments are what the handler finds. `job` is one that you have enqueued. `steps` are
    results of earlier attempts, by name: the handler gets them without a call. `answers` are those
    to its waits.
    """
    lease = _build_lease(
        job,
        kind=kind,
        queue=queue,
        owner=owner,
        payload=to_json(dict(payload or {}), "the payload"),
        max_retries=max_retries,
        batch_id=batch_id,
    )
    lease = lease._replace(
        attempt=attempt,
        token=max(token, attempt),
        failures=attempt - 1 if failures is None else failures,
        choice=choice,
        settings=json.dumps({"settings": dict(settings)}) if settings else None,
    )
    recorded = {**_record(StepKind.CHECKPOINT, checkpoints), **_record(StepKind.STEP, steps)}
    found = SimpleNamespace() if state is None else state
    unit = UnitContext(lease, PreviousAttempts(recorded, previous), found)
    unit.answers = dict(answers or {})
    return unit


def _record(kind: StepKind, values: Mapping[str, Any] | None) -> dict[str, RecordedStep]:
    """Return values as an earlier attempt would have recorded them."""
    return {
        name: RecordedStep(kind, StepState.DONE, place, to_json(value, f"{kind} {name!r}"), "{}", 1)
        for place, (name, value) in enumerate((values or {}).items(), 1)
    }


def _build_lease(
    job: Any,
    *,
    kind: str,
    queue: str,
    owner: str,
    payload: str,
    max_retries: int | None,
    batch_id: str | None,
) -> Lease:
    """Return the lease of a job as if a worker had just claimed it."""
    if job is not None and not isinstance(job, Job):
        message = f"context(job=…) takes a Job, for example of enqueue(), not {job!r:.80}"
        raise Refused(message)
    now = time.time_ns() // 1000
    created_at = run_at = now
    deadline_at = unique_key = None
    job_id, priority, generation, losses, uses = new_id(), 0, 1, 0, ""
    if job is not None:
        job_id, kind, queue, owner = job.id, job.kind, job.queue, job.owner
        priority, generation, losses = job.priority, job.generation, job.losses
        payload = to_json(job.payload, "the payload")
        uses = ",".join(job.uses)
        max_retries, batch_id, unique_key = job.max_retries, job.batch_id, job.unique_key
        created_at, run_at = to_micros(job.created_at), to_micros(job.run_at)
        if job.deadline_at is not None:
            deadline_at = to_micros(job.deadline_at)
    return Lease(
        id=job_id,
        kind=kind,
        queue=queue,
        owner=owner,
        worker="w_test",
        token=1,
        attempt=1,
        generation=generation,
        priority=priority,
        payload=payload,
        uses=uses,
        failures=0,
        losses=losses,
        snoozes=0,
        max_retries=max_retries,
        policy=None,
        timeout=None,
        deadline_at=deadline_at,
        created_at=created_at,
        run_at=run_at,
        started_at=now,
        first_started_at=now,
        alone=False,
        batch_id=batch_id,
        choice=None,
        unique_key=unique_key,
        unique_cover=None,
        cancel_reason=None,
    )
