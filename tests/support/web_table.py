"""Every route: what it needs, what its {…} is, what it is asked with, and what it answers whom it serves."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from mulligan import Fail, Webhook
from mulligan.manifest.declared import speak
from support.app_tools import ran
from support.store import open_worker

ROLES = ("viewer", "operator", "admin")
UNKNOWN = "0" * 28


class Line(NamedTuple):
    role: str
    scope: str = "any"
    what: str = ""  # "": nothing of anybody's
    body: dict[str, Any] | None = None
    fine: tuple[int, ...] = (200,)
    none: int = 404  # of what is not there
    spends: bool = False  # what it was done to cannot have it done again


def look(what: str = "", **said: Any) -> Line:
    return Line("viewer", what=what, **said)


def act(
    what: str = "", *fine: int, body: dict[str, Any] | None = None, spends: bool = False
) -> Line:
    return Line("operator", "any", what, body or {"reason": "x"}, fine or (200,), spends=spends)


def shared(
    role: str, what: str = "", *fine: int, body: dict[str, Any] | None = None, none: int = 404
) -> Line:
    return Line(
        role, "*", what, body if role == "viewer" else body or {"reason": "x"}, fine or (200,), none
    )


ROUTES = {
    "GET /jobs": look(),
    "POST /jobs": act("", 201, body={"kind": "works"}),
    "POST /jobs/bulk": act("", 201, body={"jobs": [{"kind": "works"}]}),
    "GET /jobs/count": look(),
    "GET /jobs/{job_id}": look("job"),
    "GET /jobs/{job_id}/attempts": look("job"),
    "GET /jobs/{job_id}/events": look("job"),
    "GET /jobs/{job_id}/explain": look("job"),
    "POST /jobs/{job_id}/retry": act("job", spends=True),
    "POST /jobs/{job_id}/cancel": act("job", 409),
    "POST /jobs/{job_id}/release": act("job", 409),
    "POST /jobs/{job_id}/discard": act("job", spends=True),
    "POST /jobs/{job_id}/status-link": act("job", body={"retry": False}),
    "GET /failures": look(),
    "GET /failures/{fingerprint}": look("group"),
    "POST /failures/{fingerprint}/mute": act("group"),
    "POST /failures/{fingerprint}/unmute": act("group"),
    "POST /failures/{fingerprint}/resolve": act("group"),
    "POST /failures/{fingerprint}/reopen": act("group"),
    "GET /operations": look(),
    "POST /operations": act("", body={"action": "retry", "filter": "kind:fails", "dry_run": True}),
    "GET /operations/{operation_id}": look("operation"),
    "GET /operations/{operation_id}/items": look("operation"),
    "POST /operations/{operation_id}/pause": act("operation", 200, 409),
    "POST /operations/{operation_id}/resume": act("operation", 200, 409),
    "POST /operations/{operation_id}/abort": act("operation", 200, 409),
    "GET /batches": look(),
    "POST /batches": act("", 201, body={"name": "spring"}),
    "GET /batches/{batch_id}": look("batch"),
    "GET /batches/{batch_id}/jobs": look("batch"),
    "GET /batches/{batch_id}/failures": look("batch"),
    "GET /batches/{batch_id}/events": look("batch"),
    "POST /batches/{batch_id}/jobs": act("batch", 201, body={"kind": "works"}),
    "POST /batches/{batch_id}/seal": act("batch", spends=True),
    "POST /batches/{batch_id}/retry-failed": act("batch", 409),
    "POST /batches/{batch_id}/cancel": act("batch", spends=True),
    "POST /batches/{batch_id}/status-link": act("batch", body={"retry": False}),
    "GET /queues": shared("viewer"),
    "GET /queues/{name}": shared("viewer", "queue"),
    "POST /queues/{name}/pause": shared("operator", "queue", none=200),
    "POST /queues/{name}/resume": shared("operator", "queue", none=200),
    "PATCH /queues/{name}": shared("operator", "queue", body={"concurrency": 3}, none=200),
    "GET /workers": shared("viewer"),
    "POST /workers/{worker_id}/drain": shared("operator", "worker"),
    "GET /kinds": shared("viewer"),
    "GET /kinds/{name}": shared("viewer", "kind"),
    "POST /kinds/{name}/hold": shared("operator", "kind", none=200),
    "POST /kinds/{name}/release": shared("operator", "kind", none=200),
    "GET /dependencies": shared("viewer"),
    "GET /dependencies/{key}": shared("viewer", "dependency"),
    "PATCH /dependencies/{key}": shared(
        "operator", "dependency", body={"concurrency": 3}, none=200
    ),
    "POST /dependencies/{key}/open": shared("operator", "dependency", none=200),
    "POST /dependencies/{key}/close": shared("operator", "dependency"),
    "POST /dependencies/{key}/probe": shared("operator", "dependency", 409),
    "GET /policies": shared("viewer"),
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
    "GET /webhooks": look(),
    "POST /webhooks": act("", 201, body={"url": "https://example.com/hook", "on": "job.died"}),
    "GET /webhooks/{webhook_id}": look("webhook"),
    "DELETE /webhooks/{webhook_id}": act("webhook", 204, spends=True),
    "POST /webhooks/{webhook_id}/test": act("webhook"),
    "POST /webhooks/{webhook_id}/enable": act("webhook"),
    "POST /webhooks/{webhook_id}/disable": act("webhook"),
    "POST /webhooks/{webhook_id}/rotate": act("webhook"),
    "GET /deliveries": look(),
    "GET /deliveries/{delivery_id}": look("delivery"),
    "POST /deliveries/{delivery_id}/retry": act("delivery", 409),
    "GET /keys": Line("admin"),
    "POST /keys": Line("admin", "any", "", {"scope": "acme", "role": "viewer"}, (201,)),
    "GET /keys/{key_id}": Line("admin", "any", "key"),
    "POST /keys/{key_id}/revoke": Line("admin", "any", "key", {"reason": "x"}),
    "GET /audit": look(),
    "GET /events": look(),
    "GET /metrics": shared("viewer"),
}
OWNED = {line.what for line in ROUTES.values() if line.scope == "any"} - {""}
OPEN = {"GET /livez", "GET /readyz", "GET /startupz"}  # for everybody


class Things:
    """One of each, of any owner, made when it is asked for."""

    def __init__(self, app):
        self._app = app
        self._number = itertools.count()
        self._made = {}
        app.schedule("nightly", "0 3 * * *", "works")
        open_worker(app.store, "w_9")
        app.job(name="calls", uses="gateway")(lambda: None).options(delay=3600).enqueue()
        with app.store.begin() as unit:
            speak(unit, app.manifest("site:app"))

    def one(self, what, owner="", *, fresh=False):
        if fresh or (what, owner) not in self._made:
            self._made[what, owner] = getattr(self, f"_{what}")(owner)
        return self._made.pop((what, owner)) if fresh else self._made[what, owner]

    def none(self, what):
        odd = {"group": "v2-" + "0" * 12, "key": "mk_" + "0" * 12, "webhook": "sub_" + UNKNOWN}
        return odd.get(what, UNKNOWN if what in OWNED else f"none-{next(self._number)}")

    def _job(self, owner):
        return ran(
            self._app, self._app.enqueue("fails", {"text": f"B-7f3 {owner}"}, owner=owner)
        ).id

    def _group(self, owner):
        """Of this owner's jobs alone."""
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


def asked(client, route, headers, name=""):
    """The call of this line, on this thing."""
    verb, path = route.split()
    line = ROUTES[route]
    begin, brace, rest = path.partition("{")
    where = f"{begin}{name}{rest.partition('}')[2]}" if brace else path
    if route == "GET /events":
        verb = "HEAD"  # a stream has no end
    return client.request(
        verb,
        f"/api/v1{where}",
        json=line.body if verb in {"POST", "PATCH"} else None,
        headers=headers,
    )
