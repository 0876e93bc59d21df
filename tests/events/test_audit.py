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
from mulligan.guards.queries import GuardQueries
from mulligan.operations.chore import run_operations
from mulligan.releases.queries import ReleaseQueries
from mulligan.worker.queries import LeaseQueries
from mulligan.worker.service import drain_workers, mark_restored
from support.app_tools import advance, run_job
from support.store import a_job, open_worker

REASON = "because of ticket 12"
HOOK = Webhook("https://example.com/hook")


class Action(NamedTuple):
    """An action, the type of its event, and the before and after data it must contain."""

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
        return Park("which one?")

    @app.job(name="works", uses="gateway")
    def works() -> None: ...

    app.schedule("nightly", "0 3 * * *", works)
    return app


def discard_job(app):
    return app.jobs.discard(kill_job(app), reason=REASON).id


def kill_job(app):
    return run_job(app, app.enqueue("fails")).id


def park_job(app):
    return run_job(app, app.enqueue("asks")).id


def create_release(app):
    with app.store.begin() as tx:
        ReleaseQueries(tx).note_release("r42")
    return "r42"


def create_group(app):
    kill_job(app)
    return app.failures.groups()[0].fingerprint


def seal_batch(app):
    batch = app.batch("spring")
    app.enqueue("works", batch=batch)
    return batch.seal().id


def finish_batch(app):
    batch = app.batch("spring")
    app.enqueue("fails", batch=batch)
    batch.seal()
    app.run_inline()
    return batch.id


def start_operation(app):
    kill_job(app)
    return app.operations.start("retry", "state:dead", reason=REASON).id


def move_jobs(app):
    app.operations.start("move", "state:queued", queue="slow", reason=REASON)
    run_operations(app.store, paced=False)


def drain(app):
    open_worker(app.store, "w_9")
    drain_workers(app.store, ["w_9"], "python", REASON)


def restore(app):
    open_worker(app.store, "w_8", boot_id="another boot", lease=1)
    advance(app, 3600)
    mark_restored(app.store, "python", REASON)


def start_job(app):
    job = app.enqueue("works")
    open_worker(app.store, "w_9")
    with app.store.begin() as tx:
        assert LeaseQueries(tx).claim_jobs("w_9", [job.id], 1)
    return job.id


def run_both(app, first, then):
    """Run two actions and return the result of the second."""
    first(app)
    return then(app)


def hold_with_a_waiting_job(app):
    app.enqueue("works")
    app.kinds.hold("works", reason="x")


def open_breaker(app):
    """Let the breaker of gateway open, so that it can be probed."""
    from dataclasses import replace

    from mulligan.guards.state import NEW_GUARD

    with app.store.begin() as tx:
        row = GuardQueries(tx).lock_guard(("dependency", "gateway"))
        guard = replace(NEW_GUARD, open=True, since=tx.now(), probe_at=tx.now() + 10**9)
        GuardQueries(tx).update_guard(row._replace(active=True, body=guard.to_json()))


def subscribe(app):
    return app.subscriptions.add("job.died", HOOK).id


ACTIONS = {
    "retry": Action(
        "job.retried",
        lambda app: app.jobs.retry(kill_job(app), reason=REASON),
        {"state": "dead", "generation": 1},
        {"state": "queued", "generation": 2},
    ),
    "cancel": Action(
        "job.cancelled",
        lambda app: app.jobs.cancel(app.enqueue("works").id, reason=REASON),
        {"state": "queued"},
        {"state": "cancelled"},
    ),
    "cancel what runs": Action(
        "job.cancel_requested",
        lambda app: app.jobs.cancel(start_job(app), reason=REASON),
        {"stopping": False},
        {"stopping": True},
    ),
    "release": Action(
        "job.released",
        lambda app: app.jobs.release(park_job(app), reason=REASON),
        {"state": "parked"},
        {"state": "queued"},
    ),
    "answer": Action(
        "job.answered",
        lambda app: app.tell(
            job=app.enqueue("works"), name="approval", value=1, actor="python", reason=REASON
        ),
        {"answered": False},
        {"answered": True},
    ),
    "discard": Action(
        "job.discarded",
        lambda app: app.jobs.discard(kill_job(app), reason=REASON),
        {"state": "dead"},
        {"state": "cancelled"},
    ),
    "undo of a discard": Action(
        "job.undiscarded",
        lambda app: app.jobs.undiscard(discard_job(app), reason=REASON),
        {"state": "cancelled"},
        {"state": "dead"},
    ),
    "pause": Action(
        "queue.paused",
        lambda app: app.queues.pause("pdf", reason=REASON),
        {"paused": False},
        {"paused": True, "reason": REASON},
    ),
    "resume": Action(
        "queue.resumed",
        lambda app: run_both(
            app,
            lambda app: app.queues.pause("pdf", reason="x"),
            lambda app: app.queues.resume("pdf", reason=REASON),
        ),
        {"paused": True, "reason": "x"},
        {"paused": False},
    ),
    "limit a queue": Action(
        "queue.changed",
        lambda app: app.queues.set("pdf", concurrency=3, reason=REASON),
        {},
        {"concurrency": 3},
    ),
    "change its limit": Action(
        "queue.changed",
        lambda app: run_both(
            app,
            lambda app: app.queues.set("pdf", concurrency=3),
            lambda app: app.queues.set("pdf", concurrency=None, reason=REASON),
        ),
        {"concurrency": 3},
        {"concurrency": "none"},
    ),
    "clear its limit": Action(
        "queue.changed",
        lambda app: run_both(
            app,
            lambda app: app.queues.set("pdf", rate="5/s"),
            lambda app: app.queues.clear("pdf", reason=REASON),
        ),
        {"rate": 5.0},
        {},
    ),
    "open a dependency": Action(
        "dependency.opened",
        lambda app: app.dependencies.open("gateway", reason=REASON),
        {"open": False},
        {"open": True, "reason": REASON},
    ),
    "close it": Action(
        "dependency.closed",
        lambda app: run_both(
            app,
            lambda app: app.dependencies.open("gateway", reason="x"),
            lambda app: app.dependencies.close("gateway", reason=REASON),
        ),
        {"open": True, "reason": "x"},
        {"open": False},
    ),
    "keep it closed": Action(
        "dependency.changed",
        lambda app: app.dependencies.close("gateway", until=60, reason=REASON),
        {"kept_closed_until": None},
        {},
    ),
    "probe it": Action(
        "dependency.changed",
        lambda app: run_both(
            app, open_breaker, lambda app: app.dependencies.probe("gateway", reason=REASON)
        ),
        {},
        {},
    ),
    "limit it": Action(
        "dependency.changed",
        lambda app: app.dependencies.set("gateway", rate=2, reason=REASON),
        {},
        {"rate": 2.0},
    ),
    "clear its limits": Action(
        "dependency.changed",
        lambda app: run_both(
            app,
            lambda app: app.dependencies.set("gateway", rate=2),
            lambda app: app.dependencies.clear("gateway", reason=REASON),
        ),
        {"rate": 2.0},
        {},
    ),
    "hold a kind": Action(
        "kind.held",
        lambda app: app.kinds.hold("works", reason=REASON),
        {"held": False},
        {"held": True, "reason": REASON},
    ),
    "try one of a kind": Action(
        "job.tried",
        lambda app: run_both(
            app,
            hold_with_a_waiting_job,
            lambda app: app.kinds.try_one("works", reason=REASON),
        ),
        {"phase": "held"},
        {"phase": "ready"},
    ),
    "release a kind": Action(
        "kind.released",
        lambda app: run_both(
            app,
            lambda app: app.kinds.hold("works", reason="x"),
            lambda app: app.kinds.release("works", reason=REASON),
        ),
        {"held": True, "reason": "x"},
        {"held": False},
    ),
    "hold a release": Action(
        "release.held",
        lambda app: app.releases.hold(create_release(app), reason=REASON),
        {"held": False},
        {"held": True},
    ),
    "end its hold": Action(
        "release.unheld",
        lambda app: run_both(
            app,
            lambda app: app.releases.hold(create_release(app)),
            lambda app: app.releases.unhold("r42", reason=REASON),
        ),
        {"held": True},
        {"held": False},
    ),
    "mute a group": Action(
        "failure.muted",
        lambda app: app.failures.mute(create_group(app), reason=REASON),
        {"state": "new"},
        {"state": "muted", "note": REASON},
    ),
    "resolve it": Action(
        "failure.resolved",
        lambda app: app.failures.resolve(create_group(app), note=REASON),
        {"state": "new"},
        {"state": "resolved"},
    ),
    "reopen it": Action(
        "failure.reopened",
        lambda app: run_both(
            app,
            lambda app: app.failures.resolve(create_group(app)),
            lambda app: app.failures.reopen(app.failures.groups()[0].fingerprint, reason=REASON),
        ),
        {"state": "resolved"},
        {"state": "open"},
    ),
    "assign it": Action(
        "failure.assigned",
        lambda app: app.failures.assign(create_group(app), "ada", reason=REASON),
        {"assignee": ""},
        {"assignee": "ada"},
    ),
    "drain a worker": Action(
        "worker.drain_requested", drain, {"draining": False}, {"draining": True}
    ),
    "seal a batch": Action(
        "batch.sealed",
        lambda app: app.batches.seal(app.batch("spring").id, reason=REASON),
        {"sealed": False},
        {"sealed": True},
    ),
    "cancel a batch": Action(
        "batch.cancelled",
        lambda app: app.batches.cancel(seal_batch(app), reason=REASON),
        {"cancelled": False},
        {"cancelled": True},
    ),
    "retry what failed": Action(
        "batch.reopened",
        lambda app: app.batches.retry_failed(finish_batch(app), reason=REASON),
        {"outcome": "failed", "generation": 1},
        {"outcome": None, "generation": 2},
    ),
    "begin an operation": Action("operation.started", start_operation, {}, {"state": "running"}),
    "pause it": Action(
        "operation.paused",
        lambda app: app.operations.pause(start_operation(app), reason=REASON),
        {"state": "running"},
        {"state": "paused"},
    ),
    "let it go on": Action(
        "operation.resumed",
        lambda app: app.operations.resume(
            app.operations.pause(start_operation(app)).id, reason=REASON
        ),
        {"state": "paused"},
        {"state": "running"},
    ),
    "end it": Action(
        "operation.aborted",
        lambda app: app.operations.abort(start_operation(app), reason=REASON),
        {"state": "running"},
        {"state": "aborted"},
    ),
    "move jobs": Action(
        "job.edited",
        lambda app: run_both(app, lambda app: app.enqueue("works"), move_jobs),
        {"queue": "default"},
        {"queue": "slow"},
    ),
    "enqueue": Action(
        "job.queued",
        lambda app: app.insert([a_job(kind="works")], actor="python"),
        {},
        {"state": "queued"},
    ),
    "make a key": Action(
        "key.created",
        lambda app: app.keys.create("acme", "viewer", name="n", reason=REASON),
        {},
        {"state": "valid", "scope": "acme", "role": "viewer"},
    ),
    "revoke a key": Action(
        "key.revoked",
        lambda app: app.keys.revoke(app.keys.create("*", "admin").key.id, reason=REASON),
        {"state": "valid"},
        {"state": "revoked"},
    ),
    "say that it is restored": Action("database.restored", restore, {"workers": 1}, {"workers": 0}),
    "subscribe": Action(
        "subscription.created",
        lambda app: app.subscriptions.add("job.died", HOOK, reason=REASON),
        {},
        {"state": "on", "on": "job.died", "to": "https://example.com:443"},
    ),
    "unsubscribe": Action(
        "subscription.removed",
        lambda app: app.subscriptions.remove(subscribe(app), reason=REASON),
        {"state": "on"},
        {},
    ),
    "switch a subscription off": Action(
        "subscription.disabled",
        lambda app: app.subscriptions.disable(subscribe(app), reason=REASON),
        {"state": "on"},
        {"state": "off"},
    ),
    "switch it on": Action(
        "subscription.changed",
        lambda app: run_both(
            app,
            lambda app: app.subscriptions.disable(subscribe(app), reason="x"),
            lambda app: app.subscriptions.enable(app.subscriptions.list()[0].id, reason=REASON),
        ),
        {"state": "off", "reason": "x"},
        {"state": "on"},
    ),
    "change its secret": Action(
        "subscription.changed",
        lambda app: app.subscriptions.rotate(subscribe(app), reason=REASON),
        {},
        {"secret": "rotated"},
    ),
    "silence an alert": Action(
        "alert.silenced",
        lambda app: app.alerts.silence("slow_jobs", 60, reason=REASON),
        {"silenced_until": None},
        {},
    ),
    "pause a schedule": Action(
        "schedule.paused",
        lambda app: app.schedules.pause("nightly", reason=REASON),
        {"paused": False},
        {"paused": True},
    ),
    "resume a schedule": Action(
        "schedule.resumed",
        lambda app: run_both(
            app,
            lambda app: app.schedules.pause("nightly"),
            lambda app: app.schedules.resume("nightly", reason=REASON),
        ),
        {"paused": True},
        {"paused": False},
    ),
    "run a schedule": Action(
        "job.queued",
        lambda app: app.schedules.run("nightly", reason=REASON),
        {},
        {"state": "queued"},
    ),
}


@pytest.mark.security("S53")
@pytest.mark.parametrize("name", ACTIONS)
def test_each_action_records_actor_time_reason_before_and_after(app, name):
    action = ACTIONS[name]
    began = datetime.now(UTC) - timedelta(seconds=1)
    action.act(app)
    event = app.events.list(type=action.type)[0]
    assert event.actor == "python"
    assert event.at / 1e6 >= began.timestamp()
    assert name == "enqueue" or REASON in event.data["reason"]
    assert {**event.data["before"], **action.before} == event.data["before"]
    assert {**event.data["after"], **action.after} == event.data["after"]
    assert event.data["before"] != event.data["after"]
    json.dumps(event.data)


# Automatic events, and those that accompany the event of an action.
AUTOMATIC = {
    "job.started",
    "job.retry_scheduled",
    "job.snoozed",
    "job.waiting",
    "job.succeeded",
    "job.died",
    "job.parked",
    "job.lost",
    "job.step_finished",
    "job.undoing",
    "job.pruned",
    "job.stale_refused",
    "dependency.probing",
    "delivery.skipped",
    "failure.regressed",
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
def test_every_action_is_tested():
    assert {action.type for action in ACTIONS.values()} | AUTOMATIC >= {
        str(kind) for kind in EventType
    }


def test_an_action_without_effect_writes_no_event(app):
    app.queues.resume("pdf")
    app.queues.clear("pdf")
    app.kinds.release("works")
    app.failures.unmute(create_group(app))
    assert app.events.list() == []


def test_a_second_drain_request_writes_no_event(app):
    drain(app)
    drain_workers(app.store, ["w_9"], "python", "again")
    assert [event.type for event in app.events.list()] == ["worker.drain_requested"]


def test_actions_are_found_by_actor_time_type_and_owner(app):
    app.queues.pause("pdf", reason="x")
    job = run_job(app, app.enqueue("fails", owner="acme"))
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
    ("options", "match"),
    [
        ({"limit": 0}, "limit"),
        ({"type": "job.retryed"}, "Did you mean job.retried"),
        ({"since": -1}, "since"),
    ],
    ids=str,
)
def test_an_invalid_filter_is_refused(app, options, match):
    with pytest.raises(Refused, match=match):
        app.events.list(**options)
