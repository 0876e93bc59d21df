"""Failures that differ in nothing but their words: thousands fail at one place in one way, and what the first of them
was found to be, all of them are. Their words are still cleaned, and where a word could matter the whole way is gone.
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
from mulligan.core.job import SECOND, Micros
from mulligan.failures.adapters import args_of, kind_of
from mulligan.failures.capture import (
    TRACE,
    Walk,
    cause_of,
    context_of,
    suppressed,
    text_of,
    traceback_of,
    walk,
)
from mulligan.failures.facts import FACTS, TOLD, Facts, Wording
from mulligan.failures.fingerprint import explain_fingerprint
from mulligan.failures.hints import from_words, may_say_when
from mulligan.failures.matcher import any_in
from mulligan.failures.ranking import usual_words
from mulligan.failures.redact import form_of, is_innocent, scrub
from mulligan.worker.protocol import alike_to_wire, is_brief

_MOST = 1024
_WORDS = frozenset({str, int, float, bool, bytes, type(None)})  # arguments with nothing inside
_TELLING = (BaseExceptionGroup, gaierror, herror, SSLError)


class Likeness(NamedTuple):
    """Shared part of failures that differ only in their messages."""

    failure: Failure  # of the first one, without its message
    wording: Wording
    number: int  # unique in this process


class Worded(Outcome):
    """A failure of which all but its words is known by others. It is put together when somebody asks for it by name:
    who tells many of them at once never does, and as a tuple it has none.
    """

    like: Likeness
    words: str

    @property
    def failure(self) -> Failure:
        return replace(self.like.failure, private=self.like.wording.whole(self.words))

    def _replace(self, **changed: Any) -> Outcome:  # type: ignore[override]
        return Outcome._make((*self[:_FAILURE], self.failure, *self[_FAILURE + 1 :]))._replace(
            **changed
        )


_FAILURE, _WHEN = map(Outcome._fields.index, ("failure", "ended_at"))
_BEFORE, _AFTER = Outcome(Ended.FAILED)[:_WHEN], Outcome(Ended.FAILED)[_WHEN + 1 :]


class _Alike(NamedTuple):
    like: Likeness
    words: tuple[str, ...]  # with one of these it is read each time
    forms: tuple[str, ...]  # of these words
    usual: set[bytes]  # forms of texts without any of them


_numbers = count(1)

# By class and way, which is kept here so that no other gets its number. None: such failures are read each time.
_known: dict[tuple[type, int], tuple[Walk, _Alike | None]] = {}


def judged_alike(
    exc: BaseException, now: Micros, judge: Callable[[], tuple[Facts, Failure]]
) -> Outcome:
    """`judge` goes the whole way; it is asked wherever nobody knows better."""
    try:
        way = walk(traceback_of(exc)) if _is_bare(exc) else None
        known = None if way is None else _known.get((type(exc), id(way)))
        if known is not None and known[0] is way and (worded := _again(known[1], exc, now)):
            return worded
    except BaseException:  # noqa: BLE001 - foreign code runs in `str`, in properties and in metaclasses
        return _whole(judge()[1], now)
    facts, failure = judge()
    if way is not None and (known is None or known[0] is not way):
        if len(_known) >= _MOST:
            _known.clear()
        _known[type(exc), id(way)] = way, _learned(way, facts, failure)
    return _whole(failure, now)


def _whole(failure: Failure, now: Micros) -> Outcome:
    return Outcome(Ended.FAILED, failure=failure, ended_at=now)


def _again(known: _Alike | None, exc: BaseException, now: Micros) -> Worded | None:
    if known is None:
        return None
    text = text_of(exc)
    form = form_of(text)
    words = text if form in known.usual else _read(known, text, form, now)
    if words is None:
        return None
    worded = Worded._make((*_BEFORE, now, *_AFTER))
    worded.like, worded.words = known.like, words
    return worded


def _read(known: _Alike, text: str, form: bytes, now: Micros) -> str | None:
    """Its words, cleaned; None: one of them matters. If none does, whatever its numbers, its form is remembered."""
    words = scrub(text)
    if not words or known.like.wording.length(words) > TRACE:
        return None
    if any_in(known.words, words.lower()) or from_words(words, now / SECOND):
        return None
    lowered = form.decode("utf-8", "surrogatepass").lower()
    if is_innocent(form) and not (any_in(known.forms, lowered) or may_say_when(lowered)):
        if len(known.usual) >= _MOST:
            known.usual.clear()
        known.usual.add(form)
    return words


def _is_bare(exc: BaseException) -> bool:
    """It has a class and words, and nothing beneath."""
    cls: type = type(exc)
    if not _is_plain(cls) or object.__getattribute__(exc, "__dict__"):
        return False
    if cause_of(exc) is not None or (context_of(exc) is not None and not suppressed(exc)):
        return False
    if issubclass(cls, OSError) and exc.errno is not None:  # type: ignore[attr-defined]
        return False
    return _WORDS.issuperset(map(type, args_of(exc)))


@lru_cache(maxsize=1024)
def _is_plain(cls: type) -> bool:
    kind = kind_of(cls)
    return not (kind.wanted or kind.family or kind.request or issubclass(cls, _TELLING))


def _learned(way: Walk, facts: Facts, failure: Failure) -> _Alike | None:
    words, head = usual_words(facts), f"{facts.exception_types[0]}: "
    tail = "".join([f"\n{line}" for line in way[0]])
    rest = facts._replace(exception_types=(), message="", trace="", frames=())
    if (
        words is None
        or rest != Facts()
        or facts.trace != f"{head}{facts.message[:TOLD]}{tail}"
        or failure.private.keys() != {"exception", "message", "trace", FACTS}
        or "words" in explain_fingerprint(facts, failure.code, failure.cls)
    ):
        return None
    wording = Wording(dict(failure.private), head, tail)
    like = Likeness(replace(failure, private=wording), wording, next(_numbers))
    _, item, *ends, _ = alike_to_wire(like.failure, wording, [])
    if not is_brief(item, *ends):
        return None
    return _Alike(like, words, tuple([form_of(word).decode() for word in words]), set())
