"""Tests of retry operations on both stores, with jobs that run inline."""

from __future__ import annotations

from mulligan import Policy
from mulligan.operations import chore
from support.app_tools import advance
from support.operation_tools import IN_ONE_STEP, count_items, states
from support.store import sql


# -- retry ---------------------------------------------------------------------------------------
def test_if_the_cause_is_not_fixed_the_operation_stops_after_its_first_step(app, dead, world):
    world.ran.clear()
    begun = app.operations.start("retry", "code:GW_5XX", reason="perhaps")
    assert (begun.state, begun.total, begun.step, begun.untouched) == ("running", 20, 1, 20)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert ended.state == "stopped"
    assert [tally.size for tally in ended.steps] == [1, 10, 9]
    assert ended.note == (
        "Stopped at step 1 of 3: 1 of 1 retried jobs failed again with GW_5XX (limit 10 %). "
        "19 of 20 jobs were not retried."
    )
    assert len(world.ran) == 1
    assert (ended.counts.same, ended.untouched) == (1, 19)
    assert states(app, dead["gateway"]) == ["dead"] * 20
    assert [app.jobs.get(job).generation for job in dead["gateway"]] == [2] + [1] * 19
    assert ended.counts == count_items(app, ended.id)


def test_after_the_fix_the_same_operation_recovers_all_jobs(app, dead, world):
    first = app.operations.start("retry", "code:GW_5XX")
    app.run_inline()
    world.broken.remove("gateway")
    second = app.operations.start("retry", "code:GW_5XX")
    assert second.id != first.id
    app.run_inline()
    ended = app.operations.get(second.id)
    assert (ended.state, ended.counts.recovered, ended.total) == ("finished", 20, 20)
    assert ended.note == "Retry of 20 jobs: 20 recovered."
    assert set(states(app, dead["gateway"])) == {"succeeded"}
    assert set(states(app, dead["moov"])) == {"dead"}
    assert ended.counts == count_items(app, ended.id)


def test_failures_with_another_cause_do_not_stop_an_operation(app, dead, world, work):
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


def test_an_operation_stops_inside_a_step_once_the_limit_is_certainly_exceeded(app, dead, world):
    world.ran.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=[10, "rest"], stop_if=0.5)
    with app.inline().session() as step:
        for _ in range(6):
            step()
    chore.run_operations(app.store, paced=False)
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.same, ended.counts.sent) == ("stopped", 6, 4)
    app.run_inline()  # The jobs that were sent end, and that is recorded too.
    chore.run_operations(app.store, paced=False)
    ended = app.operations.get(begun.id)
    assert (ended.counts.same, ended.counts.sent, ended.untouched) == (10, 0, 10)
    assert sql(app.store, "SELECT count(*) FROM {p}operation WHERE active") == [(0,)]


def test_a_retried_job_is_judged_by_its_first_attempt(app, world):
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


def test_steps_without_rest_limit_the_number_of_jobs(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=[2, 3])
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.total, ended.counts.recovered, ended.state) == (5, 5, "finished")
    assert states(app, dead["gateway"]) == ["succeeded"] * 5 + ["dead"] * 15


def test_retried_jobs_wait_behind_fresh_work_and_name_their_operation(app, dead, work):
    begun = app.operations.start("retry", "code:GW_5XX", **IN_ONE_STEP, reason="the farm is back")
    chore.run_operations(app.store)
    lanes = {row[0][-1] for row in sql(app.store, "SELECT lane FROM {p}job WHERE state = 'queued'")}
    assert lanes == {"1"}
    event = app.jobs.history(dead["gateway"][0])[-1]
    assert (event.type, event.actor) == ("job.retried", "python")
    assert (event.data["operation"], event.data["reason"]) == (begun.id, "the farm is back")
    assert (
        f"as part of operation {begun.id}: the farm is back."
        in app.jobs.explain(dead["gateway"][0]).text
    )


def test_an_override_applies_to_all_jobs(app, dead):
    app.operations.start("retry", "code:GW_5XX", **IN_ONE_STEP, overrides={"max_retries": 7})
    chore.run_operations(app.store)
    assert {app.jobs.get(job).max_retries for job in dead["gateway"]} == {7}


def test_a_rate_limits_jobs_per_second(app, dead, store_url):
    begun = app.operations.start("retry", "code:GW_5XX", steps=["rest"], rate=2)
    chore.run_operations(app.store)
    assert app.operations.get(begun.id).counts.sent == 2
    chore.run_operations(app.store)
    assert app.operations.get(begun.id).counts.sent == 2
    advance(app, 1.5)
    chore.run_operations(app.store)
    assert 4 <= app.operations.get(begun.id).counts.sent <= 5


# -- what it waits for ---------------------------------------------------------------------------
def test_while_its_jobs_are_held_an_operation_waits_and_says_why(app, dead, world):
    world.broken.clear()
    app.queues.pause("default", reason="the farm restarts")
    begun = app.operations.start("retry", "code:GW_5XX")
    before = app.operations.start("retry", "code:BAD_FILE", dry_run=True)
    assert [(one.jobs, "queue default is paused" in one.why) for one in before.held] == [(3, True)]
    app.run_inline()
    waits = app.operations.get(begun.id)
    assert (waits.state, waits.counts.sent) == ("running", 1)
    assert waits.note.startswith("1 jobs were sent and are waiting (held): queue default is paused")
    assert "the farm restarts" in waits.note
    app.queues.resume("default")
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20


def test_without_a_worker_an_operation_waits_and_says_why(app, dead, store_url):
    begun = app.operations.start("retry", "code:GW_5XX")
    chore.run_operations(app.store)
    assert app.operations.get(begun.id).note == ""
    advance(app, 10)
    chore.run_operations(app.store)
    assert "no live worker handles kind work" in app.operations.get(begun.id).note
