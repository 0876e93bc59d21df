"""From a decorated function and what was said about it to a Handler: checked before anything is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mulligan.config import Retention
from mulligan.engine.arguments import Arguments
from mulligan.engine.asking import editable_fields, question
from mulligan.engine.enqueue import (
    checked_cost,
    checked_memory,
    checked_priority,
    checked_timeout,
    policy_text,
    uses_text,
)
from mulligan.engine.filters import is_path
from mulligan.engine.kinds import DEFAULT_TIMEOUT, Handler, KindSpec, checked_name
from mulligan.engine.moments import length
from mulligan.engine.rules import as_plain, book_of, kind_rules
from mulligan.engine.runner.context import Context
from mulligan.engine.unique import Unique
from mulligan.errors import ConfigError, Seconds
from mulligan.job import SECOND
from mulligan.policy.retry import Policy
from mulligan.policy.rule import Rule
from mulligan.policy.rulebook import Rulebook

MOST_INDEXED = 10


def handler_of(  # noqa: PLR0913 - the options of CONTRACT
    function: Callable[..., Any],
    keep: Retention,
    app_rules: Callable[[], Rulebook],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    uses: Any = None,
    policy: Policy | None = None,
    timeout: Seconds = DEFAULT_TIMEOUT / SECOND,
    isolate: bool = False,
    memory_limit: int | None = None,
    unique: Unique | None = None,
    rules: Rule | Sequence[Rule] = (),
    shadow: Policy | None = None,
    retention: Seconds | None = None,
    cost: float | None = None,
    done: Any = None,
    can_retry: Any = None,
    editable: str | Sequence[str] = (),
    index: str | Sequence[str] = (),
) -> Handler:
    arguments = Arguments(function, Context)
    spec = KindSpec(
        name=name or function.__qualname__,
        queue=checked_name("queue", queue),
        priority=checked_priority(priority),
        timeout=checked_timeout(timeout) or DEFAULT_TIMEOUT,
        policy=policy_text(policy),
        isolate=isolate,
        memory_limit=checked_memory(memory_limit),
        retention=None if retention is None else length("retention", retention),
        uses="" if callable(uses) else uses_text(uses),
        schema=arguments.schema(),
        rules=as_plain(kind_rules(name or function.__qualname__, rules)),
        shadow=policy_text(shadow),
        editable=editable_fields(editable, arguments),
        uses_by_payload=callable(uses),
        index=_checked_index(name or function.__qualname__, index, arguments),
        remembers=arguments.context_name is not None or done is not None or can_retry is not None,
        **_key_facts(unique),
    )
    _check_unique(spec, unique, keep)
    return Handler(
        spec=spec,
        call=function,
        arguments=arguments,
        is_async=inspect.iscoroutinefunction(function),
        cost=checked_cost(cost),
        uses=uses if callable(uses) else None,
        unique=unique,
        books=_books(spec.rules, app_rules),
        done=question("done", done, arguments, Context, in_attempt=True),
        can_retry=question("can_retry", can_retry, arguments, Context, in_attempt=False),
    )


def _checked_index(kind: str, said: Any, arguments: Arguments) -> tuple[str, ...]:
    """The paths, each of an argument that the handler takes."""
    paths = (said,) if isinstance(said, str) else said
    if not isinstance(paths, Iterable) or not all(isinstance(path, str) and is_path(path) for path in paths):
        message = f'kind {kind!r}: index names arguments, like ("customer", "address.city"), not {said!r:.80}'
        raise ConfigError(message)
    found = tuple(dict.fromkeys(paths))
    if len(found) > MOST_INDEXED:
        message = f"kind {kind!r}: index has {len(found)} arguments; {MOST_INDEXED} at most, each is a row per job"
        raise ConfigError(message)
    takes = arguments.public_signature.parameters.values()
    names = {parameter.name for parameter in takes}
    unknown = [path for path in found if path.partition(".")[0] not in names]
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        message = f"kind {kind!r}: index={unknown[0]!r}: it takes no such argument; it takes {', '.join(sorted(names))}"
        raise ConfigError(message)
    return found


def _books(rules: Sequence[Mapping[str, Any]], app_rules: Callable[[], Rulebook]) -> Callable[[], tuple[Rulebook, ...]]:
    """The kind's own rules, then the app's as they are when they are asked."""
    own = book_of(rules)
    alone = (own,) if own.rules else ()
    return lambda: (*alone, book) if (book := app_rules()).rules else alone


def _key_facts(unique: Any) -> dict[str, Any]:
    """For `doctor`: what retention must not cut short. For edits: what the key is made of."""
    if not isinstance(unique, Unique):
        return {}
    return {"unique_for": unique.span, "unique_while": unique.cover, "unique_by": tuple(unique.by)}


def _check_unique(spec: KindSpec, unique: Any, keep: Retention) -> None:
    """A key that should be held longer than its job is kept would end silently."""
    if unique is not None and not isinstance(unique, Unique):
        message = f"kind {spec.name!r}: unique must be Unique(...), not {unique!r:.80}; give a key with options()"
        raise ConfigError(message)
    if unique is None or unique.span is None:
        return
    for state in unique.while_:
        if not hasattr(keep, state):  # not an end: such jobs are not pruned
            continue
        kept = spec.retention or round(getattr(keep, state) * SECOND)
        if unique.span > kept:
            message = (
                f"kind {spec.name!r}: Unique(for_={unique.for_}) is longer than {state} jobs are kept "
                f"({kept / SECOND:g} s); raise retention or shorten for_"
            )
            raise ConfigError(message)
