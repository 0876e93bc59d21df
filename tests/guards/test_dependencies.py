"""Dependencies that fail and recover, with jobs that run inline."""

from __future__ import annotations

import asyncio
import json

import pytest

from mulligan import Fail, Fixed, Hold, Policy
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.events.queries import EventQueries
from mulligan.failures.codes import worker_lost
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import load_guard
from mulligan.worker.claim import create_claimer
from mulligan.worker.queries import WorkerQueries
from support.app_tools import advance, load_attempts, run_job
from support.flaky_service import RETRIES, break_gateway, job_states, run_until_ended
from support.store import HOUR, a_job, insert, open_worker


def dependency_events(app, prefix="dependency."):
    with app.store.read() as tx:
        return [
            (event.type, event.actor, event.data)
            for event in EventQueries(tx).list_events_after(0, 1000)
            if event.type.startswith(prefix)
        ]


# -- opening -------------------------------------------------------------------------------------
def test_jobs_wait_uncharged_after_a_few_failures_and_say_why(app, line, call):
    jobs = break_gateway(app, line, call)
    assert len(line.calls) == 4
    assert sorted(job.refresh().failures for job in jobs) == [0] * 7 + [1] * 3
    waiting = jobs[-1].refresh()
    assert (waiting.state, waiting.phase, waiting.attempt) == ("queued", "held", 0)
    assert "4 of 4 calls failed in the last 2 min" in waiting.why
    found = app.dependencies.get("gateway")
    assert (found.state, found.actor, found.held, found.running) == ("open", "breaker", 7, 0)
    assert found.since is not None
    assert found.probe_at is not None
    [(event, actor, data)] = dependency_events(app)
    assert (event, actor, data["dependency"]) == ("dependency.opened", "breaker", "gateway")


def test_failure_that_opens_the_breaker_is_recorded_but_not_charged(app, line, call):
    jobs = break_gateway(app, line, call)
    uncharged = next(
        job for job in jobs if job.refresh().attempt == 1 and job.refresh().failures == 0
    )
    [attempt] = load_attempts(app, uncharged)
    assert (attempt.ended, attempt.verb, attempt.cls) == ("failed", "hold", "transient")
    assert attempt.reason == "no retry charged: gateway is down; the job waits until it recovers"
    assert uncharged.refresh().error["final"] is False


def test_jobs_of_other_dependencies_continue(app, line, call):
    @app.job(uses="bucket")
    def put() -> None: ...

    break_gateway(app, line, call)
    assert run_job(app, put.enqueue()).state == "succeeded"


@pytest.mark.seed("001-87")
def test_single_failing_job_dies_without_opening_the_breaker(app, line, call):
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
def test_failures_of_other_classes_do_not_open_the_breaker(app, line, call, error):
    line.error = error
    jobs = [call.enqueue(n=n) for n in range(12)]
    app.run_inline()
    assert len(line.calls) == 12
    assert job_states(jobs) == {"dead"}
    assert dependency_events(app) == []


def test_slow_calls_open_the_breaker(app, line, call):
    app.dependency("gateway", slow=0.001)
    line.delay = 0.003
    jobs = [call.enqueue(n=n) for n in range(12)]
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    assert {job.refresh().failures for job in jobs} == {0}


def test_a_failure_that_names_one_of_two_dependencies_blames_that_one(make_app):
    app = make_app()
    for key in ("stripe", "warehouse"):
        app.dependency(key, min_calls=3)

    @app.job(uses=["stripe", "warehouse"], policy=RETRIES)
    def order(n: int) -> None:
        raise ConnectionRefusedError(111, "api.stripe.com:443 refused the connection")

    jobs = [order.enqueue(n=n) for n in range(12)]
    app.run_inline()
    assert app.dependencies.get("stripe").state == "open"
    assert app.dependencies.get("warehouse").state == "closed"
    assert "stripe" in jobs[-1].refresh().why


# -- probes --------------------------------------------------------------------------------------
def test_no_job_runs_before_the_probe_time(app, line, call):
    break_gateway(app, line, call)
    advance(app, 14)
    app.run_inline()
    assert len(line.calls) == 4


def test_failed_probe_job_is_not_charged(app, line, call):
    jobs = break_gateway(app, line, call)
    advance(app, 31)
    app.run_inline()
    assert len(line.calls) == 5
    tried = jobs[line.calls[-1]].refresh()
    assert (tried.failures, tried.phase) == (0, "held")
    advance(app, 31)
    app.run_inline()
    assert len(set(line.calls)) == 6, "another one tries"


def test_an_outage_ends_as_soon_if_there_are_very_many_lanes(app, line, call):
    new = [a_job(kind="call", queue=f"A{n:04}", uses="gateway", delay=HOUR) for n in range(500)]
    insert(app.store, *new)
    jobs = break_gateway(app, line, call)
    line.up()
    advance(app, 31)
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}


def test_three_passed_probes_release_all_jobs(app, line, call):
    jobs = break_gateway(app, line, call)
    line.up()
    advance(app, 31)
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}
    kinds = [event for event, _, _ in dependency_events(app)]
    assert kinds[:5] == ["dependency.opened", *["dependency.probing"] * 3, "dependency.closed"]
    assert sorted(job.refresh().failures for job in jobs) == [0] * 7 + [1] * 3


def test_backlog_starts_on_a_ramp(app, line, call):
    break_gateway(app, line, call, jobs=60)
    line.up()
    advance(app, 31)
    app.run_inline()
    found = app.dependencies.get("gateway")
    assert (found.state, found.rate) == ("ramping", 2.0)
    assert len(line.calls) < 12


def test_job_is_not_charged_three_times_and_then_charged(app, line, call):
    break_gateway(app, line, call, jobs=3)  # three are not sure yet
    late = call.enqueue(n=99)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    failures = []
    for _ in range(30):
        advance(app, 1000)
        app.run_inline()
        failures.append(late.refresh().failures)
        if late.refresh().failures:
            break
    assert [attempt.verb for attempt in load_attempts(app, late)][:3] == ["hold"] * 3
    assert late.refresh().failures == 1


def test_health_check_runs_instead_of_a_job(app, line, call):
    probe_calls = []

    def health() -> bool:
        probe_calls.append(len(line.calls))
        return line.error is None

    jobs = break_gateway(app, line, call, probe=health)
    advance(app, 31)
    app.run_inline()
    assert probe_calls == [4], "no job has tried"
    line.up()
    advance(app, 31)
    run_until_ended(app, jobs)
    assert len(probe_calls) == 4
    assert job_states(jobs) == {"succeeded"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_health_check_that_raises_means_down(app, line, call, asynchronous):
    def health() -> None:
        raise RuntimeError("no answer, key=sk-live-4242424242424242")

    async def health_async() -> None:
        await asyncio.sleep(0)
        health()

    break_gateway(app, line, call, probe=health_async if asynchronous else health)
    advance(app, 31)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    [probe] = app.jobs.list("kind:mulligan.probe")
    assert probe.result["healthy"] is False
    assert "RuntimeError" in probe.result["error"]
    assert "sk-live" not in json.dumps(probe.result)


def test_probe_of_a_lost_worker_does_not_block_the_breaker(app, line, call):
    jobs = break_gateway(app, line, call)
    line.up()
    advance(app, 31)
    open_worker(app.store, "w9")
    claimer = create_claimer("w9", app.manifest())
    with app.store.begin() as tx:
        [lease] = claimer.claim(tx, 1).leases
    assert app.dependencies.get("gateway").probing
    app.run_inline()
    assert len(line.calls) == 4, "one at a time"
    with app.store.begin() as tx:
        WorkerQueries(tx).close_worker(claimer.worker, "died", last_renewed=None)
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}
    assert lease.timeout is not None
    assert lease.timeout <= 30 * SECOND


def test_probe_that_kills_its_process_is_followed_by_the_next_one_a_cool_down_later(
    app, line, call
):
    break_gateway(app, line, call)
    advance(app, 31)
    open_worker(app.store, "w9")
    claimer = create_claimer("w9", app.manifest())
    with app.store.begin() as tx:
        [lease] = claimer.claim(tx, 1).leases
        began = tx.now()
    lost = Ending(lease, Outcome(Ended.LOST, failure=worker_lost("w9")), 10)
    with app.store.begin() as tx:
        claimer.observer.observe(tx, [lost], tx.now())
    (guard,) = claimer.observer.guards.values()
    assert guard.probe is None
    assert lease.id in guard.tried_jobs
    assert guard.probe_at >= began + 15 * SECOND, "at least half a cool-down, as after a failure"


# -- fail fast -----------------------------------------------------------------------------------
def test_fail_fast_ends_new_jobs_with_its_own_code(app, line, call):
    break_gateway(app, line, call, mode="fail_fast", probe=lambda: line.error is None)
    job = call.enqueue(n=77)
    app.run_inline()
    dead = job.refresh()
    assert dead.state == "dead"
    assert dead.error["code"] == "DEPENDENCY_UNAVAILABLE"
    assert dead.error["dependency"] == "gateway"
    assert 77 not in line.calls
    line.up()
    advance(app, 31)
    app.run_inline()
    app.jobs.retry(job.id, reason="it is back")
    run_until_ended(app, [job])
    assert job.refresh().state == "succeeded"


def test_fail_fast_deaths_do_not_count_as_failures(app, line, call):
    break_gateway(app, line, call, mode="fail_fast")
    with app.store.read() as tx:
        [row] = GuardQueries(tx).list_guards()
    assert load_guard(row.body).window.failed == 0


# -- manual --------------------------------------------------------------------------------------
def test_operator_opens_and_closes_a_dependency(app, line, call):
    app.dependencies.open("gateway", reason="maintenance")
    job = run_job(app, call.enqueue(n=1))
    assert (job.state, job.phase) == ("queued", "held")
    assert "maintenance" in job.why
    advance(app, 3600)
    app.run_inline()
    assert line.calls == []
    found = app.dependencies.close("gateway", reason="done")
    assert found.state == "ramping"
    assert run_job(app, job).state == "succeeded"
    assert [(event, actor) for event, actor, _ in dependency_events(app)] == [
        ("dependency.opened", "python"),
        ("dependency.closed", "python"),
    ]


def test_timed_hold_expires_with_a_ramp(app, line, call):
    app.dependencies.open("gateway", until=60, reason="maintenance")
    jobs = [call.enqueue(n=n) for n in range(30)]
    advance(app, 61)
    app.run_inline()
    assert 0 < len(line.calls) < 10
    assert app.dependencies.get("gateway").state == "ramping"
    run_until_ended(app, jobs)
    assert dependency_events(app)[1][0] == "dependency.closed"


def test_dependency_kept_closed_does_not_open(app, line, call):
    app.dependency("gateway")
    app.dependencies.close("gateway", until=3600, reason="I know it better")
    line.down()
    jobs = [call.enqueue(n=n) for n in range(8)]
    app.run_inline()
    assert {job.refresh().failures for job in jobs if job.refresh().attempt} == {1}
    assert app.dependencies.get("gateway").state != "open"


def test_operator_can_request_a_probe(app, line, call):
    jobs = break_gateway(app, line, call)
    line.up()
    app.dependencies.probe("gateway", reason="they say it is back")
    run_until_ended(app, jobs, 60)
    assert job_states(jobs) == {"succeeded"}


def test_closed_dependency_cannot_be_probed(app, call):
    call.enqueue()
    with pytest.raises(Refused, match="not open"):
        app.dependencies.probe("gateway")


def test_unknown_dependency_is_not_found(app):
    with pytest.raises(NotFound, match="no dependency 'nothing'"):
        app.dependencies.get("nothing")


def test_async_dependencies(app, call):
    call.enqueue()

    async def steps() -> list[str]:
        opened = await app.aio.dependencies.open("gateway", until=60, reason="x")
        closed = await app.aio.dependencies.close("gateway")
        [found] = await app.aio.dependencies.list()
        return [opened.state, closed.state, found.key]

    assert asyncio.run(steps()) == ["open", "ramping", "gateway"]


# -- rate limits --------------------------------------------------------------------------------
def test_rate_limit_hint_holds_all_jobs_of_the_dependency(app, line, call):
    line.error = Fail("RATE_LIMITED", "slow down", retry_after=90)
    jobs = [call.enqueue(n=n) for n in range(5)]
    app.run_inline()
    assert len(line.calls) == 1
    found = app.dependencies.get("gateway")
    assert (found.state, found.actor) == ("open", "hint")
    assert "it asked callers to wait 90 s" in found.reason
    line.up()
    advance(app, 91)
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}


def test_rate_limit_hint_with_two_dependencies_holds_only_that_job(app, line):
    @app.job(uses=["gateway", "bucket"], policy=RETRIES)
    def both() -> None:
        raise Fail("RATE_LIMITED", "slow down", retry_after=90)

    run_job(app, both.enqueue())
    assert {found.state for found in app.dependencies.list()} == {"closed"}


def test_hold_of_a_handler_ends_with_a_ramp(app, line):
    @app.job(uses="gateway")
    def polite(n: int) -> None:
        if not line.calls:
            line.calls.append(n)
            raise Hold("gateway", until=60, reason="it says maintenance")

    jobs = [polite.enqueue(n=n) for n in range(4)]
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    advance(app, 61)
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}


# -- the retry budget ----------------------------------------------------------------------------
@pytest.mark.seed("002-53")
def test_empty_budget_delays_retries_and_fails_none(app, line, call):
    app.dependency("gateway", budget="6/m", open_at=0.99, min_calls=10_000)
    app.dependencies.close("gateway", until=86_400, reason="no breaker in this test")
    line.down()
    later = call.options(policy=Policy(backoff=Fixed(600)))
    jobs = [later.enqueue(n=n) for n in range(12)]
    app.run_inline()
    line.up()
    advance(app, 601)
    app.run_inline()
    assert len(line.calls) == 12 + 6, "six retries a minute"
    assert app.dependencies.get("gateway").tokens < 1
    run_until_ended(app, jobs, 90)
    assert job_states(jobs) == {"succeeded"}


@pytest.mark.any_store
def test_three_hundred_retries_without_fresh_jobs_complete(app, line, call):
    app.dependencies.close("gateway", until=86_400, reason="no breaker in this test")
    line.down()
    later = call.options(policy=Policy(backoff=Fixed(600)))
    jobs = [later.enqueue(n=n) for n in range(300)]
    app.run_inline()
    line.up()
    advance(app, 601)
    app.run_inline()
    assert job_states(jobs) == {"succeeded"}


# -- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "explode"}, "mode must be hold or fail_fast"),
        ({"probe": "function"}, "probe must be a function"),
        ({"open_at": 0}, "open_at must be a share"),
        ({"open_at": 1.5}, "open_at must be a share"),
        ({"min_calls": 0}, "min_calls must be a whole number"),
        ({"window": 0}, "window must be above 0 s"),
        ({"cool_down": float("nan")}, "cool_down must be a finite"),
        ({"budget": "a lot"}, "budget must be retries per success"),
        ({"budget": -1}, "budget must be retries per success"),
        ({"slow": 0}, "slow must be above 0 s"),
    ],
)
def test_invalid_option_is_refused_when_declared(app, options, error):
    with pytest.raises((ConfigError, Refused), match=error):
        app.dependency("gateway", **options)
