"""Repeated failures at one location: each is classified by what it says, and keeps its message."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts
from mulligan.worker.runner.outcomes import outcome_of_exception

NOW = 1_700_000_000


class Odd(ConnectionError):
    pass


class Unreadable(ConnectionError):
    def __str__(self) -> str:
        raise RuntimeError


class Retrying(ConnectionError):
    retry_after = 7


class Strange(type):
    def __hash__(cls) -> int:
        raise RuntimeError


def with_note(exc, **attributes):
    vars(exc).update(attributes)
    return exc


def caused(exc, cause):
    exc.__cause__ = cause
    return exc


def while_handling(exc, other):
    exc.__context__ = other
    return exc


def failed(exc):
    """Raise an exception at one location. Return the failure of its outcome, and its classification."""
    return raise_again(exc).failure, classify_facts(capture(exc, NOW))


def raise_again(exc):
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001
        return outcome_of_exception(caught, NOW * SECOND)


SECRET = "token=ghp_" + "a1" * 20
FAILURES = {
    "plain": lambda n: ConnectionError(f"request {n} was reset"),
    "of its own class": lambda n: Odd(f"request {n} was reset"),
    "a timeout": lambda n: TimeoutError(f"{n} s"),
    "a mistake": lambda n: KeyError(f"name {n}"),
    "classified by its message": lambda n: RuntimeError(f"request {n} failed"),
    "with a secret": lambda n: ConnectionError(f"request {n} with {SECRET} was reset"),
    "sometimes with a word that matters": lambda n: ConnectionError(
        "certificate verify failed" if n % 2 else "reset"
    ),
    "sometimes with a hint": lambda n: ConnectionError(
        "busy, try again in 7 seconds" if n % 2 else "reset"
    ),
    "with a number that could matter": lambda n: ConnectionError(
        f"answered {(200, 429, 503, 404)[n % 4]}"
    ),
    "sometimes with a number in a hint": lambda n: ConnectionError(
        f"retry-after: {n}" if n > 3 else f"reset {n}"
    ),
    "sometimes with a secret but for its digit": lambda n: ConnectionError(
        f"r{n + 3}_{'a' * 19}1 was reset"
    ),
    "with what cannot be shown": lambda n: ConnectionError(f"reset\x00 \ud800 {n}"),
    "sometimes without words": lambda n: ConnectionError(*["reset"][: n % 2]),
    "with words that are cut": lambda n: ConnectionError("reset " * 5000 + str(n)),
    "with a number of the system": lambda n: ConnectionError(104 + n % 2, "reset"),
    "with several arguments": lambda n: ValueError("reset", n, 3.5, None),
    "with one inside": lambda n: ConnectionError(TimeoutError(f"{n} s") if n % 2 else "reset"),
    "with an attribute": lambda n: with_note(
        ConnectionError("reset"), **({"status_code": 404} if n % 2 else {})
    ),
    "of a class with an attribute": lambda n: Retrying(f"{n}"),
    "with a cause": lambda n: caused(
        ConnectionError("reset"), PermissionError("no") if n % 2 else None
    ),
    "while handling": lambda n: while_handling(
        ConnectionError("reset"), TimeoutError("late") if n % 2 else None
    ),
    "a group": lambda n: ExceptionGroup(f"{n}", [TimeoutError("late")]),
    "unreadable": lambda _: Unreadable("reset"),
    "of a strange class": lambda n: Strange("Strange", (ConnectionError,), {})(f"{n}"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_repeated_failure_is_classified_like_the_first(name):
    for number in range(6):
        failure, classified = failed(FAILURES[name](number))
        assert failure == classified
        assert SECRET not in str(failure)


def test_a_repeated_failure_keeps_its_message_and_its_fingerprint():
    first, _ = failed(ConnectionError("request 1 was reset"))
    again, _ = failed(ConnectionError("request 2 was reset"))
    assert (again.fingerprint, again.private["message"]) == (
        first.fingerprint,
        "request 2 was reset",
    )
    assert "request 2 was reset" in again.private["trace"]
    assert "request 1 was reset" not in str(again)


def test_failures_at_another_location_have_another_fingerprint():
    def elsewhere():
        raise ConnectionError("request 2 was reset")

    first, _ = failed(ConnectionError("request 1 was reset"))
    with pytest.raises(ConnectionError) as caught:
        elsewhere()
    assert outcome_of_exception(caught.value, 0).failure == classify_facts(capture(caught.value, 0))
    assert outcome_of_exception(caught.value, 0).failure.fingerprint != first.fingerprint
