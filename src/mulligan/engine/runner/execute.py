"""Lease → Outcome. Runs one handler and never raises, whatever the handler does."""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from mulligan.core.attempt import Ended, Failure, Outcome
from mulligan.engine.arguments import to_json
from mulligan.engine.current import begin_attempt, end_attempt
from mulligan.engine.kinds import Handler
from mulligan.engine.messages import JUST_RETURNED
from mulligan.engine.runner.context import Context
from mulligan.engine.runner.first import ASKED, GO_ON, first_async, first_sync
from mulligan.engine.runner.outcomes import Judge, outcome_of, raised
from mulligan.engine.runner.program import in_a_thread
from mulligan.engine.tracing import UNTRACED
from mulligan.errors import OutcomeRequest, PayloadRefused, Stopped
from mulligan.job import Micros
from mulligan.policy.classify import classify
from mulligan.policy.ends import payload_refused, result_refused
from mulligan.policy.facts import Facts
from mulligan.policy.redact import scrub

STOPPED = None  # instead of an outcome: the code stopped because it was asked to


Running = Coroutine[Any, Any, Outcome | None]


def execute_async(handler: Handler, context: Context, result_limit: int) -> Running:
    """To be awaited."""
    traced = context.traced()
    running = _execute_async(handler, context, result_limit)
    return running if traced is UNTRACED else _traced(traced, running, context)


async def _traced(
    traced: AbstractContextManager[Callable[[Outcome | None], None]], running: Running, context: Context
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
            outcome = await first_async(handler, context, kwargs, partial(_returned, handler, context, result_limit))
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
            outcome = first_sync(handler, context, kwargs, partial(_returned, handler, context, result_limit))
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
        return {} if handler.arguments.context_name is None else {handler.arguments.context_name: context}
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
        return classify

    def judge(facts: Facts) -> Failure:
        return classify(facts._replace(uses=uses) if uses else facts, handler.books())

    return judge


def _returned(handler: Handler, context: Context, limit: int, value: Any) -> Outcome | None:
    if value is None:
        if context.stop_seen:
            return STOPPED
        return Outcome(Ended.RETURNED, result="null", cost=context.spent) if context.spent else JUST_RETURNED
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
    return _with_cost(_told_where(raised(error, _now(), _judge(handler, context)), context.asking), context)


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
