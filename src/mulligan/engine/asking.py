"""Functions of the app that are asked about one job: is its result there already, may it run again?"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mulligan.engine.arguments import Arguments
from mulligan.errors import ConfigError

ALL = None  # of the handler's arguments


@dataclass(frozen=True, slots=True)
class Question:
    """`done=` or `can_retry=` of a kind: a function of those of the handler's arguments that it names."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    takes: frozenset[str] | None
    context_name: str | None = None

    def given(self, arguments: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """What it is called with, out of what the handler is called with."""
        named = {name: value for name, value in arguments.items() if self.takes is ALL or name in self.takes}
        return named if self.context_name is None else {**named, self.context_name: context}

    def answer(self, given: Mapping[str, Any]) -> Any:
        """Blocks, also where it is a coroutine, and wherever that may be."""
        if not self.is_async:
            return self.call(**given)
        with ThreadPoolExecutor(1) as alone:  # this thread may have a loop that runs
            return alone.submit(lambda: asyncio.run(self.call(**given))).result()


def question(name: str, function: Any, handler: Arguments, context_type: type, *, in_attempt: bool) -> Question | None:
    """Checked against the handler's own parameters; `in_attempt`: only asked where one runs."""
    if function is None:
        return None
    if not callable(function):
        message = f"{handler.name}: {name} must be a function of its arguments, not {function!r:.80}"
        raise ConfigError(message)
    own = Arguments(function, context_type)
    if own.context_name is not None and not in_attempt:
        message = f"{handler.name}: {name} is also asked where no attempt runs, so it gets no context; leave it out"
        raise ConfigError(message)
    strange = [one for one in own.names if one not in handler.names and not handler.takes_more]
    if strange:
        message = (
            f"{handler.name}: {name} takes {', '.join(strange)}, which its handler does not; it gets the handler's "
            f"arguments by name ({', '.join(handler.names) or 'there are none'}), and a context by annotation"
        )
        raise ConfigError(message)
    takes = ALL if own.takes_more else frozenset(own.names)
    return Question(name, function, inspect.iscoroutinefunction(function), takes, own.context_name)


def editable_fields(fields: Any, handler: Arguments) -> tuple[str, ...]:
    """Names of arguments that a retry by hand may change."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    strange = [one for one in names if not isinstance(one, str) or not (one in handler.names or handler.takes_more)]
    if strange:
        message = (
            f"{handler.name}: editable names {', '.join(map(repr, strange))}, which its handler does not take; it "
            f"takes {', '.join(handler.names) or 'nothing'}"
        )
        raise ConfigError(message)
    return tuple(dict.fromkeys(names))


def refusal(answer: Any) -> str:
    """What `can_retry` says against it; empty: nothing."""
    if answer is None or answer is True:
        return ""
    if answer is False:
        return "This job cannot be run again."
    return str(answer).strip() or "This job cannot be run again."
