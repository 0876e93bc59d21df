"""Many jobs retried carefully, on both stores, with jobs that run inline."""

from __future__ import annotations

from mulligan import Policy
from mulligan.operations import chore as operate
from support.app_tools import advance
from support.operation_tools import AT_ONCE, states, truth
from support.store import sql


# -- retry ------------------------------------------------------------------------------------------
def test_on_a_broken_cause_it_stops_after_its_first_step_and_leaves_the_rest_alone(
    app, dead, world
):
    world.ran.clear()
    begun = app.operations.start("retry", "code:GW_5XX", reason="perhaps")
    assert (begun.state, begun.total, begun.step, begun.untouched) == ("running", 20, 1, 20)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert ended.state == "stopped"
    assert [tally.size for tally in ended.steps] == [1, 10, 9]
    assert ended.note == (
        "1 of the 1 of step 1 of 3 failed again of the same cause (GW_5XX), more than 10 %; 19 of 20 are untouched"
    )
    assert len(world.ran) == 1
    assert (ended.counts.same, ended.untouched) == (1, 19)
    assert states(app, dead["gateway"]) == ["dead"] * 20
    assert [app.jobs.get(job).generation for job in dead["gateway"]] == [2] + [1] * 19
    assert ended.counts == truth(app, ended.id)


def test_after_the_fix_the_same_command_recovers_all(app, dead, world):
    first = app.operations.start("retry", "code:GW_5XX")
    app.run_inline()
    world.broken.remove("gateway")
    second = app.operations.start("retry", "code:GW_5XX")
    assert second.id != first.id
    app.run_inline()
    ended = app.operations.get(second.id)
    assert (ended.state, ended.counts.recovered, ended.total) == ("finished", 20, 20)
    assert ended.note == "retry of 20: 20 recovered"
    assert set(states(app, dead["gateway"])) == {"succeeded"}
    assert set(states(app, dead["moov"])) == {"dead"}
    assert ended.counts == truth(app, ended.id)


def test_what_fails_of_something_else_does_not_stop_it(app, dead, world, work):
    world.broken = {"moov"}
    sql(
        app.store,
        'UPDATE {p}job SET payload = \'{"cause": "moov", "n": 1}\' WHERE state = \'dead\'',
    )
    begun = app.operations.start("retry", "code:GW_5XX")
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.other, ended.counts.same) == ("finished", 20, 0)
    assert {item.why for item in app.operations.items(ended.id)} == {"BAD_FILE: It is the moov."}


def test_it_stops_inside_a_step_once_the_share_can_get_below_no_more(app, dead, world):
    world.ran.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=[10, "rest"], stop_if=0.5)
    with app.inline().session() as step:
        for _ in range(6):
            step()
    operate.turn(app.store, paced=False)
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.same, ended.counts.sent) == ("stopped", 6, 4)
    app.run_inline()  # those that were sent end, and that is entered too
    operate.turn(app.store, paced=False)
    ended = app.operations.get(begun.id)
    assert (ended.counts.same, ended.counts.sent, ended.untouched) == (10, 0, 10)
    assert sql(app.store, "SELECT count(*) FROM {p}operation WHERE active") == [(0,)]


def test_a_retry_that_is_tried_again_by_its_policy_is_judged_by_its_first_attempt(app, world):
    @app.job(name="flaky", policy=Policy(max_retries=3))
    def flaky() -> None:
        raise ConnectionError("gateway.example refused")

    job = flaky.enqueue()
    for _ in range(4):
        app.run_inline()
        advance(app, 3600)
    assert app.jobs.get(job.id).state == "dead"
    begun = app.operations.start("retry", "kind:flaky")
    app.run_inline()
    assert app.operations.get(begun.id).state == "stopped"
    assert app.jobs.get(job.id).state == "queued"


def test_steps_without_a_rest_take_so_many_and_no_more(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=[2, 3])
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.total, ended.counts.recovered, ended.state) == (5, 5, "finished")
    assert states(app, dead["gateway"]) == ["succeeded"] * 5 + ["dead"] * 15


def test_retried_jobs_wait_behind_fresh_work_and_tell_whose_doing_it_was(app, dead, work):
    begun = app.operations.start("retry", "code:GW_5XX", **AT_ONCE, reason="the farm is back")
    operate.turn(app.store)
    lanes = {row[0][-1] for row in sql(app.store, "SELECT lane FROM {p}job WHERE state = 'queued'")}
    assert lanes == {"1"}
    event = app.jobs.history(dead["gateway"][0])[-1]
    assert (event.type, event.actor) == ("job.retried", "python")
    assert (event.data["operation"], event.data["reason"]) == (begun.id, "the farm is back")
    assert (
        f"as part of operation {begun.id}: the farm is back."
        in app.jobs.explain(dead["gateway"][0]).text
    )


def test_an_override_holds_for_all(app, dead):
    app.operations.start("retry", "code:GW_5XX", **AT_ONCE, overrides={"max_retries": 7})
    operate.turn(app.store)
    assert {app.jobs.get(job).max_retries for job in dead["gateway"]} == {7}


def test_a_rate_lets_so_many_go_in_a_second(app, dead, store_url):
    begun = app.operations.start("retry", "code:GW_5XX", steps=["rest"], rate=2)
    operate.turn(app.store)
    assert app.operations.get(begun.id).counts.sent == 2
    operate.turn(app.store)
    assert app.operations.get(begun.id).counts.sent == 2
    advance(app, 1.5)
    operate.turn(app.store)
    assert 4 <= app.operations.get(begun.id).counts.sent <= 5


# -- what it waits for --------------------------------------------------------------------------------
def test_while_its_jobs_are_held_it_waits_and_says_on_what(app, dead, world):
    world.broken.clear()
    app.queues.pause("default", reason="the farm restarts")
    begun = app.operations.start("retry", "code:GW_5XX")
    before = app.operations.start("retry", "code:BAD_FILE", dry_run=True)
    assert [(one.jobs, "queue default is paused" in one.why) for one in before.held] == [(3, True)]
    app.run_inline()
    waits = app.operations.get(begun.id)
    assert (waits.state, waits.counts.sent) == ("running", 1)
    assert waits.note.startswith("1 are sent and wait (held): queue default is paused")
    assert "the farm restarts" in waits.note
    app.queues.resume("default")
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20


def test_no_worker_is_something_to_wait_for_too(app, dead, store_url):
    begun = app.operations.start("retry", "code:GW_5XX")
    operate.turn(app.store)
    assert app.operations.get(begun.id).note == ""
    advance(app, 10)
    operate.turn(app.store)
    assert "no live worker knows kind work" in app.operations.get(begun.id).note
