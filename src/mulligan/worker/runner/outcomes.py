"""What a handler's end means: something it asked for, or a failure. Never raises."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mulligan.core.attempt import Ended, Failure, Outcome
from mulligan.core.errors import Cancel, Fail, Hold, OutcomeRequest, Park, Retry, Snooze
from mulligan.core.format import LIMIT
from mulligan.core.job import SECOND, Micros, span, to_micros
from mulligan.failures.capture import capture, text_of, type_name
from mulligan.failures.classify import Facts, bad_outcome, classify_facts, retry_requested
from mulligan.failures.redact import scrub, shown
from mulligan.retries.backoff import LONGEST
from mulligan.worker.fast.failure_cache import judged_alike

Judge = Callable[[Facts], Failure]

_NAME = 200
_TOLD = 500  # characters of a reason


def raised(exc: BaseException, now: Micros, judge: Judge = classify_facts) -> Outcome:
    """What a raised exception means: an outcome asked for, or a failure."""
    if issubclass(type(exc), OutcomeRequest):  # `__class__` may be a property that raises
        return outcome_of(exc, now, judge)
    if judge is not classify_facts:
        return Outcome(Ended.FAILED, failure=judge(capture(exc, now / SECOND)), ended_at=now)

    def whole() -> tuple[Facts, Failure]:
        facts = capture(exc, now / SECOND)
        return facts, classify_facts(facts)

    return judged_alike(exc, now, whole)


def rehearse() -> None:
    """Failures of nobody: what tells them apart is compiled when it is first tried, which takes 20 ms."""
    for error in (
        ConnectionError("reset"),
        TimeoutError("late"),
        ValueError("no number"),
        RuntimeError("no"),
    ):
        try:
            raise error
        except Exception as caught:  # noqa: BLE001 - each of them
            raised(caught, 0)


def outcome_of(request: BaseException, now: Micros, judge: Judge = classify_facts) -> Outcome:
    """What a handler asked for, returned or raised; nonsense becomes a failure that says what is wrong."""
    try:
        convert = next((rule for kind, rule in _REQUESTS if isinstance(request, kind)), None)
        if convert is None:
            raise TypeError(
                f"the handler returned {type_name(type(request))}; raise exceptions, return outcomes"
            )
        return convert(request, now, judge)._replace(ended_at=now)
    except BaseException as error:  # noqa: BLE001 - a request may hold anything, and must not stop the runner
        why = scrub(text_of(error), _TOLD)
        return Outcome(Ended.FAILED, failure=bad_outcome(why), ended_at=now)


def _retry(request: Any, _now: Micros, _judge: Judge) -> Outcome:
    after, until = (None, None) if request.after is None else _moment("after", request.after)
    failure = retry_requested(_words("reason", request.reason))
    return Outcome(Ended.RETRY, failure=failure, after=after, until=until, reason=_reason(request))


def _snooze(request: Any, _now: Micros, _judge: Judge) -> Outcome:
    after, until = _moment("seconds", request.seconds)
    return Outcome(Ended.SNOOZED, after=after, until=until, reason=_reason(request))


def _cancel(request: Any, _now: Micros, _judge: Judge) -> Outcome:
    return Outcome(Ended.CANCELLED, reason=_reason(request))


def _park(request: Any, _now: Micros, _judge: Judge) -> Outcome:
    choices = tuple(_words("choices", choice, 100) for choice in request.choices[:50])
    return Outcome(Ended.PARKED, reason=_reason(request), choices=choices)


def _hold(request: Any, _now: Micros, _judge: Judge) -> Outcome:
    after, until = (None, None) if request.until is None else _moment("until", request.until)
    dependency = _words("dependency", request.dependency, _NAME)
    return Outcome(
        Ended.HELD, after=after, until=until, dependency=dependency, reason=_reason(request)
    )


def _fail(request: Any, now: Micros, judge: Judge) -> Outcome:
    """Facts given by the handler, beside those of whatever it was raised from."""
    code = _words("code", request.code_given, 100, shown)
    if not code:
        raise ValueError("code must not be empty")
    found = capture(request, now / SECOND)
    said = request.retry_after is not None
    facts = found._replace(
        code=code,
        message=_words("message", request.message or "", LIMIT),
        detail=_words("detail", request.detail or "", LIMIT),
        public=_words("public", request.public or "", hide=shown),
        retry_after=_wait(request.retry_after, now) if said else found.retry_after,
        hint="handler" if said else found.hint,
    )
    return Outcome(Ended.FAILED, failure=judge(facts), final=bool(request.final))


def _reason(request: Any) -> str:
    """Reasons are read by owners, in events and messages."""
    return _words("reason", request.reason, hide=shown)


def _wait(value: Any, now: Micros) -> float:
    after, until = _moment("retry_after", value)
    return max(0, (until or 0) - now if after is None else after) / SECOND


def _words(
    name: str, value: Any, limit: int = _TOLD, hide: Callable[[str, int], str] = scrub
) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type_name(type(value))}")
    return hide(str.__str__(value), limit)


def _moment(name: str, value: Any) -> tuple[Micros | None, Micros | None]:
    """(after, until): a length counts from the end of the attempt, a datetime stands."""
    if isinstance(value, datetime):
        return None, to_micros(value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(
            f"{name} must be seconds, a timedelta or a datetime, not {type_name(type(value))}"
        )
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds <= LONGEST:  # NaN too
        raise ValueError(f"{name} must be between 0 s and 100 years, not {value}")
    return span(value), None


_REQUESTS: tuple[tuple[type[OutcomeRequest], Callable[[Any, Micros, Judge], Outcome]], ...] = (
    (Retry, _retry),
    (Snooze, _snooze),
    (Cancel, _cancel),
    (Fail, _fail),
    (Park, _park),
    (Hold, _hold),
)
