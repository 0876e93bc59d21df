"""From a live exception to safe facts. Never raises.

Anything may be in there: an exception whose `str` raises, a text of 20 MB, a cause that is its own cause. It is made
safe and redacted here, once, before anybody judges or stores it.
"""

from __future__ import annotations

import re
import sysconfig
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from mulligan.core.attempt import Failure
from mulligan.core.format import LIMIT, safe
from mulligan.failures.adapters import kind_of, read, type_name
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import TOLD, Facts
from mulligan.failures.fingerprint import explain_fingerprint
from mulligan.failures.hints import Hint, from_words
from mulligan.failures.matcher import Rulebook
from mulligan.failures.ranking import judge
from mulligan.failures.redact import scrub
from mulligan.failures.rules import Rule

# Tracebacks as plain text and names: where it happened, without source lines and without values.

FRAMES = 30  # of a traceback
OWN = 8  # of them, those of the job's own code

_PYTHON = tuple(
    f"{path}/"
    for name in ("stdlib", "platstdlib")
    if (path := sysconfig.get_path(name)) and not path.endswith("-packages")
)
_OURS = f"{Path(__file__).parents[1]}/"


# (its code, the file as told, the function as told, module:function, top package, whether it is Python's or ours and
# so never part of a story, whether it is installed: somebody's library, or the app itself)
Place = tuple[CodeType, str, str, str, str, bool, bool]

# By identity: equality of code compares its constants. The code is kept with its place, so no other gets its number.
_known: dict[int, Place] = {}
_MOST = 4096


def _learn(code: CodeType, module: object) -> Place:
    if len(_known) >= _MOST:
        _known.clear()
    _known[id(code)] = place = _describe(code, module)
    return place


def _describe(code: CodeType, module: object) -> Place:
    file = code.co_filename
    installed = "/site-packages/" in file or "/dist-packages/" in file
    ours = file.startswith((_OURS, "<frozen ")) or (not installed and file.startswith(_PYTHON))
    package = module if type(module) is str else "?"
    told = (
        f"  {safe(file, 500)}:",
        f" in {safe(code.co_name, 300)}",
        safe(f"{package}:{code.co_qualname}", 300),
    )
    return code, *told, package.partition(".")[0], ours, installed


Walk = tuple[list[str], list[str], str]

# Ways that were walked before, by their steps: many fail at one place. As above, their code is kept with them.
_walked: dict[tuple[str | int, ...], tuple[Walk, list[CodeType]]] = {}
_MOST_WAYS = 1024


def walk(trace: TracebackType | None, home: str = "") -> Walk:
    """(lines of a trace, `module:function` of the job's own frames, its top package).

    The outermost frame that is neither Python's nor ours belongs to the job, so its package does, wherever it is
    installed; for causes `home` tells that package.
    """
    way: list[str | int] = [home]
    step = trace
    while step is not None:
        way += (id(step.tb_frame.f_code), step.tb_lineno)
        step = step.tb_next
    known = _walked.get(tuple(way))
    if known is None:
        known = _learn_way(trace, home, tuple(way))
    return known[0]


def _learn_way(
    trace: TracebackType | None, home: str, way: tuple[str | int, ...]
) -> tuple[Walk, list[CodeType]]:
    steps: list[TracebackType] = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    known = _walk(steps[-FRAMES:], home), [step.tb_frame.f_code for step in steps]
    if len(steps) <= FRAMES:
        if len(_walked) >= _MOST_WAYS:
            _walked.clear()
        _walked[way] = known
    return known


def _walk(steps: list[TracebackType], home: str) -> Walk:
    lines: list[str] = []
    own: list[str] = []
    for step in steps:
        frame = step.tb_frame
        code = frame.f_code
        place = _known.get(id(code)) or _learn(code, frame.f_globals.get("__name__"))
        _, file, function, name, package, ours, installed = place
        lines.append(f"{file}{step.tb_lineno}{function}")
        if ours:
            continue
        home = home or package
        if (not installed or package == home) and (not own or own[-1] != name):
            own.append(name)
    return lines, own[-OWN:], home


# From a live exception to safe facts. Never raises.

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
    causes = (
        tuple([_facts(link, "", "", _leaves(link.exc, now)) for link in chain[1:]])
        if len(chain) > 1
        else ()
    )
    return _facts(
        chain[0], _trace(chain), _stderr(chain), _leaves(exc, now), causes, _hint(chain, told, now)
    )


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
    link: _Link,
    trace: str = "",
    stderr: str = "",
    leaves: Any = (),
    causes: Any = (),
    hint: Hint | None = None,
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


# What would be said of an error: the classifier, for whoever holds a text or an exception.


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
    return classify_facts(_facts_from_input(text_or_exception, given), _books(rules))


def made_of(
    error: str | BaseException, given: Mapping[str, Any], rules: Iterable[Rule] = ()
) -> dict[str, Any]:
    """What the name of its group would be made of; `given` as for `classify`."""
    facts, books = _facts_from_input(error, given), _books(rules)
    failure = classify_facts(facts, books)
    return explain_fingerprint(facts, failure.code, failure.cls, judge(facts, books).link)


def _books(rules: Iterable[Rule]) -> list[Rulebook]:
    own = tuple(rules)
    return [Rulebook(own)] if own else []


_LISTED = {"exception_type": "exception_types", "provider_code": "provider_codes"}


def _facts_from_input(error: str | BaseException, given: Mapping[str, Any]) -> Facts:
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
    return (
        Facts(message=text)
        if hint is None
        else Facts(message=text, retry_after=hint[0], hint=hint[1])
    )
