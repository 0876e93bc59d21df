"""Something that jobs call, which goes down and comes back when a test says so."""

from __future__ import annotations

import time

import pytest

from mulligan import Fixed, Policy
from support.app_tools import advance

RETRIES = Policy(max_retries=3, backoff=Fixed(5))


class Line:
    """What jobs call, and how it is today."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.called: list[int] = []
        self.takes = 0.0

    def call(self, n: int) -> int:
        self.called.append(n)
        time.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return n

    def down(self) -> None:
        self.error = ConnectionRefusedError(111, "Connection refused")

    def up(self) -> None:
        self.error = None


def is_down(app, line, call, jobs=10, **declared):
    app.dependency("gateway", **{"cool_down": 30, **declared})
    line.down()
    made = [call.enqueue(n=n) for n in range(jobs)]
    app.run_inline()
    assert (app.dependencies.get("gateway").state == "open") is (jobs > 3), (
        "three failures are not sure yet"
    )
    return made


def states(jobs):
    return {str(job.refresh().state) for job in jobs}


def drained(app, jobs, seconds=120):
    """Run what is due, second by second, until they have ended."""
    for _ in range(seconds):
        app.run_inline()
        if not states(jobs) & {"queued", "running"}:
            return
        advance(app, 1)
    pytest.fail(f"still {states(jobs)}")
