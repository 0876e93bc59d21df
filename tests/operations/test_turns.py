"""Tests of operations over time and of concurrent turns."""

from __future__ import annotations

import asyncio

import pytest

from mulligan import Policy
from mulligan.jobs import repair
from mulligan.operations import chore, service
from mulligan.worker import upkeep
from support.app_tools import advance
from support.operation_tools import IN_ONE_STEP, count_items, enqueue_jobs, list_events
from support.store import run_concurrently, sql


# --- Over time ---
def test_relative_times_are_frozen_at_the_start(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX since:1h")
    assert begun.total == 20
    advance(app, 7200)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.recovered) == ("finished", 20)
    assert "enqueued since" in ended.fixed
    assert "as of" in ended.fixed


def test_a_job_that_dies_while_gathering_is_a_later_match(app, dead, work, monkeypatch):
    monkeypatch.setattr(chore, "GATHER_CHUNK", 7)
    chunks = []
    gather_items = chore.gather_items

    def slowly(store, operation):
        if not chunks:
            enqueue_jobs(work, "gateway", 3)
            app.run_inline()
        chunks.append(operation)
        return gather_items(store, operation)

    monkeypatch.setattr(service, "gather_items", slowly)
    begun = app.operations.start("retry", "code:GW_5XX")
    assert (begun.total, begun.joined, len(chunks) >= 3) == (20, 3, True)
    assert [item.job for item in app.operations.items(begun.id)] == sorted(dead["gateway"])


def test_if_the_starter_dies_while_gathering_a_worker_continues(app, dead, world, monkeypatch):
    world.broken.clear()
    monkeypatch.setattr(chore, "GATHER_CHUNK", 7)
    gather_items = chore.gather_items

    def killed(store, operation):
        gather_items(store, operation)
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "gather_items", killed)
    with pytest.raises(KeyboardInterrupt):
        app.operations.start("retry", "code:GW_5XX")
    (begun,) = app.operations.list()
    assert (begun.state, begun.total) == ("gathering", 7)
    chore.run_operations(app.store)
    assert app.operations.get(begun.id).total == 7  # the starter may only be slow
    advance(app, 6)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.total, ended.counts.recovered) == ("finished", 20, 20)


def test_an_operation_can_be_paused_and_aborted_while_gathering(app, dead, world, monkeypatch):
    world.broken.clear()
    monkeypatch.setattr(chore, "GATHER_CHUNK", 7)
    gather_items = chore.gather_items

    def interrupted(store, operation):
        gather_items(store, operation)
        app.operations.pause(operation)
        return gather_items(store, operation)

    monkeypatch.setattr(service, "gather_items", interrupted)
    begun = app.operations.start("retry", "code:GW_5XX")
    assert (begun.state, begun.total, begun.untouched) == ("paused", 7, 7)
    app.run_inline()
    assert app.operations.resume(begun.id).state == "gathering"
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20
    begun = app.operations.start("retry", "code:BAD_FILE", steps=[1, "rest"])
    ended = app.operations.abort(begun.id)
    assert (ended.state, ended.untouched, list_events(app)[-1].data["untouched"]) == (
        "aborted",
        3,
        3,
    )


def test_retention_deletes_ended_operations_in_small_steps(app, make_app, dead, monkeypatch):
    ended = app.operations.start("retry", "code:GW_5XX")
    app.run_inline()
    going = app.operations.start("retry", "code:BAD_FILE")
    settings = make_app(retention__operations="3600").settings
    upkeep.prune(app.store, settings, {})
    assert len(app.operations.list()) == 2
    advance(app, 3700)
    monkeypatch.setattr(upkeep, "BATCH_SIZE", 15)
    upkeep.prune(app.store, settings, {})
    assert len(app.operations.items(ended.id)) == 5
    upkeep.prune(app.store, settings, {})
    assert [one.id for one in app.operations.list()] == [going.id]
    assert len(app.operations.items(going.id)) == 3


def test_all_methods_can_be_awaited(app, dead, world):
    world.broken.clear()

    async def main():
        api = app.aio.operations
        preview = await api.start("retry", "code:GW_5XX", dry_run=True)
        begun = await api.start("retry", "code:GW_5XX")
        paused = await api.pause(begun.id)
        resumed = await api.resume(begun.id)
        items = await api.items(begun.id, "waiting")
        aborted = await api.abort(begun.id)
        listed = await api.list()
        again = await api.get(begun.id)
        return (
            preview.count,
            paused.state,
            resumed.state,
            len(items),
            aborted.state,
            len(listed),
            again.state,
        )

    assert asyncio.run(main()) == (20, "paused", "running", 20, "aborted", 1, "aborted")


# --- Concurrency ---
def test_twenty_concurrent_equal_starts_begin_one_operation(app, dead):
    begun = run_concurrently(*[lambda: app.operations.start("retry", "code:GW_5XX").id] * 20)
    assert len({*begun}) == len(app.operations.list()) == 1
    assert len(app.operations.items(begun[0])) == 20


def test_concurrent_turns_move_each_job_once(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=["rest"], rate=5)

    def turns():
        for _ in range(10):
            chore.run_operations(app.store, paced=False)
            chore.run_turn(
                app.store, begun.id, previous=chore.TurnResult(ended=chore.ITEMS_PER_TURN)
            )

    run_concurrently(*[turns] * 6)
    sent = app.operations.get(begun.id)
    assert (sent.counts.sent, sent.counts) == (20, count_items(app, begun.id))
    assert {app.jobs.get(job).generation for job in dead["gateway"]} == {2}
    assert len(list_events(app, "job.retried")) == 20
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20


def test_an_abort_during_turns_leaves_counts_and_items_consistent(app, dead, world):
    begun = app.operations.start("retry", "code:GW_5XX", **IN_ONE_STEP)

    def turns():
        for _ in range(5):
            chore.run_turn(
                app.store, begun.id, previous=chore.TurnResult(ended=chore.ITEMS_PER_TURN)
            )

    run_concurrently(turns, lambda: app.operations.abort(begun.id), turns)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts) == ("aborted", count_items(app, begun.id))
    assert ended.counts.sent == 0


def test_an_interrupted_turn_changes_nothing(app, dead, monkeypatch):
    begun = app.operations.start("retry", "code:GW_5XX", **IN_ONE_STEP)
    before = sql(app.store, "SELECT id, state, generation FROM {p}job ORDER BY id")
    moved = []
    move_job = repair.move_job

    def killed(*args, **kwargs):
        moved.append(move_job(*args, **kwargs))
        if len(moved) == 7:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(repair, "move_job", killed)
    with pytest.raises(KeyboardInterrupt):
        chore.run_operations(app.store)
    assert sql(app.store, "SELECT id, state, generation FROM {p}job ORDER BY id") == before
    assert app.operations.get(begun.id).untouched == 20
    monkeypatch.undo()
    chore.run_operations(app.store)
    assert app.operations.get(begun.id).counts.sent == 20


def test_a_job_whose_move_raises_is_refused_alone(app, dead, monkeypatch, caplog):
    begun = app.operations.start("retry", "code:GW_5XX", **IN_ONE_STEP)
    move_job = repair.move_job
    poison = dead["gateway"][7]

    def breaks(tx, row, *args, **kwargs):
        moved = move_job(tx, row, *args, **kwargs)
        if row.id == poison:
            raise ArithmeticError
        return moved

    monkeypatch.setattr(repair, "move_job", breaks)
    chore.run_operations(app.store)
    after = app.operations.get(begun.id)
    assert (after.counts.sent, after.counts.refused) == (19, 1)
    (refused,) = app.operations.items(begun.id, "refused")
    assert (refused.job, "ArithmeticError" in refused.why) == (poison, True)
    assert app.jobs.get(poison).state == "dead"
    assert "repeating it job by job" in caplog.text


def test_an_operation_waits_for_a_held_kind(make_app):
    app = make_app()

    @app.job(name="work", policy=Policy(max_retries=0))
    def work(n: int = 0) -> None:
        raise NotImplementedError("no font")

    for n in range(6):
        work.options(owner=f"o{n}").enqueue(n=n)
    app.run_inline()
    assert app.kinds.get("work").held
    begun = app.operations.start("retry", "state:dead kind:work")
    app.run_inline()
    waits = app.operations.get(begun.id)
    assert (waits.state, waits.counts.sent) == ("running", 1)
    assert "kind work is held" in waits.note
    assert "mulligan kinds release work" in waits.note
