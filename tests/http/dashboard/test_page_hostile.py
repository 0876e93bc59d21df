"""Hostile text in every field is escaped on every page."""

from __future__ import annotations

import re

import pytest

from mulligan import Context, Fail, Park, Rule, Webhook
from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.manifest.declared import publish_manifest
from support.dashboard_client import sign_in_with_key

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{ 7*7 }}"
NEEDLE = "needle in a stack "
PUBLIC = HOSTILE.translate(str.maketrans("{}", "()"))
NAME = "<script>alert(1)</script>'\"><img/src=x/onerror=alert(2)>{{7*7}}"  # names have no spaces


@pytest.fixture
def hostile_app(app):
    """An app with hostile text in every field that a client can set."""
    app.rules.add(
        Rule("odd", message=r"\bneedle in a stack\b", code="ODD", cls="permanent", public=PUBLIC)
    )

    @app.job(name=NAME, queue=NAME, uses=lambda _: NAME, editable="text")
    def odd(ctx: Context, text: str):
        if text == "park":
            return Park(HOSTILE, choices=(HOSTILE,))
        return Fail(
            "BAD", f"{text} {HOSTILE}", detail={HOSTILE: HOSTILE}, public=HOSTILE, final=True
        )

    app.schedule(NAME, "0 3 * * *", odd, payload={"text": HOSTILE}, owner=HOSTILE)
    app.store.prepare()
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest(HOSTILE))
        EventQueries(tx).write_events(
            [
                NewEvent(
                    EventType.QUEUE_CHANGED,
                    actor=HOSTILE,
                    owner=HOSTILE,
                    data={"queue": HOSTILE, "before": {HOSTILE: HOSTILE}, "after": {HOSTILE: 1}},
                )
            ]
        )
    with app.batch(HOSTILE, owner=HOSTILE) as batch:
        app.enqueue(NAME, {"text": HOSTILE}, owner=HOSTILE, unique=HOSTILE, batch=batch)
    app.enqueue(NAME, {"text": "park"})
    app.run_inline()
    app.enqueue(NAME, {"text": HOSTILE}, owner=HOSTILE, delay=60)
    app.subscriptions.add(
        "job.died", Webhook("https://example.com/hook"), name=HOSTILE, reason=HOSTILE
    )
    app.queues.pause(NAME, reason=HOSTILE)
    app.kinds.hold(NAME, reason=HOSTILE)
    app.dependencies.open(NAME, reason=HOSTILE)
    app.alerts.silence("dead_letters", 3600, reason=HOSTILE)
    group = app.failures.groups()[0].fingerprint
    app.failures.mute(group, reason=HOSTILE)
    app.operations.start("discard", "state:dead", reason=HOSTILE)
    return app


QUERIES = (
    ("/jobs", {"filter": f'"{HOSTILE[:25]}"'}),
    ("/events", {"filter": f"owner:{NAME}"}),
    ("/audit", {"actor": HOSTILE, "job": HOSTILE}),
    ("/policies", {"kind": HOSTILE}),
    ("/operations/new", {"action": HOSTILE, "filter": "state:dead"}),
    ("/batches", {"state": HOSTILE}),
    ("/notifications", {"state": HOSTILE}),
    ("/insight", {"kind": HOSTILE, "since": HOSTILE}),
    (f"/policies/rules/{NAME}", {}),
    ("/sign-in", {"next": HOSTILE, "link": HOSTILE}),
)


@pytest.mark.security("S25")
def test_hostile_fields_are_escaped_on_every_page(hostile_app):
    screens = {
        "/",
        "/jobs",
        "/failures",
        "/batches",
        "/queues",
        "/dependencies",
        "/operations",
        "/schedules",
        "/alerts",
        "/notifications",
        "/insight",
        "/policies",
        "/events",
        "/audit",
        "/doctor",
        "/operations/new?filter=state:dead",
    }
    with sign_in_with_key(hostile_app, role="admin") as client:
        for path in sorted(screens):
            found = re.findall(r'href="(/[^"#]*)"', client.client.get(path).text)
            screens |= {
                one.replace("&amp;", "&")
                for one in found
                if re.match(r"/(jobs|failures|batches|operations|policies)/", one)
            }
        screens |= {f"{one}/edit" for one in screens if re.fullmatch(r"/jobs/\w{28}", one)}
        assert len(screens) > 25
        for path in sorted(screens):
            _check_escaped(path, client.client.get(path))
        for job in hostile_app.jobs.list():
            _check_escaped("status", client.client.get(hostile_app.status.link(job)))
        _check_escaped(
            "status", client.client.get(hostile_app.status.link(hostile_app.batches.list()[0]))
        )
        for path, params in QUERIES:
            _check_escaped(path, client.client.get(path, params=params))


@pytest.mark.security("S25")
def test_hostile_fields_are_escaped_in_responses_to_forms(hostile_app):
    job = hostile_app.jobs.list("state:dead")[0]
    with sign_in_with_key(hostile_app, role="admin") as client:
        forms = {
            f"/jobs/{job.id}/edit": {
                "payload.text": HOSTILE,
                "at": HOSTILE,
                "reason": HOSTILE,
                "queue": NAME,
            },
            "/policies/what-if": {
                "text": NEEDLE + HOSTILE,
                "exception_type": HOSTILE,
                "kind": NAME,
                "program": HOSTILE,
            },
            "/queues/x/set": {"concurrency": HOSTILE, "reason": HOSTILE},
            "/queues/x/pause": {"until": HOSTILE},
            "/operations": {"action": HOSTILE, "filter": HOSTILE},
            f"/jobs/{job.id}/release": {"choice": HOSTILE},
        }
        csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', client.client.get("/jobs").text)[1]
        for path, form in forms.items():
            _check_escaped(path, client.client.post(path, data={"csrf": csrf, **form}))


def _check_escaped(path, answer):
    assert answer.status_code < 500, (path, answer.status_code)
    page = answer.text
    assert "<script>alert" not in page, path
    assert "<img" not in page, path
    assert "49" not in re.findall(r"\{\{ ?7\*7 ?\}\}|>49<", page), path
    assert [
        one for one in re.findall(r"<script([^>]*)>", page) if 'src="/static/' not in one
    ] == [], path
    for tag in re.findall(
        r"<[a-z][^>]*>", page
    ):  # quotes that end an attribute would make one of these
        assert not re.search(r"\son\w+\s*=", re.sub(r'"[^"]*"', '""', tag)), (path, tag)
