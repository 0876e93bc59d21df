"""A step is called once for a job, and later attempts get its result."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mulligan import Context, Fixed, Policy, State
from mulligan.core.errors import Refused
from mulligan.steps.queries import StepQueries
from support.app_tools import run_job

NOW = Policy(max_retries=9, backoff=Fixed(0))


def stored(app, job):
    """Return (name, state, value) of the steps of a job."""
    with app.store.read() as tx:
        return [(row.name, row.state, row.value) for row in StepQueries(tx).list_steps(job.id)]


def test_a_recorded_step_is_not_called_again(app):
    calls = []

    def charge(order):
        calls.append(order)
        return {"charge": order}

    @app.job(policy=NOW)
    def place_order(ctx: Context, order: int) -> object:
        charged = ctx.step("charge", charge, order)
        if ctx.attempt < 3:
            raise OSError("no connection")
        return charged

    job = place_order.enqueue(order=7)
    assert run_job(app, job).result == {"charge": 7}
    assert calls == [7]
    assert stored(app, job) == [("charge", "done", '{"charge":7}')]


def test_the_result_is_durable_before_step_returns(app, make_app):
    other = make_app()
    found = []

    @app.job
    def looks(ctx: Context) -> None:
        ctx.step("first", lambda: 1)
        found.extend(stored(other, ctx.job))

    run_job(app, looks.enqueue())
    assert found == [("first", "done", "1")]


def test_steps_are_found_by_name_in_any_order(app):
    calls = []

    def note(name):
        calls.append(name)
        return name

    @app.job(policy=NOW)
    def reorders(ctx: Context) -> list[str]:
        if ctx.attempt == 1:
            ctx.step("a", note, "a")
            ctx.step("removed later", note, "removed")
            ctx.step("b", note, "b")
            raise OSError("once")
        return [ctx.step(name, note, name) for name in ("b", "new", "a")]

    job = reorders.enqueue()
    assert run_job(app, job).result == ["b", "new", "a"]
    assert calls == ["a", "removed", "b", "new"]


@pytest.mark.parametrize(
    ("later", "called", "unused"),
    [
        (("a", "new", "b", "c"), ["new"], []),  # inserted
        (("new", "a", "b", "c"), ["new"], []),
        (("a", "c"), [], ["b"]),  # removed
        ((), [], ["a", "b", "c"]),
        (("a", "renamed", "c"), ["renamed"], ["b"]),
        (("c", "a", "b"), [], []),  # reordered
        (("c", "new", "renamed", "a"), ["new", "renamed"], ["b"]),
    ],
)
def test_steps_may_change_between_two_attempts(app, later, called, unused):
    calls = []

    def note(name):
        calls.append(name)
        return name

    @app.job(policy=NOW)
    def changes(ctx: Context) -> list[str]:
        names = ("a", "b", "c") if ctx.attempt == 1 else later
        results = [ctx.step(name, note, name) for name in names]
        if ctx.attempt == 1:
            raise OSError("once")
        return results

    job = run_job(app, changes.enqueue())
    assert (job.state, job.result, job.failures) == (State.SUCCEEDED, list(later), 1)
    assert calls == ["a", "b", "c", *called]
    story = str(app.jobs.explain(job.id))
    noun = "step" if len(unused) == 1 else "steps"
    sentence = f"without asking for the recorded {noun} {', '.join(unused)};"
    assert (sentence in story) if unused else ("without asking" not in story), story


def test_a_name_twice_in_an_attempt_is_refused_unless_its_key_differs(app):
    @app.job(policy=Policy(max_retries=0))
    def keys(ctx: Context) -> list[int]:
        return [ctx.step("page", lambda n: n, n, key=n) for n in range(3)]

    @app.job
    def twice(ctx: Context) -> str:
        ctx.step("page", lambda: 1)
        with pytest.raises(Refused) as refused:
            ctx.step("page", lambda: 2)
        return str(refused.value)

    job = keys.enqueue()
    assert run_job(app, job).result == [0, 1, 2]
    assert [name for name, _, _ in stored(app, job)] == ["page[0]", "page[1]", "page[2]"]
    assert "another key=" in run_job(app, twice.enqueue()).result


async def double(n: int) -> int:
    return 2 * n


def test_async_steps_are_awaited_and_sync_functions_run_on_a_thread(app):
    @app.job(policy=NOW)
    async def mixed(ctx: Context) -> list[int]:
        first = await ctx.step_async("async", double, 4)
        second = await ctx.step_async("sync", lambda n: n + 1, first)
        if ctx.attempt == 1:
            raise OSError("once")
        return [first, second]

    assert run_job(app, mixed.enqueue()).result == [8, 9]


@dataclass
class Receipt:
    order: int
    cents: int


def test_a_result_is_of_the_annotated_type_in_every_attempt(app):
    def charge(order: int) -> Receipt:
        return Receipt(order, 4200)

    kinds = []

    @app.job(policy=NOW)
    def place_order(ctx: Context) -> int:
        receipt = ctx.step("charge", charge, 7)
        kinds.append(type(receipt))
        if ctx.attempt == 1:
            raise OSError("once")
        return receipt.cents

    assert run_job(app, place_order.enqueue()).result == 4200
    assert kinds == [Receipt, Receipt]


def test_steps_outlive_a_manual_retry(app):
    calls = []

    @app.job(policy=Policy(max_retries=0))
    def fails_once(ctx: Context) -> int:
        value = ctx.step("first", lambda: calls.append(1) or 5)
        if len(calls) == 1 and ctx.job.generation == 1:
            raise OSError("no")
        return value

    job = fails_once.enqueue()
    assert run_job(app, job).state is State.DEAD
    app.jobs.retry(job.id)
    assert run_job(app, job).result == 5
    assert calls == [1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ctx: ctx.step("", len, "a"), "name"),
        (lambda ctx: ctx.step("now", 3), "must be a function"),
        (lambda ctx: ctx.step("object", object), "JSON"),
        (lambda ctx: ctx.step("large", lambda: "x" * 2_000_000), "limit"),
        (lambda ctx: ctx.step("later", double, 4), "step_async"),
        (lambda ctx: ctx.step("keyed", len, "a", key=True), "key="),
    ],
)
def test_a_step_that_cannot_be_recorded_is_refused_with_a_clear_error(app, call, words):
    @app.job
    def wrong(ctx: Context) -> str:
        with pytest.raises(Refused) as refused:
            call(ctx)
        return str(refused.value)

    assert words in run_job(app, wrong.enqueue()).result


def test_a_step_and_a_checkpoint_cannot_have_one_name(app):
    @app.job
    def both(ctx: Context) -> str:
        ctx.checkpoint("page", 3)
        with pytest.raises(Refused) as refused:
            ctx.step("page", lambda: 4)
        return str(refused.value)

    assert "has a checkpoint of that name" in run_job(app, both.enqueue()).result


def test_a_finished_step_is_an_event(app):
    @app.job
    def one(ctx: Context) -> None:
        ctx.step("first", lambda: 1)

    job = one.enqueue()
    run_job(app, job)
    [event] = [event for event in app.jobs.history(job.id) if event.type == "job.step_finished"]
    assert (event.data["step"], event.data["state"], event.token) == ("first", "done", 1)
