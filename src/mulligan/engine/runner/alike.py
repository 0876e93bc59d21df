"""Failures that differ in nothing but their words: thousands fail at one place in one way, and what the first of them
was found to be, all of them are. Their words are still cleaned, and where a word could matter the whole way is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from socket import gaierror, herror
from ssl import SSLError
from typing import Any, NamedTuple

from mulligan.engine.messages import alike_to_wire, is_brief
from mulligan.engine.runner.capture import TRACE, cause_of, context_of, suppressed, text_of, traceback_of
from mulligan.engine.runner.frames import Walk, walk
from mulligan.engine.runner.shapes import args_of, kind_of
from mulligan.engine.wording import TOLD, Wording
from mulligan.job import Failure, Outcome
from mulligan.policy.facts import Facts
from mulligan.policy.fingerprint import explain_fingerprint
from mulligan.policy.hints import from_words
from mulligan.policy.judge import usual_words
from mulligan.policy.redact import scrub
from mulligan.policy.rulebook import any_in
from mulligan.policy.stored import FACTS

_MOST = 1024
_WORDS = frozenset({str, int, float, bool, bytes, type(None)})  # arguments with nothing inside
_TELLING = (BaseExceptionGroup, gaierror, herror, SSLError)


class Likeness(NamedTuple):
    """What many failures have in common."""

    failure: Failure  # of the first, without its words
    wording: Wording


class Worded(dict[str, Any]):
    """The private half of a failure of which all but its words is known by others."""

    __slots__ = ("like",)
    like: Likeness


class _Alike(NamedTuple):
    way: Walk
    like: Likeness | None  # None: such failures are read each time
    words: tuple[str, ...] = ()  # with one of these it is read, too


_known: dict[tuple[type, int], _Alike] = {}  # by class and way, which is kept here so that no other gets its number


def judged_alike(exc: BaseException, now: float, judge: Callable[[], tuple[Facts, Failure]]) -> Failure:
    """`judge` goes the whole way; it is asked wherever nobody knows better."""
    try:
        way = walk(traceback_of(exc)) if _is_bare(exc) else None
        known = None if way is None else _known.get((type(exc), id(way)))
        if known is not None and known.way is way and (failure := _again(known, exc, now)):
            return failure
    except BaseException:  # noqa: BLE001 - foreign code runs in `str`, in properties and in metaclasses
        return judge()[1]
    facts, failure = judge()
    if way is not None and (known is None or known.way is not way):
        if len(_known) >= _MOST:
            _known.clear()
        _known[type(exc), id(way)] = _learned(way, facts, failure)
    return failure


def _again(known: _Alike, exc: BaseException, now: float) -> Failure | None:
    if known.like is None:
        return None
    first, wording = known.like
    message = scrub(text_of(exc))
    private = Worded(wording.whole(message))
    if not message or len(private["trace"]) > TRACE or any_in(known.words, message.lower()) or from_words(message, now):
        return None
    private.like = known.like
    return Failure(
        first.code, first.cls, first.public, first.rule, first.retryable, None, first.evidence, private,
        first.fingerprint, first.terms, first.judged,
    )  # fmt: skip


def likeness(outcome: Outcome) -> Likeness | None:
    """Whose words alone are to be told of this failure; None: there is more to say."""
    failure = outcome.failure
    private = None if failure is None or outcome.cost else failure.private
    if not isinstance(private, Worded):
        return None
    like = private.like
    return like if failure is not None and failure.evidence is like.failure.evidence else None


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


def _learned(way: Walk, facts: Facts, failure: Failure) -> _Alike:
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
        return _Alike(way, None)
    wording = Wording(dict(failure.private), head, tail)
    like = Likeness(replace(failure, private=wording), wording)
    _, item, *ends, _ = alike_to_wire(*like, [])
    return _Alike(way, like if is_brief(item, *ends) else None, words)
