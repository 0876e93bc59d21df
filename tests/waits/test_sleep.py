"""A sleeping job uses no slot, is not charged, and continues behind its sleep."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan import Context, Policy, State
from mulligan.core.errors import Refused
from support.app_tools import (
    advance,
    drain_anywhere,
    event_types,
    load_attempts,
    load_row,
    run_job,
)

DAY = 86_400


@pytest.fixture
def calls():
    return []


@pytest.fixture
def cool_off(app, calls):
    @app.job(policy=Policy(max_retries=0, max_snoozes=0))
    def cool_off(ctx: Context) -> str:
        calls.append(ctx.step("before", lambda: "called once"))
        ctx.sleep("cooling off", timedelta(days=7))
        return "cool"

    return cool_off


def test_a_sleeping_job_waits_until_its_time_and_continues(app, cool_off, calls):
    job = run_job(app, cool_off.enqueue())
    assert (job.state, job.phase) == (State.QUEUED, "waiting")
    assert job.why.startswith("sleeps until ")
    assert "(cooling off)" in job.why
    advance(app, 7 * DAY - 60)
    assert run_job(app, job).phase == "waiting"
    advance(app, 61)
    assert run_job(app, job).result == "cool"
    assert calls == ["called once", "called once"]


def test_a_sleep_is_not_charged(app, cool_off):
    job = run_job(app, cool_off.enqueue())
    row = load_row(app, job)
    assert (row.failures, row.losses, row.snoozes) == (0, 0, 0)
    [attempt] = load_attempts(app, job)
    assert (attempt.ended, attempt.verb, attempt.code) == ("waiting", "wait", None)


def test_a_sleep_is_an_event_with_its_end(app, cool_off):
    job = run_job(app, cool_off.enqueue())
    event = app.jobs.history(job.id)[-1]
    assert event.type == "job.waiting"
    assert (event.data["step"], event.data["for"]) == ("cooling off", "sleep")
    assert event.data["next_retry_at"] == load_row(app, job).run_at


def test_a_drain_of_scheduled_jobs_ends_sleeps(app, cool_off):
    job = cool_off.enqueue()
    drained = drain_anywhere(app, scheduled=True)
    assert job.refresh().result == "cool"
    assert drained.moved >= timedelta(days=7) - timedelta(seconds=1)


def test_a_sleep_that_is_over_is_recorded(app, cool_off):
    job = cool_off.enqueue()
    drain_anywhere(app, scheduled=True)
    assert event_types(app, job) == [
        "queued",
        "started",
        "step_finished",
        "waiting",
        "started",
        "step_finished",
        "succeeded",
    ]


def test_a_job_that_runs_again_early_sleeps_until_the_same_time(app, cool_off):
    job = run_job(app, cool_off.enqueue())
    due = load_row(app, job).run_at
    advance(app, DAY)
    app.jobs.cancel(job.id)
    app.jobs.retry(job.id)
    assert run_job(app, job).phase == "waiting"
    assert load_row(app, job).run_at == due


def test_a_caught_sleep_still_ends_the_attempt(app):
    @app.job(policy=Policy(max_retries=0))
    def catches(ctx: Context) -> str:
        try:
            ctx.sleep("short", 60)
        except BaseException as error:
            raise RuntimeError("something else") from error
        return "awake"

    job = run_job(app, catches.enqueue())
    assert job.phase == "waiting"
    advance(app, 61)
    assert run_job(app, job).result == "awake"


def test_an_async_handler_sleeps_without_a_slot(app):
    @app.job
    async def naps(ctx: Context) -> str:
        await ctx.sleep_async("nap", 60)
        return "awake"

    job = run_job(app, naps.enqueue())
    assert job.phase == "waiting"
    advance(app, 61)
    assert run_job(app, job).result == "awake"


def test_a_sleep_beyond_the_deadline_ends_the_job(app, cool_off):
    job = run_job(app, cool_off.options(deadline=DAY).enqueue())
    assert (job.state, job.error["code"]) == (State.DEAD, "DEADLINE_PASSED")


def test_waiting_jobs_are_found_by_their_phase(app, cool_off):
    waiting = run_job(app, cool_off.enqueue())
    cool_off.options(delay=60).enqueue()
    assert [job.id for job in app.jobs.list("phase:waiting")] == [waiting.id]
    assert app.jobs.count("phase:waiting") == 1
    assert app.jobs.list("phase:backing_off") == []


def test_a_cancelled_sleep_is_forgotten_with_its_row(app, cool_off):
    job = run_job(app, cool_off.enqueue())
    assert app.jobs.cancel(job.id).state is State.CANCELLED
    assert load_row(app, job).waits is None


@pytest.mark.parametrize("duration", [-1, float("nan"), "1h", None, float("inf")])
def test_an_impossible_duration_is_refused(app, duration):
    @app.job
    def wrong(ctx: Context) -> str:
        with pytest.raises(Refused) as refused:
            ctx.sleep("nap", duration)
        return str(refused.value)

    assert "duration" in run_job(app, wrong.enqueue()).result


def test_the_age_of_a_job_does_not_contain_its_waits(app):
    @app.job(policy=Policy(max_retries=1, max_age=3600))
    def fails_later(ctx: Context) -> None:
        ctx.sleep("nap", DAY)
        raise ConnectionError("reset")

    job = run_job(app, fails_later.enqueue())
    advance(app, DAY + 1)
    assert run_job(app, job).phase == "backing_off"
