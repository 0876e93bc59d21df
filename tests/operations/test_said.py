"""What may be asked of an operation, by whom, twice, and what is refused."""

from __future__ import annotations

import math

import pytest

from mulligan.core.errors import (
    IllegalMove,
    KeyMismatch,
    NotFound,
    OverrideRefused,
    ReasonMissing,
    Refused,
)
from mulligan.operations import chore as operate
from support.operation_tools import states, told
from support.store import sql


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
    assert (aborted.state, aborted.untouched, aborted.note) == (
        "aborted",
        17,
        "aborted: another day",
    )
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
    for act in (
        app.operations.get,
        app.operations.items,
        app.operations.abort,
        app.operations.pause,
    ):
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
        (
            "retry",
            "state:running",
            {},
            IllegalMove,
            "retry is for jobs that are cancelled, dead or parked",
        ),
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
        (
            "cancel",
            "state:queued",
            {"overrides": {"max_retries": 1}},
            Refused,
            "overrides: is for retry alone",
        ),
        (
            "retry",
            "state:dead",
            {"overrides": {"colour": 1}},
            OverrideRefused,
            "cannot override colour",
        ),
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
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_nonsense_is_refused_and_nothing_is_changed(
    app, action, where, more, error, words, dry_run
):
    with pytest.raises(error, match=words) as refusal:
        app.operations.start(action, where, dry_run=dry_run, **more)
    assert type(refusal.value) is error
    assert app.operations.list() == []


def test_an_operation_nobody_knows_is_not_found(app):
    for act in (
        app.operations.get,
        app.operations.items,
        app.operations.pause,
        app.operations.abort,
    ):
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


def test_an_argument_without_an_index_does_not_say_which_jobs_are_meant(app):
    with pytest.raises(Refused, match="index"):
        app.operations.start("retry", "state:dead kind:render since:1h arg.clip:7")
