"""`ctx.call` and `ctx.gather`: a job waits without a slot for the results of child jobs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from mulligan import Context, Policy, State, testing
from mulligan.batches.service import Batch
from support.app_tools import run_job

ONCE = Policy(max_retries=0)


@pytest.fixture
def pages(app):
    """A parent of three children, of which those in `app.broken` fail."""
    app.calls = Counter()
    app.broken = set()

    @app.job(name="convert", queue="conversions", policy=ONCE)
    def convert(page: int) -> str:
        app.calls[page] += 1
        if page in app.broken:
            raise ConnectionResetError(f"page {page} is torn")
        return f"page {page}"

    def declare(name, **options):
        @app.job(name=name, policy=ONCE)
        def book(ctx: Context) -> list[str | None]:
            app.calls[name] += 1
            return ctx.gather("pages", [convert.call(page=n) for n in range(3)], **options)

        return book

    app.convert = convert
    app.declare = declare
    return app


def children(app) -> list:
    return sorted(app.jobs.list("kind:convert"), key=lambda job: job.id)


def child_batch(app) -> Batch:
    return app.batches.get(children(app)[0].batch_id)


def test_results_come_back_in_the_order_of_the_calls(pages):
    job = run_job(pages, pages.declare("book").options(owner="acme").enqueue())
    assert job.result == ["page 0", "page 1", "page 2"]
    assert pages.calls == {0: 1, 1: 1, 2: 1, "book": 2}
    assert {child.owner for child in children(pages)} == {"acme"}
    assert (job.failures, job.losses) == (0, 0)


def test_one_child_is_called_by_its_kind(pages):
    @pages.job(name="cover")
    def cover(ctx: Context) -> str:
        return ctx.call("front", pages.convert, page=7) + "!"

    assert run_job(pages, cover.enqueue()).result == "page 7!"


def test_an_async_handler_gathers_too(pages):
    @pages.job(name="async_book")
    async def async_book(ctx: Context) -> list[str]:
        return ctx.gather("pages", [pages.convert.call(page=1)])

    assert run_job(pages, async_book.enqueue()).result == ["page 1"]


def test_no_calls_need_no_wait(pages):
    @pages.job(name="empty")
    def empty(ctx: Context) -> list[str]:
        return ctx.gather("pages", [])

    assert run_job(pages, empty.enqueue()).result == []
    assert children(pages) == []


def test_a_dead_child_fails_its_parent_which_is_not_retried(pages):
    pages.broken = {1}
    job = run_job(pages, pages.declare("book").enqueue())
    assert (job.state, job.error["code"], job.attempt) == (State.DEAD, "CHILD_FAILED", 2)
    assert job.error["message"] == "1 of 3 parts of this job failed."
    attempt = pages.jobs.attempts(job.id)[-1]
    assert "page 1 is torn" not in attempt.public


def test_a_parent_can_be_retried_after_its_child_was_repaired(pages):
    pages.broken = {1}
    job = run_job(pages, pages.declare("book").enqueue())
    pages.broken = set()
    run_job(pages, children(pages)[1].retry())
    pages.jobs.retry(job.id)
    assert run_job(pages, job).result == ["page 0", "page 1", "page 2"]
    assert pages.calls[0] == 1


def test_tolerated_deaths_leave_a_gap(pages):
    pages.broken = {1}
    job = run_job(pages, pages.declare("book", tolerance=1).enqueue())
    assert job.result == ["page 0", None, "page 2"]


def test_a_parent_waits_for_the_repair_of_a_dead_child_for_a_month(pages):
    pages.broken = {0, 2}
    job = run_job(pages, pages.declare("book", on_death="wait").enqueue())
    assert (job.state, job.phase) == (State.QUEUED, "waiting")
    assert "waits for its child jobs (pages)" in job.why
    testing.advance(pages, timedelta(days=30), anywhere=True)
    pages.run_inline()
    assert job.refresh().phase == "waiting"
    pages.broken = set()
    pages.operations.start("retry", "kind:convert state:dead", reason="paper is here")
    pages.run_inline()
    assert run_job(pages, job).result == ["page 0", "page 1", "page 2"]
    assert pages.calls == {0: 2, 1: 1, 2: 2, "book": 2}


def test_cancelling_the_parent_cancels_its_children(pages):
    pages.queues.pause("conversions", reason="no paper")
    job = run_job(pages, pages.declare("book").enqueue())
    assert job.phase == "waiting"
    pages.jobs.cancel(job.id, reason="not needed")
    pages.run_inline()
    assert {child.state for child in children(pages)} == {State.CANCELLED}
    assert pages.calls == {"book": 1}
    assert child_batch(pages).cancelled


def test_what_is_no_call_is_refused(pages):
    @pages.job(name="wrong", policy=ONCE)
    def wrong(ctx: Context) -> None:
        ctx.gather("pages", [pages.convert])

    job = run_job(pages, wrong.enqueue())
    assert job.state is State.DEAD
    assert "pass a list of calls" in str(pages.jobs.attempts(job.id)[-1].private)


def test_a_unit_test_passes_the_results_of_children(pages):
    book = pages.declare("book")
    results = testing.context(answers={"pages": ["a", "b", "c"]})
    assert book(results) == ["a", "b", "c"]
