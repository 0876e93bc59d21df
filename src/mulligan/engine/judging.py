"""What would be said of an error: the classifier, for whoever holds a text or an exception."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from mulligan.core.attempt import Failure
from mulligan.engine.runner.capture import capture
from mulligan.policy.classify import classify as classify_facts
from mulligan.policy.facts import Facts
from mulligan.policy.fingerprint import explain_fingerprint
from mulligan.policy.hints import from_words
from mulligan.policy.judge import judge
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
    given = {
        "exception_type": exception_type,
        "http_status": http_status,
        "exit_code": exit_code,
        "signal": signal,
        "errno": errno,
        "provider_code": provider_code,
        "program": program,
    }
    return classify_facts(_facts(text_or_exception, given), _books(rules))


def made_of(error: str | BaseException, given: Mapping[str, Any], rules: Iterable[Rule] = ()) -> dict[str, Any]:
    """What the name of its group would be made of; `given` as for `classify`."""
    facts, books = _facts(error, given), _books(rules)
    failure = classify_facts(facts, books)
    return explain_fingerprint(facts, failure.code, failure.cls, judge(facts, books).link)


def _books(rules: Iterable[Rule]) -> list[Rulebook]:
    own = tuple(rules)
    return [Rulebook(own)] if own else []


_LISTED = {"exception_type": "exception_types", "provider_code": "provider_codes"}


def _facts(error: str | BaseException, given: Mapping[str, Any]) -> Facts:
    """What is said beside an error counts more than what it says itself."""
    said: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            said[_LISTED.get(name, name)] = (str(value),) if name in _LISTED else value
    return _of(error)._replace(**said)


def _of(error: str | BaseException) -> Facts:
    if isinstance(error, BaseException):
        return capture(error)
    text = scrub(str(error))
    hint = from_words(text, time.time())
    return Facts(message=text) if hint is None else Facts(message=text, retry_after=hint[0], hint=hint[1])
