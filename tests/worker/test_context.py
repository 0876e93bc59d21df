"""A handler's context has the facts of its attempt, its state, and its work directory."""

from __future__ import annotations

import asyncio
import logging
import math
import stat
from types import SimpleNamespace

import pytest

from mulligan import Context, Fixed, Park, Policy, Retry, Snooze, State
from mulligan.core.errors import Refused
from mulligan.worker.runner.context import MESSAGE_LIMIT
from support.app_tools import load_attempts, load_row, run_job, run_until_final

NOW = Policy(max_retries=9, backoff=Fixed(0))


# -- facts ---------------------------------------------------------------------------------------
def test_a_handler_sees_its_job_as_the_caller_sees_it(app):
    recorded = []

    @app.job(queue="render", priority=3, uses=["gateway", "bucket"])
    def look(ctx: Context, clip: int) -> None:
        recorded.append(ctx.job)

    job = look.options(owner="acme", max_retries=7, deadline=3600).enqueue(clip=7)
    assert run_job(app, job).state is State.SUCCEEDED
    [inside] = recorded
    same = (
        "id",
        "kind",
        "queue",
        "owner",
        "payload",
        "priority",
        "uses",
        "created_at",
        "run_at",
        "deadline_at",
    )
    assert {name: getattr(inside, name) for name in same} == {
        name: getattr(job, name) for name in same
    }
    assert (inside.max_retries, inside.generation, inside.failures, inside.losses) == (7, 1, 0, 0)
    assert (inside.state, inside.phase, inside.attempt, inside.token) == (
        State.RUNNING,
        "running",
        1,
        1,
    )
    assert inside.started_at >= job.created_at
    assert (inside.result, inside.error, inside.finished_at) == (None, None, None)


def test_a_handler_sees_the_unique_key_of_its_job(app):
    @app.job
    def look(ctx: Context) -> object:
        return ctx.job.unique_key

    assert run_job(app, look.options(unique="order-7").enqueue()).result == "order-7"


def test_attempts_count_within_a_generation_and_tokens_over_the_whole_life(app):
    recorded = []

    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def stubborn(ctx: Context) -> None:
        recorded.append((ctx.job.generation, ctx.attempt, ctx.token))
        if ctx.token == 1:
            return Snooze(0)
        raise OSError("no")

    job = stubborn.enqueue()
    assert run_until_final(app, job).state is State.DEAD
    app.jobs.retry(job.id)
    assert run_job(app, job).state is State.DEAD
    assert recorded == [(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 1, 4), (2, 2, 5)]
    assert [(a.generation, a.attempt, a.token) for a in load_attempts(app, job)] == recorded


def test_previous_is_the_last_failure_also_over_a_manual_retry_and_never_a_snooze(app):
    recorded = []

    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def remembers(ctx: Context) -> object:
        recorded.append(
            ctx.previous and (ctx.previous["code"], ctx.previous["class"], ctx.previous["attempt"])
        )
        if ctx.token == 2:
            return Snooze(0)
        raise ConnectionResetError("gone") if ctx.token == 1 else ValueError("bad")

    job = remembers.enqueue()
    run_until_final(app, job)
    app.jobs.retry(job.id)
    run_job(app, job)
    reset, unknown = ("CONNECTION", "transient", 1), ("UNKNOWN_ERROR", "unknown", 3)
    assert recorded[:4] == [None, reset, reset, unknown]


@pytest.mark.parametrize(
    ("settings", "kind", "job", "flags"),
    [
        ({}, None, {}, "..L"),
        ({}, Policy(max_retries=1), {}, ".L"),
        ({}, Policy(max_retries=0), {}, "L"),
        ({}, Policy(max_retries=1), {"max_retries": 4}, "....L"),
        ({}, None, {"policy": Policy(max_retries=3)}, "...L"),
        ({}, Policy(retry_unknown=True), {}, "...L"),
        ({}, Policy(retry_unknown=False), {}, "L"),
        ({}, Policy(max_retries=5, classes={"unknown": Policy(max_retries=1)}), {}, ".L"),
        ({}, Policy(max_retries=5, classes={"transient": Policy(max_retries=0)}), {}, ".....L"),
        ({"retry__unknown_retries": "1"}, None, {}, ".L"),
        ({"retry__max_retries": "1"}, None, {}, ".L"),
        ({"retry__enabled": "false"}, Policy(max_retries=5), {}, "L"),
    ],
)
def test_last_attempt_is_true_exactly_where_one_more_unknown_failure_ends_the_job(
    make_app, settings, kind, job, flags
):
    app = make_app(retry__base_delay="0", **settings)
    recorded = []

    @app.job(policy=kind)
    def hopeless(ctx: Context) -> None:
        recorded.append("L" if ctx.last_attempt else ".")
        raise ValueError("who knows why")

    assert run_until_final(app, hopeless.options(**job).enqueue()).state is State.DEAD
    assert "".join(recorded) == flags


def test_a_snooze_or_a_loss_brings_the_last_attempt_no_nearer(app):
    recorded = []

    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def sleepy(ctx: Context) -> object:
        recorded.append(ctx.last_attempt)
        return Snooze(0) if ctx.attempt < 4 else Retry(0)

    run_until_final(app, sleepy.enqueue())
    assert recorded == [False, False, False, False, True]


def test_choice_is_set_by_the_person_who_releases_the_job(app):
    recorded = []

    @app.job
    def asks(ctx: Context) -> object:
        recorded.append(ctx.choice)
        return Park("who pays?", choices=("us", "them")) if ctx.choice is None else ctx.choice

    job = asks.enqueue()
    assert run_job(app, job).state is State.PARKED
    app.jobs.release(job.id, choice="them", reason="they said so")
    assert run_job(app, job).result == "them"
    assert recorded == [None, "them"]


def test_a_child_with_ctx_key_is_enqueued_only_once_by_two_attempts(app):
    @app.job
    def page(n: int) -> None: ...

    @app.job(policy=NOW)
    def book(ctx: Context) -> None:
        for n in (1, 2):
            page.options(unique=ctx.key(f"page-{n}")).enqueue(n=n)
        if ctx.attempt == 1:
            raise OSError("once more")

    books = [book.enqueue(), book.enqueue()]
    app.run_inline()
    children = app.jobs.list(f"kind:{page.name}")
    assert sorted(child.unique_key for child in children) == sorted(
        f"{b.id}:page-{n}" for b in books for n in (1, 2)
    )


# -- its own small world -------------------------------------------------------------------------
def test_each_attempt_has_a_private_directory_that_is_removed_afterwards(app):
    recorded = []

    @app.job(policy=NOW)
    def writes(ctx: Context) -> None:
        assert ctx.workdir is ctx.workdir
        recorded.append(
            (ctx.workdir, stat.S_IMODE(ctx.workdir.stat().st_mode), list(ctx.workdir.iterdir()))
        )
        (ctx.workdir / "deep" / "er").mkdir(parents=True)
        (ctx.workdir / "deep" / "er" / "file").write_text("x")
        if ctx.attempt < 3:
            raise OSError("no")

    @app.job(policy=NOW)
    async def writes_too(ctx: Context) -> None:
        recorded.append(
            (ctx.workdir, stat.S_IMODE(ctx.workdir.stat().st_mode), list(ctx.workdir.iterdir()))
        )
        if ctx.attempt < 2:
            raise SystemExit(3)

    jobs = [writes.enqueue(), writes_too.enqueue()]
    app.run_inline()
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 2
    assert len({path for path, _, _ in recorded}) == 5
    assert [(mode, inside) for _, mode, inside in recorded] == [(0o700, [])] * 5
    assert not any(path.exists() for path, _, _ in recorded)


def test_a_work_directory_is_created_only_when_it_is_used(app, tmp_path):
    @app.job
    def modest(ctx: Context) -> list[str]:
        return [str(path) for path in (tmp_path / "state").rglob("*.work/*")]

    assert run_job(app, modest.enqueue()).result == []


def test_log_lines_carry_job_kind_and_attempt(app, caplog):
    @app.job
    def talks(ctx: Context) -> None:
        ctx.log.warning("half of %s", "it")

    job = talks.enqueue()
    with caplog.at_level(logging.INFO, "mulligan.job"):
        run_job(app, job)
    [line] = [record for record in caplog.records if record.name == "mulligan.job"]
    assert (line.getMessage(), line.job, line.kind, line.attempt) == (
        "half of it",
        job.id,
        talks.name,
        1,
    )


class Pool:
    size = 3
    closed = False


def _mapping():
    return {"size": 3}


def _object():
    return Pool()


def _fills(state):
    state.size = 3


async def _mapping_async():
    await asyncio.sleep(0)
    return {"size": 3}


async def _fills_async(state):
    await asyncio.sleep(0)
    state.size = 3


class _CallableHook:
    def __call__(self, state: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(size=3)


@pytest.mark.parametrize(
    "hook", [_mapping, _object, _fills, _mapping_async, _fills_async, _CallableHook()]
)
def test_state_is_what_on_start_returned_or_set(app, hook):
    left = []
    app.on_start(hook)

    @app.on_stop
    def close(state):
        left.append(state.size)

    @app.on_stop
    async def close_too():
        left.append("closed")

    @app.job
    def sync_one(ctx: Context) -> int:
        return ctx.state.size

    @app.job
    async def async_one(ctx: Context) -> int:
        return ctx.state.size

    jobs = [sync_one.enqueue(), async_one.enqueue()]
    app.run_inline()
    assert [job.refresh().result for job in jobs] == [3, 3]
    assert left == [3, "closed"]


def test_the_states_of_two_hooks_are_merged(app):
    app.on_start(lambda: {"a": 1, "b": 1})
    app.on_start(lambda state: {"b": state.b + 1})

    @app.job
    def both(ctx: Context) -> list[int]:
        return [ctx.state.a, ctx.state.b]

    assert run_job(app, both.enqueue()).result == [1, 2]


# -- progress and cost ---------------------------------------------------------------------------
HALVES = "\ud800"


@pytest.mark.parametrize(
    ("fraction", "message", "stored", "shown"),
    [
        (0.4, "page 7", 0.4, "page 7"),
        (0, "", 0.0, ""),
        (1, "done", 1.0, "done"),
        (-3, "below", 0.0, "below"),
        (17.5, "above", 1.0, "above"),
        (math.nan, "nobody knows", None, "nobody knows"),
        (math.inf, "beyond", None, "beyond"),
        (None, "no number", None, "no number"),
        (True, 42, 1.0, "42"),
        (0.5, "nul \x00 inside", 0.5, "nul � inside"),
        (0.5, f"half {HALVES} a pair", 0.5, "half � a pair"),
        (0.5, "password=hunter2 is kept out", 0.5, "password=[redacted] is kept out"),
    ],
)
def test_any_progress_value_is_stored_as_a_valid_one(app, fraction, message, stored, shown):
    @app.job
    def goes(ctx: Context) -> None:
        ctx.progress(fraction, message)

    job = goes.enqueue()
    assert run_job(app, job).progress == stored
    assert load_row(app, job).progress_message == shown


def test_a_progress_message_is_truncated_and_the_last_one_is_stored(app):
    @app.job
    def goes(ctx: Context) -> None:
        ctx.progress(0.1, "first")
        ctx.progress(0.9, "x" * 100_000)
        ctx.progress(None)

    job = goes.enqueue()
    assert run_job(app, job).progress == 0.9
    assert load_row(app, job).progress_message == ""

    @app.job
    def talks(ctx: Context) -> None:
        ctx.progress(0.9, "x" * 100_000)

    job = talks.enqueue()
    run_job(app, job)
    assert 0 < len(load_row(app, job).progress_message) <= MESSAGE_LIMIT


def test_costs_add_up_on_the_attempt_and_on_the_job(app):
    @app.job(policy=NOW, cost=0.5)
    def spends(ctx: Context) -> object:
        ctx.cost(1)
        ctx.cost(2.25)
        if ctx.attempt == 1:
            raise OSError("but paid for")
        return Snooze(0) if ctx.attempt == 2 else None

    job = spends.enqueue()
    assert run_until_final(app, job).cost == pytest.approx(3 * 3.75)
    assert [a.cost for a in load_attempts(app, job)] == [pytest.approx(3.75)] * 3


@pytest.mark.parametrize("amount", [-1, -0.001, math.nan, math.inf, -math.inf])
def test_an_invalid_cost_is_refused_and_adds_nothing(app, amount):
    @app.job
    def cheats(ctx: Context) -> None:
        ctx.cost(2)
        with pytest.raises(Refused, match="cost"):
            ctx.cost(amount)

    assert run_job(app, cheats.enqueue()).cost == 2


def test_costs_whose_sum_is_not_finite_are_refused(app):
    @app.job
    def rich(ctx: Context) -> None:
        ctx.cost(1e308)
        with pytest.raises(Refused, match="cost"):
            ctx.cost(1e308)

    assert run_job(app, rich.enqueue()).cost == 1e308
