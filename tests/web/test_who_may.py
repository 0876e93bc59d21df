"""Every route by scope, role, and whose the thing is: own, foreign, unknown."""

from __future__ import annotations

import pytest

from mulligan import Webhook
from walk.tools import ran

UNKNOWN = "0" * 28
ROLES = ("viewer", "operator", "admin")

# What each route needs, and what its {…} is; "": nothing of anybody's.
ROUTES = {
    "GET /jobs": ("viewer", "any", ""),
    "POST /jobs": ("operator", "any", ""),
    "GET /jobs/{job_id}": ("viewer", "any", "job"),
    "GET /jobs/{job_id}/attempts": ("viewer", "any", "job"),
    "GET /jobs/{job_id}/events": ("viewer", "any", "job"),
    "GET /jobs/{job_id}/explain": ("viewer", "any", "job"),
    "POST /jobs/{job_id}/retry": ("operator", "any", "job"),
    "POST /jobs/{job_id}/cancel": ("operator", "any", "job"),
    "POST /jobs/{job_id}/release": ("operator", "any", "job"),
    "POST /jobs/{job_id}/discard": ("operator", "any", "job"),
    "GET /failures": ("viewer", "any", ""),
    "GET /failures/{fingerprint}": ("viewer", "any", "group"),
    "POST /failures/{fingerprint}/mute": ("operator", "any", "group"),
    "POST /failures/{fingerprint}/unmute": ("operator", "any", "group"),
    "POST /failures/{fingerprint}/resolve": ("operator", "any", "group"),
    "POST /failures/{fingerprint}/reopen": ("operator", "any", "group"),
    "GET /operations": ("viewer", "any", ""),
    "POST /operations": ("operator", "any", ""),
    "GET /operations/{operation_id}": ("viewer", "any", "operation"),
    "GET /operations/{operation_id}/items": ("viewer", "any", "operation"),
    "POST /operations/{operation_id}/pause": ("operator", "any", "operation"),
    "POST /operations/{operation_id}/resume": ("operator", "any", "operation"),
    "POST /operations/{operation_id}/abort": ("operator", "any", "operation"),
    "GET /batches": ("viewer", "any", ""),
    "POST /batches": ("operator", "any", ""),
    "GET /batches/{batch_id}": ("viewer", "any", "batch"),
    "GET /batches/{batch_id}/jobs": ("viewer", "any", "batch"),
    "POST /batches/{batch_id}/jobs": ("operator", "any", "batch"),
    "POST /batches/{batch_id}/seal": ("operator", "any", "batch"),
    "POST /batches/{batch_id}/retry-failed": ("operator", "any", "batch"),
    "POST /batches/{batch_id}/cancel": ("operator", "any", "batch"),
    "GET /queues": ("viewer", "*", ""),
    "GET /queues/{name}": ("viewer", "*", ""),
    "POST /queues/{name}/pause": ("operator", "*", ""),
    "POST /queues/{name}/resume": ("operator", "*", ""),
    "PATCH /queues/{name}": ("operator", "*", ""),
    "GET /workers": ("viewer", "*", ""),
    "GET /dependencies": ("viewer", "*", ""),
    "GET /dependencies/{key}": ("viewer", "*", ""),
    "PATCH /dependencies/{key}": ("operator", "*", ""),
    "POST /dependencies/{key}/open": ("operator", "*", ""),
    "POST /dependencies/{key}/close": ("operator", "*", ""),
    "POST /dependencies/{key}/probe": ("operator", "*", ""),
    "GET /webhooks": ("viewer", "any", ""),
    "POST /webhooks": ("operator", "any", ""),
    "GET /webhooks/{webhook_id}": ("viewer", "any", "webhook"),
    "DELETE /webhooks/{webhook_id}": ("operator", "any", "webhook"),
    "POST /webhooks/{webhook_id}/test": ("operator", "any", "webhook"),
    "POST /webhooks/{webhook_id}/enable": ("operator", "any", "webhook"),
    "POST /webhooks/{webhook_id}/disable": ("operator", "any", "webhook"),
    "POST /webhooks/{webhook_id}/rotate": ("operator", "any", "webhook"),
    "GET /deliveries": ("viewer", "any", ""),
    "GET /deliveries/{delivery_id}": ("viewer", "any", "delivery"),
    "POST /deliveries/{delivery_id}/retry": ("operator", "any", "delivery"),
    "GET /keys": ("admin", "any", ""),
    "POST /keys": ("admin", "any", ""),
    "POST /keys/{key_id}/revoke": ("admin", "any", "key"),
    "GET /metrics": ("viewer", "*", ""),
}
OPEN = {"GET /livez", "GET /readyz", "GET /startupz", "GET /events"}  # the last one is a stream: test_streams.py
BODIES = {
    "POST /jobs": {"kind": "works"},
    "POST /batches/{batch_id}/jobs": {"kind": "works"},
    "POST /batches": {"name": "spring"},
    "POST /operations": {"action": "retry", "filter": "kind:fails", "dry_run": True},
    "POST /keys": {"scope": "acme", "role": "viewer"},
    "POST /webhooks": {"url": "https://example.com/hook", "on": "job.died"},
}


@pytest.mark.about_processes
def test_no_route_is_left_out(client):
    document = client.get("/openapi.json").json()
    known = {f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs}
    assert known == set(ROUTES) | OPEN


@pytest.fixture
def things(app):
    """One of each, of two owners."""

    def of(owner):
        job = ran(app, app.enqueue("fails" if owner == "acme" else "asks", owner=owner))
        groups = app.failures.groups(owner=owner)
        hook = app.subscriptions.add("job.died", Webhook("https://example.com/hook"), owner=owner).id
        return {
            "job": job.id,
            "group": groups[0].fingerprint if groups else "v2-0123456789ab",
            "batch": app.batch("B-7f3", owner=owner).id,
            "operation": app.operations.start("cancel", "kind:none", owner=owner).id,
            "webhook": hook,
            "delivery": app.subscriptions.test(hook).id,
            "key": app.keys.create(owner, "viewer").key.id,
        }

    return {"own": of("acme"), "foreign": of("globex")}


def asked(client, route, headers, name=""):
    verb, path = route.split()
    for part in (
        "{job_id}",
        "{fingerprint}",
        "{operation_id}",
        "{batch_id}",
        "{key_id}",
        "{webhook_id}",
        "{delivery_id}",
        "{key}",
        "{name}",
    ):
        path = path.replace(part, name or "default")
    body = None if verb in {"GET", "DELETE"} else BODIES.get(route, {"reason": "x"})
    return client.request(verb, f"/api/v1{path}", json=body, headers=headers)


@pytest.mark.about_processes
def test_a_role_may_what_it_may_and_what_is_shared_needs_the_scope_of_all(client, key, things):
    keys = {(scope, role): key(scope, role) for scope in ("acme", "*") for role in ROLES}
    for route, (role, scope, what) in ROUTES.items():
        for (whose, who), headers in keys.items():
            name = things["own"][what] if what and who == "viewer" else UNKNOWN if what else ""
            answer = asked(client, route, headers, name)
            may = ROLES.index(who) >= ROLES.index(role) and scope in ("any", whose)
            assert (answer.status_code == 403) == (not may), (route, whose, who, answer.text)
            assert answer.status_code < 500, (route, answer.text)
            kind = answer.headers.get("content-type", "application/json")
            assert kind.startswith(("application/json", "application/problem", "text/plain"))


def test_what_is_anothers_answers_like_what_is_not_there(client, key, things):
    headers = key("acme", "admin")
    for route, (_, _, what) in ROUTES.items():
        if not what:
            continue
        foreign = things["foreign"][what]
        none = {"group": "v2-" + "0" * 12, "key": "mk_" + "0" * 12, "webhook": "sub_" + UNKNOWN}.get(what, UNKNOWN)
        theirs, nothing = asked(client, route, headers, foreign), asked(client, route, headers, none)
        assert (theirs.status_code, nothing.status_code) == (404, 404), (route, theirs.text)
        assert theirs.text.replace(foreign, none) == nothing.text
        if route.startswith("GET"):
            assert asked(client, route, headers, things["own"][what]).status_code == 200


def test_nothing_of_another_owner_is_in_any_answer(app, client, key, things):
    app.enqueue("works", {"text": "B-7f3"}, owner="globex", unique="B-7f3")
    headers = key("acme", "operator")
    for route, (_, scope, what) in ROUTES.items():
        if route.startswith("GET") and scope == "any":
            text = asked(client, route, headers, things["own"].get(what, "")).text
            assert "globex" not in text, route
            for foreign in things["foreign"].values():
                assert foreign not in text, route
