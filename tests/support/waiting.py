"""Wait for a condition with a deadline instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T], timeout: float = 10.0, what: str = "", *, interval: float = 0.02
) -> T:
    """Return the first true result of `condition`. Fail with the last result after `timeout`.

    A condition that costs much CPU time deserves a longer interval.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {timeout} s: {what or condition}; last result: {result!r}"
            )
        time.sleep(interval)
