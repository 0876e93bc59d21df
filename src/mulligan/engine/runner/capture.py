"""From whatever a handler raised or returned to facts and outcomes. Never raises.

Anything may be in there: an exception whose `str` raises, a text of 20 MB, a cause that is its own cause. It is made
safe and redacted here, once, before anybody judges or stores it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from subprocess import CalledProcessError
from types import TracebackType
from typing import Any, TypeVar

from mulligan.errors import Cancel, Fail, Hold, OutcomeRequest, Park, ProcessFailed, Retry, Snooze
from mulligan.job import SECOND, Ended, Micros, Outcome, span, to_micros
from mulligan.policy.backoff import LONGEST
from mulligan.policy.classify import Facts, bad_outcome, classify, retry_requested
from mulligan.policy.redact import safe, scrub

LINKS = 16  # of a cause chain
LEAVES = 16  # of an exception group
FRAMES = 30
TRACE = 8192
_NAME = 200
_TOLD = 500  # characters of a message repeated in the trace
_PLAIN = frozenset({"builtins.object", "builtins.BaseException", "builtins.Exception"})

T = TypeVar("T")
Process = tuple[int | None, int | None, bool, str]  # exit code, signal, timed out, program
_NO_PROCESS: Process = (None, None, False, "")


def capture(exc: BaseException) -> Facts:
    """All that can be known of `exc`, its causes and its leaves."""
    try:
        return _capture(exc)
    except BaseException:  # noqa: BLE001 - see `_guard`
        return Facts(exception_types=_types(exc), message="an exception that could not be read")


def raised(exc: BaseException, now: Micros) -> Outcome:
    """What a raised exception means: an outcome asked for, or a failure."""
    if issubclass(type(exc), OutcomeRequest):  # `__class__` may be a property that raises
        return outcome_of(exc, now)
    return Outcome(Ended.FAILED, failure=classify(capture(exc)), ended_at=now)


def outcome_of(request: BaseException, now: Micros) -> Outcome:
    """What a handler asked for, returned or raised; nonsense becomes a failure that says what is wrong."""
    try:
        convert = next((rule for kind, rule in _REQUESTS if isinstance(request, kind)), None)
        if convert is None:
            raise TypeError(f"the handler returned {_type_name(type(request))}; raise exceptions, return outcomes")
        return replace(convert(request, now), ended_at=now)
    except BaseException as error:  # noqa: BLE001 - a request may hold anything, and must not stop the runner
        why = scrub(_text(error), _TOLD)
        return Outcome(Ended.FAILED, failure=bad_outcome(why), ended_at=now)


def _guard(read: Callable[[], T], otherwise: T) -> T:
    """Foreign code runs in `str`, in properties and in metaclasses, and may raise anything there."""
    try:
        return read()
    except BaseException:  # noqa: BLE001 - see above
        return otherwise


# What an exception holds


def _capture(exc: BaseException) -> Facts:
    chain = list(_chain(exc))
    told = [_message(link) for link, _ in chain]
    causes = tuple([_signals(link, implied=implied) for link, implied in chain[1:]])
    return _signals(
        exc,
        message=told[0],
        trace=_trace([link for link, _ in chain], told),
        stderr=next((text for link, _ in chain if (text := _stderr(link))), ""),
        causes=causes,
    )


def _chain(exc: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """The exception and what lies beneath, each with whether it is implied; bounded, and never in a circle."""
    seen: set[int] = set()
    link: BaseException | None = exc
    implied = False
    while link is not None and id(link) not in seen and len(seen) < LINKS:
        seen.add(id(link))
        yield link, implied
        cause, context, suppressed = link.__cause__, link.__context__, link.__suppress_context__
        implied = implied or cause is None
        link = cause if cause is not None or suppressed else context


def _signals(exc: BaseException, **more: Any) -> Facts:
    """The structure of one link, which classification reads, and what else is known of it."""
    exit_code, signal, timed_out, program = _guard(lambda: _process(exc), _NO_PROCESS)
    return Facts(
        exception_types=_types(exc),
        exit_code=exit_code,
        signal=signal,
        timed_out=timed_out,
        program=program,
        errno=_guard(lambda: _int(exc.errno), None) if isinstance(exc, OSError) else None,
        http_status=_guard(lambda: _status(exc), None),
        leaves=_guard(lambda: _leaves(exc), ()) if isinstance(exc, BaseExceptionGroup) else (),
        **more,
    )


def _process(exc: BaseException) -> Process:
    if isinstance(exc, ProcessFailed):
        return _int(exc.exit_code), _int(exc.signal), bool(exc.timed_out), _program(exc.program)
    if isinstance(exc, CalledProcessError):
        code = _int(exc.returncode)
        program = exc.cmd if isinstance(exc.cmd, str) else exc.cmd[0]
        died = code is not None and code < 0
        return None if died else code, -code if died and code else None, False, _program(program)
    return _NO_PROCESS


def _program(program: Any) -> str:
    """Its name alone: arguments and folders are nobody's business."""
    words = str(program)[:_NAME].split()
    return safe(words[0].rsplit("/", 1)[-1], _NAME) if words else ""


def _int(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**31 else None


def _status(exc: BaseException) -> int | None:
    """The HTTP status, by the shapes that clients give their errors."""
    if isinstance(exc, SystemExit):
        return None
    response = getattr(exc, "response", None)
    found = (getattr(response, "status_code", None), getattr(response, "status", None)) if response is not None else ()
    for value in (*found, *(getattr(exc, name, None) for name in ("status_code", "status", "code"))):
        if type(value) is int and 100 <= value <= 599:
            return value
    return None


def _leaves(group: BaseExceptionGroup[BaseException]) -> tuple[Facts, ...]:
    leaves: list[Facts] = []
    waiting: deque[BaseException] = deque([group])
    looked = 0
    while waiting and len(leaves) < LEAVES and looked < 8 * LEAVES:
        looked += 1
        exc = waiting.popleft()
        if isinstance(exc, BaseExceptionGroup):
            waiting.extend(exc.exceptions[:LEAVES])
        else:
            (_, *below) = _chain(exc)
            causes = tuple([_signals(link, implied=implied) for link, implied in below])
            leaves.append(_signals(exc, causes=causes))
    return tuple(leaves)


def _types(exc: BaseException) -> tuple[str, ...]:
    cls: Any = type(exc)
    return _guard(lambda: _type_names(cls), ())


@lru_cache(maxsize=512)
def _type_names(cls: type) -> tuple[str, ...]:
    names = (_type_name(base) for base in cls.__mro__)
    return tuple(name for name in names if name not in _PLAIN) or (_type_name(cls),)


def _type_name(cls: type) -> str:
    return safe(f"{_guard(lambda: cls.__module__, '?')}.{_guard(lambda: cls.__qualname__, '?')}", _NAME)


def _text(exc: BaseException) -> str:
    """`str(exc)` as a plain str; a subclass of str may lie about its length."""
    return _guard(lambda: str.__str__(str(exc)), "an exception whose text could not be read")


def _message(exc: BaseException) -> str:
    return scrub(_text(exc))


def _stderr(exc: BaseException) -> str:
    return scrub(_guard(lambda: str.__str__(exc.stderr), "")) if isinstance(exc, ProcessFailed) else ""


def _trace(chain: list[BaseException], told: list[str]) -> str:
    """The exception first, then what lies beneath; frames by name only, without source lines or values."""
    lines: list[str] = []
    for exc, message in zip(chain, told, strict=True):
        lead = "caused by " if lines else ""
        lines.append(f"{lead}{(*_types(exc), '?')[0]}: {message[:_TOLD]}")
        lines.extend(_frames(exc.__traceback__))
    return safe("\n".join(lines), TRACE)


def _frames(trace: TracebackType | None) -> list[str]:
    last: deque[TracebackType] = deque(maxlen=FRAMES)
    while trace is not None:
        last.append(trace)
        trace = trace.tb_next
    codes = ((step.tb_frame.f_code, step.tb_lineno) for step in last)
    return [f"  {code.co_filename}:{line} in {code.co_name}" for code, line in codes]


# What a handler asks for


def _retry(request: Any, _now: Micros) -> Outcome:
    after, until = (None, None) if request.after is None else _moment("after", request.after)
    reason = _words("reason", request.reason)
    return Outcome(Ended.RETRY, failure=retry_requested(reason), after=after, until=until, reason=reason)


def _snooze(request: Any, _now: Micros) -> Outcome:
    after, until = _moment("seconds", request.seconds)
    return Outcome(Ended.SNOOZED, after=after, until=until, reason=_words("reason", request.reason))


def _cancel(request: Any, _now: Micros) -> Outcome:
    return Outcome(Ended.CANCELLED, reason=_words("reason", request.reason))


def _park(request: Any, _now: Micros) -> Outcome:
    choices = tuple(_words("choices", choice, 100) for choice in request.choices[:50])
    return Outcome(Ended.PARKED, reason=_words("reason", request.reason), choices=choices)


def _hold(request: Any, _now: Micros) -> Outcome:
    after, until = (None, None) if request.until is None else _moment("until", request.until)
    dependency, reason = _words("dependency", request.dependency, _NAME), _words("reason", request.reason)
    return Outcome(Ended.HELD, after=after, until=until, dependency=dependency, reason=reason)


def _fail(request: Any, now: Micros) -> Outcome:
    """Facts given by the handler, beside those of whatever it was raised from."""
    code = _words("code", request.code_given, 100)
    if not code:
        raise ValueError("code must not be empty")
    facts = replace(
        capture(request),
        code=code,
        message=_words("message", request.message or "", TRACE),
        detail=_words("detail", request.detail or "", TRACE),
        public=_words("public", request.public or ""),
        retry_after=None if request.retry_after is None else _wait(request.retry_after, now),
    )
    return Outcome(Ended.FAILED, failure=classify(facts), final=bool(request.final))


def _wait(value: Any, now: Micros) -> float:
    after, until = _moment("retry_after", value)
    return max(0, (until or 0) - now if after is None else after) / SECOND


def _words(name: str, value: Any, limit: int = _TOLD) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {_type_name(type(value))}")
    return scrub(str.__str__(value), limit)


def _moment(name: str, value: Any) -> tuple[Micros | None, Micros | None]:
    """(after, until): a length counts from the end of the attempt, a datetime stands."""
    if isinstance(value, datetime):
        return None, to_micros(value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(f"{name} must be seconds, a timedelta or a datetime, not {_type_name(type(value))}")
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds <= LONGEST:  # NaN too
        raise ValueError(f"{name} must be between 0 s and 100 years, not {value}")
    return span(value), None


_REQUESTS: tuple[tuple[type[OutcomeRequest], Callable[[Any, Micros], Outcome]], ...] = (
    (Retry, _retry),
    (Snooze, _snooze),
    (Cancel, _cancel),
    (Fail, _fail),
    (Park, _park),
    (Hold, _hold),
)
