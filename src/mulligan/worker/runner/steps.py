"""Durable steps of one attempt: call a function once per job, and keep its result.

One generator runs a step for sync and async handlers: it yields what must be done (save a record,
call the function), and the caller sends back the answer.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple

from mulligan.core.attempt import Lease, StepFailure
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import LeaseLost, Refused, StepDelayed, StepInDoubt
from mulligan.core.format import format_duration, safe_text
from mulligan.core.job import RecordedStep, split_uses
from mulligan.core.json import encode
from mulligan.failures.capture import get_cause, get_context
from mulligan.manifest.arguments import read_first_argument, result_converter, to_json
from mulligan.retries.reasons import IT_HAPPENED, RUN_AGAIN
from mulligan.retries.undo import UNDO_POLICY
from mulligan.steps.options import (
    DECLARED,
    NO_OPTIONS,
    PARK_IN_DOUBT,
    DeclaredStep,
    StepOptions,
    check_step_options,
    find_function,
)
from mulligan.steps.rules import ClosedGate, StepKind, StepRecord, StepState, read_detail
from mulligan.worker.runner.program import run_in_thread

NAME_LIMIT = 200  # characters of a step or checkpoint
MAX_CAUSES = 50  # exceptions searched for the one that a step raised
MISSING: Any = object()  # an argument that was not passed


class StepCall(NamedTuple):
    """One call of `ctx.step`, as the handler wrote it."""

    name: str  # with its key
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: StepOptions = NO_OPTIONS

    def failure(self, number: int) -> StepFailure:
        """Return what is recorded if the step fails, is stopped or dies."""
        options = self.options
        in_doubt = options.is_marked
        return StepFailure(self.name, number, options.policy, options.uses, 0, in_doubt)


class SaveRecord(NamedTuple):
    """Request to save a record. The answer: whether the attempt still holds its lease."""

    record: StepRecord


class CallFunction(NamedTuple):
    """Request to call a function of a step. The answer: what it returned."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    timeout: float | None = None  # seconds; obeyed for async functions


class FindClosedGate(NamedTuple):
    """Request to find a dependency that is down. The answer: the gate, or None."""

    keys: list[str]


class NoteBegin(NamedTuple):
    """Request to report that a step is called. `timeout`: for its worker to enforce."""

    step: StepFailure
    timeout: Micros | None


class NoteEnd(NamedTuple):
    """Request to report that a step ended without a result."""

    name: str


StepRequest = SaveRecord | CallFunction | FindClosedGate | NoteBegin | NoteEnd
StepRun = Generator[StepRequest, Any, Any]


class StepTimeout(TimeoutError):
    """A step ran longer than its own time limit."""


class RaisedInStep(NamedTuple):
    """An exception that a step raised."""

    error: BaseException
    step: StepFailure


class AttemptSteps:
    """Steps and checkpoints that an attempt found, and those that it has added."""

    def __init__(
        self,
        lease: Lease,
        recorded: Mapping[str, RecordedStep],
        result_limit: int,
        undo_policy: str,
    ) -> None:
        self._undo_policy = undo_policy
        self._job_id = lease.id
        self._uses = split_uses(lease.uses)
        self._limit = result_limit
        self._recorded = dict(recorded)
        self._called: dict[str, object] = {}
        self._raised: list[RaisedInStep] = []
        last = max((step.number for step in recorded.values()), default=0)
        self._numbers = itertools.count(last + 1)

    # --- Checkpoints ---

    @property
    def checkpoints(self) -> dict[str, Any]:
        """Values of the checkpoints, by name."""
        return {
            name: json.loads(step.value or "null")
            for name, step in self._recorded.items()
            if step.kind == StepKind.CHECKPOINT
        }

    def checkpoint(self, name: Any, value: Any) -> StepRecord:
        """Return the record of a checkpoint. Raise Refused for what the database would refuse."""
        self._check_name(name, StepKind.CHECKPOINT)
        text = self._to_text(f"checkpoint {name!r}", value)
        return StepRecord(name, StepKind.CHECKPOINT, StepState.DONE, 0, text)

    def note(self, record: StepRecord, *, held: bool) -> None:
        """Keep what was saved. Raise LeaseLost if it was not."""
        if not held:
            message = (
                f"job {self._job_id}: this attempt no longer holds the job; "
                f"{record.kind} {record.name!r} was refused"
            )
            raise LeaseLost(message)
        self._recorded[record.name] = RecordedStep(
            record.kind, record.state, record.number, record.value, record.detail, 0
        )

    # --- Waits ---

    def begin(self, name: Any, kind: StepKind) -> RecordedStep | None:
        """Check the call of a wait. Return what an earlier attempt recorded about it."""
        self._check_name(name, kind)
        self._refuse_second_call(name)
        found = self._recorded.get(name)
        if found is not None and found.kind != kind:
            message = f"{kind} {name!r}: this job has a {found.kind} of that name. Rename one."
            raise Refused(message)
        return found

    def next_number(self) -> int:
        """Return the number of the next step."""
        return next(self._numbers)

    def to_text(self, what: str, value: Any) -> str:
        """Return a value as JSON. Raise Refused for what the database would refuse."""
        return self._to_text(what, value)

    # --- Steps ---

    def run(self, call: StepCall) -> StepRun:
        """Return the result of a step: the recorded one, or that of a call, once it is durable."""
        self._check_name(call.name, StepKind.STEP)
        self._refuse_second_call(call.name)
        found = self._recorded.get(call.name)
        if found is not None and found.state == StepState.DONE:
            return _read_value(call, found.value)
        step = call.failure(next(self._numbers))
        began = time.monotonic_ns()
        try:
            text = yield from self._run(call, step, in_doubt=_is_in_doubt(found))
        except BaseException as error:
            took = _micros_since(began)
            interrupted = isinstance(error, StepTimeout) or not isinstance(error, Exception)
            step = step._replace(took=took, in_doubt=call.options.is_marked and interrupted)
            self._raised.append(RaisedInStep(error, step))
            yield NoteEnd(call.name)
            raise
        return _read_value(call, text)

    def _run(self, call: StepCall, step: StepFailure, *, in_doubt: bool) -> StepRun:
        """Call the function of a step and save its result. Return the result as JSON."""
        options = call.options
        if options.uses:
            yield from self._wait_for_dependencies(call)
        value = None
        if in_doubt:
            value = yield from self._resolve_doubt(call)
        began = time.monotonic_ns()
        if value is None:
            if options.is_marked:
                yield from self._save(call, step, StepState.RUNNING)
            yield NoteBegin(step, None if _is_async(call.fn) else options.timeout)
            value = yield from self._call(call, step, began)
        text = self._to_text(f"the result of step {call.name!r}", value)
        yield from self._save(call, step, StepState.DONE, text, _micros_since(began))
        return text

    def _call(self, call: StepCall, step: StepFailure, began: int) -> StepRun:
        limit = call.options.timeout
        seconds = None if limit is None else limit / SECOND
        try:
            return (yield CallFunction(call.name, call.fn, call.args, seconds))
        except StepTimeout:
            raise
        except Exception:
            if call.options.is_marked:  # it has failed by itself: there is no doubt
                yield from self._save(call, step, StepState.FAILED, took=_micros_since(began))
            raise

    def _save(
        self,
        call: StepCall,
        step: StepFailure,
        state: StepState,
        text: str | None = None,
        took: Micros = 0,
    ) -> StepRun:
        detail: dict[str, Any] = {}
        if call.options.undo:
            detail = {"undo": call.options.undo, "auto": self._undo_policy != "by_hand"}
            if call.options.policy is not None:
                detail["policy"] = call.options.policy
        record = StepRecord(
            call.name, StepKind.STEP, state, step.number, text, encode(detail), took
        )
        self.note(record, held=(yield SaveRecord(record)))

    def _wait_for_dependencies(self, call: StepCall) -> StepRun:
        """Give the job back if a dependency of the step is down: it waits until it recovers."""
        keys = call.options.uses.split(",")
        unknown = [key for key in keys if key not in self._uses]
        if unknown:
            message = (
                f"step {call.name!r} uses {unknown[0]!r}, but the job does not. "
                f"Add it to uses= of the kind, which has {', '.join(self._uses) or 'none'}"
            )
            raise Refused(message)
        closed: ClosedGate | None = yield FindClosedGate(keys)
        if closed is not None:
            raise StepDelayed(call.name, *closed)

    def _resolve_doubt(self, call: StepCall) -> StepRun:
        """Find out whether a step happened that an earlier attempt called.

        Return its result; None: it did not happen. Raise StepInDoubt if a person must decide.
        """
        done = call.options.done
        if done is not None:
            return (yield CallFunction(call.name, done, call.args))
        if call.options.doubt == PARK_IN_DOUBT:
            raise StepInDoubt(call.name, (RUN_AGAIN, IT_HAPPENED))
        return None

    # --- Undo ---

    def undo(self) -> StepRun:
        """Undo the finished steps, the last one first."""
        for name, recorded in self._to_undo():
            detail = read_detail(recorded.detail)
            policy = detail.get("policy", UNDO_POLICY)
            step = StepFailure(f"{name}/undo", recorded.number, policy, in_doubt=True)
            try:
                yield from self._undo(step, name, recorded, detail["undo"])
            except BaseException as error:
                self._raised.append(RaisedInStep(error, step))
                raise

    def _to_undo(self) -> list[tuple[str, RecordedStep]]:
        found = [
            (name, step)
            for name, step in self._recorded.items()
            if is_undoable(step) and step.state == StepState.DONE
        ]
        return sorted(found, key=lambda pair: pair[1].number, reverse=True)

    def count_undoable(self) -> tuple[int, int]:
        """Count the steps with an undo function: all, and those that are not undone."""
        ended = {StepState.DONE, StepState.UNDONE}
        total = sum(is_undoable(step) and step.state in ended for step in self._recorded.values())
        return total, len(self._to_undo())

    def _undo(
        self, step: StepFailure, name: str, recorded: RecordedStep, reference: str
    ) -> StepRun:
        began = time.monotonic_ns()
        fn = find_function(reference)
        value = read_first_argument(fn, recorded.value)
        yield NoteBegin(step, None)
        yield CallFunction(step.name, fn, (value,))
        record = StepRecord(
            name,
            StepKind.STEP,
            StepState.UNDONE,
            recorded.number,
            recorded.value,
            recorded.detail,
            _micros_since(began),
        )
        self.note(record, held=(yield SaveRecord(record)))
        yield NoteEnd(step.name)

    def find_raised(self, error: BaseException) -> StepFailure | None:
        """Return the step that raised an exception, or one of its causes."""
        if not self._raised:
            return None
        by_error = {id(raised.error): raised.step for raised in self._raised}
        pending: list[BaseException | None] = [error]
        visited = 0
        while pending and visited < MAX_CAUSES:
            current = pending.pop()
            if current is None:
                continue
            visited += 1
            if id(current) in by_error:
                return by_error[id(current)]
            pending += (get_context(current), get_cause(current))
        return None

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the results that earlier attempts recorded and this one did not ask for."""
        return tuple(
            name
            for name, step in self._recorded.items()
            if step.kind == StepKind.STEP and step.state == StepState.DONE
            if name not in self._called
        )

    def _refuse_second_call(self, name: str) -> None:
        mark = object()
        if self._called.setdefault(name, mark) is not mark:  # atomic, unlike a test and a write
            message = (
                f"step {name!r} was called before in this attempt. Steps are found by name: "
                "give each call its own name, or the same name and another key="
            )
            raise Refused(message)

    def _check_name(self, name: Any, kind: StepKind) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or name != safe_text(name):
            message = (
                f"{kind} {name!r:.80}: the name must be a printable text "
                f"of 1 to {NAME_LIMIT} characters"
            )
            raise Refused(message)
        found = self._recorded.get(name)
        if found is not None and (found.kind == StepKind.CHECKPOINT) != (
            kind is StepKind.CHECKPOINT
        ):
            message = f"{kind} {name!r}: this job has a {found.kind} of that name. Rename one."
            raise Refused(message)

    def _to_text(self, what: str, value: Any) -> str:
        text = to_json(value, what)
        if len(text) > self._limit:
            message = f"{what} is {len(text):,} bytes of JSON, the limit is {self._limit:,} bytes"
            raise Refused(message)
        return text


def step_call(
    name: Any, fn: Any, args: tuple[Any, ...], key: Any, options: Mapping[str, Any]
) -> StepCall:
    """Check the arguments of `ctx.step`. With `@app.step` the name may be left out."""
    if callable(name) and not isinstance(name, str):
        if fn is not MISSING:
            args = (fn, *args)
        fn = name
        declared: DeclaredStep | None = getattr(fn, DECLARED, None)
        name = getattr(fn, "__name__", "") if declared is None else declared.name
    if not callable(fn):
        message = (
            f"step {name!r:.80}: the second argument must be a function, not {fn!r:.80}. "
            "Write ctx.step(name, function, argument), without calling the function"
        )
        raise Refused(message)
    try:
        checked = check_step_options(fn, **options)
    except Refused as error:
        message = f"step {name!r:.80}: {error}"
        raise Refused(message) from None
    if key is None:
        return StepCall(name, fn, args, checked)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        message = f"step {name!r:.80}: key= must be a text or a number, not {key!r:.80}"
        raise Refused(message)
    return StepCall(f"{name}[{key}]", fn, args, checked)


def call_blocking(call: CallFunction) -> Any:
    """Call a function of a step in a sync handler."""
    if _is_async(call.fn):
        message = (
            f"step {call.name!r}: {getattr(call.fn, '__qualname__', call.fn)!s:.80} is async. "
            "Use it in an async handler: await ctx.step_async(...)"
        )
        raise Refused(message)
    return call.fn(*call.args)


async def call_async(call: CallFunction) -> Any:
    """Call a function of a step in an async handler; a sync one on a thread: it may block."""
    if not _is_async(call.fn):
        value = await run_in_thread(lambda: call.fn(*call.args), lambda: None)
        return await value if inspect.isawaitable(value) else value
    if call.timeout is None:
        return await call.fn(*call.args)
    limit = asyncio.timeout(call.timeout)
    try:
        async with limit:
            return await call.fn(*call.args)
    except TimeoutError:
        if not limit.expired():
            raise  # of the function itself
        name, seconds = call.name, format_duration(call.timeout)
        message = f"step {name} ran longer than its limit of {seconds} and was stopped"
        raise StepTimeout(message) from None


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn)


def is_undoable(step: RecordedStep) -> bool:
    """True for a step with an undo function."""
    return step.kind == StepKind.STEP and '"undo":' in step.detail


def _is_in_doubt(found: RecordedStep | None) -> bool:
    """True if an earlier attempt has called the step and left no result."""
    return found is not None and found.state == StepState.RUNNING


def _micros_since(began_ns: int) -> Micros:
    return (time.monotonic_ns() - began_ns) // 1000


# --- Drivers ---


def drive(run: StepRun, answer: Callable[[StepRequest], Any]) -> Any:
    """Run a step to its end. `answer` does what it requests."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = run.send(value) if error is None else run.throw(error)
        except StopIteration as end:
            return end.value
        value = error = None
        try:
            value = answer(request)
        except BaseException as raised:  # noqa: BLE001 - the generator raises it again
            error = raised


async def drive_async(run: StepRun, answer: Callable[[StepRequest], Awaitable[Any]]) -> Any:
    """Run a step to its end in an async handler."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = run.send(value) if error is None else run.throw(error)
        except StopIteration as end:
            return end.value
        value = error = None
        try:
            value = await answer(request)
        except BaseException as raised:  # noqa: BLE001 - the generator raises it again
            error = raised


def _read_value(call: StepCall, text: str | None) -> Any:
    """Return a result as every attempt gets it: from its JSON, as the type that is annotated."""
    value = json.loads(text or "null")
    convert = result_converter(call.fn)
    return value if convert is None else convert(value)
