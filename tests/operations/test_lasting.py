"""Operations over time, and in many hands at once."""

from __future__ import annotations

import asyncio

import pytest

from mulligan import Policy
from mulligan.operations import chore as operate
from mulligan.worker import upkeep
from support.app_tools import advance
from support.operation_tools import AT_ONCE, feed, told, truth
from support.store import sql, together


# -- over time ----------------------------------------------------------------------------------------
def test_relative_times_are_fixed_when_it_begins(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX since:1h")
    assert begun.total == 20
    advance(app, 7200)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.recovered) == ("finished", 20)
    assert "enqueued since" in ended.fixed
    assert "as of" in ended.fixed


def test_who_dies_while_it_gathers_has_joined_and_is_no_member(app, dead, work, monkeypatch):
    monkeypatch.setattr(operate, "CHUNK", 7)
    chunks = []
    gather = operate.gather

    def slowly(store, operation):
        if not chunks:
            feed(work, "gateway", 3)
            app.run_inline()
        chunks.append(operation)
        return gather(store, operation)

    monkeypatch.setattr(operate, "gather", slowly)
    begun = app.operations.start("retry", "code:GW_5XX")
    assert (begun.total, begun.joined, len(chunks) >= 3) == (20, 3, True)
    assert [item.job for item in app.operations.items(begun.id)] == sorted(dead["gateway"])


def test_if_the_starter_dies_while_it_gathers_a_worker_goes_on(app, dead, world, monkeypatch):
    world.broken.clear()
    monkeypatch.setattr(operate, "CHUNK", 7)
    gather = operate.gather

    def killed(store, operation):
        gather(store, operation)
        raise KeyboardInterrupt

    monkeypatch.setattr(operate, "gather", killed)
    with pytest.raises(KeyboardInterrupt):
        app.operations.start("retry", "code:GW_5XX")
    (begun,) = app.operations.list()
    assert (begun.state, begun.total) == ("gathering", 7)
    operate.turn(app.store)
    assert app.operations.get(begun.id).total == 7  # the starter may only be slow
    advance(app, 6)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.total, ended.counts.recovered) == ("finished", 20, 20)


def test_it_can_be_paused_and_ended_while_it_gathers(app, dead, world, monkeypatch):
    world.broken.clear()
    monkeypatch.setattr(operate, "CHUNK", 7)
    gather = operate.gather

    def interrupted(store, operation):
        gather(store, operation)
        app.operations.pause(operation)
        return gather(store, operation)

    monkeypatch.setattr(operate, "gather", interrupted)
    begun = app.operations.start("retry", "code:GW_5XX")
    assert (begun.state, begun.total, begun.untouched) == ("paused", 7, 7)
    app.run_inline()
    assert app.operations.resume(begun.id).state == "gathering"
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20
    begun = app.operations.start("retry", "code:BAD_FILE", steps=[1, "rest"])
    ended = app.operations.abort(begun.id)
    assert (ended.state, ended.untouched, told(app)[-1].data["untouched"]) == ("aborted", 3, 3)


def test_ended_operations_leave_by_retention_in_small_steps(app, make_app, dead, monkeypatch):
    ended = app.operations.start("retry", "code:GW_5XX")
    app.run_inline()
    going = app.operations.start("retry", "code:BAD_FILE")
    settings = make_app(retention__operations="3600").settings
    upkeep.prune(app.store, settings, {})
    assert len(app.operations.list()) == 2
    advance(app, 3700)
    monkeypatch.setattr(upkeep, "STEP", 15)
    upkeep.prune(app.store, settings, {})
    assert len(app.operations.items(ended.id)) == 5
    upkeep.prune(app.store, settings, {})
    assert [one.id for one in app.operations.list()] == [going.id]
    assert len(app.operations.items(going.id)) == 3


def test_all_of_it_can_be_awaited(app, dead, world):
    world.broken.clear()

    async def main():
        api = app.aio.operations
        seen = await api.start("retry", "code:GW_5XX", dry_run=True)
        begun = await api.start("retry", "code:GW_5XX")
        paused = await api.pause(begun.id)
        resumed = await api.resume(begun.id)
        items = await api.items(begun.id, "waiting")
        aborted = await api.abort(begun.id)
        listed = await api.list()
        again = await api.get(begun.id)
        return (
            seen.count,
            paused.state,
            resumed.state,
            len(items),
            aborted.state,
            len(listed),
            again.state,
        )

    assert asyncio.run(main()) == (20, "paused", "running", 20, "aborted", 1, "aborted")


# -- many at once -------------------------------------------------------------------------------------
def test_twenty_who_press_at_once_begin_one_operation(app, dead):
    begun = together(*[lambda: app.operations.start("retry", "code:GW_5XX").id] * 20)
    assert len({*begun}) == len(app.operations.list()) == 1
    assert len(app.operations.items(begun[0])) == 20


def test_many_who_take_turns_at_once_move_each_job_once(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=["rest"], rate=5)

    def turns():
        for _ in range(10):
            operate.turn(app.store, paced=False)
            operate.step(app.store, begun.id, after=operate.Did(ended=operate.TURN))

    together(*[turns] * 6)
    sent = app.operations.get(begun.id)
    assert (sent.counts.sent, sent.counts) == (20, truth(app, begun.id))
    assert {app.jobs.get(job).generation for job in dead["gateway"]} == {2}
    assert len(told(app, "job.retried")) == 20
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20


def test_an_abort_in_the_middle_of_turns_leaves_numbers_and_items_agreed(app, dead, world):
    begun = app.operations.start("retry", "code:GW_5XX", **AT_ONCE)

    def turns():
        for _ in range(5):
            operate.step(app.store, begun.id, after=operate.Did(ended=operate.TURN))

    together(turns, lambda: app.operations.abort(begun.id), turns)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts) == ("aborted", truth(app, begun.id))
    assert ended.counts.sent == 0


def test_a_turn_that_breaks_off_has_done_nothing(app, dead, monkeypatch):
    begun = app.operations.start("retry", "code:GW_5XX", **AT_ONCE)
    before = sql(app.store, "SELECT id, state, generation FROM {p}job ORDER BY id")
    moved = []
    move_in = operate.recover.move_in

    def killed(*args, **kwargs):
        moved.append(move_in(*args, **kwargs))
        if len(moved) == 7:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(operate.recover, "move_in", killed)
    with pytest.raises(KeyboardInterrupt):
        operate.turn(app.store)
    assert sql(app.store, "SELECT id, state, generation FROM {p}job ORDER BY id") == before
    assert app.operations.get(begun.id).untouched == 20
    monkeypatch.undo()
    operate.turn(app.store)
    assert app.operations.get(begun.id).counts.sent == 20


def test_a_job_whose_move_breaks_is_refused_for_itself(app, dead, monkeypatch, caplog):
    begun = app.operations.start("retry", "code:GW_5XX", **AT_ONCE)
    move_in, poison = operate.recover.move_in, dead["gateway"][7]

    def breaks(unit, row, *args, **kwargs):
        moved = move_in(unit, row, *args, **kwargs)
        if row.id == poison:
            raise ArithmeticError
        return moved

    monkeypatch.setattr(operate.recover, "move_in", breaks)
    operate.turn(app.store)
    after = app.operations.get(begun.id)
    assert (after.counts.sent, after.counts.refused) == (19, 1)
    (refused,) = app.operations.items(begun.id, "refused")
    assert (refused.job, "ArithmeticError" in refused.why) == (poison, True)
    assert app.jobs.get(poison).state == "dead"
    assert "each job for itself" in caplog.text


def test_a_held_kind_is_something_to_wait_for(make_app):
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
