"""Odd ends of an outage: nobody waits for ever, nobody is asked in a storm, nobody pays who should not."""

from __future__ import annotations

import pytest

from mulligan import Fail, Fixed, Hold, Policy, Retry
from walk.test_dependencies import Line, drained, states
from walk.tools import advance

RETRIES = Policy(max_retries=3, backoff=Fixed(5))


@pytest.fixture
def line():
    return Line()


def are_down(app, line, kind, jobs=12):
    line.down()
    made = [kind.enqueue(n=n) for n in range(jobs)]
    for _ in range(20):
        app.run_inline()
        advance(app, 1)
    return made


@pytest.fixture
def call(app, line):
    @app.job(name="call", uses="gateway", policy=RETRIES)
    def call(n: int = 0) -> int:
        return line.call(n)

    return call


def is_down(app, line, call, jobs=10, **declared):
    app.dependency("gateway", **{"cool_down": 30, **declared})
    line.down()
    made = [call.enqueue(n=n) for n in range(jobs)]
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    return made


def test_two_dependencies_that_went_down_together_both_come_back(app, line):
    @app.job(name="both", uses=["gateway", "bucket"], policy=RETRIES)
    def both(n: int = 0) -> int:
        return line.call(n)

    jobs = are_down(app, line, both)
    assert {app.dependencies.get(key).state for key in ("gateway", "bucket")} == {"open"}
    line.up()
    advance(app, 31)
    drained(app, jobs)
    assert states(jobs) == {"succeeded"}


def test_two_dependencies_that_are_down_and_fail_fast_hold_nobody(app, line):
    @app.job(name="both", uses=["gateway", "bucket"], policy=RETRIES)
    def both(n: int = 0) -> int:
        return line.call(n)

    app.dependency("gateway", mode="fail_fast")
    app.dependency("bucket", mode="fail_fast")
    are_down(app, line, both)
    assert {app.dependencies.get(key).state for key in ("gateway", "bucket")} == {"open"}
    job = both.enqueue(n=99)
    app.run_inline()
    assert job.refresh().state == "dead"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: Hold("gateway", until=600), id="hold"),
        pytest.param(lambda: Fail("RATE_LIMITED"), id="rate-limited"),
        pytest.param(lambda: Fail("RATE_LIMITED", retry_after=60), id="rate-limited-hint"),
        pytest.param(lambda: Fail("QUOTA", retry_after=60), id="quota"),
        pytest.param(lambda: Retry(after=5), id="retry"),
    ],
)
def test_a_probe_that_is_told_to_come_later_is_no_invitation_to_knock_again_at_once(app, line, call, answer):
    is_down(app, line, call, jobs=20)
    before = len(line.called)
    line.error = answer()
    advance(app, 31)
    app.run_inline()
    assert len(line.called) == before + 1
    assert app.dependencies.get("gateway").state == "open"


def test_a_probe_that_is_told_to_slow_down_costs_its_job_nothing(app, line, call):
    jobs = is_down(app, line, call, jobs=20)
    charged = sum(job.refresh().failures for job in jobs)
    line.error = Fail("RATE_LIMITED")
    advance(app, 31)
    app.run_inline()
    assert sum(job.refresh().failures for job in jobs) == charged


class Answers:
    async def __call__(self) -> bool:
        return False


async def unwell() -> bool:
    return False


@pytest.mark.parametrize("probe", [Answers(), lambda: unwell() or None], ids=["object", "lambda"])
def test_a_function_that_returns_an_awaitable_is_awaited(app, line, call, probe):
    is_down(app, line, call, probe=probe)
    advance(app, 31)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_function_raises_it_is_an_answer(app, line, call, error):
    def look() -> None:
        raise error

    is_down(app, line, call, probe=look)
    advance(app, 31)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    [probe] = app.jobs.list("kind:mulligan.probe")
    assert probe.result["healthy"] is False


def test_after_a_clock_was_set_back_it_does_not_wait_for_the_old_time(app, line, call):
    jobs = is_down(app, line, call)
    line.up()
    advance(app, -6 * 3600)
    drained(app, jobs, 240)
    assert states(jobs) == {"succeeded"}


def test_a_hint_does_not_end_what_a_person_said(app, line, call):
    app.dependencies.close("gateway", until=3600, reason="we watch it ourselves")
    line.error = Fail("RATE_LIMITED", retry_after=5)
    call.enqueue(n=1)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    advance(app, 6)
    line.down()
    for n in range(40):
        call.enqueue(n=n)
    for _ in range(40):
        app.run_inline()
        advance(app, 1)
    assert app.dependencies.get("gateway").state != "open"
    assert app.dependencies.get("gateway").until is not None


def test_a_hint_to_a_job_without_retries_holds_the_others_all_the_same(app, line):
    @app.job(name="once", uses="gateway", policy=Policy(max_retries=0))
    def once(n: int = 0) -> int:
        return line.call(n)

    line.error = Fail("RATE_LIMITED", retry_after=60)
    for n in range(5):
        once.enqueue(n=n)
    app.run_inline()
    assert len(line.called) == 1
