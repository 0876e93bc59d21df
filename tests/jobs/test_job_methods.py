"""Calls of a `Job` for itself: wait, cancel, retry, and its result as a model."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import Fail, Mulligan, Park, Policy, Retry
from mulligan.core.errors import NoResult, ResultMismatch, UnknownKind, WaitTimeout
from mulligan.core.job import Job


class Receipt(BaseModel):
    order: int
    paid_on: date


@dataclass
class Size:
    width: int
    height: int


@pytest.fixture
def app(store_url: str):
    app = Mulligan(store_url)
    yield app
    app.close()


def run(app: Mulligan, job: Job) -> Job:
    app.run_inline()
    return job.refresh()


def test_value_gives_a_model_back(app):
    @app.job
    def pay(order: int) -> Receipt | Retry:
        return Receipt(order=order, paid_on=date(2026, 3, 1))

    job = run(app, pay.enqueue(order=7))
    assert job.result == {"order": 7, "paid_on": "2026-03-01"}
    assert job.value() == Receipt(order=7, paid_on=date(2026, 3, 1))
    assert app.jobs.get(job.id).value() == job.value()


def test_value_gives_dataclasses_and_times_back_from_an_async_handler(app):
    @app.job
    async def measure(width: int) -> dict[str, list[Size]]:
        return {"all": [Size(width, 2)]}

    @app.job
    def now() -> tuple[datetime, ...]:
        return (datetime(2026, 3, 1, tzinfo=UTC),)

    @app.job
    def anything(width: int):
        return {"width": width}

    measured = measure.enqueue(width=3)
    moment = now.enqueue()
    plain = anything.enqueue(width=3)
    assert run(app, measured).value() == {"all": [Size(3, 2)]}
    assert moment.refresh().value() == (datetime(2026, 3, 1, tzinfo=UTC),)
    assert plain.refresh().value() == {"width": 3}


def test_value_of_a_handler_that_returns_nothing_is_none(app):
    @app.job
    def quiet() -> None: ...

    assert run(app, quiet.enqueue()).value() is None


def test_value_of_a_job_that_has_not_succeeded_says_why(app):
    @app.job(policy=Policy(max_retries=0))
    def fail() -> int:
        raise Fail("GW_5XX", public="The gateway is down.")

    job = fail.enqueue()
    with pytest.raises(NoResult, match=r"is queued: .*Wait for it: job = job.wait\(\)") as caught:
        job.value()
    assert caught.value.job.id == job.id
    with pytest.raises(NoResult, match="is dead: GW_5XX: The gateway is down"):
        run(app, job).value()


def test_value_of_a_result_that_does_not_fit_its_annotation_is_refused(app):
    @app.job
    def count() -> int:
        return "abc"  # type: ignore[return-value]

    with pytest.raises(ResultMismatch, match=r"-> int returned 'abc': it does not fit: Input"):
        run(app, count.enqueue()).value()


def test_value_needs_the_handler(app):
    @app.job(name="count")
    def count() -> int:
        return 3

    job = run(app, count.enqueue())
    client = Mulligan(app.settings.database_url)
    with pytest.raises(UnknownKind, match=r"has not loaded the handler of kind 'count'"):
        client.jobs.get(job.id).value()
    client.close()


def test_wait_returns_the_job_when_it_has_ended(app):
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(2, 3)
    worker = threading.Timer(0.1, app.run_inline)
    worker.start()
    assert job.wait(timeout=20).value() == 5
    worker.join()
    late = add.enqueue(1, 1)
    with pytest.raises(WaitTimeout, match="is still queued after 0 s: no live worker"):
        late.wait(timeout=0)


def test_a_job_is_cancelled_and_retried_through_itself(app):
    @app.job
    def ask(ctx: Any = None) -> Park:
        return Park("Which one?", choices=("left", "right"))

    job = run(app, ask.enqueue())
    released = app.jobs.release(job.id, choice="left", reason="known customer")
    assert released.state == "queued"
    cancelled = released.cancel(reason="too late")
    assert cancelled.state == "cancelled"
    again = cancelled.retry("after all")
    assert (again.state, again.generation) == ("queued", 2)
    reasons = [event.data.get("reason") for event in app.jobs.history(job.id) if event.actor]
    assert reasons == ["known customer", "too late", "after all"]


def test_coroutines_have_the_same_calls(app):
    @app.job
    async def ask() -> Park:
        return Park("Which one?", choices=("left",))

    async def use() -> None:
        job = await ask.enqueue_async()
        await asyncio.to_thread(app.run_inline)
        job = await job.refresh_async()
        assert (await job.wait_async(timeout=5)).state == "parked"
        job = await app.aio.jobs.release(job.id, choice="left")
        job = await job.cancel_async("too late")
        assert (await job.retry_async("again")).generation == 2

    asyncio.run(use())


def test_jobs_of_a_list_and_of_a_bulk_enqueue_act_too(app):
    @app.job
    def work(n: int) -> int:
        return n

    first, second = work.enqueue_many([{"n": 1}, {"n": 2}])
    assert first.cancel("not needed").state == "cancelled"
    app.run_inline()
    assert [job.value() for job in app.jobs.list("state:succeeded")] == [2]
    assert second.refresh().value() == 2
