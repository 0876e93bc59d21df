"""A dependency goes down and comes back, seen from a program that runs its jobs inline."""

from __future__ import annotations

import asyncio
import json

import pytest

from mulligan import Fail, Fixed, Hold, Policy
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.core.job import SECOND
from mulligan.guards.state import read_guard
from mulligan.worker.claim import claimer_of
from support.app_tools import advance, attempts_of, ran
from support.log_lines import RETRIES, drained, is_down, states
from support.store import open_worker


def told(app, prefix="dependency."):
    with app.store.read() as unit:
        return [
            (event.type, event.actor, event.data)
            for event in unit.events_after(0, 1000)
            if event.type.startswith(prefix)
        ]


# -- opening ------------------------------------------------------------------------------------------
def test_after_a_few_failures_its_jobs_wait_uncharged_and_say_for_what(app, line, call):
    jobs = is_down(app, line, call)
    assert len(line.called) == 4
    assert sorted(job.refresh().failures for job in jobs) == [0] * 7 + [1] * 3
    waiting = jobs[-1].refresh()
    assert (waiting.state, waiting.phase, waiting.attempt) == ("queued", "held", 0)
    assert "4 of 4 calls failed in the last 2 min" in waiting.why
    found = app.dependencies.get("gateway")
    assert (found.state, found.actor, found.held, found.running) == ("open", "breaker", 7, 0)
    assert found.since is not None
    assert found.probe_at is not None
    [(event, actor, data)] = told(app)
    assert (event, actor, data["dependency"]) == ("dependency.opened", "breaker", "gateway")


def test_the_failure_that_opens_it_is_recorded_but_not_charged(app, line, call):
    jobs = is_down(app, line, call)
    spared = next(job for job in jobs if job.refresh().attempt == 1 and job.refresh().failures == 0)
    [attempt] = attempts_of(app, spared)
    assert (attempt.ended, attempt.verb, attempt.cls) == ("failed", "hold", "transient")
    assert attempt.reason == "no retry charged: gateway is down; the job waits until it recovers"
    assert spared.refresh().error["final"] is False


def test_jobs_that_use_something_else_go_on(app, line, call):
    @app.job(uses="bucket")
    def put() -> None: ...

    is_down(app, line, call)
    assert ran(app, put.enqueue()).state == "succeeded"


@pytest.mark.seed("001-87")
def test_a_job_that_alone_provokes_errors_opens_nothing_and_dies(app, line, call):
    line.down()
    job = call.enqueue(n=1)
    for _ in range(6):
        app.run_inline()
        advance(app, 10)
    assert job.refresh().state == "dead"
    assert app.dependencies.get("gateway").state == "closed"


@pytest.mark.parametrize(
    "error",
    [KeyError("clip"), Fail("BAD_INPUT", final=True), PermissionError(13, "Permission denied")],
)
def test_errors_for_which_it_is_not_to_blame_open_nothing(app, line, call, error):
    line.error = error
    jobs = [call.enqueue(n=n) for n in range(12)]
    app.run_inline()
    assert len(line.called) == 12
    assert states(jobs) == {"dead"}
    assert told(app) == []


def test_answers_that_take_too_long_count(app, line, call):
    app.dependency("gateway", slow=0.001)
    line.takes = 0.003
    jobs = [call.enqueue(n=n) for n in range(12)]
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    assert {job.refresh().failures for job in jobs} == {0}


# -- probes -------------------------------------------------------------------------------------------
def test_before_its_time_nobody_tries(app, line, call):
    is_down(app, line, call)
    advance(app, 14)
    app.run_inline()
    assert len(line.called) == 4


def test_one_job_tries_and_is_not_charged_when_it_fails(app, line, call):
    jobs = is_down(app, line, call)
    advance(app, 31)
    app.run_inline()
    assert len(line.called) == 5
    tried = jobs[line.called[-1]].refresh()
    assert (tried.failures, tried.phase) == (0, "held")
    advance(app, 31)
    app.run_inline()
    assert len(set(line.called)) == 6, "another one tries"


def test_three_that_succeed_close_it_and_all_come_back(app, line, call):
    jobs = is_down(app, line, call)
    line.up()
    advance(app, 31)
    drained(app, jobs)
    assert states(jobs) == {"succeeded"}
    kinds = [event for event, _, _ in told(app)]
    assert kinds[:5] == ["dependency.opened", *["dependency.probing"] * 3, "dependency.closed"]
    assert sorted(job.refresh().failures for job in jobs) == [0] * 7 + [1] * 3


def test_after_it_the_backlog_comes_slowly_at_first(app, line, call):
    is_down(app, line, call, jobs=60)
    line.up()
    advance(app, 31)
    app.run_inline()
    found = app.dependencies.get("gateway")
    assert (found.state, found.rate) == ("ramping", 2.0)
    assert len(line.called) < 12


def test_a_job_is_spared_three_times_and_then_charged(app, line, call):
    is_down(app, line, call, jobs=3)  # three are not sure yet
    lone = call.enqueue(n=99)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    failures = []
    for _ in range(30):
        advance(app, 1000)
        app.run_inline()
        failures.append(lone.refresh().failures)
        if lone.refresh().failures:
            break
    assert [attempt.verb for attempt in attempts_of(app, lone)][:3] == ["hold"] * 3
    assert lone.refresh().failures == 1


def test_a_function_is_asked_instead_of_a_job(app, line, call):
    asked = []

    def health() -> bool:
        asked.append(len(line.called))
        return line.error is None

    jobs = is_down(app, line, call, probe=health)
    advance(app, 31)
    app.run_inline()
    assert asked == [4], "no job has tried"
    line.up()
    advance(app, 31)
    drained(app, jobs)
    assert len(asked) == 4
    assert states(jobs) == {"succeeded"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_function_that_raises_says_that_it_is_down(app, line, call, asynchronous):
    def health() -> None:
        raise RuntimeError("no answer, key=sk-live-4242424242424242")

    async def health_async() -> None:
        await asyncio.sleep(0)
        health()

    is_down(app, line, call, probe=health_async if asynchronous else health)
    advance(app, 31)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    [probe] = app.jobs.list("kind:mulligan.probe")
    assert probe.result["healthy"] is False
    assert "RuntimeError" in probe.result["error"]
    assert "sk-live" not in json.dumps(probe.result)


def test_a_probe_whose_worker_is_gone_leaves_nothing_half_open(app, line, call):
    jobs = is_down(app, line, call)
    line.up()
    advance(app, 31)
    open_worker(app.store, "w9")
    claimer = claimer_of("w9", app.manifest())
    with app.store.begin() as unit:
        [lease] = claimer.claim(unit, 1).leases
    assert app.dependencies.get("gateway").probing
    app.run_inline()
    assert len(line.called) == 4, "one at a time"
    with app.store.begin() as unit:
        unit.close_worker(claimer.worker, "died", seen=None)
    drained(app, jobs)
    assert states(jobs) == {"succeeded"}
    assert lease.timeout is not None
    assert lease.timeout <= 30 * SECOND


# -- fail fast ----------------------------------------------------------------------------------------
def test_in_fail_fast_mode_new_work_ends_at_once_with_a_code_of_its_own(app, line, call):
    is_down(app, line, call, mode="fail_fast", probe=lambda: line.error is None)
    job = call.enqueue(n=77)
    app.run_inline()
    dead = job.refresh()
    assert dead.state == "dead"
    assert dead.error["code"] == "DEPENDENCY_UNAVAILABLE"
    assert dead.error["dependency"] == "gateway"
    assert 77 not in line.called
    line.up()
    advance(app, 31)
    app.run_inline()
    app.jobs.retry(job.id, reason="it is back")
    drained(app, [job])
    assert job.refresh().state == "succeeded"


def test_what_failed_fast_is_not_held_against_the_dependency(app, line, call):
    is_down(app, line, call, mode="fail_fast")
    with app.store.read() as unit:
        [row] = unit.guards()
    assert read_guard(row.body).window.failed == 0


# -- by hand ------------------------------------------------------------------------------------------
def test_a_person_holds_it_and_lets_it_go(app, line, call):
    app.dependencies.open("gateway", reason="maintenance")
    job = ran(app, call.enqueue(n=1))
    assert (job.state, job.phase) == ("queued", "held")
    assert "maintenance" in job.why
    advance(app, 3600)
    app.run_inline()
    assert line.called == []
    found = app.dependencies.close("gateway", reason="done")
    assert found.state == "ramping"
    assert ran(app, job).state == "succeeded"
    assert [(event, actor) for event, actor, _ in told(app)] == [
        ("dependency.opened", "python"),
        ("dependency.closed", "python"),
    ]


def test_a_hold_with_an_end_ends_by_itself_on_a_ramp(app, line, call):
    app.dependencies.open("gateway", until=60, reason="maintenance")
    jobs = [call.enqueue(n=n) for n in range(30)]
    advance(app, 61)
    app.run_inline()
    assert 0 < len(line.called) < 10
    assert app.dependencies.get("gateway").state == "ramping"
    drained(app, jobs)
    assert told(app)[1][0] == "dependency.closed"


def test_a_person_who_closes_it_for_an_hour_keeps_the_breaker_still(app, line, call):
    app.dependency("gateway")
    app.dependencies.close("gateway", until=3600, reason="I know it better")
    line.down()
    jobs = [call.enqueue(n=n) for n in range(8)]
    app.run_inline()
    assert {job.refresh().failures for job in jobs if job.refresh().attempt} == {1}
    assert app.dependencies.get("gateway").state != "open"


def test_a_probe_can_be_asked_for(app, line, call):
    jobs = is_down(app, line, call)
    line.up()
    app.dependencies.probe("gateway", reason="they say it is back")
    drained(app, jobs, 60)
    assert states(jobs) == {"succeeded"}


def test_what_is_not_open_cannot_be_probed(app, call):
    call.enqueue()
    with pytest.raises(Refused, match="not open"):
        app.dependencies.probe("gateway")


def test_a_dependency_that_nobody_names_is_not_found(app):
    with pytest.raises(NotFound, match="no dependency 'nothing'"):
        app.dependencies.get("nothing")


def test_the_awaitable_twin_does_the_same(app, call):
    call.enqueue()

    async def steps() -> list[str]:
        opened = await app.aio.dependencies.open("gateway", until=60, reason="x")
        closed = await app.aio.dependencies.close("gateway")
        [found] = await app.aio.dependencies.list()
        return [opened.state, closed.state, found.key]

    assert asyncio.run(steps()) == ["open", "ramping", "gateway"]


# -- what a 429 teaches -------------------------------------------------------------------------------
def test_a_hint_of_one_job_holds_all_that_use_the_same(app, line, call):
    line.error = Fail("RATE_LIMITED", "slow down", retry_after=90)
    jobs = [call.enqueue(n=n) for n in range(5)]
    app.run_inline()
    assert len(line.called) == 1
    found = app.dependencies.get("gateway")
    assert (found.state, found.actor) == ("open", "hint")
    assert "it asked callers to wait 90 s" in found.reason
    line.up()
    advance(app, 91)
    drained(app, jobs)
    assert states(jobs) == {"succeeded"}


def test_a_hint_to_a_job_that_uses_two_things_is_its_own(app, line):
    @app.job(uses=["gateway", "bucket"], policy=RETRIES)
    def both() -> None:
        raise Fail("RATE_LIMITED", "slow down", retry_after=90)

    ran(app, both.enqueue())
    assert {found.state for found in app.dependencies.list()} == {"closed"}


def test_a_handler_that_holds_lets_go_on_a_ramp(app, line):
    @app.job(uses="gateway")
    def polite(n: int) -> None:
        if not line.called:
            line.called.append(n)
            raise Hold("gateway", until=60, reason="it says maintenance")

    jobs = [polite.enqueue(n=n) for n in range(4)]
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    advance(app, 61)
    drained(app, jobs)
    assert states(jobs) == {"succeeded"}


# -- the retry budget ---------------------------------------------------------------------------------
@pytest.mark.seed("002-53")
def test_an_empty_budget_is_a_slow_lane_and_never_a_failure(app, line, call):
    app.dependency("gateway", budget="6/m", open_at=0.99, min_calls=10_000)
    app.dependencies.close("gateway", until=86_400, reason="no breaker in this test")
    line.down()
    later = call.options(policy=Policy(backoff=Fixed(600)))
    jobs = [later.enqueue(n=n) for n in range(12)]
    app.run_inline()
    line.up()
    advance(app, 601)
    app.run_inline()
    assert len(line.called) == 12 + 6, "six retries a minute"
    assert app.dependencies.get("gateway").tokens < 1
    drained(app, jobs, 90)
    assert states(jobs) == {"succeeded"}


@pytest.mark.any_store
def test_an_evening_of_three_hundred_retries_and_no_fresh_job_gets_through(app, line, call):
    app.dependencies.close("gateway", until=86_400, reason="no breaker in this test")
    line.down()
    later = call.options(policy=Policy(backoff=Fixed(600)))
    jobs = [later.enqueue(n=n) for n in range(300)]
    app.run_inline()
    line.up()
    advance(app, 601)
    app.run_inline()
    assert states(jobs) == {"succeeded"}


# -- bad input ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"mode": "explode"}, "mode is one of hold, fail_fast"),
        ({"probe": "function"}, "probe is a function"),
        ({"open_at": 0}, "open_at is a share"),
        ({"open_at": 1.5}, "open_at is a share"),
        ({"min_calls": 0}, "min_calls must be a whole number"),
        ({"window": 0}, "window must be longer"),
        ({"cool_down": float("nan")}, "cool_down must be a finite"),
        ({"budget": "a lot"}, "budget is retries per success"),
        ({"budget": -1}, "budget is retries per success"),
        ({"slow": 0}, "slow must be longer"),
    ],
)
def test_nonsense_is_refused_where_it_is_said(app, said, error):
    with pytest.raises((ConfigError, Refused), match=error):
        app.dependency("gateway", **said)
