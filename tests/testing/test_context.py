"""`mulligan.testing.context`: handlers run without a database; and what `drain` checks."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from mulligan import Context, Mulligan
from mulligan.core.errors import Refused, ResultMismatch
from mulligan.testing import (
    Returns,
    assert_enqueued,
    assert_state,
    context,
    drain,
    force,
    refute_enqueued,
    temporary,
)


def test_a_context_keeps_what_the_handler_does():
    with context(owner="acme", payload={"clip": 7}, checkpoints={"part": 1}, attempt=3) as ctx:
        ctx.progress(0.4, "frame 480")
        ctx.cost(2)
        ctx.checkpoint("part", {"done": [1, 2]})
        (ctx.workdir / "file").write_text("x")
        folder = ctx.workdir
        ctx.log.info("a line")
        assert ctx.run([sys.executable, "-c", "print(3)"]).strip() == "3"
        assert (ctx.job.owner, ctx.job.payload, ctx.attempt) == ("acme", {"clip": 7}, 3)
        assert not ctx.last_attempt
    assert ctx.reports == [(0.4, "frame 480")]
    assert ctx.spent == 2
    assert ctx.checkpoints == {"part": {"done": [1, 2]}}
    assert not folder.exists()


def test_a_context_without_a_block_removes_its_work_directory():
    ctx = context()
    folder = ctx.workdir
    del ctx
    assert not folder.exists()


def test_a_context_has_what_a_handler_finds():
    previous = {"code": "GW_5XX", "class": "transient", "attempt": 1}
    ctx = context(
        choice="left", previous=previous, settings={"preset": "fast"}, state={"db": 3}, failures=3
    )
    assert (ctx.choice, ctx.previous, dict(ctx.settings)) == ("left", previous, {"preset": "fast"})
    assert ctx.state.db == 3
    assert ctx.last_attempt
    ctx.request_stop()
    assert ctx.cancelled


def test_a_coroutine_uses_a_context():
    async def use() -> None:
        with context() as ctx:
            await ctx.checkpoint_async("a", 1)
            assert await ctx.run_async([sys.executable, "-c", "print(1)"]) == "1\n"
            assert ctx.checkpoints == {"a": 1}

    asyncio.run(use())


def test_a_checkpoint_that_a_worker_would_refuse_is_refused():
    with pytest.raises(Refused, match="cannot be written as JSON"):
        context().checkpoint("a", object())


@pytest.fixture
def app(store_url: str):
    url = store_url if store_url.startswith("postgres") else None
    with temporary(Mulligan(store_url), url) as app:
        yield app


def test_a_context_of_a_job_is_that_of_its_attempt(app):
    @app.job
    def render(ctx: Context, clip: int) -> str:
        return f"{ctx.job.owner} {clip} {ctx.key('child')}"

    job = render.options(owner="acme", priority=3).enqueue(clip=7)
    ctx = context(job=job)
    assert render(ctx, clip=7) == f"acme 7 {job.id}:child"
    assert (ctx.job.priority, ctx.job.payload) == (3, {"clip": 7})
    with pytest.raises(Refused, match="takes a Job"):
        context(job="id")  # type: ignore[arg-type]


def test_assertions_see_an_open_transaction_through_its_connection(app):
    @app.job
    def ship(order: int) -> None: ...

    app.open()
    with app.transaction() as connection:
        job = ship.options(connection=connection).enqueue(order=7)
        assert (
            assert_enqueued(app, ship, payload={"order": 7}, connection=connection)[0].id == job.id
        )
        assert assert_state(app, job, "queued", connection=connection).kind == job.kind
        with pytest.raises(AssertionError, match="expected no"):
            refute_enqueued(app, ship, connection=connection)
        with pytest.raises(AssertionError, match=r"payload\.order is 7, not 8"):
            assert_enqueued(app, ship, payload={"order": 8}, connection=connection)


def test_drain_refuses_a_result_that_does_not_fit_its_annotation(app):
    @app.job
    def count() -> int:
        answer: Any = "abc"
        return answer

    count.enqueue()
    with pytest.raises(ResultMismatch, match=r"-> int returned 'abc'"):
        drain(app)


def test_drain_does_not_check_forced_results(app):
    @app.job
    def count() -> int:
        return 3

    count.enqueue()
    with force(app, count, Returns("anything")):
        assert str(drain(app)) == "1 attempts of 1 jobs: 1 succeeded"
    count.enqueue()
    assert str(drain(app)) == "1 attempts of 1 jobs: 1 succeeded"
    assert not app.registry.overrides
