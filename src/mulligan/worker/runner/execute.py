"""Run the handler of one attempt and return its outcome. Never raises, whatever it does."""

from __future__ import annotations

import inspect
import sys
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

from mulligan.core.attempt import Ended, Outcome, StepFailure
from mulligan.core.durations import Micros
from mulligan.core.errors import OutcomeRequest, PayloadRefused, StepInDoubt, Stopped
from mulligan.core.tracing import NO_SPAN, OPENTELEMETRY, begin_attempt, end_attempt
from mulligan.failures.classify import classify_facts
from mulligan.failures.codes import (
    payload_refused,
    result_refused,
    retry_refused,
    step_in_doubt,
)
from mulligan.failures.redact import scrub, scrub_public
from mulligan.failures.step_evidence import STEP_EVIDENCE, base_name
from mulligan.manifest.arguments import JobCallback, refusal_message, to_json
from mulligan.manifest.specs import Handler
from mulligan.manifest.versions import decode_payload
from mulligan.retries.reasons import IT_HAPPENED
from mulligan.retries.undo import LEAVE, read_cause
from mulligan.worker.protocol import JUST_RETURNED
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.outcomes import Classifier, outcome_of_exception, outcome_of_request
from mulligan.worker.runner.program import run_in_thread

# Returned instead of an outcome: the code stopped because it was requested to.
STOPPED = None
MAX_REASON = 500  # characters
# Key in the evidence of a failure: the callback in which it happened.
CALLBACK_EVIDENCE = "asked"
UPCAST = "upcast"

ConvertResult = Callable[[Any], Outcome | None]
Execution = Coroutine[Any, Any, Outcome | None]


class CallbackResult(Enum):
    """Result of the callbacks, if they do not end the attempt."""

    CALL_HANDLER = "call the handler"
    UNDO = "undo the finished steps"


CallHandler = Literal[CallbackResult.CALL_HANDLER]
Callbacks = Generator[JobCallback, Any, Outcome | CallHandler | None]


# --- Running an attempt ---


def execute_async(handler: Handler, context: Context, result_limit: int) -> Execution:
    """Return a coroutine that runs an async handler."""
    span = context.traced()
    execution = execute_untraced_async(handler, context, result_limit)
    return execution if span is NO_SPAN else _execute_traced(span, execution, context)


async def _execute_traced(
    span: AbstractContextManager[Callable[[Outcome | None], None]],
    execution: Execution,
    context: Context,
) -> Outcome | None:
    before = begin_attempt(context.lease)
    try:
        with span as set_outcome:
            outcome = await execution
            set_outcome(outcome)
        return outcome
    finally:
        end_attempt(before)


def execute_sync(handler: Handler, context: Context, result_limit: int) -> Outcome | None:
    """Run a sync handler on the current thread."""
    before = begin_attempt(context.lease)
    try:
        if OPENTELEMETRY not in sys.modules:
            return execute_untraced(handler, context, result_limit)
        with context.traced() as set_outcome:
            outcome = execute_untraced(handler, context, result_limit)
            set_outcome(outcome)
        return outcome
    finally:
        end_attempt(before)


async def execute_untraced_async(
    handler: Handler, context: Context, result_limit: int
) -> Outcome | None:
    """Run an async handler without a span."""
    before = begin_attempt(context.lease)
    kwargs: dict[str, Any] = {}
    outcome: Outcome | CallbackResult | None
    try:
        outcome = _first_outcome(handler, context)
        if outcome is CallbackResult.UNDO:
            outcome = await _undo_async(context)
        if outcome is CallbackResult.CALL_HANDLER:
            kwargs = _decode_arguments(handler, context)
        if outcome is CallbackResult.CALL_HANDLER and (handler.done or handler.can_retry):
            convert = partial(_convert_result, handler, context, result_limit)
            outcome = await run_callbacks_async(handler, context, kwargs, convert)
        if outcome is CallbackResult.CALL_HANDLER:
            if handler.cost:
                context.spent += handler.cost
            outcome = _convert_result(handler, context, result_limit, await handler.call(**kwargs))
    except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is a failure too
        outcome = _convert_exception(context, error, handler)
    if context.requested_wait is not None:  # first: the handler may have caught it
        outcome = _with_cost(context.requested_wait, context)
    if context.needs_cleanup:
        # A cancellation comes too late here: the attempt has ended.
        with suppress(CancelledError, Exception):
            await run_in_thread(context.clean_up, lambda: None)
    end_attempt(before)
    return outcome


def execute_untraced(handler: Handler, context: Context, result_limit: int) -> Outcome | None:
    """Run a sync handler without a span."""
    kwargs: dict[str, Any] = {}
    outcome: Outcome | CallbackResult | None
    try:
        outcome = _first_outcome(handler, context)
        if outcome is CallbackResult.UNDO:
            outcome = _undo(context)
        if outcome is CallbackResult.CALL_HANDLER:
            kwargs = _decode_arguments(handler, context)
        if outcome is CallbackResult.CALL_HANDLER and (handler.done or handler.can_retry):
            convert = partial(_convert_result, handler, context, result_limit)
            outcome = run_callbacks_sync(handler, context, kwargs, convert)
        if outcome is CallbackResult.CALL_HANDLER:
            if handler.cost:
                context.spent += handler.cost
            outcome = _convert_result(handler, context, result_limit, handler.call(**kwargs))
    except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is a failure too
        outcome = _convert_exception(context, error, handler)
    if context.requested_wait is not None:  # first: the handler may have caught it
        outcome = _with_cost(context.requested_wait, context)
    if context.needs_cleanup:
        with suppress(Exception):  # the supervisor finds what is left by its mark
            context.clean_up()
    return outcome


# --- Undo of finished steps, instead of the handler ---


def _undo(context: Context) -> Outcome:
    if context.lease.choice != LEAVE:
        context.undo_steps()
    return _undo_outcome(context)


async def _undo_async(context: Context) -> Outcome:
    if context.lease.choice != LEAVE:
        await context.undo_steps_async()
    return _undo_outcome(context)


def _undo_outcome(context: Context) -> Outcome:
    """Return the outcome of an undo. Its reason says how many steps are undone."""
    total, left = context.count_undoable()
    reason = f"undone: {total - left} of {total} steps"
    if left:
        reason += "; the rest was left by a person"
    return Outcome(Ended.RETURNED, result="null", cost=context.spent, reason=reason)


def _first_outcome(handler: Handler, context: Context) -> Outcome | CallbackResult:
    """Return what to do: undo the finished steps, call the handler, or neither.

    A job of which a person decided that its work was done has succeeded.
    """
    if context.lease.settings is not None and read_cause(context.lease.settings) is not None:
        return CallbackResult.UNDO
    if handler.spec.once and context.lease.choice == IT_HAPPENED:
        return Outcome(Ended.RETURNED, skipped=True)
    return CallbackResult.CALL_HANDLER


class _BadPayload(Exception):
    """The payload does not fit the handler's arguments."""


def _decode_arguments(handler: Handler, context: Context) -> dict[str, Any]:
    arguments = handler.arguments
    lease = context.lease
    is_current = lease.version == handler.spec.version
    if lease.payload == "{}" and is_current and not arguments.names:
        return {} if arguments.context_name is None else {arguments.context_name: context}
    try:
        kwargs = arguments.decode(lease.payload) if is_current else _upcast(handler, context)
    except PayloadRefused as refused:
        raise _BadPayload(str(refused)) from None
    if arguments.context_name is not None:
        kwargs[arguments.context_name] = context
    return kwargs


def _upcast(handler: Handler, context: Context) -> dict[str, Any]:
    """Return the arguments of a payload of another version. What upcast= raises is a failure."""
    context.current_callback = UPCAST
    arguments = decode_payload(handler, context.lease.payload, context.lease.version)
    context.current_callback = ""
    return arguments


# --- Callbacks that run before the handler: can_retry= and done= ---


def run_callbacks_sync(
    handler: Handler, context: Context, arguments: Mapping[str, Any], convert: ConvertResult
) -> Outcome | CallHandler | None:
    """Run the callbacks of a sync handler."""
    callbacks = _callbacks(handler, context, convert)
    payload = _without_context(handler, arguments)
    answer = None
    while True:
        try:
            callback = callbacks.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = callback.call_blocking(callback.select_arguments(payload, context))


async def run_callbacks_async(
    handler: Handler, context: Context, arguments: Mapping[str, Any], convert: ConvertResult
) -> Outcome | CallHandler | None:
    """Run the callbacks of an async handler."""
    callbacks = _callbacks(handler, context, convert)
    payload = _without_context(handler, arguments)
    answer = None
    while True:
        try:
            callback = callbacks.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = await _call_async(callback, callback.select_arguments(payload, context))


def _without_context(handler: Handler, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in arguments.items() if name != handler.arguments.context_name
    }


async def _call_async(callback: JobCallback, arguments: Mapping[str, Any]) -> Any:
    """Call a callback; a sync one on a thread, because it may block."""
    if callback.is_async:
        return await callback.call(**arguments)
    return await run_in_thread(lambda: callback.call(**arguments), lambda: None)


def _callbacks(handler: Handler, context: Context, convert: ConvertResult) -> Callbacks:
    """Yield the callbacks to call, and return the outcome or CALL_HANDLER.

    A generator, so that sync and async handlers share it: the caller sends back each answer.
    """
    if handler.can_retry is not None and _is_after_manual_retry(context):
        context.current_callback = handler.can_retry.name
        refusal = refusal_message((yield handler.can_retry))
        if refusal:
            failure = retry_refused(scrub_public(refusal, MAX_REASON))
            return Outcome(Ended.REFUSED, failure=failure, cost=context.spent)
    if handler.done is not None and not context.stop_requested:
        context.current_callback = handler.done.name
        value = yield handler.done
        if value is not None:
            outcome = convert(value)
            if outcome is not None and outcome.ended is Ended.RETURNED:
                return outcome._replace(skipped=True)
            return outcome
    context.current_callback = ""
    return STOPPED if context.stop_requested else CallbackResult.CALL_HANDLER


def _is_after_manual_retry(context: Context) -> bool:
    """True until an attempt of this generation has failed in its handler.

    An attempt that was released without failing asks can_retry= again.
    """
    if context.lease.generation <= 1:
        return False
    previous = context.previous
    if previous is None:
        return True
    failed_in = previous.get("evidence", {}).get(CALLBACK_EVIDENCE)
    return previous.get("generation") != context.lease.generation or failed_in == "can_retry"


# --- Results and exceptions ---


def _convert_result(handler: Handler, context: Context, limit: int, value: Any) -> Outcome | None:
    """Return the outcome of what a handler returned."""
    if value is None:
        if context.stop_observed:
            return STOPPED
        unused = context.unused_steps
        if not context.spent and not unused:
            return JUST_RETURNED
        return Outcome(Ended.RETURNED, result="null", cost=context.spent, unused_steps=unused)
    if isinstance(value, BaseException):
        if isinstance(value, Stopped):
            return STOPPED
        classify = make_classifier(handler, context.lease.uses)
        outcome = outcome_of_request(value, time.time_ns() // 1000, classify)
        return _with_cost(outcome, context)
    try:
        text = to_json(value, "the result")
    except PayloadRefused as refused:
        return _result_refused(context, "RESULT_NOT_JSON", str(refused))
    if len(text) > limit:
        why = f"the result is {len(text):,} bytes of JSON, the limit is {limit:,} bytes"
        return _result_refused(context, "RESULT_TOO_LARGE", why)
    unused = context.unused_steps
    return Outcome(Ended.RETURNED, result=text, cost=context.spent, unused_steps=unused)


def _convert_exception(context: Context, error: BaseException, handler: Handler) -> Outcome | None:
    """Return the outcome of what a handler raised."""
    if context.keeps_exception:
        context.raised = error
    kind = type(error)  # not `isinstance`: `__class__` may be a property that raises
    if issubclass(kind, _BadPayload):
        return Outcome(Ended.FAILED, failure=payload_refused(scrub(str(error))), cost=context.spent)
    if issubclass(kind, Stopped):
        return STOPPED
    if context.stop_requested and not issubclass(kind, OutcomeRequest):
        return STOPPED
    now = time.time_ns() // 1000
    step = context.find_failed_step(error)
    if issubclass(kind, StepInDoubt):
        return _with_cost(_park_in_doubt(error, step, now), context)
    classifier = make_classifier(handler, context.lease.uses, step)
    outcome = outcome_of_exception(error, now, classifier)
    if step is not None:
        outcome = _with_step(outcome, step)
    if context.current_callback:
        outcome = _with_callback(outcome, context.current_callback)
    return _with_cost(outcome, context)


def make_classifier(handler: Handler, uses: str, step: StepFailure | None = None) -> Classifier:
    """Return the classifier for a job: rules of its kind and app, dependencies, failed step."""
    books = [book for book in (handler.kind_rules, handler.app_rules.rulebook) if book.rules]
    if step is not None and step.uses:
        uses = step.uses
    keys = tuple(filter(None, uses.split(",")))
    if not keys and step is None:
        return partial(classify_facts, books=books)
    name = "" if step is None else base_name(step.name)
    return lambda facts: classify_facts(facts._replace(uses=keys, step=name), books)


def _with_step(outcome: Outcome, step: StepFailure) -> Outcome:
    """Add the step in which an attempt failed; an outcome without a failure needs none."""
    if outcome.failure is None:
        return outcome
    evidence = {**outcome.failure.evidence, STEP_EVIDENCE: step.name}
    return outcome._replace(failure=replace(outcome.failure, evidence=evidence), step=step)


def _park_in_doubt(error: Any, step: StepFailure | None, now: Micros) -> Outcome:
    """Park the job until a person has found out whether a step happened."""
    outcome = outcome_of_exception(error, now)
    if step is not None:
        step = step._replace(in_doubt=True)
    return outcome._replace(failure=step_in_doubt(error.step), step=step)


def _with_callback(outcome: Outcome, callback: str) -> Outcome:
    """Add to the evidence that the failure happened in a callback, not in the handler."""
    if outcome.failure is None:
        return outcome
    evidence = {**outcome.failure.evidence, CALLBACK_EVIDENCE: callback}
    return outcome._replace(failure=replace(outcome.failure, evidence=evidence))


def _result_refused(context: Context, code: str, why: str) -> Outcome:
    return Outcome(Ended.FAILED, failure=result_refused(code, scrub(why)), cost=context.spent)


def _with_cost(outcome: Outcome, context: Context) -> Outcome:
    return outcome._replace(cost=context.spent) if context.spent else outcome


# --- Hooks of the process: @app.on_start and @app.on_stop ---


async def run_process_hooks(hooks: Sequence[Callable[..., Any]], state: Any) -> Any:
    """Run hooks, each with the state if it has a parameter. Return the new state.

    What a hook returns becomes the state; a mapping is merged into it.
    """
    for hook in hooks:
        result = hook(state) if inspect.signature(hook).parameters else hook()
        if inspect.isawaitable(result):
            result = await result
        state = _merge_state(state, result)
    return state


def _merge_state(state: Any, result: Any) -> Any:
    if result is None:
        return state
    if isinstance(result, Mapping) and isinstance(state, SimpleNamespace):
        return SimpleNamespace(**{**vars(state), **result})
    return result
