"""A step that may have happened: `done=` is asked, or a person decides."""

from __future__ import annotations

import pytest

from mulligan import Context, Fixed, Policy, State
from mulligan.core.errors import Refused
from mulligan.steps.queries import StepQueries
from support.app_tools import load_attempts, run_job

NOW = Policy(max_retries=9, max_losses=9, backoff=Fixed(0))


def stored(app, job):
    """Return (name, state) of the steps of a job."""
    with app.store.read() as tx:
        return [(row.name, row.state) for row in StepQueries(tx).list_steps(job.id)]


class Died(BaseException):
    """Ends an attempt as the death of its process does: nothing is recorded after it."""


@pytest.fixture
def shop(app):
    """A job whose step is interrupted once, after its call."""
    app.calls = []
    app.ended = []

    def charge(order):
        app.calls.append(order)
        if len(app.calls) == 1:
            raise Died
        return f"charged {order}"

    @app.job(policy=NOW)
    def parks(ctx: Context, order: int) -> str:
        return ctx.step("charge", charge, order, doubt="park")

    @app.job(policy=NOW)
    def asks(ctx: Context, order: int, happened: bool) -> str:
        def was_charged(order):
            return f"found {order}" if happened else None

        return ctx.step("charge", charge, order, done=was_charged)

    return app


def interrupted(app, kind, **payload):
    """Run a job until its step was interrupted and its next attempt has ended."""
    job = app.enqueue(f"shop.<locals>.{kind}", payload)
    return run_job(app, job)


def test_a_step_in_doubt_parks_the_job_with_choices(shop):
    job = interrupted(shop, "parks", order=7)
    assert (job.state, shop.calls) == (State.PARKED, [7])
    assert "step charge was called, and its result was not recorded" in job.why
    explanation = shop.jobs.explain(job.id)
    assert explanation.choices == ("run again", "it happened")
    attempt = load_attempts(shop, job)[-1]
    assert (attempt.code, attempt.verb) == ("STEP_IN_DOUBT", "park")
    assert stored(shop, job) == [("charge", "running")]
    assert [step.state for step in shop.jobs.steps(job.id)] == ["in doubt"]


def test_what_happened_is_recorded_with_its_value_and_not_called_again(shop):
    job = interrupted(shop, "parks", order=7)
    shop.jobs.release(job.id, choice="it happened", value="charged by hand", reason="asked")
    assert run_job(shop, job).result == "charged by hand"
    assert shop.calls == [7]


def test_what_did_not_happen_is_called_again(shop):
    job = interrupted(shop, "parks", order=7)
    shop.jobs.release(job.id, choice="run again")
    assert run_job(shop, job).result == "charged 7"
    assert shop.calls == [7, 7]


def test_a_release_without_a_choice_leaves_the_doubt(shop):
    job = interrupted(shop, "parks", order=7)
    shop.jobs.release(job.id)
    assert run_job(shop, job).state is State.PARKED
    assert shop.calls == [7]


def test_a_value_is_only_for_a_step_that_happened(shop):
    job = interrupted(shop, "parks", order=7)
    with pytest.raises(Refused, match="it happened"):
        shop.jobs.release(job.id, choice="run again", value=3)
    assert job.refresh().state is State.PARKED


@pytest.mark.parametrize(("happened", "calls"), [(True, [7]), (False, [7, 7])])
def test_done_is_asked_only_in_doubt(shop, happened, calls):
    job = interrupted(shop, "asks", order=7, happened=happened)
    assert job.result == ("found 7" if happened else "charged 7")
    assert shop.calls == calls


def test_a_step_that_fails_by_itself_is_not_in_doubt(app):
    calls = []

    def charge():
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError("refused")
        return "charged"

    @app.job(policy=NOW)
    def fails(ctx: Context) -> str:
        return ctx.step("charge", charge, doubt="park")

    assert run_job(app, fails.enqueue()).result == "charged"


def test_operations_decide_the_doubt_of_many_jobs(shop):
    jobs = [interrupted(shop, "parks", order=order) for order in (1,)]
    shop.operations.start("release", "state:parked", choice="run again")
    shop.run_inline(seed=3)
    assert [job.refresh().result for job in jobs] == ["charged 1"]
