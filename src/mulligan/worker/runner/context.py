"""The context of an attempt: what a handler can read and do besides its arguments."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from mulligan.batches.calls import ChildCall, ChildKind, build_children, check_on_death
from mulligan.batches.rules import check_tolerance
from mulligan.core import other_libraries
from mulligan.core.attempt import Cls, Lease, Outcome, StepFailure
from mulligan.core.durations import SECOND, Micros, check_duration, to_datetime
from mulligan.core.errors import Duration, DurationOrTime, Refused
from mulligan.core.job import Job, PreviousAttempts, RecordedStep, State, parse_job_settings
from mulligan.core.other_libraries import refuse_attribute
from mulligan.core.tracing import OnAttemptEnd, Tracer
from mulligan.failures.redact import scrub_public
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.limits import parse_counts
from mulligan.retries.policy import Policy
from mulligan.steps.rules import ClosedGate, StepRecord
from mulligan.worker.liveness import kill_marked
from mulligan.worker.runner import waits
from mulligan.worker.runner.flight_recorder import current_recording
from mulligan.worker.runner.program import Program, run_in_thread
from mulligan.worker.runner.steps import (
    MISSING,
    AttemptSteps,
    CallFunction,
    FindClosedGate,
    NoteBegin,
    NoteEnd,
    SaveRecord,
    StepRequest,
    call_async,
    call_blocking,
    drive,
    drive_async,
    step_call,
)

log = logging.getLogger("mulligan.job")
MESSAGE_LIMIT = 500
T = TypeVar("T")


class AttemptHost(Protocol):
    """Services that a context needs from its process: a runner, or `run_inline`."""

    state: Any
    policies: EffectivePolicies
    result_limit: int
    tracer: Tracer

    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        """Record how far an attempt is. Returns at once."""

    def save_step(self, context: Context, record: StepRecord) -> bool:
        """Save a step and block until it is durable. False: the lease is lost."""

    async def save_step_async(self, context: Context, record: StepRecord) -> bool:
        """Save a step and wait until it is durable. False: the lease is lost."""

    def find_closed_gate(self, context: Context, keys: Sequence[str]) -> ClosedGate | None:
        """Return a dependency that is down, and block until that is known."""

    async def find_closed_gate_async(
        self, context: Context, keys: Sequence[str]
    ) -> ClosedGate | None:
        """Return a dependency that is down."""

    def step_began(self, context: Context, step: StepFailure, timeout: Micros | None) -> None:
        """Report the step in which an attempt is. Returns at once."""

    def step_ended(self, context: Context, name: str) -> None:
        """Report that a step ended without a result. Returns at once."""

    def workdir(self, context: Context) -> Path:
        """Create the work directory of an attempt."""

    def remove_workdir(self, context: Context) -> None:
        """Remove the work directory of an attempt."""

    def mark(self, context: Context) -> str:
        """Return the mark of processes that an attempt starts."""


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class Context:
    """One attempt, as its handler sees it."""

    if not TYPE_CHECKING:  # checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown attribute; name what one of another library is called here."""
            return refuse_attribute(self, name, other_libraries.CONTEXT)

    # Initial values, on the class because most attempts never change them.
    previous: Mapping[str, Any] | None = None
    spent = 0.0
    keeps_exception = False  # hooks need what the handler raises
    raised: BaseException | None = None
    current_callback = ""  # name of the callback that runs before the handler
    stop_observed = False
    stop_requested = False
    requested_wait: Outcome | None = None  # what the job waits for when this attempt has ended
    _recorded: Mapping[str, RecordedStep] = MappingProxyType({})
    _programs: AbstractSet[Program] = frozenset()
    _started = 0
    _workdir: Path | None = None

    def __init__(
        self, host: AttemptHost, seq: int, lease: Lease, previous: PreviousAttempts | None = None
    ) -> None:
        self._host = host
        self.seq = seq
        self.lease = lease
        if previous is not None:
            self._recorded = previous.steps
            self.previous = previous.previous

    # --- Facts ---

    @property
    def job(self) -> Job:
        """The job as it was when this attempt began."""
        return running_job(self.lease)

    @property
    def attempt(self) -> int:
        """Number of this attempt within its generation, from 1."""
        return self.lease.attempt

    @property
    def token(self) -> int:
        """Fencing token: grows with every claim. Pass it to systems that refuse an older one."""
        return self.lease.token

    @property
    def last_attempt(self) -> bool:
        """True if one more failure of class unknown would end this job. A hint only."""
        return self.ends_after(Cls.UNKNOWN)

    def ends_after(self, cls: Cls) -> bool:
        """Return whether one more failure of a class would end this job. A hint only."""
        policy = self._host.policies.for_job(self.lease)
        cap = policy.class_limit(cls)
        used_up = cap is not None and parse_counts(self.lease.counts).for_class(cls) >= cap
        forbidden = cls is Cls.UNKNOWN and policy.retry_unknown is False
        forbidden = forbidden or not policy.allows_class(cls)
        return forbidden or used_up or self.lease.failures >= policy.max_retries

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the escalation step (`Then(settings=…)`); empty for the first attempt."""
        return MappingProxyType(parse_job_settings(self.lease.settings).get("settings", {}))

    @property
    def choice(self) -> str | None:
        """Choice of the person who released this job from parked."""
        return self.lease.choice

    @property
    def state(self) -> Any:
        """State that `@app.on_start` created in this process."""
        return self._host.state

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger that adds the ids of this attempt to each line, on any thread."""
        lease = self.lease
        ids = {
            "job": lease.id,
            "kind": lease.kind,
            "queue": lease.queue,
            "attempt": lease.attempt,
            "token": lease.token,
        }
        return _JobLog(log, ids)

    @property
    def cancelled(self) -> bool:
        """True once this attempt should stop: cancelled, over its time limit, or a shutdown."""
        self.stop_observed = self.stop_observed or self.stop_requested
        return self.stop_requested

    @property
    def workdir(self) -> Path:
        """Directory of this attempt alone. It is removed at the end, also after a crash."""
        if self._workdir is None:
            self._workdir = self._host.workdir(self)
        return self._workdir

    @property
    def checkpoints(self) -> Mapping[str, Any]:
        """Checkpoints of earlier attempts and of this one, by name."""
        return self._steps.checkpoints

    def key(self, name: str) -> str:
        """Return a unique key for a child of this job, so that a retry enqueues it only once."""
        return f"{self.lease.id}:{name}"

    # --- Calls that never wait ---

    def progress(self, fraction: float | None, message: str = "") -> None:
        """Record how far the attempt is, 0 to 1. Only the last value per second is written."""
        if fraction is not None and not math.isfinite(fraction):
            fraction = None
        if fraction is not None:
            fraction = min(max(float(fraction), 0.0), 1.0)
        self._host.progress(self, fraction, scrub_public(str(message), MESSAGE_LIMIT))

    def cost(self, amount: float) -> None:
        """Add to the cost of this attempt, in any unit."""
        if not math.isfinite(self.spent + amount) or amount < 0:
            message = f"cost({amount!r}): the cost must be a finite number of at least 0"
            raise Refused(message)
        self.spent += float(amount)

    # --- Calls that wait ---

    @property
    def _steps(self) -> AttemptSteps:
        found: AttemptSteps | None = self.__dict__.get("_attempt_steps")
        if found is None:
            limit = self._host.result_limit
            undo = self._host.policies.for_job(self.lease).undo
            steps = AttemptSteps(self.lease, self._recorded, limit, undo)
            found = self._instance_value("_attempt_steps", lambda: steps)
        return found

    def checkpoint(self, name: str, value: Any) -> None:
        """Save a value for later attempts. It is durable when this returns."""
        _refuse_on_event_loop("checkpoint")
        record = self._steps.checkpoint(name, value)
        self._steps.note(record, held=self._host.save_step(self, record))

    async def checkpoint_async(self, name: str, value: Any) -> None:
        """Save a value for later attempts. It is durable when this returns."""
        record = self._steps.checkpoint(name, value)
        self._steps.note(record, held=await self._host.save_step_async(self, record))

    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        key: str | int | None = None,
        uses: str | Sequence[str] | None = None,
        policy: Policy | None = None,
        timeout: Duration | None = None,
        undo: Callable[..., object] | None = None,
        doubt: Literal["again", "park"] | None = None,
        done: Callable[..., T | None] | None = None,
    ) -> T: ...

    @overload
    def step(self, name: Callable[..., T], *args: Any, key: str | int | None = None) -> T: ...

    def step(
        self, name: Any, fn: Any = MISSING, *args: Any, key: str | int | None = None, **options: Any
    ) -> Any:
        """Call a function once for this job and return its result.

        The result is durable when this returns. Later attempts get it without a call: they find it
        by the name of the step, wherever and in whatever order they ask for it. Calls of one name
        in one attempt need different keys.

        `uses`: dependencies of the step, of those that the job uses. `policy`: how often this step
        is retried. `timeout`: limit of one call. `undo`: a function of the result that is called
        if the job dies or is cancelled. `doubt`: "park" asks a person if the process died during
        the call. `done`: a function that returns the result if the call has happened after all.
        """
        _refuse_on_event_loop("step")
        call = step_call(name, fn, args, key, options)
        return drive(self._steps.run(call), self._answer_step)

    @overload
    async def step_async(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        key: str | int | None = None,
        uses: str | Sequence[str] | None = None,
        policy: Policy | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the limit of the step
        undo: Callable[..., object] | None = None,
        doubt: Literal["again", "park"] | None = None,
        done: Callable[..., object] | None = None,
    ) -> T: ...

    @overload
    async def step_async(
        self,
        name: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        key: str | int | None = None,
    ) -> T: ...

    async def step_async(
        self, name: Any, fn: Any = MISSING, *args: Any, key: str | int | None = None, **options: Any
    ) -> Any:
        """Run a step like `step`. An async function is awaited, any other runs on a thread."""
        run = self._steps.run(step_call(name, fn, args, key, options))
        return await drive_async(run, self._answer_step_async)

    def _answer_step(self, request: StepRequest) -> Any:
        match request:
            case SaveRecord(record):
                return self._host.save_step(self, record)
            case CallFunction():
                return call_blocking(request)
            case FindClosedGate(keys):
                return self._host.find_closed_gate(self, keys)
            case NoteBegin(step, timeout):
                self._host.step_began(self, step, timeout)
            case NoteEnd(name):
                self._host.step_ended(self, name)
        return None

    async def _answer_step_async(self, request: StepRequest) -> Any:
        match request:
            case SaveRecord(record):
                return await self._host.save_step_async(self, record)
            case CallFunction():
                return await call_async(request)
            case FindClosedGate(keys):
                return await self._host.find_closed_gate_async(self, keys)
            case _:
                return self._answer_step(request)

    # --- Waits without a slot ---

    def sleep(self, name: str, duration: DurationOrTime) -> None:
        """Wait for a time without a slot: the attempt ends here, uncharged.

        The next attempt runs the handler again from its beginning and continues behind this call:
        what happened before belongs into steps. `duration`: seconds, a timedelta or a datetime.
        """
        _refuse_on_event_loop("sleep")
        self._drive_wait(waits.sleep(self._steps, self.lease, name, duration))

    async def sleep_async(self, name: str, duration: DurationOrTime) -> None:
        """Wait for a time like `sleep`."""
        await self._drive_wait_async(waits.sleep(self._steps, self.lease, name, duration))

    def wait(self, name: str, *, timeout: DurationOrTime | None = None, default: Any = None) -> Any:
        """Wait without a slot for an answer, which `app.tell` gives, and return its value.

        The first answer counts, also one that came before this call. After `timeout`, `default` is
        the answer.
        """
        _refuse_on_event_loop("wait")
        run = waits.wait_for_answer(self._steps, self.lease, name, timeout, default)
        return self._drive_wait(run)

    async def wait_async(
        self,
        name: str,
        *,
        timeout: DurationOrTime | None = None,  # noqa: ASYNC109 - ends the wait of the job
        default: Any = None,
    ) -> Any:
        """Wait for an answer like `wait`."""
        run = waits.wait_for_answer(self._steps, self.lease, name, timeout, default)
        return await self._drive_wait_async(run)

    def call(self, name: str, kind: ChildKind, /, **payload: Any) -> Any:
        """Enqueue a child job, wait without a slot until it has ended, and return its result.

        It is enqueued once, however often this attempt is repeated. Raises ChildFailed if it died.
        """
        return self.gather(name, [kind.call(**payload)])[0]

    def gather(
        self,
        name: str,
        calls: Iterable[ChildCall],
        *,
        tolerance: float | str = 0,
        on_death: Literal["fail", "wait"] = "fail",
    ) -> list[Any]:
        """Enqueue child jobs, wait without a slot until all have ended, and return their results.

        `calls` are made by `kind.call(…)`. So many children as `tolerance` says, a count or a share
        such as "10%", may die or be cancelled: their result is None. If more do, ChildFailed is
        raised, or with `on_death="wait"` the job waits until enough of them are repaired.
        """
        jobs = build_children(name, calls, self.lease.owner)
        allowed = check_tolerance(tolerance)
        try:
            return waits.gather(self._steps, name, jobs, allowed, check_on_death(on_death))
        except waits.WaitRequested as request:
            self._note_wait(request)
            raise

    def _note_wait(self, request: waits.WaitRequested) -> None:
        """Keep what the job will wait for: of several at once, the first."""
        self.requested_wait = self.requested_wait or request.outcome

    def _drive_wait(self, run: waits.WaitRun) -> Any:
        try:
            return drive(run, self._answer_step)
        except waits.WaitRequested as request:
            self._note_wait(request)
            raise

    async def _drive_wait_async(self, run: waits.WaitRun) -> Any:
        try:
            return await drive_async(run, self._answer_step_async)
        except waits.WaitRequested as request:
            self._note_wait(request)
            raise

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout: Duration | None = None,
        input: str | bytes | None = None,  # noqa: A002 - the contract's name
        on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program to its end and return what it printed.

        The program belongs to the attempt and is killed with it. Raises ProcessFailed with exit
        code, signal and the tail of stderr if it fails. With `on_line`, only the last part of a
        long output is returned. `env` adds variables; variables with the credentials of Mulligan's
        database and mail are not inherited, so pass them here if the program needs them.
        """
        _refuse_on_event_loop("run")
        program, data, limit = self._create_program(command, input, timeout, env)
        return self._run(program, data, limit, on_line)

    async def run_async(
        self,
        command: Sequence[str | Path],
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the limit of the program
        input: str | bytes | None = None,  # noqa: A002 - the contract's name
        on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program like `run`, without blocking the event loop."""
        program, data, limit = self._create_program(command, input, timeout, env)
        return await run_in_thread(lambda: self._run(program, data, limit, on_line), program.stop)

    def _create_program(
        self,
        command: Sequence[str | Path],
        input_data: str | bytes | None,
        timeout: Duration | None,
        env: Mapping[str, str] | None,
    ) -> tuple[Program, bytes | None, float | None]:
        """Check the arguments of `run` and return the program, its input and its time limit."""
        if isinstance(command, str | bytes) or not command:
            message = (
                f"run({command!r}): the command must be a list that begins with the program, "
                "for example ['ffprobe', '-v', 'error', path]"
            )
            raise Refused(message)
        data = _to_bytes(input_data)
        limit = None if timeout is None else check_duration("timeout", timeout) / SECOND
        self._started += 1
        mark = f"{self._host.mark(self)}/{self._started}"
        environment = {**self._host.tracer.environment(self.lease), **(env or {})}
        parts = [str(part) for part in command]
        program = Program(parts, self.workdir, mark, environment, _record_stderr(parts[0]))
        return program, data, limit

    def _run(
        self,
        program: Program,
        data: bytes | None,
        timeout: float | None,
        on_line: Callable[[str], None] | None,
    ) -> str:
        programs: set[Program] = self._instance_value("_programs", set)
        programs.add(program)
        try:
            if self.stop_requested:
                program.stop()
            return program.run(data, timeout, on_line)
        finally:
            programs.discard(program)

    def _instance_value(self, name: str, create: Callable[[], Any]) -> Any:
        """Return a value of this instance that replaces the initial one on the class.

        `setdefault` is atomic, so two threads get the same object.
        """
        return self.__dict__.setdefault(name, create())

    # --- For the runner ---

    def undo_steps(self) -> None:
        """Undo the finished steps, the last one first."""
        drive(self._steps.undo(), self._answer_undo)

    async def undo_steps_async(self) -> None:
        """Undo the finished steps without blocking the event loop."""
        await drive_async(self._steps.undo(), self._answer_step_async)

    def count_undoable(self) -> tuple[int, int]:
        """Count the steps with an undo function: all, and those that are not undone."""
        return self._steps.count_undoable()

    def _answer_undo(self, request: StepRequest) -> Any:
        if isinstance(request, CallFunction) and inspect.iscoroutinefunction(request.fn):
            return asyncio.run(request.fn(*request.args))
        return self._answer_step(request)

    def find_failed_step(self, error: BaseException) -> StepFailure | None:
        """Return the step that raised an exception, or one of its causes."""
        steps: AttemptSteps | None = self.__dict__.get("_attempt_steps")
        return None if steps is None else steps.find_raised(error)

    @property
    def unused_steps(self) -> tuple[str, ...]:
        """Names of recorded results that this attempt did not ask for."""
        return self._steps.unused if self._recorded else ()

    def traced(self) -> AbstractContextManager[OnAttemptEnd]:
        return self._host.tracer.trace_attempt(self.lease)

    def request_stop(self) -> None:
        """Request the handler and its programs to stop."""
        self.stop_requested = True
        for program in list(self._programs):
            program.stop()

    @property
    def needs_cleanup(self) -> bool:
        """True if programs or files of this attempt may be left."""
        return self._started > 0 or self._workdir is not None

    def clean_up(self) -> None:
        """Kill the programs of this attempt and remove its files. Blocks until that is done."""
        if self._started:
            kill_marked(self._host.mark(self))
        if self._workdir is not None:
            self._host.remove_workdir(self)


def _record_stderr(program: str) -> Callable[[str], None] | None:
    """Return a function that records the lines a program writes to stderr; None: none is kept."""
    recording = current_recording()
    if recording is None:
        return None
    source = f"{Path(program).name} stderr"
    return lambda line: recording.add("", source, line)


def _refuse_on_event_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = (
        f"ctx.{name}() would block every job on this event loop. "
        f"In an async handler use: await ctx.{name}_async(...)"
    )
    raise RuntimeError(message)


def _to_bytes(data: str | bytes | None) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    try:
        return data.encode()
    except (AttributeError, UnicodeEncodeError):
        message = f"run(input=...): the input must be text or bytes, not {data!r:.80}"
        raise Refused(message) from None


def running_job(lease: Lease) -> Job:
    """Return the job of a running attempt, as its handler sees it."""
    return Job(
        id=lease.id,
        kind=lease.kind,
        queue=lease.queue,
        owner=lease.owner,
        state=State.RUNNING,
        phase="running",
        why=f"attempt {lease.attempt} is running",
        payload=json.loads(lease.payload),
        priority=lease.priority,
        attempt=lease.attempt,
        attempts=lease.attempt,
        retries=lease.failures,
        failures=lease.failures,
        losses=lease.losses,
        max_retries=lease.max_retries,
        generation=lease.generation,
        token=lease.token,
        batch_id=lease.batch_id,
        unique_key=lease.unique_key,
        uses=tuple(filter(None, lease.uses.split(","))),
        created_at=to_datetime(lease.created_at),
        run_at=to_datetime(lease.run_at),
        started_at=to_datetime(lease.started_at),
        deadline_at=_optional_datetime(lease.deadline_at),
    )


def _optional_datetime(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)
