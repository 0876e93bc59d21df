"""From a live exception to safe facts. Never raises.

Anything may be in there: an exception whose `str` raises, a text of 20 MB, a cause that is its own cause. It is made
safe and redacted here, once, before anybody judges or stores it.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from mulligan.engine.runner.frames import walk
from mulligan.engine.runner.shapes import kind_of, read, type_name
from mulligan.engine.wording import TOLD
from mulligan.policy.facts import Facts
from mulligan.policy.hints import Hint, from_words
from mulligan.policy.redact import LIMIT, safe, scrub

__all__ = ["capture", "text_of", "type_name"]

LINKS = 16  # of a cause chain
LEAVES = 16  # of an exception group
TRACE = LIMIT
_UNREADABLE = "an exception without a readable text"
_AWS = re.compile(r"An error occurred \((\w{1,100})\) when calling the \w{1,100} operation")


def capture(exc: BaseException, now: float | None = None) -> Facts:
    """All that can be known of `exc`, its causes and its leaves; `now` in seconds since the epoch."""
    try:
        return _capture(exc, time.time() if now is None else now)
    except BaseException:  # noqa: BLE001 - foreign code runs in `str`, in properties and in metaclasses
        return Facts(exception_types=kind_of(type(exc)).names, message=_UNREADABLE)


def text_of(exc: BaseException) -> str:
    """`str(exc)` as a plain str; a subclass of str may lie about its length."""
    try:
        return str.__str__(str(exc))
    except BaseException:  # noqa: BLE001 - see above
        return _UNREADABLE


class _Link:
    """One exception of a chain, read."""

    message = ""
    lines: Sequence[str] = ()
    frames: Sequence[str] = ()

    def __init__(self, exc: BaseException, now: float, *, implied: bool) -> None:
        self.exc = exc
        self.implied = implied
        self.kind = kind_of(type(exc))
        self.found = read(exc, self.kind, now)


def _capture(exc: BaseException, now: float) -> Facts:
    chain = _chain(exc, now)
    home = ""
    told: dict[str, str] = {}  # wrappers often repeat the words of what they wrap
    for link in chain:
        link.message = _message(link, told)
        link.lines, link.frames, home = walk(traceback_of(link.exc), home)
    causes = tuple([_facts(link, "", "", _leaves(link.exc, now)) for link in chain[1:]]) if len(chain) > 1 else ()
    return _facts(chain[0], _trace(chain), _stderr(chain), _leaves(exc, now), causes, _hint(chain, told, now))


def _hint(chain: list[_Link], told: dict[str, str], now: float) -> Hint | None:
    """The nearest; words are the last resort."""
    for link in chain:
        if link.found.hint:
            return link.found.hint
    for message in told.values():
        if hint := from_words(message, now):
            return hint
    return None


def _chain(exc: BaseException, now: float) -> list[_Link]:
    """The exception and what lies beneath, nearest first; bounded, and never in a circle.

    What an exception holds inside was put there by somebody, like `raise … from`; what was merely being handled is
    implied, and so is all below it.
    """
    seen: set[int] = set()
    links: list[_Link] = []
    waiting: list[tuple[BaseException, bool]] = [(exc, False)]
    while waiting and len(links) < LINKS:
        current, implied = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        link = _Link(current, now, implied=implied)
        links.append(link)
        waiting += _below(current, implied=implied)
        if link.found.nested:
            waiting += [(inner, implied) for inner in reversed(link.found.nested)]
    return links


def _below(exc: BaseException, *, implied: bool) -> Sequence[tuple[BaseException, bool]]:
    cause = cause_of(exc)
    if cause is not None:
        return ((cause, implied),)
    context = context_of(exc)
    return () if context is None or suppressed(exc) else ((context, True),)


# As the interpreter keeps them, whatever the class makes of these names.
cause_of = BaseException.__dict__["__cause__"].__get__
context_of = BaseException.__dict__["__context__"].__get__
suppressed = BaseException.__dict__["__suppress_context__"].__get__
traceback_of = BaseException.__dict__["__traceback__"].__get__


def _facts(
    link: _Link, trace: str = "", stderr: str = "", leaves: Any = (), causes: Any = (), hint: Hint | None = None
) -> Facts:
    found = link.found
    seconds, source = hint or found.hint or (None, "")
    return Facts(  # by position, in the order of `Facts`: by name it costs three times as much
        link.kind.names,
        link.message,
        trace,
        stderr,
        found.provider_codes,
        found.status,
        found.grpc,
        found.sqlstate,
        found.errno,
        found.exit_code,
        found.signal,
        found.timed_out,
        found.program,
        (),
        seconds,
        source,
        "",
        "",
        "",
        "",
        tuple(link.frames),
        causes,
        leaves,
        link.implied,
    )


def _message(link: _Link, told: dict[str, str]) -> str:
    """What it says, and below it what the service said, where the library leaves that out."""
    text, found = text_of(link.exc), link.found
    if link.kind.family == "aws" and not found.codes and (code := _AWS.search(text[:2000])):
        found.codes.append(code[1])
    if found.said and found.said not in text:
        text = f"{text}\n{found.said}" if text else found.said
    if text not in told:
        told[text] = scrub(text)
    return told[text]


def _leaves(group: BaseException, now: float) -> tuple[Facts, ...]:
    if not issubclass(type(group), BaseExceptionGroup):
        return ()
    leaves: list[Facts] = []
    told: dict[str, str] = {}
    waiting: deque[BaseException] = deque([group])
    looked = 0
    while waiting and len(leaves) < LEAVES and looked < 8 * LEAVES:
        looked += 1
        exc = waiting.popleft()
        if issubclass(type(exc), BaseExceptionGroup):
            waiting.extend(BaseExceptionGroup.__dict__["exceptions"].__get__(exc)[:LEAVES])
        else:
            chain = _chain(exc, now)
            for link in chain:
                link.message = _message(link, told)
            leaves.append(_facts(chain[0], causes=tuple([_facts(link) for link in chain[1:]])))
    return tuple(leaves)


def _stderr(chain: list[_Link]) -> str:
    for link in chain:
        if link.found.stderr:
            return scrub(link.found.stderr)
    return ""


def _trace(chain: list[_Link]) -> str:
    """The exception first, then what lies beneath; frames by name only, without source lines or values."""
    lines: list[str] = []
    for link in chain:
        lead = "caused by " if lines else ""
        lines.append(f"{lead}{link.kind.names[0]}: {link.message[:TOLD]}")
        lines += link.lines
    text = "\n".join(lines)
    return text if len(text) <= TRACE else safe(text, TRACE)
