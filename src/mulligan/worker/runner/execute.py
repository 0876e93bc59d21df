"""Lease → Outcome. Runs one handler and never raises, whatever the handler does."""

from __future__ import annotations

import inspect
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from mulligan.core.attempt import Ended, Failure, Outcome
from mulligan.core.errors import OutcomeRequest, PayloadRefused, Stopped
from mulligan.core.job import Micros
from mulligan.core.tracing import UNTRACED, begin_attempt, end_attempt
from mulligan.failures.classify import classify_facts
from mulligan.failures.codes import payload_refused, result_refused, retry_refused
from mulligan.failures.facts import Facts
from mulligan.failures.redact import scrub, shown
from mulligan.manifest.arguments import Question, refusal, to_json
from mulligan.manifest.specs import Handler
from mulligan.worker.protocol import JUST_RETURNED
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.outcomes import Judge, outcome_of, raised
from mulligan.worker.runner.program import in_a_thread

# What is asked before a handler is called: may this job run again, is its result there already?

GO_ON: Any = object()  # instead of an outcome: call the handler
SENTENCE = 500  # characters
ASKED = "asked"  # in the evidence of a failure: what was asked when it happened

Returned = Callable[[Any], Outcome | None]
Asking = Generator[Question, Any, Outcome | None]


def first_sync(
    handler: Handler, context: Context, arguments: Mapping[str, Any], returned: Returned
) -> Any:
    """An outcome, None (it was asked to stop), or GO_ON."""
    asking, answer = _asking(handler, context, returned), None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = question.answer(question.given(_plain(handler, arguments), context))


async def first_async(
    handler: Handler, context: Context, arguments: Mapping[str, Any], returned: Returned
) -> Any:
    asking, answer = _asking(handler, context, returned), None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = await _answer(question, question.given(_plain(handler, arguments), context))


def _plain(handler: Handler, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without the handler's own context."""
    return {
        name: value for name, value in arguments.items() if name != handler.arguments.context_name
    }


async def _answer(question: Question, given: Mapping[str, Any]) -> Any:
    """A plain function may block, and must not block the others on this loop."""
    if question.is_async:
        return await question.call(**given)
    return await in_a_thread(lambda: question.call(**given), lambda: None)


def _asking(handler: Handler, context: Context, returned: Returned) -> Asking:
    if handler.can_retry is not None and _begun_by_hand(context):
        context.asking = handler.can_retry.name
        why = refusal((yield handler.can_retry))
        if why:
            return Outcome(
                Ended.REFUSED, failure=retry_refused(shown(why, SENTENCE)), cost=context.spent
            )
    if handler.done is not None and not context.stop_asked:
        context.asking = handler.done.name
        value = yield handler.done
        if value is not None:
            outcome = returned(value)
            there = outcome is not None and outcome.ended is Ended.RETURNED
            return outcome._replace(skipped=True) if outcome is not None and there else outcome
    context.asking = ""
    return None if context.stop_asked else GO_ON


def _begun_by_hand(context: Context) -> bool:
    """Until an attempt of this life has failed in its handler; one that was given back asks again."""
    previous = context.previous
    if context.lease.generation <= 1 or previous is None:
        return context.lease.generation > 1
    asked = previous.get("evidence", {}).get(ASKED)
    return previous.get("generation") != context.lease.generation or asked == "can_retry"


# `@app.on_start` and `@app.on_stop`: once per process.


async def call_hooks(hooks: Sequence[Callable[..., Any]], state: Any) -> Any:
    """Call each with the state if it takes one. What a hook returns becomes (a mapping: joins) the state."""
    for hook in hooks:
        made = hook(state) if inspect.signature(hook).parameters else hook()
        if inspect.isawaitable(made):
            made = await made
        state = _joined(state, made)
    return state


def _joined(state: Any, made: Any) -> Any:
    if made is None:
        return state
    if isinstance(made, Mapping) and isinstance(state, SimpleNamespace):
        return SimpleNamespace(**{**vars(state), **made})
    return made


# Lease → Outcome. Runs one handler and never raises, whatever the handler does.

STOPPED = None  # instead of an outcome: the code stopped because it was asked to


Running = Coroutine[Any, Any, Outcome | None]


def execute_async(handler: Handler, context: Context, result_limit: int) -> Running:
    """To be awaited."""
    traced = context.traced()
    running = _execute_async(handler, context, result_limit)
    return running if traced is UNTRACED else _traced(traced, running, context)


async def _traced(
    traced: AbstractContextManager[Callable[[Outcome | None], None]],
    running: Running,
    context: Context,
) -> Outcome | None:
    before = begin_attempt(context.lease)
    try:
        with traced as ended:
            outcome = await running
            ended(outcome)
        return outcome
    finally:
        end_attempt(before)


def execute_sync(handler: Handler, context: Context, result_limit: int) -> Outcome | None:
    before = begin_attempt(context.lease)
    try:
        with context.traced() as ended:
            outcome = _execute_sync(handler, context, result_limit)
            ended(outcome)
        return outcome
    finally:
        end_attempt(before)


async def _execute_async(handler: Handler, context: Context, result_limit: int) -> Outcome | None:
    before = begin_attempt(context.lease)  # what it logs, starts and traces belongs to it
    try:
        kwargs = _arguments(handler, context)
        outcome: Outcome | None = GO_ON
        if handler.done is not None or handler.can_retry is not None:
            outcome = await first_async(
                handler, context, kwargs, partial(_returned, handler, context, result_limit)
            )
        if outcome is GO_ON:
            if handler.cost:
                context.spent += handler.cost
            outcome = _returned(handler, context, result_limit, await handler.call(**kwargs))
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a handler are failures too
        outcome = _raised(context, error, handler)
    if context.untidy:
        with suppress(CancelledError, Exception):  # too late: it has ended already
            await in_a_thread(context.tidy, lambda: None)
    end_attempt(before)
    return outcome


def _execute_sync(handler: Handler, context: Context, result_limit: int) -> Outcome | None:
    try:
        kwargs = _arguments(handler, context)
        outcome: Outcome | None = GO_ON
        if handler.asks:
            outcome = first_sync(
                handler, context, kwargs, partial(_returned, handler, context, result_limit)
            )
        if outcome is GO_ON:
            if handler.cost:
                context.spent += handler.cost
            outcome = _returned(handler, context, result_limit, handler.call(**kwargs))
    except BaseException as error:  # noqa: BLE001 - same
        outcome = _raised(context, error, handler)
    if context.untidy:
        with suppress(Exception):  # what is left, the supervisor finds by its mark
            context.tidy()
    return outcome


class _BadPayload(Exception):
    pass


def _arguments(handler: Handler, context: Context) -> dict[str, Any]:
    if context.lease.payload == "{}" and not handler.arguments.names:
        return (
            {}
            if handler.arguments.context_name is None
            else {handler.arguments.context_name: context}
        )
    try:
        kwargs = handler.arguments.decode(context.lease.payload)
    except PayloadRefused as refused:
        raise _BadPayload(str(refused)) from None
    if handler.arguments.context_name is not None:
        kwargs[handler.arguments.context_name] = context
    return kwargs


def _judge(handler: Handler, context: Context) -> Judge:
    """The rules of this kind and its app, and what the job uses: all a verdict needs beside the facts."""
    uses = tuple(filter(None, context.lease.uses.split(","))) if context.lease.uses else ()
    if not uses and not handler.books():
        return classify_facts

    def judge(facts: Facts) -> Failure:
        return classify_facts(facts._replace(uses=uses) if uses else facts, handler.books())

    return judge


def _returned(handler: Handler, context: Context, limit: int, value: Any) -> Outcome | None:
    if value is None:
        if context.stop_seen:
            return STOPPED
        return (
            Outcome(Ended.RETURNED, result="null", cost=context.spent)
            if context.spent
            else JUST_RETURNED
        )
    if isinstance(value, BaseException):
        return STOPPED if isinstance(value, Stopped) else _asked(handler, context, value)
    try:
        text = to_json(value, "the result")
    except PayloadRefused as refused:
        return _refused(context, "RESULT_NOT_JSON", str(refused))
    if len(text) > limit:
        why = f"the result is {len(text)} bytes of JSON, the limit is {limit}"
        return _refused(context, "RESULT_TOO_LARGE", why)
    return Outcome(Ended.RETURNED, result=text, cost=context.spent)


def _asked(handler: Handler, context: Context, request: BaseException) -> Outcome:
    return _with_cost(outcome_of(request, _now(), _judge(handler, context)), context)


def _raised(context: Context, error: BaseException, handler: Handler) -> Outcome | None:
    kind = type(error)  # `isinstance` would ask `__class__`, which may be a property that raises
    if issubclass(kind, _BadPayload):
        return Outcome(Ended.FAILED, failure=payload_refused(scrub(str(error))), cost=context.spent)
    if issubclass(kind, Stopped) or (context.stop_asked and not issubclass(kind, OutcomeRequest)):
        return STOPPED
    return _with_cost(
        _told_where(raised(error, _now(), _judge(handler, context)), context.asking), context
    )


def _told_where(outcome: Outcome, asking: str) -> Outcome:
    """Not in the handler, but in what is asked before it."""
    if not asking or outcome.failure is None:
        return outcome
    failure = replace(outcome.failure, evidence={**outcome.failure.evidence, ASKED: asking})
    return outcome._replace(failure=failure)


def _refused(context: Context, code: str, why: str) -> Outcome:
    return Outcome(Ended.FAILED, failure=result_refused(code, scrub(why)), cost=context.spent)


def _with_cost(outcome: Outcome, context: Context) -> Outcome:
    if not context.spent:
        return outcome
    return outcome._replace(cost=context.spent)


def _now() -> Micros:
    return time.time_ns() // 1000
