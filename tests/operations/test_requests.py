"""Tests of requests for operations: repeated, by owners, previewed, refused."""

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
from mulligan.operations import chore
from mulligan.operations.queries import OperationQueries
from support.operation_tools import list_events, states
from support.store import sql


# --- By hand ---
def test_pause_resume_and_abort_write_events_with_actor_and_reason(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX", steps=[3, "rest"])
    chore.run_operations(app.store)
    assert app.operations.pause(begun.id, reason="lunch").state == "paused"
    assert app.operations.pause(begun.id).state == "paused"
    app.run_inline()  # Sent jobs are not affected.
    paused = app.operations.get(begun.id)
    assert (paused.counts.recovered, paused.untouched, paused.note) == (3, 17, "Paused: lunch")
    aborted = app.operations.abort(begun.id, reason="another day")
    assert (aborted.state, aborted.untouched, aborted.note) == (
        "aborted",
        17,
        "Aborted: another day",
    )
    app.run_inline()
    assert states(app, dead["gateway"]).count("dead") == 17
    for act in (app.operations.pause, app.operations.resume):
        with pytest.raises(IllegalMove, match="it is aborted"):
            act(begun.id)
    events = [(event.type, event.actor, event.data.get("reason")) for event in list_events(app)]
    assert events == [
        ("operation.started", "python", ""),
        ("operation.paused", "python", "lunch"),
        ("operation.aborted", "python", "another day"),
    ]
    assert list_events(app)[-1].data["untouched"] == 17


def test_resume_continues_a_paused_operation(app, dead, world):
    world.broken.clear()
    begun = app.operations.start("retry", "code:GW_5XX")
    app.operations.pause(begun.id)
    app.run_inline()
    assert app.operations.get(begun.id).untouched == 20
    with app.store.read() as tx:
        assert OperationQueries(tx).get_operation(begun.id).state == "paused"
    assert app.operations.resume(begun.id).state == "running"
    with pytest.raises(IllegalMove, match="it is running"):
        app.operations.resume(begun.id)
    app.run_inline()
    assert app.operations.get(begun.id).counts.recovered == 20
    with pytest.raises(IllegalMove, match="it is finished"):
        app.operations.abort(begun.id)


# --- Twice ---
def test_an_equal_request_returns_the_active_operation(app, dead):
    first = app.operations.start("retry", "code:GW_5XX", reason="one")
    assert app.operations.start("retry", "code:GW_5XX", reason="two").id == first.id
    assert app.operations.start("retry", "  code:GW_5XX ").id == first.id
    assert app.operations.start("retry", "code:GW_5XX", rate=5).id != first.id
    assert len(app.operations.items(first.id)) == 20


def test_a_key_belongs_to_one_operation_and_refuses_other_content(app, dead):
    first = app.operations.start("retry", "code:GW_5XX", key="monday")
    app.run_inline()
    assert app.operations.get(first.id).state == "stopped"
    assert app.operations.start("retry", "code:GW_5XX", key="monday").id == first.id
    with pytest.raises(KeyMismatch, match=first.id):
        app.operations.start("retry", "code:BAD_FILE", key="monday")
    assert len(app.operations.list()) == 1


# --- Owners ---
def test_an_owners_operation_affects_their_jobs_and_is_hidden_from_others(app, dead, world):
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
    assert {event.owner for event in list_events(app)} == {"zenith"}


# --- Dry run ---
def test_a_dry_run_returns_counts_and_costs_and_changes_nothing(app, dead, world):
    before = sql(app.store, "SELECT count(*) FROM {p}event")
    preview = app.operations.start("retry", "state:dead", dry_run=True)
    assert (preview.action, preview.count, preview.capped, preview.steps) == (
        "retry",
        23,
        False,
        (1, 10, 12),
    )
    assert (preview.codes, preview.kinds) == ({"GW_5XX": 20, "BAD_FILE": 3}, {"work": 23})
    assert preview.owners == {"acme": 18, "zenith": 5}
    assert (preview.cost, preview.estimated_cost) == (46.0, 46.0)
    assert (preview.chance, preview.retried, {one.of for one in preview.chances}) == (None, 0, {""})
    assert sql(app.store, "SELECT count(*) FROM {p}event") == before
    assert app.operations.list() == []


def test_the_chance_follows_from_earlier_manual_retries(app, dead, world):
    for job in dead["gateway"][:2]:
        app.jobs.retry(job)
    app.run_inline()
    world.broken.clear()
    for job in dead["gateway"][:4]:
        app.jobs.retry(job)
    app.run_inline()
    preview = app.operations.start("retry", "code:GW_5XX", dry_run=True)
    assert (preview.count, preview.retried, preview.recovered, preview.chance) == (16, 4, 4, 1.0)
    assert [one.of for one in preview.chances] == ["group"]


# --- Bad input ---
@pytest.mark.parametrize(
    ("action", "where", "options", "error", "message"),
    [
        ("retry", "", {}, Refused, "needs a filter"),
        ("retry", "   ", {}, Refused, "needs a filter"),
        ("retry", None, {}, Refused, "needs a filter"),
        ("retry", "cod:X", {}, Refused, "did you mean code:"),
        ("retry", '"open', {}, Refused, "closing quotation"),
        ("retry", "state:nowhere", {}, Refused, "no such state"),
        ("delete", "state:dead", {}, Refused, "unknown action 'delete'"),
        (
            "retry",
            "state:running",
            {},
            IllegalMove,
            "retry applies to jobs that are cancelled, dead or parked",
        ),
        ("retry", "state:succeeded", {}, IllegalMove, "finds jobs that are succeeded"),
        ("retry", "phase:held", {}, IllegalMove, "finds jobs that are queued"),
        ("retry", "state:parked phase:dead", {}, IllegalMove, "in no possible state"),
        ("release", "code:GW_5XX", {}, IllegalMove, "release applies to jobs that are parked"),
        (
            "move",
            "state:dead",
            {"queue": "slow"},
            IllegalMove,
            "move applies to jobs that are queued",
        ),
        ("cancel", "state:dead", {}, IllegalMove, "cancel applies to jobs"),
        ("discard", "state:dead", {}, ReasonMissing, "discard needs a reason"),
        ("discard", "state:dead", {"reason": " "}, ReasonMissing, "discard needs a reason"),
        ("move", "state:queued", {}, Refused, "needs the queue"),
        ("move", "state:queued", {"queue": "a b"}, Refused, "queue"),
        ("move", "state:queued", {"queue": "mulligan.own"}, Refused, "is reserved"),
        ("retry", "state:dead", {"queue": "slow"}, Refused, "queue: only for move"),
        ("retry", "state:dead", {"choice": "left"}, Refused, "choice: only for release"),
        (
            "cancel",
            "state:queued",
            {"overrides": {"max_retries": 1}},
            Refused,
            "overrides: only for retry",
        ),
        (
            "retry",
            "state:dead",
            {"overrides": {"colour": 1}},
            OverrideRefused,
            "cannot override colour",
        ),
        ("retry", "state:dead", {"steps": [0]}, Refused, "steps"),
        ("retry", "state:dead", {"steps": ["rest", 1]}, Refused, "must be the last"),
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
def test_invalid_requests_are_refused_and_change_nothing(
    app, action, where, options, error, message, dry_run
):
    with pytest.raises(error, match=message) as refusal:
        app.operations.start(action, where, dry_run=dry_run, **options)
    assert type(refusal.value) is error
    assert app.operations.list() == []


def test_an_unknown_operation_is_not_found(app):
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


def test_an_operation_without_jobs_finishes_at_once(app, dead):
    begun = app.operations.start("retry", "code:NEVER")
    assert (begun.state, begun.total, begun.note) == ("finished", 0, "No job matched.")
    assert [event.type for event in list_events(app)] == ["operation.started", "operation.finished"]


def test_an_operation_refuses_an_unindexed_argument(app):
    with pytest.raises(Refused, match="index"):
        app.operations.start("retry", "state:dead kind:render since:1h arg.clip:7")
