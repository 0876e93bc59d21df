"""A wait is answered once: by the first answer, or by its default at its end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from mulligan import Context, Policy, State
from mulligan.core.errors import AnswerRefused, NotFound, Refused
from mulligan.core.waits import NEVER
from mulligan.doctor.verify import verify
from support.app_tools import advance, drain_anywhere, event_types, load_row, run_job

DAY = 86_400


@pytest.fixture
def approval(app):
    @app.job(policy=Policy(max_retries=0))
    def approval(ctx: Context, order: int) -> object:
        return ctx.wait("approval", timeout=3 * DAY, default={"approved": False})

    return approval


@pytest.fixture
def patient(app):
    @app.job(policy=Policy(max_retries=0))
    def patient(ctx: Context) -> object:
        return ctx.wait("approval")

    return patient


def test_an_answer_wakes_the_job_and_is_its_value(app, approval):
    job = run_job(app, approval.enqueue(order=7))
    assert job.phase == "waiting"
    assert "waits for an answer to approval until" in job.why
    assert f"mulligan jobs tell {job.id} approval VALUE" in job.why
    told = app.tell(job=job, name="approval", value={"approved": True}, actor="ada")
    assert told.phase != "waiting"
    assert run_job(app, job).result == {"approved": True}


def test_an_answer_before_the_wait_is_kept(app, approval):
    job = approval.enqueue(order=7)
    app.tell(job=job.id, name="approval", value="early")
    assert run_job(app, job).result == "early"
    assert event_types(app, job)[:2] == ["queued", "answered"]


def test_an_answer_during_the_attempt_that_waits_is_kept(app, make_app):
    other = make_app()

    @app.job
    def asks(ctx: Context) -> object:
        if ctx.attempt == 1:
            other.tell(job=ctx.job.id, name="approval", value=1)
        return ctx.wait("approval")

    assert run_job(app, asks.enqueue()).result == 1


def test_after_the_timeout_the_default_is_the_value(app, approval):
    job = run_job(app, approval.enqueue(order=7))
    advance(app, 3 * DAY + 1)
    assert run_job(app, job).result == {"approved": False}
    with pytest.raises(AnswerRefused):
        app.tell(job=job, name="approval", value={"approved": True})


def test_the_default_stays_what_it_was(app):
    defaults = iter(["first", "second"])

    @app.job(policy=Policy(max_retries=3))
    def changes(ctx: Context) -> object:
        value = ctx.wait("approval", timeout=60, default=next(defaults, "later"))
        if ctx.job.failures == 0:
            raise ConnectionError("reset")
        return value

    job = changes.enqueue()
    drain_anywhere(app, scheduled=True)
    assert job.refresh().result == "second"


def test_an_answer_at_the_very_end_comes_too_late(app, approval):
    job = run_job(app, approval.enqueue(order=7))
    advance(app, 3 * DAY + 1)
    with pytest.raises(AnswerRefused) as refused:
        app.tell(job=job, name="approval", value={"approved": True})
    assert "the time to answer 'approval' ended" in str(refused.value)
    assert run_job(app, job).result == {"approved": False}


def test_a_wait_without_a_timeout_is_never_due(app, patient):
    job = run_job(app, patient.enqueue())
    assert load_row(app, job).run_at == NEVER
    assert job.next_retry_at is None
    drain_anywhere(app, scheduled=True)
    advance(app, 1000 * DAY)
    assert run_job(app, job).phase == "waiting"
    app.tell(job=job, name="approval", value=5)
    assert run_job(app, job).result == 5


def test_a_wait_without_a_timeout_outlives_the_next_deadline_check(app, patient):
    job = run_job(app, patient.options(deadline=DAY).enqueue())
    assert job.phase == "waiting"
    advance(app, DAY + 1)
    drain_anywhere(app)
    assert job.refresh().error["code"] == "DEADLINE_PASSED"


def answer_from_threads(app, job, *, threads=20, each=1):
    """Answer from many threads at once, each `each` times. Return values counted, and refusals."""

    def answer(n):
        try:
            app.tell(job=job, name="approval", value=n, actor=f"user {n % threads}")
        except AnswerRefused as refused:
            return str(refused)
        return n

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(answer, range(threads * each)))
    counted = [one for one in answers if isinstance(one, int)]
    return counted, {one for one in answers if isinstance(one, str)}


def test_of_twenty_threads_one_answers(app, approval):
    job = run_job(app, approval.enqueue(order=7))
    [counted], refusals = answer_from_threads(app, job)
    assert run_job(app, job).result == counted
    assert event_types(app, job).count("answered") == 1
    assert all(f"was answered by user {counted}" in one for one in refusals)


def test_of_twenty_threads_one_answers_twice_before_the_wait(app, approval):
    job = approval.enqueue(order=7)
    [counted], refusals = answer_from_threads(app, job, each=2)
    assert run_job(app, job).result == counted
    assert event_types(app, job).count("answered") == 1
    assert all(f"was answered by user {counted % 20}" in one for one in refusals)


def test_a_job_is_found_by_its_unique_key(app, approval):
    job = run_job(app, approval.options(unique="order:7").enqueue(order=7))
    app.tell(key="order:7", name="approval", value=1)
    assert run_job(app, job).result == 1
    with pytest.raises(NotFound):
        app.tell(key="order:7", name="approval", value=2)
    with pytest.raises(NotFound):
        app.tell(key="order:8", name="approval", value=2)


def test_a_key_of_several_jobs_is_refused(app, approval):
    for owner in ("acme", "blue"):
        approval.options(unique="order:7", owner=owner).enqueue(order=7)
    with pytest.raises(NotFound, match="2 jobs"):
        app.tell(key="order:7", name="approval", value=1)


def test_an_answer_after_the_end_of_a_job_is_refused(app, approval):
    done = approval.enqueue(order=7)
    app.tell(job=done, name="approval", value=1)
    run_job(app, done)
    with pytest.raises(AnswerRefused, match="was answered by a Python program"):
        app.tell(job=done, name="approval", value=2)
    with pytest.raises(AnswerRefused, match="is succeeded"):
        app.tell(job=done, name="other", value=2)
    with pytest.raises(NotFound):
        app.tell(job="j_unknown", name="approval", value=2)


def test_a_step_cannot_be_answered(app):
    @app.job(policy=Policy(max_retries=0))
    def stops(ctx: Context) -> None:
        ctx.step("charge", lambda: 1)
        ctx.wait("approval")

    job = run_job(app, stops.enqueue())
    with pytest.raises(Refused, match="is a step"):
        app.tell(job=job, name="charge", value=2)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "approval"},
        {"name": "approval", "job": "a", "key": "b"},
        {"name": "", "job": "a"},
        {"name": "x" * 201, "job": "a"},
        {"name": "a\x00b", "job": "a"},
        {"name": "approval", "job": "a", "value": object()},
        {"name": "approval", "job": "a", "value": "x" * 2_000_000},
    ],
)
def test_an_invalid_answer_is_refused(app, options):
    with pytest.raises(Refused):
        app.tell(**options)


def test_an_answer_is_awaitable(app, approval):
    job = run_job(app, approval.enqueue(order=7))
    asyncio.run(app.aio.tell(job=job, name="approval", value=3))
    assert run_job(app, job).result == 3


def test_an_async_handler_waits_for_an_answer(app):
    @app.job
    async def asks(ctx: Context) -> object:
        first, second = await asyncio.gather(ctx.wait_async("a"), ctx.wait_async("b"))
        return [first, second]

    job = run_job(app, asks.enqueue())
    app.tell(job=job, name="b", value=2)
    assert run_job(app, job).phase == "waiting"
    app.tell(job=job, name="a", value=1)
    assert run_job(app, job).result == [1, 2]


def test_an_answer_names_its_actor(app, approval):
    job = run_job(app, approval.enqueue(order=7))
    app.tell(job=job, name="approval", value={"secret": 1}, actor="ada")
    event = app.jobs.history(job.id)[-1]
    assert (event.type, event.actor, event.data["step"]) == ("job.answered", "ada", "approval")
    assert "secret" not in str(event.data)


def test_an_answer_outlives_a_manual_retry(app):
    @app.job(policy=Policy(max_retries=0))
    def fails_once(ctx: Context) -> object:
        value = ctx.wait("approval")
        if ctx.job.generation == 1:
            raise ValueError("no")
        return value

    job = run_job(app, fails_once.enqueue())
    app.tell(job=job, name="approval", value=4)
    assert run_job(app, job).state is State.DEAD
    app.jobs.retry(job.id)
    assert run_job(app, job).result == 4


def test_the_history_of_waits_has_no_contradiction(app, approval, patient):
    jobs = [run_job(app, patient.enqueue()) for _ in range(2)]
    late = run_job(app, approval.enqueue(order=1))
    app.tell(job=jobs[0], name="approval", value=1)
    early = approval.enqueue(order=2)
    app.tell(job=early, name="approval", value=1)
    drain_anywhere(app, scheduled=True)
    assert late.refresh().state is State.SUCCEEDED
    assert not verify(app.store).violations
