"""Accelerator of classification: a cache of classified failures.

Thousands of attempts fail at the same code location with the same exception type. What the first
one was classified as holds for all, unless its message contains a keyword that a rule matches. The
message of each is still scrubbed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import count
from socket import gaierror, herror
from ssl import SSLError
from typing import Any, NamedTuple

from mulligan.core.attempt import Ended, Failure, Outcome
from mulligan.core.durations import SECOND, Micros
from mulligan.failures.adapters import exception_shape, get_args
from mulligan.failures.capture import (
    MAX_TRACE_LENGTH,
    TracebackSummary,
    exception_text,
    get_cause,
    get_context,
    get_traceback,
    is_context_suppressed,
    summarise_traceback,
)
from mulligan.failures.facts import FACTS_KEY, TRACE_MESSAGE_LIMIT, Facts, PrivateTemplate
from mulligan.failures.fingerprint import explain_fingerprint
from mulligan.failures.hints import hint_from_text, may_contain_hint
from mulligan.failures.ranking import decisive_keywords
from mulligan.failures.redact import is_harmless, mask_digits, scrub
from mulligan.failures.regex import contains_any
from mulligan.worker.protocol import fits_shared_limit, shared_failure_to_wire

_MAX_ENTRIES = 1024
# Exceptions with other arguments may contain facts that the message does not show.
_SIMPLE_ARGUMENT_TYPES = frozenset({str, int, float, bool, bytes, type(None)})
_EXCLUDED_TYPES = (BaseExceptionGroup, gaierror, herror, SSLError)


class SharedFailure(NamedTuple):
    """Shared part of failures that differ only in their messages."""

    failure: Failure  # of the first one, without its message
    template: PrivateTemplate
    number: int  # unique in this process


class CachedFailureOutcome(Outcome):
    """Failed outcome that shares all but its message with others.

    Its failure is built only when `failure` is read, which a runner that sends many of them
    together never does. As a tuple it contains no failure.
    """

    shared: SharedFailure
    message: str

    @property
    def failure(self) -> Failure:
        """Build the failure."""
        return replace(self.shared.failure, private=self.shared.template.render(self.message))

    def _replace(self, **changed: Any) -> Outcome:  # type: ignore[override]
        complete = Outcome._make((*self[:_FAILURE], self.failure, *self[_FAILURE + 1 :]))
        return complete._replace(**changed)


_FAILURE = Outcome._fields.index("failure")
_ENDED_AT = Outcome._fields.index("ended_at")
_BEFORE = Outcome(Ended.FAILED)[:_ENDED_AT]
_AFTER = Outcome(Ended.FAILED)[_ENDED_AT + 1 :]


class _CacheEntry(NamedTuple):
    shared: SharedFailure
    keywords: tuple[str, ...]  # a message with one of these must be classified
    masked_keywords: tuple[str, ...]
    harmless_forms: set[bytes]  # messages with masked digits that contain none of them


_entry_numbers = count(1)

# Keyed by exception type and code location (the id of its traceback summary, which is referenced
# here so that the id stays unique). `None` marks a location whose failures must be classified
# every time.
_cache: dict[tuple[type, int], tuple[TracebackSummary, _CacheEntry | None]] = {}


def classify_cached(
    exc: BaseException, now: Micros, classify: Callable[[], tuple[Facts, Failure]]
) -> Outcome:
    """Return the outcome of an exception from the cache, or classify it and remember it."""
    try:
        summary = summarise_traceback(get_traceback(exc)) if _is_cacheable(exc) else None
        known = None if summary is None else _cache.get((type(exc), id(summary)))
        if known is not None and known[0] is summary:
            outcome = _from_cache(known[1], exc, now)
            if outcome is not None:
                return outcome
    except BaseException:  # noqa: BLE001 - `__str__` and properties of the exception may raise
        return _outcome(classify()[1], now)
    facts, failure = classify()
    if summary is not None and (known is None or known[0] is not summary):
        if len(_cache) >= _MAX_ENTRIES:
            _cache.clear()
        _cache[type(exc), id(summary)] = summary, _create_entry(summary, facts, failure)
    return _outcome(failure, now)


def _outcome(failure: Failure, now: Micros) -> Outcome:
    return Outcome(Ended.FAILED, failure=failure, ended_at=now)


def _from_cache(
    entry: _CacheEntry | None, exc: BaseException, now: Micros
) -> CachedFailureOutcome | None:
    if entry is None:
        return None
    text = exception_text(exc)
    form = mask_digits(text)
    message = text if form in entry.harmless_forms else _check_message(entry, text, form, now)
    if message is None:
        return None
    outcome = CachedFailureOutcome._make((*_BEFORE, now, *_AFTER))
    outcome.shared = entry.shared
    outcome.message = message
    return outcome


def _check_message(entry: _CacheEntry, text: str, form: bytes, now: Micros) -> str | None:
    """Return the scrubbed message; None if it must be classified.

    Remembers the form of a message that is harmless whatever its digits are.
    """
    message = scrub(text)
    if not message or entry.shared.template.trace_length(message) > MAX_TRACE_LENGTH:
        return None
    if contains_any(entry.keywords, message.lower()) or hint_from_text(message, now / SECOND):
        return None
    lowered = form.decode("utf-8", "surrogatepass").lower()
    may_matter = contains_any(entry.masked_keywords, lowered) or may_contain_hint(lowered)
    if is_harmless(form) and not may_matter:
        if len(entry.harmless_forms) >= _MAX_ENTRIES:
            entry.harmless_forms.clear()
        entry.harmless_forms.add(form)
    return message


def _is_cacheable(exc: BaseException) -> bool:
    """True if the exception has only a type and a message: no cause, attributes or errno."""
    cls: type = type(exc)
    if not _is_cacheable_type(cls) or object.__getattribute__(exc, "__dict__"):
        return False
    if get_cause(exc) is not None or (
        get_context(exc) is not None and not is_context_suppressed(exc)
    ):
        return False
    if issubclass(cls, OSError) and exc.errno is not None:  # type: ignore[attr-defined]
        return False
    return _SIMPLE_ARGUMENT_TYPES.issuperset(map(type, get_args(exc)))


@lru_cache(maxsize=1024)
def _is_cacheable_type(cls: type) -> bool:
    kind = exception_shape(cls)
    return not (
        kind.attributes or kind.family or kind.is_internal or issubclass(cls, _EXCLUDED_TYPES)
    )


def _create_entry(summary: TracebackSummary, facts: Facts, failure: Failure) -> _CacheEntry | None:
    """Return what failures at this location share; None if they must be classified each time."""
    keywords = decisive_keywords(facts)
    head = f"{facts.exception_types[0]}: "
    tail = "".join([f"\n{line}" for line in summary[0]])
    rest = facts._replace(exception_types=(), message="", trace="", frames=())
    if (
        keywords is None
        or rest != Facts()
        or facts.trace != f"{head}{facts.message[:TRACE_MESSAGE_LIMIT]}{tail}"
        or failure.private.keys() != {"exception", "message", "trace", FACTS_KEY}
        or "words" in explain_fingerprint(facts, failure.code, failure.cls)
    ):
        return None
    template = PrivateTemplate(dict(failure.private), head, tail)
    shared = SharedFailure(replace(failure, private=template), template, next(_entry_numbers))
    _, item, head, tail, _ = shared_failure_to_wire(shared.failure, template, [])
    if not fits_shared_limit(item, head, tail):
        return None
    masked_keywords = tuple([mask_digits(keyword).decode() for keyword in keywords])
    return _CacheEntry(shared, keywords, masked_keywords, set())
