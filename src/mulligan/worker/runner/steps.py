"""Durable steps of one attempt: call a function once per job, and keep its result.

One generator runs a step for sync and async handlers: it yields what must be done (save a record,
call the function), and the caller sends back the answer.
"""

from __future__ import annotations

import inspect
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple

from mulligan.core.errors import LeaseLost, Refused
from mulligan.core.format import safe_text
from mulligan.core.job import RecordedStep
from mulligan.manifest.arguments import result_converter, to_json
from mulligan.steps.rules import StepKind, StepRecord, StepState
from mulligan.worker.runner.program import run_in_thread

NAME_LIMIT = 200  # characters of a step or checkpoint


class StepCall(NamedTuple):
    """One call of `ctx.step`, as the handler wrote it."""

    name: str  # with its key
    fn: Callable[..., Any]
    args: tuple[Any, ...]


class SaveRecord(NamedTuple):
    """Request to save a record. The answer: whether the attempt still holds its lease."""

    record: StepRecord


class CallFunction(NamedTuple):
    """Request to call the function of a step. The answer: what it returned."""

    call: StepCall


StepRun = Generator[SaveRecord | CallFunction, Any, Any]


class AttemptSteps:
    """Steps and checkpoints that an attempt found, and those that it has added."""

    def __init__(
        self, job_id: str, recorded: Mapping[str, RecordedStep], result_limit: int
    ) -> None:
        self._job_id = job_id
        self._limit = result_limit
        self._recorded = dict(recorded)
        self._called: dict[str, object] = {}
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

    # --- Steps ---

    def run(self, call: StepCall) -> StepRun:
        """Return the result of a step: the recorded one, or that of a call, once it is durable."""
        self._check_name(call.name, StepKind.STEP)
        self._refuse_second_call(call.name)
        found = self._recorded.get(call.name)
        if found is not None and found.state == StepState.DONE:
            return _read_value(call, found.value)
        began = time.monotonic_ns()
        value = yield CallFunction(call)
        text = self._to_text(f"the result of step {call.name!r}", value)
        took = (time.monotonic_ns() - began) // 1000
        record = StepRecord(
            call.name, StepKind.STEP, StepState.DONE, next(self._numbers), text, "{}", took
        )
        self.note(record, held=(yield SaveRecord(record)))
        return _read_value(call, text)

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


def step_call(name: Any, fn: Any, args: tuple[Any, ...], key: Any) -> StepCall:
    """Check the arguments of `ctx.step`."""
    if not callable(fn):
        message = (
            f"step {name!r:.80}: the second argument must be a function, not {fn!r:.80}. "
            "Write ctx.step(name, function, argument), without calling the function"
        )
        raise Refused(message)
    if key is None:
        return StepCall(name, fn, args)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        message = f"step {name!r:.80}: key= must be a text or a number, not {key!r:.80}"
        raise Refused(message)
    return StepCall(f"{name}[{key}]", fn, args)


def call_blocking(call: StepCall) -> Any:
    """Call the function of a step in a sync handler."""
    if inspect.iscoroutinefunction(call.fn):
        message = (
            f"step {call.name!r}: {getattr(call.fn, '__qualname__', call.fn)!s:.80} is async. "
            "Use it in an async handler: await ctx.step_async(...)"
        )
        raise Refused(message)
    return call.fn(*call.args)


async def call_async(call: StepCall) -> Any:
    """Call the function of a step in an async handler; a sync one on a thread: it may block."""
    if inspect.iscoroutinefunction(call.fn):
        return await call.fn(*call.args)
    value = await run_in_thread(lambda: call.fn(*call.args), lambda: None)
    return await value if inspect.isawaitable(value) else value


# --- Drivers ---


def drive(run: StepRun, answer: Callable[[SaveRecord | CallFunction], Any]) -> Any:
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


async def drive_async(
    run: StepRun, answer: Callable[[SaveRecord | CallFunction], Awaitable[Any]]
) -> Any:
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
