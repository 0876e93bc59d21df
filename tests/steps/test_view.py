"""`app.jobs.steps`: what people see of the steps of a job."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan import Context, Policy
from support.app_tools import run_job


@pytest.fixture
def order(app):
    """A dead job: one step is done, one has failed."""

    def reserve():
        raise ConnectionResetError("the stock is down")

    @app.job(policy=Policy(max_retries=0))
    def order(ctx: Context) -> None:
        ctx.checkpoint("page", 3)
        ctx.step("charge", lambda: {"cents": 4200})
        ctx.step("reserve", reserve)

    return run_job(app, order.enqueue())


def test_steps_have_their_result_or_the_code_of_their_failure(app, order):
    charge, reserve = app.jobs.steps(order.id)
    assert (charge.name, charge.state, charge.value, charge.code) == (
        "charge",
        "done",
        {"cents": 4200},
        "",
    )
    assert (reserve.state, reserve.value, reserve.code) == ("failed", None, "CONNECTION")
    assert charge.seconds >= 0
    assert charge.may_continue_here


def test_a_step_that_a_person_chose_runs_again(app, order):
    retried = app.jobs.retry(order.id, from_step="charge", reason="another card")
    charge, _ = app.jobs.steps(retried.id)
    assert (charge.state, charge.actor != "", charge.may_continue_here) == (
        "runs again",
        True,
        False,
    )


def test_a_wait_says_until_when(app):
    @app.job
    def cools_off(ctx: Context) -> None:
        ctx.sleep("cooling off", timedelta(days=7))

    job = run_job(app, cools_off.enqueue())
    [sleep] = app.jobs.steps(job.id)
    assert (sleep.kind, sleep.state, sleep.seconds) == ("sleep", "waiting", None)
    assert sleep.until == job.refresh().run_at
    assert not sleep.may_continue_here
