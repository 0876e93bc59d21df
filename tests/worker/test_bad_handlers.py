"""Mistakes of a handler in what it returns or raises are recorded with a code each and harm no other job."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import decimal
import gc
import json
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pydantic
import pytest

from mulligan import Fixed, Job, Mulligan, Policy, State
from support.app_tools import assert_other_jobs_run, error_code, load_attempts, load_private


def both(function: Callable[[], Any]) -> list[Callable[[], Any]]:
    def sync_one() -> Any:
        return function()

    async def async_one() -> Any:
        return function()

    return [sync_one, async_one]


def run_all(app: Mulligan, functions: list[Callable[[], Any]], **options: Any) -> list[Job]:
    """Each as two kinds of its own, sync and async; the jobs after everything ran."""
    kinds = [
        app.job(name=f"{n}.{colour}", **options)(handler)
        for n, function in enumerate(functions)
        for colour, handler in enumerate(both(function))
    ]
    jobs = [kind.enqueue() for kind in kinds]
    app.run_inline()
    return [job.refresh() for job in jobs]


# -- results -------------------------------------------------------------------------------------
def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@dataclasses.dataclass
class Clip:
    at: datetime
    length: timedelta | None = None


class Model(pydantic.BaseModel):
    size: int


class Colour(Enum):
    RED = "red"


class Spiteful:
    def __iter__(self) -> Any:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise ValueError("no name")


def infinite() -> Any:
    def forever() -> Any:
        raise ConnectionResetError("while it was read")
        yield 1

    return forever()


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("object", object, "RESULT_NOT_JSON"),
    ("object whose repr raises", Spiteful, "RESULT_NOT_JSON"),
    ("class", lambda: int, "RESULT_NOT_JSON"),
    ("function", lambda: print, "RESULT_NOT_JSON"),
    ("module", lambda: sys, "RESULT_NOT_JSON"),
    ("open file", lambda: contextlib.closing(sys.stdin), "RESULT_NOT_JSON"),
    ("not a number", lambda: float("nan"), "RESULT_NOT_JSON"),
    ("infinite deep inside", lambda: {"a": [1, {"b": float("-inf")}]}, "RESULT_NOT_JSON"),
    ("cycle", cyclic, "RESULT_NOT_JSON"),
    ("very deep", lambda: nested(100_000), "RESULT_NOT_JSON"),
    ("deeper than readers can read", lambda: nested(600), "RESULT_NOT_JSON"),
    ("bytes that are no text", lambda: b"\xff\xfe", "RESULT_NOT_JSON"),
    ("a number of 5,000 digits", lambda: 10**5000, "RESULT_NOT_JSON"),
    ("keys that are tuples", lambda: {(1, 2): 3}, "RESULT_NOT_JSON"),
    ("50 MB", lambda: "x" * 50_000_000, "RESULT_TOO_LARGE"),
    ("many small things", lambda: list(range(1_000_000)), "RESULT_TOO_LARGE"),
    ("a generator that fails while it is read", infinite, "CONNECTION"),
]


@pytest.mark.security("S50")
@pytest.mark.any_store
def test_a_result_that_cannot_be_stored_is_a_failure_with_its_own_code(app):
    done = run_all(app, [make for _, make, _ in REFUSED], policy=Policy(max_retries=0))
    found = [
        (REFUSED[int(job.kind.split(".")[0])][0], job.state, error_code(job), job.result)
        for job in done
    ]
    assert found == [(name, State.DEAD, code, None) for name, _, code in REFUSED for _ in range(2)]
    assert all(load_private(app, job)["message"] for job in done)
    assert_other_jobs_run(app)


VALID_RESULTS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: None, None),
    (lambda: {"a": (1, 2)}, {"a": [1, 2]}),
    (lambda: {1}, [1]),
    (lambda: {1: "one", None: 0, 2.5: "t"}, {"1": "one", "null": 0, "2.5": "t"}),
    (
        lambda: Clip(datetime(2026, 1, 2, tzinfo=UTC), timedelta(seconds=90)),
        {"at": "2026-01-02T00:00:00Z", "length": "PT1M30S"},
    ),
    (lambda: Model(size=3), {"size": 3}),
    (lambda: [Model(size=3)], [{"size": 3}]),
    (lambda: Colour.RED, "red"),
    (lambda: decimal.Decimal("1.10"), "1.10"),
    (lambda: uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (lambda: date(2026, 1, 2), "2026-01-02"),
    (lambda: Path("/a/b"), "/a/b"),
    (lambda: b"text", "text"),
    (lambda: "nul \x00 and half a pair \ud800", "nul \x00 and half a pair \ud800"),
    (lambda: nested(80), nested(80)),
    (lambda: "[" * 500 + '"\\"{', "[" * 500 + '"\\"{'),
    (lambda: [[], {}] * 500, [[], {}] * 500),
    (lambda: 10**4000, 10**4000),
    (lambda: 1e308, 1e308),
    (lambda: "", ""),
]


def test_a_result_that_json_can_express_is_returned_as_json(app):
    done = run_all(app, [make for make, _ in VALID_RESULTS])
    assert [job.state for job in done] == [State.SUCCEEDED] * len(done)
    assert [job.result for job in done] == [value for _, value in VALID_RESULTS for _ in range(2)]


@pytest.mark.security("S50")
def test_a_result_of_exactly_the_configured_limit_is_accepted(make_app):
    app = make_app(limits__result="2048")
    fits, over = 2048 - len('""'), 2049 - len('""')
    done = run_all(app, [lambda: "x" * fits, lambda: "x" * over], policy=Policy(max_retries=0))
    assert [job.state for job in done] == [State.SUCCEEDED] * 2 + [State.DEAD] * 2


# -- exceptions ----------------------------------------------------------------------------------
class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoClass(Exception):
    @property
    def __class__(self) -> type:
        raise ZeroDivisionError


class TwoArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)


class Odd(BaseException):
    pass


class LyingText(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise MemoryError


def raising(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def own_cause() -> Any:
    error = ValueError("circle")
    error.__cause__ = error
    raise error


def two_in_a_circle() -> Any:
    one, two = ValueError("one"), ConnectionResetError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def long_chain() -> Any:
    error = ValueError("at the bottom")
    for n in range(10_000):
        above = ValueError(str(n))
        above.__cause__ = error
        error = above
    raise error


def too_deep() -> Any:
    return too_deep()


RAISED: list[tuple[str, Callable[[], Any], str]] = [
    ("NUL", raising(ValueError("nul \x00 inside")), "UNKNOWN_ERROR"),
    ("half a pair", raising(ValueError("half \ud800 a pair")), "UNKNOWN_ERROR"),
    ("20 MB", raising(ValueError("x" * 20_000_000)), "UNKNOWN_ERROR"),
    ("a str that lies", raising(ValueError(LyingText("lies"))), "UNKNOWN_ERROR"),
    ("no text", raising(NoText()), "UNKNOWN_ERROR"),
    ("no class", raising(NoClass()), "UNKNOWN_ERROR"),
    ("two arguments", raising(TwoArguments(1, 2)), "UNKNOWN_ERROR"),
    ("its own cause", own_cause, "UNKNOWN_ERROR"),
    ("a circle of two", two_in_a_circle, "CONNECTION"),
    ("ten thousand causes", long_chain, "UNKNOWN_ERROR"),
    ("recursion", too_deep, "PROGRAMMING_ERROR"),
    ("SystemExit", raising(SystemExit(3)), "HANDLER_EXIT"),
    ("sys.exit with a text", raising(SystemExit("bye")), "HANDLER_EXIT"),
    ("KeyboardInterrupt", raising(KeyboardInterrupt()), "STOPPED"),
    ("GeneratorExit", raising(GeneratorExit()), "HANDLER_EXIT"),
    ("cancelled without a request", raising(asyncio.CancelledError()), "TASK_CANCELLED"),
    (
        "cancelled without a request, with a message",
        raising(asyncio.CancelledError("why not")),
        "TASK_CANCELLED",
    ),
    ("a BaseException", raising(Odd("odd")), "UNKNOWN_ERROR"),
    ("StopIteration", raising(StopIteration(7)), "PROGRAMMING_ERROR"),
    ("StopAsyncIteration", raising(StopAsyncIteration(7)), "PROGRAMMING_ERROR"),
    (
        "a group",
        raising(ExceptionGroup("two", [KeyError("a"), ConnectionResetError("b")])),
        "CONNECTION",
    ),
    (
        "a group of the odd",
        raising(BaseExceptionGroup("two", [Odd("a"), KeyboardInterrupt()])),
        "UNKNOWN_ERROR",
    ),
    ("MemoryError", raising(MemoryError()), "MEMORY"),
    ("a class, not an instance", raising(ConnectionResetError), "CONNECTION"),
]


def test_anything_a_handler_raises_is_recorded_as_a_failure(app):
    done = run_all(app, [make for _, make, _ in RAISED], policy=Policy(max_retries=0))
    found = [(RAISED[int(job.kind.split(".")[0])][0], job.state, error_code(job)) for job in done]
    assert found == [(name, State.DEAD, code) for name, _, code in RAISED for _ in range(2)]
    for job in done:
        [attempt] = load_attempts(app, job)
        assert len(attempt.private or "") < 50_000
        json.loads(attempt.private or "")
        assert job.error["message"]
    assert_other_jobs_run(app)


def test_a_handler_that_exits_is_retried_like_any_unknown_failure(app):
    [done, again] = run_all(
        app, [raising(SystemExit(0))], policy=Policy(max_retries=1, backoff=Fixed(0))
    )
    assert [(job.state, job.attempt) for job in (done, again)] == [(State.DEAD, 2)] * 2


def test_a_returned_coroutine_that_was_not_awaited_is_a_failure(app):
    async def forgotten() -> int:
        return 7

    def run_and_collect() -> list[Job]:
        done = run_all(app, [forgotten])
        gc.collect()
        return done

    with pytest.warns(RuntimeWarning, match="never awaited"):
        done = run_and_collect()
    assert [error_code(job) for job in done] == ["RESULT_NOT_JSON"] * 2


def test_a_flood_of_output_on_stdout_and_stderr_does_not_disturb_other_jobs(app, capfd):
    def shouts() -> int:
        print("x" * 5_000_000)  # noqa: T201
        print("y" * 5_000_000, file=sys.stderr)  # noqa: T201
        return 1

    assert [job.result for job in run_all(app, [shouts])] == [1, 1]
    capfd.readouterr()
