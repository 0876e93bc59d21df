"""Checkpoints of one attempt are there for the next."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random

import pytest

from mulligan import Context, Fixed, Policy, State
from mulligan.core.errors import Refused
from mulligan.worker import upkeep
from mulligan.worker.queries import WorkerQueries
from support.app_tools import advance, error_code, register_idle_worker, run_job

NOW = Policy(max_retries=9, backoff=Fixed(0))


def test_a_checkpoint_is_durable_when_it_returns_and_readable_in_the_next_attempt(app, make_app):
    other = make_app()
    recorded = []

    @app.job(policy=NOW)
    def saves(ctx: Context) -> dict[str, object]:
        if ctx.attempt == 1:
            assert ctx.checkpoints == {}
            ctx.checkpoint("page", 7)
            ctx.checkpoint("page", 8)
            ctx.checkpoint("odd value", {"text": "nul \x00 inside", "n": None})
            with other.store.read() as tx:  # another connection sees it while we still run
                steps = WorkerQueries(tx).get_previous_attempts([ctx.job.id])[ctx.job.id].steps
            recorded.append({name: json.loads(step.value) for name, step in steps.items()})
            raise OSError("later")
        return dict(ctx.checkpoints)

    job = saves.enqueue()
    expected = {"page": 8, "odd value": {"text": "nul \x00 inside", "n": None}}
    assert run_job(app, job).result == expected
    assert recorded == [expected]


def test_checkpoints_outlive_a_manual_retry(app):
    @app.job(policy=Policy(max_retries=0))
    def saves(ctx: Context) -> object:
        if not ctx.checkpoints:
            ctx.checkpoint("done", 3)
            raise OSError("no")
        return ctx.checkpoints["done"]

    job = saves.enqueue()
    assert run_job(app, job).state is State.DEAD
    app.jobs.retry(job.id)
    assert run_job(app, job).result == 3


def test_what_a_handler_does_to_its_checkpoints_changes_only_its_own_copy(app):
    @app.job
    def meddles(ctx: Context) -> object:
        value = [1]
        ctx.checkpoint("list", value)
        value.append(2)
        return ctx.checkpoints["list"]

    assert run_job(app, meddles.enqueue()).result == [1]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("nan", math.nan, "JSON"),
        ("object", object(), "JSON"),
        ("large", "x" * 2_000_000, "limit"),
        ("deep", "deep", "nested"),
        (7, 1, "name"),
        ("", 1, "name"),
        ("nul \x00 inside", 1, "name"),
        ("n" * 1000, 1, "name"),
    ],
)
def test_a_checkpoint_that_cannot_be_stored_is_refused_with_a_clear_error(app, name, value, words):
    if value == "deep":
        value = nested(5000)

    @app.job
    def saves(ctx: Context) -> str:
        with pytest.raises(Refused, match=words):
            ctx.checkpoint(name, value)
        ctx.checkpoint("fine", 1)
        return str(list(ctx.checkpoints))

    assert run_job(app, saves.enqueue()).result == "['fine']"


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def test_blocking_calls_in_a_coroutine_say_what_to_write_instead(app):
    @app.job
    async def blocks(ctx: Context) -> list[str]:
        messages = []
        for call in (lambda: ctx.checkpoint("a", 1), lambda: ctx.run(["true"])):
            with pytest.raises(RuntimeError) as caught:
                call()
            messages.append(str(caught.value))
        return messages

    checkpoint, run = run_job(app, blocks.enqueue()).result
    assert "await ctx.checkpoint_async(" in checkpoint
    assert "await ctx.run_async(" in run


def test_async_handlers_use_checkpoint_async_and_run_async(app):
    @app.job(policy=NOW)
    async def good(ctx: Context) -> list[object]:
        if ctx.attempt == 1:
            await ctx.checkpoint_async("n", 1)
            raise OSError("later")
        return [ctx.checkpoints["n"], (await ctx.run_async(["echo", "hello"])).strip()]

    assert run_job(app, good.enqueue()).result == [1, "hello"]


def test_a_lost_lease_refuses_the_checkpoint(app):
    @app.job
    def slow(ctx: Context) -> None:
        with app.store.begin() as tx:
            WorkerQueries(tx).close_worker(ctx.lease.worker, "taken away", last_renewed=None)
            lost = [lease for lease in WorkerQueries(tx).list_orphans(10) if lease.id == ctx.job.id]
        assert lost
        upkeep.settle_orphans(app.store, app.settings.retry, Random(1))
        ctx.checkpoint("late", 1)

    job = slow.enqueue()
    app.run_inline(until_idle=False)
    after = job.refresh()
    assert after.state is State.QUEUED
    assert after.losses == 1
    with app.store.read() as tx:
        assert WorkerQueries(tx).get_previous_attempts([job.id])[job.id].steps == {}
    assert any(event.type == "job.stale_refused" for event in app.jobs.history(job.id))


def test_a_handler_may_return_a_path(app):
    @app.job
    def returns_path() -> Path:
        return Path("/tmp/x")

    done = run_job(app, returns_path.enqueue())
    assert (done.result, error_code(done)) == ("/tmp/x", "")


def test_a_delay_moves_with_the_clock_of_the_store(app):
    @app.job
    def later() -> str:
        return "now"

    register_idle_worker(app)
    job = later.options(delay=3600).enqueue()
    assert run_job(app, job).phase == "scheduled"
    advance(app, 3601)
    assert run_job(app, job).result == "now"
