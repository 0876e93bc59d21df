"""Wait for a named moment, with a deadline; never for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(moment: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """The first true answer of `moment`; fails with the last answer when the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        answer = moment()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {timeout} s: {what or moment}; last answer: {answer!r}"
            )
        time.sleep(0.02)
