"""A service that jobs call and that a test takes down and brings back."""

from __future__ import annotations

import time

import pytest

from mulligan import Fixed, Policy
from support.app_tools import advance

RETRIES = Policy(max_retries=3, backoff=Fixed(5))


class FlakyService:
    """A service with a switchable error and delay; it records its calls."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls: list[int] = []
        self.delay = 0.0

    def call(self, n: int) -> int:
        self.calls.append(n)
        time.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return n

    def down(self) -> None:
        self.error = ConnectionRefusedError(111, "Connection refused")

    def up(self) -> None:
        self.error = None


def break_gateway(app, line, call, jobs=10, **declared):
    app.dependency("gateway", **{"cool_down": 30, **declared})
    line.down()
    made = [call.enqueue(n=n) for n in range(jobs)]
    app.run_inline()
    assert (app.dependencies.get("gateway").state == "open") is (jobs > 3), (
        "three failures do not open the breaker"
    )
    return made


def job_states(jobs):
    return {str(job.refresh().state) for job in jobs}


def run_until_ended(app, jobs, seconds=120):
    """Run due jobs, second by second, until these jobs have ended."""
    for _ in range(seconds):
        app.run_inline()
        if not job_states(jobs) & {"queued", "running"}:
            return
        advance(app, 1)
    pytest.fail(f"still {job_states(jobs)}")
