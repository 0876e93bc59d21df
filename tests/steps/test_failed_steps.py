"""A failure inside a step carries its step; a step has its own policy, limit and dependencies."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mulligan import Context, Fail, Fixed, Policy, Retry, State
from mulligan.core.errors import Refused
from mulligan.core.job import Gate
from mulligan.guards.queries import GuardQueries
from mulligan.steps.queries import StepQueries
from support.app_tools import load_attempts, run_job

NOW = Policy(max_retries=9, backoff=Fixed(0))
ONCE = Policy(max_retries=0)


def stored(app, job):
    """Return (name, state) of the steps of a job."""
    with app.store.read() as tx:
        return [(row.name, row.state) for row in StepQueries(tx).list_steps(job.id)]


def refuse_connection(*_args):
    raise ConnectionResetError("connection reset by peer")


def test_a_failure_carries_its_step_in_evidence_fingerprint_and_why(app):
    @app.job(policy=ONCE)
    def fails(ctx: Context, step: str) -> None:
        ctx.step("before", lambda: 1)
        ctx.step(step, refuse_connection)

    first, second = fails.enqueue(step="charge"), fails.enqueue(step="ship")
    app.run_inline(seed=1)
    dead = first.refresh()
    assert dead.error["step"] == "charge"
    assert "step charge" in dead.why
    assert ", step charge" in str(app.jobs.explain(first.id))
    groups = {load_attempts(app, job)[0].fingerprint for job in (first, second)}
    assert len(groups) == 2
    assert stored(app, first) == [("before", "done"), ("charge", "failed")]


def test_failures_of_all_keys_of_a_step_are_one_group(app):
    @app.job(policy=ONCE)
    def fails(ctx: Context, page: int) -> None:
        ctx.step("page", refuse_connection, page, key=page)

    jobs = [fails.enqueue(page=page) for page in (1, 2)]
    app.run_inline(seed=1)
    attempts = [load_attempts(app, job)[0] for job in jobs]
    assert len({attempt.fingerprint for attempt in attempts}) == 1
    assert [job.refresh().error["step"] for job in jobs] == ["page[1]", "page[2]"]


def test_an_exception_raised_from_that_of_a_step_is_of_the_step(app):
    @app.job(policy=ONCE)
    def wraps(ctx: Context) -> None:
        try:
            ctx.step("charge", refuse_connection)
        except ConnectionError as error:
            raise Fail("GW_5XX") from error

    @app.job(policy=ONCE)
    def recovers(ctx: Context) -> None:
        with contextlib.suppress(ConnectionError):
            ctx.step("charge", refuse_connection)
        raise OSError("something else")

    assert run_job(app, wraps.enqueue()).error["step"] == "charge"
    assert "step" not in run_job(app, recovers.enqueue()).error


def test_the_policy_of_a_step_counts_the_attempts_of_that_step(app):
    calls = []

    def flaky(name):
        calls.append(name)
        if calls.count(name) <= 3:
            raise ConnectionResetError(name)
        return name

    step_policy = Policy(max_retries=3, backoff=Fixed(0))

    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def two_steps(ctx: Context) -> str:
        ctx.step("first", flaky, "first", policy=step_policy)
        ctx.step("second", flaky, "second", policy=step_policy)
        if ctx.attempt == 7:
            raise ConnectionResetError("charged to the job")
        return "done"

    job = run_job(app, two_steps.enqueue())
    assert (job.state, job.result, job.failures) == (State.SUCCEEDED, "done", 7)
    assert calls == ["first"] * 4 + ["second"] * 4
    reasons = [attempt.reason for attempt in load_attempts(app, job)]
    assert reasons[2].startswith("step first: retry 3 of 3")
    assert reasons[3].startswith("step second: retry 1 of 3")
    assert reasons[6].startswith("retry 1 of 1")


def test_a_step_that_has_used_its_retries_ends_the_job(app):
    @app.job(policy=NOW)
    def fails(ctx: Context) -> None:
        ctx.step("charge", refuse_connection, policy=Policy(max_retries=2, backoff=Fixed(0)))

    job = run_job(app, fails.enqueue())
    assert (job.state, job.attempts) == (State.DEAD, 3)
    assert "step charge: 2 of 2 retries used" in job.why


def test_a_manual_retry_counts_the_attempts_of_a_step_from_zero(app):
    @app.job
    def fails(ctx: Context) -> None:
        ctx.step("charge", refuse_connection, policy=Policy(max_retries=1, backoff=Fixed(0)))

    job = run_job(app, fails.enqueue())
    app.jobs.retry(job.id)
    assert run_job(app, job).token == 4


def test_a_step_may_request_a_retry(app):
    @app.job(policy=ONCE)
    def asks(ctx: Context) -> int:
        def later():
            if ctx.attempt == 1:
                raise Retry(after=0, reason="not ready")
            return 5

        return ctx.step("ready", later, policy=Policy(max_retries=1))

    assert run_job(app, asks.enqueue()).result == 5


def test_an_async_step_is_stopped_at_its_own_limit(app):
    async def hangs():
        await asyncio.sleep(60)

    @app.job(policy=ONCE)
    async def waits(ctx: Context) -> None:
        await ctx.step_async("slow", hangs, timeout=0.05)

    error = run_job(app, waits.enqueue()).error
    assert (error["class"], error["step"]) == ("timeout", "slow")


def test_only_the_dependencies_of_the_failed_step_are_blamed(app):
    for key in ("cards", "stock"):
        app.dependency(key, min_calls=2)

    @app.job(uses=("cards", "stock"), policy=NOW)
    def fulfil(ctx: Context) -> None:
        ctx.step("charge", refuse_connection, uses="cards")

    for _ in range(4):
        fulfil.enqueue()
    app.run_inline(seed=1)
    states = {dependency.key: dependency.state for dependency in app.dependencies.list()}
    assert states == {"cards": "open", "stock": "closed"}


def close_gate(app, key):
    with app.store.begin() as tx:
        gate = Gate("dependency", key, tx.now(), None, "cards are down", "ada")
        GuardQueries(tx).close_gate(gate)


def test_a_closed_dependency_delays_the_job_before_the_step_uncharged(app):
    calls = []

    @app.job(uses=("cards", "stock"), policy=ONCE)
    def fulfil(ctx: Context) -> str:
        ctx.step("reserve", lambda: calls.append("reserve"), uses="stock")
        if ctx.attempt == 1:
            close_gate(app, "cards")
        ctx.step("charge", lambda: calls.append("charge"), uses="cards")
        return "done"

    job = run_job(app, fulfil.enqueue())
    assert (job.state, job.phase, job.failures) == (State.QUEUED, "held", 0)
    assert "step charge waits for cards, which is down" in load_attempts(app, job)[0].reason
    assert calls == ["reserve"]
    app.dependencies.close("cards", reason="they are back")
    assert run_job(app, job).result == "done"
    assert calls == ["reserve", "charge"]


def test_a_step_names_dependencies_of_its_job(app):
    @app.job(uses="stock", policy=ONCE)
    def wrong(ctx: Context) -> str:
        with pytest.raises(Refused) as refused:
            ctx.step("charge", refuse_connection, uses="cards")
        return str(refused.value)

    assert "Add it to uses=" in run_job(app, wrong.enqueue()).result


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": 3}, "policy must be Policy"),
        ({"timeout": 0}, "timeout must be above"),
        ({"doubt": "maybe"}, "doubt must be"),
        ({"done": 3}, "done= must be a function"),
        ({"undo": lambda value: value}, "import"),
        ({"uses": "a b"}, "by their keys"),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_refused_with_a_clear_error(app, options, words):
    @app.job
    def wrong(ctx: Context) -> str:
        with pytest.raises(Refused) as refused:
            ctx.step("charge", lambda: 1, **options)
        return str(refused.value)

    assert words in run_job(app, wrong.enqueue()).result


def test_results_that_nobody_asked_for_are_reported(app):
    @app.job(policy=NOW)
    def changes(ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.step("old", lambda: 1)
            ctx.step("kept", lambda: 2)
            raise OSError("once")
        ctx.step("kept", lambda: 3)

    job = run_job(app, changes.enqueue())
    assert job.state is State.SUCCEEDED
    assert "without asking for the recorded step old;" in str(app.jobs.explain(job.id))


def test_a_decorated_function_is_a_step_with_its_options(app):
    calls = []

    @app.step(name="charge", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def take_money(order: int) -> int:
        calls.append(order)
        if len(calls) == 1:
            raise ConnectionResetError("once")
        return order

    @app.step
    def note(text: str) -> str:
        return text

    @app.job(policy=ONCE)
    def fulfil(ctx: Context) -> list[object]:
        return [ctx.step(take_money, 7), ctx.step("noted", note, "x"), ctx.step(note, "y")]

    job = run_job(app, fulfil.enqueue())
    assert job.result == [7, "x", "y"]
    assert [name for name, _ in stored(app, job)] == ["charge", "noted", "note"]
    assert take_money(3) == 3
