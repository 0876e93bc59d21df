"""What is asked before a handler is called: may this job run again, is its result there already?

They are part of the attempt: on its time, with its context, and what they raise is its failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from mulligan.core.attempt import Ended, Outcome
from mulligan.engine.asking import Question, refusal
from mulligan.engine.kinds import Handler
from mulligan.engine.runner.context import Context
from mulligan.engine.runner.program import in_a_thread
from mulligan.policy.ends import retry_refused
from mulligan.policy.redact import shown

GO_ON: Any = object()  # instead of an outcome: call the handler
SENTENCE = 500  # characters
ASKED = "asked"  # in the evidence of a failure: what was asked when it happened

Returned = Callable[[Any], Outcome | None]
Asking = Generator[Question, Any, Outcome | None]


def first_sync(handler: Handler, context: Context, arguments: Mapping[str, Any], returned: Returned) -> Any:
    """An outcome, None (it was asked to stop), or GO_ON."""
    asking, answer = _asking(handler, context, returned), None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = question.answer(question.given(_plain(handler, arguments), context))


async def first_async(handler: Handler, context: Context, arguments: Mapping[str, Any], returned: Returned) -> Any:
    asking, answer = _asking(handler, context, returned), None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = await _answer(question, question.given(_plain(handler, arguments), context))


def _plain(handler: Handler, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without the handler's own context."""
    return {name: value for name, value in arguments.items() if name != handler.arguments.context_name}


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
            return Outcome(Ended.REFUSED, failure=retry_refused(shown(why, SENTENCE)), cost=context.spent)
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
