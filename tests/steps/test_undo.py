"""Finished steps are undone in reverse order when their job dies or is cancelled."""

from __future__ import annotations

import pytest

from mulligan import Cancel, Context, Fixed, Policy, Retry, State
from mulligan.core.errors import IllegalMove
from mulligan.doctor.verify import verify
from mulligan.steps.queries import StepQueries
from support import undoable
from support.app_tools import advance, load_attempts, run_job

ONCE = Policy(max_retries=0, backoff=Fixed(0))
UNDONE = ["charge", "reserve", "put back parcel 7", "give back 7 4200"]


@pytest.fixture(autouse=True)
def fresh():
    undoable.calls.clear()
    undoable.failures.clear()


def stored(app, job):
    """Return (name, state) of the steps of a job."""
    with app.store.read() as tx:
        return [(row.name, row.state) for row in StepQueries(tx).list_steps(job.id)]


@pytest.fixture
def orders(app):
    """Jobs that charge and reserve, and then end as their payload says."""

    def two_steps(ctx, order):
        ctx.step("charge", undoable.charge, order, undo=undoable.give_back)
        ctx.step("reserve", undoable.reserve, order, undo=undoable.put_back)

    @app.job(name="order", policy=ONCE)
    def place_order(ctx: Context, order: int, end: str = "die") -> object:
        two_steps(ctx, order)
        if end == "cancel":
            return Cancel("not wanted")
        if end == "wait":
            return Retry(after=3600) if ctx.attempt == 1 else "done"
        if end == "die":
            raise ValueError("no such address")
        return "done"

    @app.job(name="by_hand", policy=Policy(max_retries=0, undo="by_hand"))
    def by_hand(ctx: Context, order: int) -> None:
        two_steps(ctx, order)
        raise ValueError("no such address")

    @app.job(name="patient", policy=Policy(max_retries=3))
    def patient(ctx: Context, order: int) -> object:
        two_steps(ctx, order)
        return Retry(after=3600)

    app.kinds_for_test = (place_order, by_hand, patient)
    return app


def test_a_dead_job_has_undone_its_steps_in_reverse_order(orders):
    job = run_job(orders, orders.enqueue("order", {"order": 7}))
    assert undoable.calls == UNDONE
    assert (job.state, job.error["code"]) == (State.DEAD, "INVALID_INPUT")
    assert "undone: 2 of 2 steps" in job.why
    assert stored(orders, job) == [("charge", "undone"), ("reserve", "undone")]
    verbs = [attempt.verb for attempt in load_attempts(orders, job)]
    assert verbs == ["undo", "die"]
    types = [event.type for event in orders.jobs.history(job.id)]
    assert types[-1] == "job.died"
    assert types.count("job.undoing") == 1
    assert "undid the steps" in str(orders.jobs.explain(job.id))


def test_while_it_undoes_its_phase_is_undoing(orders):
    job = orders.enqueue("order", {"order": 7})
    with orders.inline(seed=1).session() as run_next:
        run_next()
        waiting = job.refresh()
    assert (waiting.state, waiting.phase) == (State.QUEUED, "undoing")
    assert "undoes its steps before it ends" in waiting.why
    assert orders.jobs.cancel(job.id).state is State.QUEUED
    assert run_job(orders, job).state is State.DEAD


def test_a_handler_that_cancels_its_job_undoes_it(orders):
    job = run_job(orders, orders.enqueue("order", {"order": 7, "end": "cancel"}))
    assert (job.state, undoable.calls) == (State.CANCELLED, UNDONE)
    assert "not wanted; undone: 2 of 2 steps" in job.why


def test_a_cancelled_waiting_job_undoes_its_steps(orders):
    job = run_job(orders, orders.enqueue("patient", {"order": 7}))
    assert job.state is State.QUEUED
    cancelled = orders.jobs.cancel(job.id, reason="the customer called")
    assert cancelled.phase in {"undoing", "no_worker"}
    job = run_job(orders, job)
    assert (job.state, undoable.calls) == (State.CANCELLED, UNDONE)
    assert "the customer called" in job.why


def test_a_job_past_its_deadline_undoes_its_steps(orders):
    job = run_job(orders, orders.kinds_for_test[2].options(deadline=7200).enqueue(order=7))
    advance(orders, 10_000)
    job = run_job(orders, job)
    assert (job.state, job.error["code"]) == (State.DEAD, "DEADLINE_PASSED")
    assert undoable.calls == UNDONE


def test_a_job_that_succeeds_keeps_its_steps(orders):
    job = run_job(orders, orders.enqueue("order", {"order": 7, "end": "succeed"}))
    assert (job.state, undoable.calls) == (State.SUCCEEDED, ["charge", "reserve"])


def test_an_undo_is_retried(orders):
    undoable.failures["put back parcel 7"] = 2
    job = run_job(orders, orders.enqueue("order", {"order": 7}))
    assert job.state is State.DEAD
    assert undoable.calls == ["charge", "reserve", *["put back parcel 7"] * 3, "give back 7 4200"]
    reasons = [attempt.reason for attempt in load_attempts(orders, job)]
    assert reasons[1].startswith("step reserve/undo: retry 1 of 5")


def test_an_undo_that_fails_for_good_parks_the_job(orders):
    undoable.failures["put back parcel 7"] = 6
    job = run_job(orders, orders.enqueue("order", {"order": 7}))
    assert job.state is State.PARKED
    assert "a step could not be undone: step reserve/undo" in job.why
    assert orders.jobs.explain(job.id).choices == ("run again", "leave the rest")
    orders.jobs.release(job.id, choice="run again")
    job = run_job(orders, job)
    assert (job.state, job.error["code"]) == (State.DEAD, "INVALID_INPUT")
    assert undoable.calls[-2:] == ["put back parcel 7", "give back 7 4200"]


def test_a_person_may_leave_the_rest(orders):
    undoable.failures["give back 7 4200"] = 6
    job = run_job(orders, orders.enqueue("order", {"order": 7}))
    orders.jobs.release(job.id, choice="leave the rest")
    job = run_job(orders, job)
    assert job.state is State.DEAD
    assert "undone: 1 of 2 steps; the rest was left by a person" in job.why


def test_a_retry_after_an_undo_calls_the_steps_again(orders):
    job = run_job(orders, orders.enqueue("order", {"order": 7}))
    orders.jobs.retry(job.id)
    job = run_job(orders, job)
    assert (job.state, undoable.calls) == (State.DEAD, UNDONE * 2)


def test_a_policy_leaves_the_undo_to_a_person(orders):
    job = run_job(orders, orders.enqueue("by_hand", {"order": 7}))
    assert (job.state, undoable.calls) == (State.DEAD, ["charge", "reserve"])
    orders.jobs.undo(job.id, reason="refund")
    job = run_job(orders, job)
    assert (job.state, job.error["code"]) == (State.DEAD, "INVALID_INPUT")
    assert undoable.calls == UNDONE
    with pytest.raises(IllegalMove, match="no finished step"):
        orders.jobs.undo(job.id)


def test_a_cancelled_job_can_be_undone_by_hand(orders):
    job = run_job(orders, orders.enqueue("by_hand", {"order": 7}))
    orders.jobs.discard(job.id, reason="obsolete")
    orders.jobs.undo(job.id)
    assert run_job(orders, job).state is State.CANCELLED
    assert undoable.calls == UNDONE


def test_async_undo_functions_run_in_sync_and_async_jobs(app):
    @app.job(name="sync", policy=ONCE)
    def sync(ctx: Context) -> None:
        ctx.step("reserve", undoable.reserve, 1, undo=undoable.put_back_async)
        raise ValueError("no")

    @app.job(name="async", policy=ONCE)
    async def asynchronous(ctx: Context) -> None:
        await ctx.step_async("reserve", undoable.reserve, 2, undo=undoable.put_back_async)
        await ctx.step_async("charge", undoable.charge, 2, undo=undoable.give_back)
        raise ValueError("no")

    for kind in (sync, asynchronous):
        assert run_job(app, kind.enqueue()).state is State.DEAD
    undone = [call for call in undoable.calls if "back" in call]
    assert undone == ["put back async parcel 1", "give back 2 4200", "put back async parcel 2"]


def test_an_undo_that_this_app_does_not_have_parks_the_job(app, monkeypatch):
    @app.job(policy=ONCE)
    def fails(ctx: Context) -> None:
        ctx.step("reserve", undoable.reserve, 1, undo=undoable.put_back)
        monkeypatch.delattr(undoable, "put_back")
        raise ValueError("no")

    job = run_job(app, fails.enqueue())
    assert job.state is State.PARKED


def test_the_history_of_undone_jobs_is_sound(orders):
    undoable.failures["put back parcel 7"] = 6
    orders.enqueue("order", {"order": 7})
    orders.enqueue("order", {"order": 8, "end": "cancel"})
    patient = run_job(orders, orders.enqueue("patient", {"order": 9}))
    orders.jobs.cancel(patient.id)
    orders.run_inline(seed=2)
    report = verify(orders.store)
    assert report.violations == (), report
