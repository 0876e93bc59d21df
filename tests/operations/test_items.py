"""Tests of actions other than retry, and of single items."""

from __future__ import annotations

from mulligan import Park
from mulligan.operations import chore
from support.app_tools import advance
from support.operation_tools import IN_ONE_STEP, enqueue_jobs, states
from support.store import sql


# --- Other actions ---
def test_operations_discard_cancel_release_and_move_jobs(app, dead, work):
    @app.job(name="ask")
    def ask() -> Park:
        return Park("which?", choices=("left", "right"))

    parked = [job.id for job in ask.enqueue_many([{}] * 3)]
    app.run_inline()
    waiting = enqueue_jobs(work, "disk", 4, delay=3600)
    for action, where, more in (
        ("discard", "code:BAD_FILE", {"reason": "not needed"}),
        ("release", "kind:ask", {"choice": "left"}),
        ("move", "kind:work", {"queue": "slow"}),
        ("cancel", "kind:work state:queued", {}),
    ):
        begun = app.operations.start(action, where, **more)
        chore.run_operations(app.store)
        ended = app.operations.get(begun.id)
        assert (ended.state, ended.counts.done) == ("finished", ended.total), ended
        assert ended.total in {3, 4}
    assert set(states(app, dead["moov"])) == set(states(app, waiting)) == {"cancelled"}
    assert set(states(app, parked)) == {"queued"}
    assert {app.jobs.get(job).queue for job in waiting} == {"slow"}
    moved = [event for event in app.jobs.history(waiting[0]) if event.type == "job.edited"]
    assert [event.data["before"] for event in moved] == [{"queue": "default"}]
    assert [event.data["after"] for event in moved] == [{"queue": "slow"}]
    assert "moved it from queue default to slow" in app.jobs.explain(waiting[0]).text


def test_a_moved_job_runs_from_its_new_queue_at_its_old_time(app, work, world):
    world.broken.clear()
    (later,) = enqueue_jobs(work, "disk", 1, delay=3600)
    before = app.jobs.get(later)
    app.operations.start("move", "state:queued kind:work", queue="slow")
    app.run_inline()
    after = app.jobs.get(later)
    assert (after.queue, after.run_at, after.state) == ("slow", before.run_at, "queued")
    advance(app, 3601)
    app.run_inline()
    assert app.jobs.get(later).state == "succeeded"


def test_a_job_in_the_target_queue_or_with_other_choices_is_refused_alone(app, work):
    @app.job(name="ask")
    def ask(more: bool = False) -> Park:
        return Park("which?", choices=("left", "right") if more else ("up", "down"))

    ask.enqueue_many([{"more": True}, {"more": False}])
    app.run_inline()
    begun = app.operations.start("release", "kind:ask", choice="left")
    chore.run_operations(app.store)
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.done, ended.counts.refused) == ("finished", 1, 1)
    (refused,) = app.operations.items(ended.id, "refused")
    assert refused.why == "unknown choice 'left'. The job offers: up, down [CHOICE_REFUSED]"
    enqueue_jobs(work, "disk", 2, delay=3600)
    preview = app.operations.start("move", "kind:work", queue="default", dry_run=True)
    assert preview.refused == ((2, "already in queue default"),)
    begun = app.operations.start("move", "kind:work", queue="default")
    chore.run_operations(app.store)
    assert app.operations.get(begun.id).counts.refused == 2


def test_a_running_job_is_asked_to_stop(app, work, world):
    @app.job(name="long")
    def long() -> None:
        app.operations.start("cancel", "kind:long")
        chore.run_operations(app.store)

    job = long.enqueue()
    app.run_inline()
    assert "job.cancel_requested" in {event.type for event in app.jobs.history(job.id)}


# --- Items ---
def test_jobs_that_changed_since_are_skipped_with_a_reason(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", **IN_ONE_STEP)
    by_hand, gone, unwanted = dead["gateway"][:3]
    app.jobs.retry(by_hand)
    sql(app.store, "DELETE FROM {p}job WHERE id = :id", {"id": gone})
    app.jobs.discard(unwanted, reason="no")
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.skipped, ended.counts.recovered) == ("finished", 3, 17)
    assert {item.job: item.why for item in app.operations.items(ended.id, "skipped")} == {
        by_hand: "the job was retried since",
        gone: "the job was deleted",
        unwanted: "the job was dead and is cancelled",
    }
    assert app.jobs.get(by_hand).generation == 2


def test_a_taken_unique_key_refuses_one_job_and_not_the_others(app, work, world):
    first = work.options(unique="film-1").enqueue(cause="disk")
    enqueue_jobs(work, "disk", 3)
    app.run_inline()
    world.broken.clear()
    twin = work.options(unique="film-1", delay=3600).enqueue(cause="disk")
    before = app.operations.start("retry", "code:DISK_FULL", **IN_ONE_STEP, dry_run=True)
    assert [one.jobs for one in before.refused] == [1]
    assert first.id in before.refused[0].why
    begun = app.operations.start("retry", "code:DISK_FULL", **IN_ONE_STEP)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.counts.refused, ended.counts.recovered) == (1, 3)
    (refused,) = app.operations.items(ended.id, "refused")
    assert (refused.job, "UNIQUE_TAKEN" in refused.why) == (first.id, True)
    assert app.jobs.get(twin.id).state == "queued"


def test_later_matches_are_counted_and_not_touched(app, dead, work):
    begun = app.operations.start("retry", "code:GW_5XX")
    assert begun.joined == 0
    late = enqueue_jobs(work, "gateway", 4)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.total, ended.joined) == ("stopped", 20, 4)
    assert not {item.job for item in app.operations.items(begun.id)} & {*late}


def test_a_sent_job_that_is_cancelled_or_deleted_counts_as_ended(app, dead):
    begun = app.operations.start("retry", "code:BAD_FILE", **IN_ONE_STEP)
    chore.run_operations(app.store)
    first, second, third = dead["moov"]
    app.jobs.cancel(first)
    app.jobs.cancel(second)
    app.jobs.retry(second)
    sql(app.store, "DELETE FROM {p}job WHERE id = :id", {"id": third})
    chore.run_operations(app.store, paced=False)
    assert {item.job: item.why for item in app.operations.items(begun.id, "other")} == {
        first: "it is cancelled without an attempt",
        second: "it was retried again before its first attempt",
        third: "the job was deleted",
    }
    assert app.operations.get(begun.id).state == "finished"
