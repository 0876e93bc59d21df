"""Table of all API routes: required role and scope, object, body and expected statuses."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from mulligan import Fail, Webhook
from mulligan.manifest.declared import publish_manifest
from mulligan.releases.queries import ReleaseQueries
from support.app_tools import run_job
from support.store import open_worker

ROLES = ("viewer", "operator", "admin")
UNKNOWN = "0" * 28


class RouteSpec(NamedTuple):
    """Required role and expected answer of a route."""

    role: str
    scope: str = "any"
    noun: str = ""  # the kind of object in its path; empty if it has none
    body: dict[str, Any] | None = None
    statuses: tuple[int, ...] = (200,)
    unknown_status: int = 404  # for an unknown object
    consumes: bool = False  # the same object cannot be used a second time


def read(noun: str = "") -> RouteSpec:
    return RouteSpec("viewer", noun=noun)


def act(
    noun: str = "", *statuses: int, body: dict[str, Any] | None = None, consumes: bool = False
) -> RouteSpec:
    sent = body or {"reason": "x"}
    return RouteSpec("operator", "any", noun, sent, statuses or (200,), consumes=consumes)


def shared(
    role: str,
    noun: str = "",
    *statuses: int,
    body: dict[str, Any] | None = None,
    unknown_status: int = 404,
) -> RouteSpec:
    sent = body if role == "viewer" else body or {"reason": "x"}
    return RouteSpec(role, "*", noun, sent, statuses or (200,), unknown_status)


ROUTES = {
    "GET /jobs": read(),
    "POST /jobs": act("", 201, body={"kind": "works"}),
    "POST /jobs/bulk": act("", 201, body={"jobs": [{"kind": "works"}]}),
    "GET /jobs/count": read(),
    "GET /jobs/{job_id}": read("job"),
    "GET /jobs/{job_id}/attempts": read("job"),
    "GET /jobs/{job_id}/attempts/{token}/log": RouteSpec("operator", noun="job"),
    "GET /jobs/{job_id}/events": read("job"),
    "GET /jobs/{job_id}/explain": read("job"),
    "POST /jobs/{job_id}/retry": act("job", consumes=True),
    "POST /jobs/{job_id}/cancel": act("job", 409),
    "POST /jobs/{job_id}/release": act("job", 409),
    "POST /jobs/{job_id}/tell/{name}": act("job", body={"value": 1}, consumes=True),
    "POST /jobs/{job_id}/discard": act("job", consumes=True),
    "POST /jobs/{job_id}/undo": act("job", 409),
    "POST /jobs/{job_id}/undiscard": act("job", 409),
    "POST /jobs/{job_id}/rerun": act("job", 409),
    "POST /jobs/{job_id}/status-link": act("job", body={"retry": False}),
    "GET /failures": read(),
    "GET /failures/{fingerprint}": read("group"),
    "POST /failures/{fingerprint}/mute": act("group"),
    "POST /failures/{fingerprint}/unmute": act("group"),
    "POST /failures/{fingerprint}/resolve": act("group"),
    "POST /failures/{fingerprint}/reopen": act("group"),
    "POST /failures/{fingerprint}/assign": act("group", body={"person": "ada"}),
    "GET /operations": read(),
    "POST /operations": act("", body={"action": "retry", "filter": "kind:fails", "dry_run": True}),
    "GET /operations/{operation_id}": read("operation"),
    "GET /operations/{operation_id}/items": read("operation"),
    "POST /operations/{operation_id}/pause": act("operation", 200, 409),
    "POST /operations/{operation_id}/resume": act("operation", 200, 409),
    "POST /operations/{operation_id}/abort": act("operation", 200, 409),
    "GET /batches": read(),
    "POST /batches": act("", 201, body={"name": "spring"}),
    "GET /batches/{batch_id}": read("batch"),
    "GET /batches/{batch_id}/jobs": read("batch"),
    "GET /batches/{batch_id}/failures": read("batch"),
    "GET /batches/{batch_id}/events": read("batch"),
    "POST /batches/{batch_id}/jobs": act("batch", 201, body={"kind": "works"}),
    "POST /batches/{batch_id}/seal": act("batch", consumes=True),
    "POST /batches/{batch_id}/retry-failed": act("batch", 409),
    "POST /batches/{batch_id}/cancel": act("batch", consumes=True),
    "POST /batches/{batch_id}/status-link": act("batch", body={"retry": False}),
    "GET /queues": shared("viewer"),
    "GET /queues/{name}": shared("viewer", "queue"),
    "POST /queues/{name}/pause": shared("operator", "queue", unknown_status=200),
    "POST /queues/{name}/resume": shared("operator", "queue", unknown_status=200),
    "PATCH /queues/{name}": shared(
        "operator", "queue", body={"concurrency": 3}, unknown_status=200
    ),
    "GET /workers": shared("viewer"),
    "POST /workers/{worker_id}/drain": shared("operator", "worker"),
    "GET /kinds": shared("viewer"),
    "GET /kinds/{name}": shared("viewer", "kind"),
    "POST /kinds/{name}/hold": shared("operator", "kind", unknown_status=200),
    "POST /kinds/{name}/release": shared("operator", "kind", unknown_status=200),
    "POST /kinds/{name}/try": shared("operator", "kind", 422, unknown_status=422),
    "GET /dependencies": shared("viewer"),
    "GET /dependencies/{key}": shared("viewer", "dependency"),
    "PATCH /dependencies/{key}": shared(
        "operator", "dependency", body={"concurrency": 3}, unknown_status=200
    ),
    "POST /dependencies/{key}/open": shared("operator", "dependency", unknown_status=200),
    "POST /dependencies/{key}/close": shared("operator", "dependency"),
    "POST /dependencies/{key}/probe": shared("operator", "dependency", 409),
    "GET /policies": shared("viewer"),
    "GET /releases": shared("viewer"),
    "GET /releases/{name}": shared("viewer", "release"),
    "GET /releases/{name}/compare": shared("viewer", "release"),
    "POST /releases/{name}/hold": shared("operator", "release"),
    "POST /releases/{name}/unhold": shared("operator", "release"),
    "GET /policies/{kind}": shared("viewer", "kind"),
    "POST /policies/test": shared("viewer", body={"text": "moov atom not found"}),
    "POST /policies/backtest": shared("operator", body={"since": 3600}),
    "GET /insight": shared("viewer"),
    "GET /schedules": shared("viewer"),
    "GET /schedules/{name}/next": shared("viewer", "schedule"),
    "GET /schedules/{name}": shared("viewer", "schedule"),
    "POST /schedules/{name}/pause": shared("operator", "schedule"),
    "POST /schedules/{name}/resume": shared("operator", "schedule"),
    "POST /schedules/{name}/run": shared("operator", "schedule", 201),
    "GET /alerts": shared("viewer"),
    "GET /alerts/rules": shared("viewer"),
    "POST /alerts/{name}/silence": shared("operator", "alert", body={"until": 60}),
    "POST /alerts/{name}/unsilence": shared("operator", "alert"),
    "GET /webhooks": read(),
    "POST /webhooks": act("", 201, body={"url": "https://example.com/hook", "on": "job.died"}),
    "GET /webhooks/{webhook_id}": read("webhook"),
    "DELETE /webhooks/{webhook_id}": act("webhook", 204, consumes=True),
    "POST /webhooks/{webhook_id}/test": act("webhook"),
    "POST /webhooks/{webhook_id}/enable": act("webhook"),
    "POST /webhooks/{webhook_id}/disable": act("webhook"),
    "POST /webhooks/{webhook_id}/rotate": act("webhook"),
    "GET /deliveries": read(),
    "GET /deliveries/{delivery_id}": read("delivery"),
    "POST /deliveries/{delivery_id}/retry": act("delivery", 409),
    "GET /keys": RouteSpec("admin"),
    "POST /keys": RouteSpec("admin", "any", "", {"scope": "acme", "role": "viewer"}, (201,)),
    "GET /keys/{key_id}": RouteSpec("admin", "any", "key"),
    "POST /keys/{key_id}/revoke": RouteSpec("admin", "any", "key", {"reason": "x"}),
    "GET /audit": read(),
    "GET /scale": shared("viewer"),
    "GET /events": read(),
    "GET /metrics": shared("viewer"),
}
OWNED = {spec.noun for spec in ROUTES.values() if spec.scope == "any"} - {""}
OPEN = {"GET /livez", "GET /readyz", "GET /startupz"}  # need no key


class TestObjects:
    """Creates one object of each kind and owner on first use."""

    __test__ = False  # not a test class

    def __init__(self, app):
        self._app = app
        self._number = itertools.count()
        self._created = {}
        app.schedule("nightly", "0 3 * * *", "works")
        open_worker(app.store, "w_9")
        app.job(name="calls", uses="gateway")(lambda: None).options(delay=3600).enqueue()
        with app.store.begin() as tx:
            publish_manifest(tx, app.manifest("site:app"))

    def one(self, noun, owner="", *, fresh=False):
        """Return the name of an object. `fresh`: of one that no other test uses."""
        if fresh or (noun, owner) not in self._created:
            self._created[noun, owner] = getattr(self, f"_{noun}")(owner)
        return self._created.pop((noun, owner)) if fresh else self._created[noun, owner]

    def unknown(self, noun):
        """Return a valid name that no object has."""
        special = {"group": "v2-" + "0" * 12, "key": "mk_" + "0" * 12, "webhook": "sub_" + UNKNOWN}
        return special.get(noun, UNKNOWN if noun in OWNED else f"none-{next(self._number)}")

    def _job(self, owner):
        return run_job(
            self._app, self._app.enqueue("fails", {"text": f"B-7f3 {owner}"}, owner=owner)
        ).id

    def _group(self, owner):
        """Create a group with jobs of this owner only."""
        kind = f"fails_{owner}_{next(self._number)}"
        self._app.job(name=kind)(_failing(kind)).options(owner=owner).enqueue()
        self._app.run_inline()
        return self._app.failures.groups(f"kind:{kind}", owner=owner)[0].fingerprint

    def _batch(self, owner):
        return self._app.batch("B-7f3", owner=owner).id

    def _operation(self, owner):
        self._app.enqueue("works", owner=owner, unique=f"op-{next(self._number)}", delay=3600)
        return self._app.operations.start(
            "cancel", f"kind:works state:queued since:{next(self._number) + 1}h", owner=owner
        ).id

    def _webhook(self, owner):
        return self._app.subscriptions.add(
            "job.died", Webhook("https://example.com/hook"), owner=owner
        ).id

    def _delivery(self, owner):
        return self._app.subscriptions.test(self._webhook(owner)).id

    def _key(self, owner):
        return self._app.keys.create(owner, "viewer").key.id

    def _queue(self, _):
        return "default"

    def _kind(self, _):
        return "works"

    def _release(self, _):
        for name in ("r41", "r42"):
            with self._app.store.begin() as tx:
                ReleaseQueries(tx).note_release(name)
            self._app.store.shift_clock(1)
        return "r42"

    def _dependency(self, _):
        return "gateway"

    def _worker(self, _):
        return "w_9"

    def _schedule(self, _):
        return "nightly"

    def _alert(self, _):
        return self._app.alerts.rules()[0].name


def _failing(kind):
    def fails():
        return Fail(
            f"BAD_{kind.upper()}", "private", public="This file could not be read.", final=True
        )

    return fails


def call_route(client, route, headers, name=""):
    """Call a route of the table on the object `name`."""
    verb, path = route.split()
    spec = ROUTES[route]
    begin, brace, rest = path.partition("{")
    after = rest.partition("}")[2].replace("{token}", "1").replace("{name}", "approval")
    address = f"{begin}{name}{after}" if brace else path
    if route == "GET /events":
        verb = "HEAD"  # the stream never ends
    return client.request(
        verb,
        f"/api/v1{address}",
        json=spec.body if verb in {"POST", "PATCH"} else None,
        headers=headers,
    )
