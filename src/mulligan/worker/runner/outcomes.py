"""Convert what a handler raised or returned into an outcome. Never raises."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mulligan.core.attempt import Ended, Failure, Outcome
from mulligan.core.durations import SECOND, Micros, to_duration_micros, to_micros
from mulligan.core.errors import (
    Cancel,
    Fail,
    HandedOver,
    Hold,
    OutcomeRequest,
    Park,
    Retry,
    Snooze,
    StepDelayed,
)
from mulligan.core.format import TEXT_LIMIT
from mulligan.core.job import NAME_RULE, is_name
from mulligan.failures.adapters import qualified_name
from mulligan.failures.capture import capture, exception_text
from mulligan.failures.classify import classify_facts
from mulligan.failures.codes import bad_outcome, retry_requested
from mulligan.failures.facts import Facts
from mulligan.failures.redact import scrub, scrub_public
from mulligan.retries.backoff import MAX_WAIT_SECONDS

Classifier = Callable[[Facts], Failure]

_MAX_NAME = 200  # characters of a dependency
_MAX_REASON = 500  # characters


def outcome_of_exception(
    exc: BaseException, now: Micros, classify: Classifier = classify_facts
) -> Outcome:
    """Return the outcome of a raised exception: a requested outcome, or a failure."""
    if issubclass(type(exc), OutcomeRequest):  # `__class__` may be a property that raises
        return outcome_of_request(exc, now, classify)
    return Outcome(Ended.FAILED, failure=classify(capture(exc, now / SECOND)), ended_at=now)


def warm_up() -> None:
    """Classify a few errors: the rules are compiled at first use, which takes 20 ms."""
    for error in (
        ConnectionError("reset"),
        TimeoutError("late"),
        ValueError("no number"),
        RuntimeError("no"),
    ):
        try:
            raise error
        except Exception as caught:  # noqa: BLE001 - raised above
            outcome_of_exception(caught, 0)


def outcome_of_request(
    request: BaseException, now: Micros, classify: Classifier = classify_facts
) -> Outcome:
    """Return the outcome that a handler requested. An invalid request becomes a failure."""
    try:
        convert = next(
            (converter for kind, converter in _CONVERTERS if isinstance(request, kind)), None
        )
        if convert is None:
            name = qualified_name(type(request))
            raise TypeError(f"the handler returned {name}; raise exceptions, return outcomes")
        return convert(request, now, classify)._replace(ended_at=now)
    except BaseException as error:  # noqa: BLE001 - a request may contain any object
        why = scrub(exception_text(error), _MAX_REASON)
        return Outcome(Ended.FAILED, failure=bad_outcome(why), ended_at=now)


def _retry(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    after, until = _parse_optional_time("after", request.after)
    failure = retry_requested(_clean_text("reason", request.reason))
    return Outcome(Ended.RETRY, failure=failure, after=after, until=until, reason=_reason(request))


def _snooze(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    after, until = _parse_time("seconds", request.seconds)
    queue = _queue(request.queue)
    return Outcome(Ended.SNOOZED, after=after, until=until, reason=_reason(request), queue=queue)


def _hand_over(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    after, until = _parse_time("wait", request.wait)
    return Outcome(Ended.RELEASED, after=after, until=until, reason=_reason(request))


def _queue(name: Any) -> str:
    if name is None:
        return ""
    if not is_name(name):
        raise ValueError(f"queue {name!r:.120}: {NAME_RULE}")
    return str(name)


def _cancel(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    return Outcome(Ended.CANCELLED, reason=_reason(request))


def _park(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    choices = tuple(_clean_text("choices", choice, 100) for choice in request.choices[:50])
    return Outcome(Ended.PARKED, reason=_reason(request), choices=choices)


def _delay(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    """Return the job: it waits in its lane, which the dependency has closed."""
    return Outcome(Ended.RELEASED, reason=_reason(request), interrupted=True)


def _hold(request: Any, _now: Micros, _classify: Classifier) -> Outcome:
    after, until = _parse_optional_time("until", request.until)
    dependency = _clean_text("dependency", request.dependency, _MAX_NAME)
    return Outcome(
        Ended.HELD, after=after, until=until, dependency=dependency, reason=_reason(request)
    )


def _fail(request: Any, now: Micros, classify: Classifier) -> Outcome:
    """Combine what the handler states with the facts of the exception it was raised from."""
    code = _clean_text("code", request.failure_code, 100, scrub_public)
    if not code:
        raise ValueError("code must not be empty")
    found = capture(request, now / SECOND)
    retry_after = found.retry_after
    source = found.retry_after_source
    if request.retry_after is not None:
        retry_after = _retry_after_seconds(request.retry_after, now)
        source = "handler"
    facts = found._replace(
        code=code,
        message=_clean_text("message", request.message or "", TEXT_LIMIT),
        detail=_clean_text("detail", request.detail or "", TEXT_LIMIT),
        public=_clean_text("public", request.public or "", hide=scrub_public),
        retry_after=retry_after,
        retry_after_source=source,
    )
    return Outcome(Ended.FAILED, failure=classify(facts), final=bool(request.final))


def _reason(request: Any) -> str:
    """Return the reason without secrets: owners read it in events and messages."""
    return _clean_text("reason", request.reason, hide=scrub_public)


def _retry_after_seconds(value: Any, now: Micros) -> float:
    after, until = _parse_time("retry_after", value)
    if after is None:
        after = (until or 0) - now
    return max(0, after) / SECOND


def _clean_text(
    name: str, value: Any, limit: int = _MAX_REASON, hide: Callable[[str, int], str] = scrub
) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {qualified_name(type(value))}")
    return hide(str.__str__(value), limit)


def _parse_optional_time(name: str, value: Any) -> tuple[Micros | None, Micros | None]:
    return (None, None) if value is None else _parse_time(name, value)


def _parse_time(name: str, value: Any) -> tuple[Micros | None, Micros | None]:
    """Return (after, until). A duration counts from the end of the attempt."""
    if isinstance(value, datetime):
        return None, to_micros(value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(
            f"{name} must be seconds, a timedelta or a datetime, not {qualified_name(type(value))}"
        )
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds <= MAX_WAIT_SECONDS:  # NaN too
        raise ValueError(f"{name} must be between 0 s and 100 years, not {value}")
    return to_duration_micros(value), None


_CONVERTERS: tuple[
    tuple[type[OutcomeRequest], Callable[[Any, Micros, Classifier], Outcome]], ...
] = (
    (Retry, _retry),
    (Snooze, _snooze),
    (Cancel, _cancel),
    (Fail, _fail),
    (Park, _park),
    (Hold, _hold),
    (StepDelayed, _delay),
    (HandedOver, _hand_over),
)
