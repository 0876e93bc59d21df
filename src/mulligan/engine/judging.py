"""What would be said of an error: the classifier, for whoever holds a text or an exception."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from mulligan.engine.runner.capture import capture
from mulligan.job import Failure
from mulligan.policy.classify import classify as classify_facts
from mulligan.policy.facts import Facts
from mulligan.policy.hints import from_words
from mulligan.policy.redact import scrub
from mulligan.policy.rule import Rule
from mulligan.policy.rulebook import Rulebook


def classify(  # noqa: PLR0913 - one argument per thing that can be known
    text_or_exception: str | BaseException = "",
    *,
    exception_type: str | None = None,
    http_status: int | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    errno: int | None = None,
    provider_code: str | None = None,
    program: str | None = None,
    rules: Iterable[Rule] = (),
) -> Failure:
    """The failure this error would be: `.code .cls .retryable .rule .retry_after .public`. Nothing is stored."""
    known = facts_of(text_or_exception)
    said: dict[str, Any] = {
        "exception_types": None if exception_type is None else (str(exception_type),),
        "http_status": http_status,
        "exit_code": exit_code,
        "signal": signal,
        "errno": errno,
        "provider_codes": None if provider_code is None else (str(provider_code),),
        "program": program,
    }
    facts = known._replace(**{name: value for name, value in said.items() if value is not None})
    own = tuple(rules)
    return classify_facts(facts, [Rulebook(own)] if own else [])


def facts_of(error: str | BaseException) -> Facts:
    if isinstance(error, BaseException):
        return capture(error)
    text = scrub(str(error))
    hint = from_words(text, time.time())
    return Facts(message=text) if hint is None else Facts(message=text, retry_after=hint[0], hint=hint[1])
