"""A manual retry continues at the failed step, at another one, or with results set by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from mulligan import Context, Policy, State
from mulligan.core.errors import OverrideRefused
from support.app_tools import run_job

ONCE = Policy(max_retries=0)


@pytest.fixture
def orders(app):
    """A job of three steps, of which the second fails until `app.repaired` is set."""
    app.calls = Counter()
    app.repaired = False

    def call(name):
        app.calls[name] += 1
        if name == "reserve" and not app.repaired:
            raise ConnectionResetError("the stock is down")
        return f"{name} {app.calls[name]}"

    @app.job(policy=ONCE)
    def order(ctx: Context, number: int = 1) -> list[str]:
        del number
        return [ctx.step(name, call, name) for name in ("charge", "reserve", "mail")]

    app.order = order
    return app


def test_a_retry_continues_at_the_failed_step(orders):
    job = run_job(orders, orders.order.enqueue())
    assert job.state is State.DEAD
    orders.repaired = True
    orders.jobs.retry(job.id)
    assert run_job(orders, job).result == ["charge 1", "reserve 2", "mail 1"]


def test_a_retry_from_a_step_forgets_it_and_those_after_it(orders):
    job = run_job(orders, orders.order.enqueue())
    orders.repaired = True
    orders.jobs.retry(job.id, from_step="charge", reason="another card")
    assert run_job(orders, job).result == ["charge 2", "reserve 2", "mail 1"]


def test_results_can_be_set_by_hand(orders):
    job = run_job(orders, orders.order.enqueue())
    orders.jobs.retry(job.id, overrides={"steps": {"reserve": "by telephone"}}, reason="called")
    assert run_job(orders, job).result == ["charge 1", "by telephone", "mail 1"]
    [retried] = [event for event in orders.jobs.history(job.id) if event.type == "job.retried"]
    assert retried.data["changes"]["steps.reserve"]["after"] == "set by hand"
    assert "by telephone" not in str(retried.data)


def test_a_job_that_never_ran_can_get_results(orders):
    job = orders.order.options(delay=60).enqueue()
    orders.jobs.cancel(job.id)
    orders.jobs.retry(job.id, overrides={"steps": {"charge": "a", "reserve": "b"}})
    assert run_job(orders, job).result == ["a", "b", "mail 1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"from_step": "pay"}, "Recorded: charge, reserve"),
        ({"from_step": 3}, "from_step must be"),
        ({"overrides": {"steps": [1]}}, "must map names"),
        ({"overrides": {"steps": {"charge": object()}}}, "JSON"),
        ({"overrides": {"step": {}}}, "Possible: "),
    ],
)
def test_a_retry_that_names_no_step_is_refused_with_a_clear_error(orders, options, words):
    job = run_job(orders, orders.order.enqueue())
    with pytest.raises(Exception, match=words) as refused:
        orders.jobs.retry(job.id, **options)
    assert isinstance(refused.value, OverrideRefused) or "JSON" in words
    assert job.refresh().state is State.DEAD


def test_one_command_repairs_many_jobs_from_their_failed_step(orders):
    jobs = [orders.order.enqueue(number=number) for number in range(20)]
    orders.run_inline(seed=1)
    orders.operations.start("retry", "step:reserve", steps=[1, "rest"], rate=1000)
    orders.run_inline(seed=2)
    assert [job.refresh().state for job in jobs] == [State.DEAD] * 20
    [stopped] = orders.operations.list()
    assert (stopped.state, orders.calls["reserve"]) == ("stopped", 21)
    orders.repaired = True
    orders.operations.start("retry", "state:dead step:reserve", steps=[1, "rest"], rate=1000)
    orders.run_inline(seed=3)
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 20
    assert orders.calls["charge"] == 20


def test_an_operation_can_continue_from_another_step(orders):
    jobs = [orders.order.enqueue(number=number) for number in range(3)]
    orders.run_inline(seed=1)
    orders.repaired = True
    orders.operations.start("retry", "step:reserve", from_step="charge", rate=1000)
    orders.run_inline(seed=3)
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 3
    assert orders.calls["charge"] == 6


def test_filters_know_the_failed_step(orders):
    job = run_job(orders, orders.order.enqueue())
    assert [found.id for found in orders.jobs.list("step:reserve")] == [job.id]
    assert [found.id for found in orders.jobs.list("step:charge,mail")] == []
    assert [found.id for found in orders.jobs.list("state:dead step:mail,reserve")] == [job.id]
