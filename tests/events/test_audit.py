"""Every action of a person is an event with actor, time, reason, before and after."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from mulligan import Fail, Park, Policy, Webhook
from mulligan.core.errors import Refused
from mulligan.core.event import EventType
from mulligan.operations.chore import turn
from mulligan.storage.maintenance import restored
from mulligan.worker.liveness import request_drain
from support.app_tools import advance, ran
from support.store import a_job, open_worker

WHY = "because of ticket 12"
HOOK = Webhook("https://example.com/hook")


class Deed(NamedTuple):
    """What somebody does, the event that tells it, and what it must say of before and after."""

    type: str
    act: Any
    before: dict[str, Any]
    after: dict[str, Any]


@pytest.fixture
def app(make_app):
    app = make_app()

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails() -> Fail:
        return Fail("X", final=True)

    @app.job(name="asks")
    def asks() -> Park:
        return Park("who?")

    @app.job(name="works", uses="gateway")
    def works() -> None: ...

    app.schedule("nightly", "0 3 * * *", works)
    return app


def dead(app):
    return ran(app, app.enqueue("fails")).id


def parked(app):
    return ran(app, app.enqueue("asks")).id


def group(app):
    dead(app)
    return app.failures.groups()[0].fingerprint


def sealed(app):
    batch = app.batch("spring")
    app.enqueue("works", batch=batch)
    return batch.seal().id


def finished(app):
    batch = app.batch("spring")
    app.enqueue("fails", batch=batch)
    batch.seal()
    app.run_inline()
    return batch.id


def begun(app):
    dead(app)
    return app.operations.start("retry", "state:dead", reason=WHY).id


def moved(app):
    app.operations.start("move", "state:queued", queue="slow", reason=WHY)
    turn(app.store, paced=False)


def drain(app):
    open_worker(app.store, "w_9")
    with app.store.begin() as unit:
        request_drain(
            unit, [row for row in unit.workers(closed=False) if row.id == "w_9"], "python", WHY
        )


def restore(app):
    open_worker(app.store, "w_8", boot_id="of another boot", lease=1)
    advance(app, 3600)
    restored(app.store, "python", WHY)


def running(app):
    job = app.enqueue("works")
    open_worker(app.store, "w_9")
    with app.store.begin() as unit:
        assert unit.take("w_9", [job.id], 1)
    return job.id


def after(app, first, then):
    """Two actions; the second one is looked at."""
    first(app)
    return then(app)


def down(app):
    """Opened by its breaker, so that it can be probed."""
    from dataclasses import replace

    from mulligan.guards.state import FRESH

    with app.store.begin() as unit:
        row = unit.guard(("dependency", "gateway"))
        guard = replace(FRESH, open=True, since=unit.now(), probe_at=unit.now() + 10**9)
        unit.write_guard(row._replace(active=True, body=guard.to_json()))


def subscribed(app):
    return app.subscriptions.add("job.died", HOOK).id


DEEDS = {
    "retry": Deed(
        "job.retried",
        lambda app: app.jobs.retry(dead(app), reason=WHY),
        {"state": "dead", "generation": 1},
        {"state": "queued", "generation": 2},
    ),
    "cancel": Deed(
        "job.cancelled",
        lambda app: app.jobs.cancel(app.enqueue("works").id, reason=WHY),
        {"state": "queued"},
        {"state": "cancelled"},
    ),
    "cancel what runs": Deed(
        "job.cancel_requested",
        lambda app: app.jobs.cancel(running(app), reason=WHY),
        {"stopping": False},
        {"stopping": True},
    ),
    "release": Deed(
        "job.released",
        lambda app: app.jobs.release(parked(app), reason=WHY),
        {"state": "parked"},
        {"state": "queued"},
    ),
    "discard": Deed(
        "job.discarded",
        lambda app: app.jobs.discard(dead(app), reason=WHY),
        {"state": "dead"},
        {"state": "cancelled"},
    ),
    "pause": Deed(
        "queue.paused",
        lambda app: app.queues.pause("pdf", reason=WHY),
        {"paused": False},
        {"paused": True, "reason": WHY},
    ),
    "resume": Deed(
        "queue.resumed",
        lambda app: after(
            app,
            lambda app: app.queues.pause("pdf", reason="x"),
            lambda app: app.queues.resume("pdf", reason=WHY),
        ),
        {"paused": True, "reason": "x"},
        {"paused": False},
    ),
    "limit a queue": Deed(
        "queue.changed",
        lambda app: app.queues.set("pdf", concurrency=3, reason=WHY),
        {},
        {"concurrency": 3},
    ),
    "change its limit": Deed(
        "queue.changed",
        lambda app: after(
            app,
            lambda app: app.queues.set("pdf", concurrency=3),
            lambda app: app.queues.set("pdf", concurrency=None, reason=WHY),
        ),
        {"concurrency": 3},
        {"concurrency": "none"},
    ),
    "clear its limit": Deed(
        "queue.changed",
        lambda app: after(
            app,
            lambda app: app.queues.set("pdf", rate="5/s"),
            lambda app: app.queues.clear("pdf", reason=WHY),
        ),
        {"rate": 5.0},
        {},
    ),
    "open a dependency": Deed(
        "dependency.opened",
        lambda app: app.dependencies.open("gateway", reason=WHY),
        {"open": False},
        {"open": True, "reason": WHY},
    ),
    "close it": Deed(
        "dependency.closed",
        lambda app: after(
            app,
            lambda app: app.dependencies.open("gateway", reason="x"),
            lambda app: app.dependencies.close("gateway", reason=WHY),
        ),
        {"open": True, "reason": "x"},
        {"open": False},
    ),
    "keep it closed": Deed(
        "dependency.changed",
        lambda app: app.dependencies.close("gateway", until=60, reason=WHY),
        {"kept_closed_until": None},
        {},
    ),
    "probe it": Deed(
        "dependency.changed",
        lambda app: after(app, down, lambda app: app.dependencies.probe("gateway", reason=WHY)),
        {},
        {},
    ),
    "limit it": Deed(
        "dependency.changed",
        lambda app: app.dependencies.set("gateway", rate=2, reason=WHY),
        {},
        {"rate": 2.0},
    ),
    "clear its limits": Deed(
        "dependency.changed",
        lambda app: after(
            app,
            lambda app: app.dependencies.set("gateway", rate=2),
            lambda app: app.dependencies.clear("gateway", reason=WHY),
        ),
        {"rate": 2.0},
        {},
    ),
    "hold a kind": Deed(
        "kind.held",
        lambda app: app.kinds.hold("works", reason=WHY),
        {"held": False},
        {"held": True, "reason": WHY},
    ),
    "release a kind": Deed(
        "kind.released",
        lambda app: after(
            app,
            lambda app: app.kinds.hold("works", reason="x"),
            lambda app: app.kinds.release("works", reason=WHY),
        ),
        {"held": True, "reason": "x"},
        {"held": False},
    ),
    "mute a group": Deed(
        "failure.muted",
        lambda app: app.failures.mute(group(app), reason=WHY),
        {"state": "new"},
        {"state": "muted", "note": WHY},
    ),
    "resolve it": Deed(
        "failure.resolved",
        lambda app: app.failures.resolve(group(app), note=WHY),
        {"state": "new"},
        {"state": "resolved"},
    ),
    "reopen it": Deed(
        "failure.reopened",
        lambda app: after(
            app,
            lambda app: app.failures.resolve(group(app)),
            lambda app: app.failures.reopen(app.failures.groups()[0].fingerprint, reason=WHY),
        ),
        {"state": "resolved"},
        {"state": "open"},
    ),
    "drain a worker": Deed(
        "worker.drain_requested", drain, {"draining": False}, {"draining": True}
    ),
    "seal a batch": Deed(
        "batch.sealed",
        lambda app: app.batches.seal(app.batch("spring").id, reason=WHY),
        {"sealed": False},
        {"sealed": True},
    ),
    "cancel a batch": Deed(
        "batch.cancelled",
        lambda app: app.batches.cancel(sealed(app), reason=WHY),
        {"cancelled": False},
        {"cancelled": True},
    ),
    "retry what failed": Deed(
        "batch.reopened",
        lambda app: app.batches.retry_failed(finished(app), reason=WHY),
        {"outcome": "failed", "generation": 1},
        {"outcome": None, "generation": 2},
    ),
    "begin an operation": Deed("operation.started", begun, {}, {"state": "running"}),
    "pause it": Deed(
        "operation.paused",
        lambda app: app.operations.pause(begun(app), reason=WHY),
        {"state": "running"},
        {"state": "paused"},
    ),
    "let it go on": Deed(
        "operation.resumed",
        lambda app: app.operations.resume(app.operations.pause(begun(app)).id, reason=WHY),
        {"state": "paused"},
        {"state": "running"},
    ),
    "end it": Deed(
        "operation.aborted",
        lambda app: app.operations.abort(begun(app), reason=WHY),
        {"state": "running"},
        {"state": "aborted"},
    ),
    "move jobs": Deed(
        "job.edited",
        lambda app: after(app, lambda app: app.enqueue("works"), moved),
        {"queue": "default"},
        {"queue": "slow"},
    ),
    "enqueue": Deed(
        "job.queued",
        lambda app: app.insert([a_job(kind="works")], actor="python"),
        {},
        {"state": "queued"},
    ),
    "make a key": Deed(
        "key.created",
        lambda app: app.keys.create("acme", "viewer", name="n", reason=WHY),
        {},
        {"state": "valid", "scope": "acme", "role": "viewer"},
    ),
    "revoke a key": Deed(
        "key.revoked",
        lambda app: app.keys.revoke(app.keys.create("*", "admin").key.id, reason=WHY),
        {"state": "valid"},
        {"state": "revoked"},
    ),
    "say that it is restored": Deed("database.restored", restore, {"workers": 1}, {"workers": 0}),
    "subscribe": Deed(
        "subscription.created",
        lambda app: app.subscriptions.add("job.died", HOOK, reason=WHY),
        {},
        {"state": "on", "on": "job.died", "to": "https://example.com:443"},
    ),
    "unsubscribe": Deed(
        "subscription.removed",
        lambda app: app.subscriptions.remove(subscribed(app), reason=WHY),
        {"state": "on"},
        {},
    ),
    "switch a subscription off": Deed(
        "subscription.disabled",
        lambda app: app.subscriptions.disable(subscribed(app), reason=WHY),
        {"state": "on"},
        {"state": "off"},
    ),
    "switch it on": Deed(
        "subscription.changed",
        lambda app: after(
            app,
            lambda app: app.subscriptions.disable(subscribed(app), reason="x"),
            lambda app: app.subscriptions.enable(app.subscriptions.list()[0].id, reason=WHY),
        ),
        {"state": "off", "reason": "x"},
        {"state": "on"},
    ),
    "change its secret": Deed(
        "subscription.changed",
        lambda app: app.subscriptions.rotate(subscribed(app), reason=WHY),
        {},
        {"secret": "rotated"},
    ),
    "silence an alert": Deed(
        "alert.silenced",
        lambda app: app.alerts.silence("slow_jobs", 60, reason=WHY),
        {"silenced_until": None},
        {},
    ),
    "pause a schedule": Deed(
        "schedule.paused",
        lambda app: app.schedules.pause("nightly", reason=WHY),
        {"paused": False},
        {"paused": True},
    ),
    "resume a schedule": Deed(
        "schedule.resumed",
        lambda app: after(
            app,
            lambda app: app.schedules.pause("nightly"),
            lambda app: app.schedules.resume("nightly", reason=WHY),
        ),
        {"paused": True},
        {"paused": False},
    ),
    "run a schedule": Deed(
        "job.queued", lambda app: app.schedules.run("nightly", reason=WHY), {}, {"state": "queued"}
    ),
}


@pytest.mark.security("S53")
@pytest.mark.parametrize("name", DEEDS)
def test_each_action_says_who_when_why_and_what_it_was_before_and_after(app, name):
    deed = DEEDS[name]
    began = datetime.now(UTC) - timedelta(seconds=1)
    deed.act(app)
    event = app.events.list(type=deed.type)[0]
    assert event.actor == "python"
    assert event.at / 1e6 >= began.timestamp()
    assert name == "enqueue" or WHY in event.data["reason"]
    assert {**event.data["before"], **deed.before} == event.data["before"]
    assert {**event.data["after"], **deed.after} == event.data["after"]
    assert event.data["before"] != event.data["after"]
    json.dumps(event.data)


# What happens by itself, or is told by another action of the same moment.
NOT_BY_HAND = {
    "job.started",
    "job.retry_scheduled",
    "job.snoozed",
    "job.succeeded",
    "job.died",
    "job.parked",
    "job.lost",
    "job.pruned",
    "job.stale_refused",
    "dependency.probing",
    "schedule.skipped",
    "worker.started",
    "worker.lost",
    "alert.fired",
    "alert.resolved",
    "batch.ready",
    "batch.partial",
    "batch.failed",
    "batch.recovered",
    "batch.expired",
    "operation.stopped",
    "operation.finished",
    "worker.runner_died",
}


@pytest.mark.security("S53")
def test_no_action_is_left_out():
    assert {deed.type for deed in DEEDS.values()} | NOT_BY_HAND >= {str(kind) for kind in EventType}


def test_what_changed_nothing_is_no_action(app):
    app.queues.resume("pdf")
    app.queues.clear("pdf")
    app.kinds.release("works")
    app.failures.unmute(group(app))
    assert app.events.list() == []


def test_a_worker_that_was_asked_to_leave_is_not_asked_twice(app):
    drain(app)
    with app.store.begin() as unit:
        request_drain(unit, unit.workers(closed=False), "python", "again")
    assert [event.type for event in app.events.list()] == ["worker.drain_requested"]


def test_actions_are_found_by_who_when_what_and_whose(app):
    app.queues.pause("pdf", reason="x")
    job = ran(app, app.enqueue("fails", owner="acme"))
    app.jobs.retry(job.id, reason="y")
    advance(app, 3600)
    app.queues.resume("pdf")
    assert [event.type for event in app.events.list()] == [
        "queue.resumed",
        "job.retried",
        "queue.paused",
    ]
    assert [event.type for event in app.events.list(type="queue.*", limit=1)] == ["queue.resumed"]
    assert [event.type for event in app.events.list(type=["job.retried", "queue.paused"])] == [
        "job.retried",
        "queue.paused",
    ]
    assert [event.type for event in app.events.list(since=60)] == ["queue.resumed"]
    assert [event.type for event in app.events.list(until=timedelta(minutes=1), owner="acme")] == [
        "job.retried"
    ]
    assert [event.type for event in app.events.list(job=job.id)] == ["job.retried"]
    assert app.events.list(actor="cli:ann") == []
    newest = app.events.list(limit=1)[0]
    assert [event.type for event in app.events.list(before=newest.id)] == [
        "job.retried",
        "queue.paused",
    ]
    assert asyncio.run(app.aio.events.list(limit=1)) == [newest]


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"limit": 0}, "limit"),
        ({"type": "job.retryed"}, "did you mean job.retried"),
        ({"since": -1}, "since"),
    ],
    ids=str,
)
def test_a_question_that_makes_no_sense_is_refused(app, asked, match):
    with pytest.raises(Refused, match=match):
        app.events.list(**asked)
