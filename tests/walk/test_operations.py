"""One careful action on many jobs, on both stores, with jobs that run inline."""

from __future__ import annotations

import asyncio
import math

import pytest

from mulligan import Fail, Park, Policy
from mulligan.engine import operate, upkeep
from mulligan.errors import IllegalMove, KeyMismatch, NotFound, OverrideRefused, ReasonMissing, Refused
from mulligan.policy.operation import Tally
from support.store import sql, together
from walk.tools import advance

CAUSES = {"moov": "BAD_FILE", "gateway": "GW_5XX", "disk": "DISK_FULL"}
AT_ONCE = {"steps": ["rest"], "rate": 1000}


class World:
    def __init__(self):
        self.broken = set(CAUSES)
        self.ran = []


@pytest.fixture
def app(make_app):
    return make_app(guards__same_cause="0")


@pytest.fixture
def world():
    return World()


@pytest.fixture
def work(app, world):
    @app.job(name="work", policy=Policy(max_retries=0), cost=2.0)
    def work(cause: str = "moov", n: int = 0) -> int | Fail:
        world.ran.append(n)
        if cause in world.broken:
            return Fail(CAUSES[cause], f"{cause} in part {n}", public=f"It is the {cause}.", final=True)
        return n

    return work


def feed(kind, cause, jobs, **options):
    return [job.id for job in kind.options(**options).enqueue_many([{"cause": cause, "n": n} for n in range(jobs)])]


@pytest.fixture
def dead(app, work):
    """Twenty dead of the gateway, three of the file; of two owners."""
    ids = feed(work, "gateway", 15, owner="acme") + feed(work, "gateway", 5, owner="zenith")
    files = feed(work, "moov", 3, owner="acme")
    app.run_inline()
    return {"gateway": ids, "moov": files}


def told(app, prefix="operation."):
    with app.store.read() as unit:
        return [event for event in unit.events_after(0, 10_000) if event.type.startswith(prefix)]


def truth(app, operation):
    """The tallies as the items themselves say."""
    counts = dict.fromkeys(Tally._fields, 0)
    for item in app.operations.items(operation):
        counts["size"] += 1
        counts[item.outcome or item.state] += 1
    return Tally(**counts)


def states(app, ids):
    return [app.jobs.get(job_id).state for job_id in ids]


# -- retry ------------------------------------------------------------------------------------------
def test_on_a_broken_cause_it_stops_after_its_first_step_and_leaves_the_rest_alone(app, dead, world):
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
    sql(app.store, 'UPDATE {p}job SET payload = \'{"cause": "moov", "n": 1}\' WHERE state = \'dead\'')
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
    assert f"as part of operation {begun.id}: the farm is back." in app.jobs.explain(dead["gateway"][0]).text


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


# -- the other actions --------------------------------------------------------------------------------
def test_discard_cancel_release_and_move(app, dead, work):
    @app.job(name="ask")
    def ask() -> Park:
        return Park("which?", choices=("left", "right"))

    parked = [job.id for job in ask.enqueue_many([{}] * 3)]
    app.run_inline()
    waiting = feed(work, "disk", 4, delay=3600)
    for action, where, more in (
        ("discard", "code:BAD_FILE", {"reason": "nobody wants them"}),
        ("release", "kind:ask", {"choice": "left"}),
        ("move", "kind:work", {"queue": "slow"}),
        ("cancel", "kind:work state:queued", {}),
    ):
        begun = app.operations.start(action, where, **more)
        operate.turn(app.store)
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


def test_a_job_that_was_moved_runs_from_its_new_queue_and_keeps_its_time(app, work, world):
    world.broken.clear()
    (later,) = feed(work, "disk", 1, delay=3600)
    before = app.jobs.get(later)
    app.operations.start("move", "state:queued kind:work", queue="slow")
    app.run_inline()
    after = app.jobs.get(later)
    assert (after.queue, after.run_at, after.state) == ("slow", before.run_at, "queued")
    advance(app, 3601)
    app.run_inline()
    assert app.jobs.get(later).state == "succeeded"


def test_what_is_there_already_or_offers_another_choice_is_refused_for_itself(app, work):
    @app.job(name="ask")
    def ask(more: bool = False) -> Park:
        return Park("which?", choices=("left", "right") if more else ("up", "down"))

    ask.enqueue_many([{"more": True}, {"more": False}])
    app.run_inline()
    begun = app.operations.start("release", "kind:ask", choice="left")
    operate.turn(app.store)
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.done, ended.counts.refused) == ("finished", 1, 1)
    (refused,) = app.operations.items(ended.id, "refused")
    assert refused.why == "choice 'left' is not one of those the job offers: up, down [CHOICE_REFUSED]"
    feed(work, "disk", 2, delay=3600)
    seen = app.operations.start("move", "kind:work", queue="default", dry_run=True)
    assert seen.refused == ((2, "in queue default already"),)
    begun = app.operations.start("move", "kind:work", queue="default")
    operate.turn(app.store)
    assert app.operations.get(begun.id).counts.refused == 2


def test_a_running_job_is_asked_to_stop(app, work, world):
    @app.job(name="long")
    def long() -> None:
        app.operations.start("cancel", "kind:long")
        operate.turn(app.store)

    job = long.enqueue()
    app.run_inline()
    assert "job.cancel_requested" in {event.type for event in app.jobs.history(job.id)}


# -- items --------------------------------------------------------------------------------------------
def test_jobs_that_changed_since_are_skipped_with_the_reason_and_never_moved(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", **AT_ONCE)
    by_hand, gone, unwanted = dead["gateway"][:3]
    app.jobs.retry(by_hand)
    sql(app.store, "DELETE FROM {p}job WHERE id = :id", {"id": gone})
    app.jobs.discard(unwanted, reason="no")
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.counts.skipped, ended.counts.recovered) == ("finished", 3, 17)
    assert {item.job: item.why for item in app.operations.items(ended.id, "skipped")} == {
        by_hand: "the job was retried since",
        gone: "the job is gone",
        unwanted: "the job was dead and is cancelled",
    }
    assert app.jobs.get(by_hand).generation == 2


def test_a_key_that_another_job_holds_refuses_one_and_not_the_others(app, work, world):
    first = work.options(unique="film-1").enqueue(cause="disk")
    feed(work, "disk", 3)
    app.run_inline()
    world.broken.clear()
    twin = work.options(unique="film-1", delay=3600).enqueue(cause="disk")
    before = app.operations.start("retry", "code:DISK_FULL", **AT_ONCE, dry_run=True)
    assert [one.jobs for one in before.refused] == [1]
    assert first.id in before.refused[0].why
    begun = app.operations.start("retry", "code:DISK_FULL", **AT_ONCE)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.counts.refused, ended.counts.recovered) == (1, 3)
    (refused,) = app.operations.items(ended.id, "refused")
    assert (refused.job, "UNIQUE_TAKEN" in refused.why) == (first.id, True)
    assert app.jobs.get(twin.id).state == "queued"


def test_failures_that_joined_meanwhile_are_told_and_not_swept_in(app, dead, work):
    begun = app.operations.start("retry", "code:GW_5XX")
    assert begun.joined == 0
    late = feed(work, "gateway", 4)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert (ended.state, ended.total, ended.joined) == ("stopped", 20, 4)
    assert not {item.job for item in app.operations.items(begun.id)} & {*late}


def test_who_was_sent_and_was_cancelled_or_removed_counts_as_ended(app, dead):
    begun = app.operations.start("retry", "code:BAD_FILE", **AT_ONCE)
    operate.turn(app.store)
    first, second, third = dead["moov"]
    app.jobs.cancel(first)
    app.jobs.cancel(second)
    app.jobs.retry(second)
    sql(app.store, "DELETE FROM {p}job WHERE id = :id", {"id": third})
    operate.turn(app.store, paced=False)
    assert {item.job: item.why for item in app.operations.items(begun.id, "other")} == {
        first: "it is cancelled, without an attempt",
        second: "somebody retried it again before its first attempt",
        third: "the job is gone",
    }
    assert app.operations.get(begun.id).state == "finished"


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


# -- by hand ------------------------------------------------------------------------------------------
def test_pause_resume_and_abort_are_told_with_who_and_why(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=[3, "rest"])
    operate.turn(app.store)
    assert app.operations.pause(begun.id, reason="lunch").state == "paused"
    assert app.operations.pause(begun.id).state == "paused"
    app.run_inline()  # what was sent goes on
    paused = app.operations.get(begun.id)
    assert (paused.counts.recovered, paused.untouched, paused.note) == (3, 17, "paused: lunch")
    aborted = app.operations.abort(begun.id, reason="another day")
    assert (aborted.state, aborted.untouched, aborted.note) == ("aborted", 17, "aborted: another day")
    app.run_inline()
    assert states(app, dead["gateway"]).count("dead") == 17
    for act in (app.operations.pause, app.operations.resume):
        with pytest.raises(IllegalMove, match="it is aborted"):
            act(begun.id)
    seen = [(event.type, event.actor, event.data.get("reason")) for event in told(app)]
    assert seen == [
        ("operation.started", "python", ""),
        ("operation.paused", "python", "lunch"),
        ("operation.aborted", "python", "another day"),
    ]
    assert told(app)[-1].data["untouched"] == 17


def test_resume_goes_on_where_it_was(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX")
    app.operations.pause(begun.id)
    app.run_inline()
    assert app.operations.get(begun.id).untouched == 20
    with app.store.read() as unit:
        assert unit.operation(begun.id).state == "paused"
    assert app.operations.resume(begun.id).state == "running"
    with pytest.raises(IllegalMove, match="it is running"):
        app.operations.resume(begun.id)
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20
    with pytest.raises(IllegalMove, match="it is finished"):
        app.operations.abort(begun.id)


# -- twice --------------------------------------------------------------------------------------------
def test_sent_twice_it_is_the_same_operation(app, dead):
    first = app.operations.start("retry", "code:GW_5XX", reason="one")
    assert app.operations.start("retry", "code:GW_5XX", reason="two").id == first.id
    assert app.operations.start("retry", "  code:GW_5XX ").id == first.id
    assert app.operations.start("retry", "code:GW_5XX", rate=5).id != first.id
    assert len(app.operations.items(first.id)) == 20


def test_a_key_is_one_operation_for_good_and_refuses_another_content(app, dead):
    first = app.operations.start("retry", "code:GW_5XX", key="monday")
    app.run_inline()
    assert app.operations.get(first.id).state == "stopped"
    assert app.operations.start("retry", "code:GW_5XX", key="monday").id == first.id
    with pytest.raises(KeyMismatch, match=first.id):
        app.operations.start("retry", "code:BAD_FILE", key="monday")
    assert len(app.operations.list()) == 1


# -- owners -------------------------------------------------------------------------------------------
def test_an_owner_s_operation_is_about_their_jobs_and_seen_by_nobody_else(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", owner="zenith")
    assert (begun.total, begun.owner) == (5, "zenith")
    app.run_inline()
    assert set(states(app, dead["gateway"][15:])) == {"succeeded"}
    assert set(states(app, dead["gateway"][:15])) == {"dead"}
    assert app.operations.get(begun.id, owner="zenith").id == begun.id
    assert [one.id for one in app.operations.list(owner="zenith")] == [begun.id]
    assert app.operations.list(owner="acme") == []
    for act in (app.operations.get, app.operations.items, app.operations.abort, app.operations.pause):
        with pytest.raises(NotFound, match="no operation"):
            act(begun.id, owner="acme")
    with pytest.raises(Refused, match="only jobs of 'zenith'"):
        app.operations.start("retry", "code:GW_5XX owner:acme", owner="zenith")
    assert {event.owner for event in told(app)} == {"zenith"}


# -- dry run ------------------------------------------------------------------------------------------
def test_a_dry_run_says_how_many_of_what_at_what_price_and_changes_nothing(app, dead, world):
    before = sql(app.store, "SELECT count(*) FROM {p}event")
    seen = app.operations.start("retry", "state:dead", dry_run=True)
    assert (seen.action, seen.count, seen.capped, seen.steps) == ("retry", 23, False, (1, 10, 12))
    assert (seen.codes, seen.kinds) == ({"GW_5XX": 20, "BAD_FILE": 3}, {"work": 23})
    assert seen.owners == {"acme": 18, "zenith": 5}
    assert (seen.cost, seen.estimated_cost) == (46.0, 46.0)
    assert (seen.chance, seen.retried, {one.of for one in seen.chances}) == (None, 0, {""})
    assert sql(app.store, "SELECT count(*) FROM {p}event") == before
    assert app.operations.list() == []


def test_the_chance_is_what_became_of_others(app, dead, world):
    for job in dead["gateway"][:2]:
        app.jobs.retry(job)
    app.run_inline()
    world.broken.clear()
    for job in dead["gateway"][:4]:
        app.jobs.retry(job)
    app.run_inline()
    seen = app.operations.start("retry", "code:GW_5XX", dry_run=True)
    assert (seen.count, seen.retried, seen.recovered, seen.chance) == (16, 4, 4, 1.0)
    assert [one.of for one in seen.chances] == ["group"]


# -- bad input ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("action", "where", "more", "error", "words"),
    [
        ("retry", "", {}, Refused, "needs a filter"),
        ("retry", "   ", {}, Refused, "needs a filter"),
        ("retry", None, {}, Refused, "needs a filter"),
        ("retry", "cod:X", {}, Refused, "did you mean code:"),
        ("retry", '"open', {}, Refused, "closing quotation"),
        ("retry", "state:nowhere", {}, Refused, "no such state"),
        ("delete", "state:dead", {}, Refused, "no action 'delete'"),
        ("retry", "state:running", {}, IllegalMove, "retry is for jobs that are cancelled, dead or parked"),
        ("retry", "state:succeeded", {}, IllegalMove, "finds those that are succeeded"),
        ("retry", "phase:held", {}, IllegalMove, "finds those that are queued"),
        ("retry", "state:parked phase:dead", {}, IllegalMove, "no job at once"),
        ("release", "code:GW_5XX", {}, IllegalMove, "release is for jobs that are parked"),
        ("move", "state:dead", {"queue": "slow"}, IllegalMove, "move is for jobs that are queued"),
        ("cancel", "state:dead", {}, IllegalMove, "cancel is for jobs"),
        ("discard", "state:dead", {}, ReasonMissing, "discard needs a reason"),
        ("discard", "state:dead", {"reason": " "}, ReasonMissing, "discard needs a reason"),
        ("move", "state:queued", {}, Refused, "needs the queue"),
        ("move", "state:queued", {"queue": "a b"}, Refused, "queue"),
        ("move", "state:queued", {"queue": "mulligan.own"}, Refused, "Mulligan's own"),
        ("retry", "state:dead", {"queue": "slow"}, Refused, "queue: is for move alone"),
        ("retry", "state:dead", {"choice": "left"}, Refused, "choice: is for release alone"),
        ("cancel", "state:queued", {"overrides": {"max_retries": 1}}, Refused, "overrides: is for retry alone"),
        ("retry", "state:dead", {"overrides": {"colour": 1}}, OverrideRefused, "cannot override colour"),
        ("retry", "state:dead", {"steps": [0]}, Refused, "steps"),
        ("retry", "state:dead", {"steps": ["rest", 1]}, Refused, "can only be the last"),
        ("retry", "state:dead", {"rate": 0}, Refused, "rate"),
        ("retry", "state:dead", {"rate": -1}, Refused, "rate"),
        ("retry", "state:dead", {"rate": math.nan}, Refused, "rate"),
        ("retry", "state:dead", {"rate": "often"}, Refused, "rate"),
        ("retry", "state:dead", {"stop_if": 2}, Refused, "stop_if"),
        ("retry", "state:dead", {"stop_if": math.nan}, Refused, "stop_if"),
        ("retry", "state:dead", {"key": ""}, Refused, "key"),
        ("retry", "state:dead", {"key": "a\nb"}, Refused, "key"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry_run", [False, True])
def test_nonsense_is_refused_and_nothing_is_changed(app, action, where, more, error, words, dry_run):
    with pytest.raises(error, match=words) as refusal:
        app.operations.start(action, where, dry_run=dry_run, **more)
    assert type(refusal.value) is error
    assert app.operations.list() == []


def test_an_operation_nobody_knows_is_not_found(app):
    for act in (app.operations.get, app.operations.items, app.operations.pause, app.operations.abort):
        with pytest.raises(NotFound, match="no operation"):
            act("0" * 28)
    with pytest.raises(NotFound, match="no operation 'zz'"):
        app.operations.resolve("zz")
    with pytest.raises(Refused, match="the id is empty"):
        app.operations.resolve("")


def test_of_nothing_there_is_an_operation_that_is_over(app, dead):
    begun = app.operations.start("retry", "code:NEVER")
    assert (begun.state, begun.total, begun.note) == ("finished", 0, "no job matched")
    assert [event.type for event in told(app)] == ["operation.started", "operation.finished"]


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
        return seen.count, paused.state, resumed.state, len(items), aborted.state, len(listed), again.state

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
            unit.rows("no_such_verb")
        return moved

    monkeypatch.setattr(operate.recover, "move_in", breaks)
    operate.turn(app.store)
    after = app.operations.get(begun.id)
    assert (after.counts.sent, after.counts.refused) == (19, 1)
    (refused,) = app.operations.items(begun.id, "refused")
    assert (refused.job, "FileNotFoundError" in refused.why) == (poison, True)
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


def test_an_argument_without_an_index_does_not_say_which_jobs_are_meant(app):
    with pytest.raises(Refused, match="index"):
        app.operations.start("retry", "state:dead kind:render since:1h arg.clip:7")
