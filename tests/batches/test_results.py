"""Wait for a batch, and read the results of its members in the order of enqueue."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mulligan import Fail, Mulligan, Policy
from mulligan.batches import service
from mulligan.core.errors import NoResult, WaitTimeout


@pytest.fixture
def app(store_url: str):
    app = Mulligan(store_url)
    yield app
    app.close()


@pytest.fixture
def square(app):
    @app.job(policy=Policy(max_retries=0))
    def square(n: int) -> int | None:
        if n < 0:
            raise Fail("NEGATIVE", public="Negative numbers have no place here.")
        return n * n if n else None

    return square


def test_results_come_in_the_order_of_enqueue(app, square, monkeypatch):
    monkeypatch.setattr(service, "MEMBERS_PER_READ", 2)
    with app.batch("squares") as batch:
        square.options(batch=batch, priority=3).enqueue(n=3)
        square.options(batch=batch, priority=-3).enqueue_many([{"n": n} for n in (2, 0, 1)])
    app.run_inline()
    assert batch.wait(timeout=5).state == "ready"
    assert batch.results() == [9, 4, None, 1]
    assert [job.value() for job in batch.jobs()] == [9, 4, None, 1]
    assert app.batches.results(batch.id) == batch.results()


def test_a_member_without_a_result_raises_unless_a_default_stands_for_it(app, square):
    with app.batch("squares", tolerance=1) as batch:
        members = square.options(batch=batch).enqueue_many([{"n": 2}, {"n": -1}, {"n": 3}])
    app.run_inline()
    with pytest.raises(NoResult, match=r"1 of 3 members have no result; job .* NEGATIVE") as caught:
        batch.results()
    assert caught.value.job.id == members[1].id
    assert batch.results(default="none") == [4, "none", 9]


def test_an_empty_batch_has_no_results(app):
    with app.batch("empty") as batch:
        pass
    assert batch.wait(timeout=5).results() == []


def test_wait_ends_with_the_last_member(app, square):
    with app.batch("squares") as batch:
        square.options(batch=batch).enqueue(n=2)
    worker = threading.Timer(0.1, app.run_inline)
    worker.start()
    assert batch.wait(timeout=20).state == "ready"
    worker.join()


def test_a_wait_that_times_out_says_what_it_waits_for(app, square):
    batch = app.batch("squares")
    square.options(batch=batch).enqueue_many([{"n": 2}, {"n": 3}])
    with pytest.raises(WaitTimeout, match=r"is still open after 0 s: no outcome before batch.seal"):
        batch.wait(timeout=0)
    batch.seal()
    with pytest.raises(WaitTimeout, match="2 of 2 members have not ended"):
        batch.wait(timeout=0)


def test_coroutines_wait_and_read_too(app, square):
    async def use() -> None:
        async with await app.aio.batch("squares") as batch:
            await square.options(batch=batch).enqueue_async(n=2)
        await asyncio.to_thread(app.run_inline)
        assert (await batch.wait_async(timeout=5)).state == "ready"
        assert await batch.results_async() == [4]
        assert [job.value() for job in await batch.jobs_async()] == [4]
        assert await app.aio.batches.results(batch.id, default=0) == [4]
        assert (await app.aio.batches.wait(batch.id, timeout=5)).id == batch.id

    asyncio.run(use())
