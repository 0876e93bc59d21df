"""Anything may be in a payload, a name, an error, a reason. On a page it is text and nothing else."""

from __future__ import annotations

import re

import pytest

from mulligan import Context, Fail, Park, Rule, Webhook
from mulligan.core.event import EventType, NewEvent
from mulligan.manifest.declared import publish_manifest
from support.dashboard_client import sign_in_with_key

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

EVIL = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{ 7*7 }}"
NEEDLE = "needle in a stack "
PUBLIC = EVIL.translate(str.maketrans("{}", "()"))
NAME = "<script>alert(1)</script>'\"><img/src=x/onerror=alert(2)>{{7*7}}"  # names have no spaces


@pytest.fixture
def infested(app):
    """Hostile strings in every field that somebody outside can fill."""
    app.rules.add(
        Rule("odd", message=r"\bneedle in a stack\b", code="ODD", cls="permanent", public=PUBLIC)
    )

    @app.job(name=NAME, queue=NAME, uses=NAME, editable="text")
    def odd(ctx: Context, text: str):
        if text == "park":
            return Park(EVIL, choices=(EVIL,))
        return Fail("BAD", f"{text} {EVIL}", detail={EVIL: EVIL}, public=EVIL, final=True)

    app.schedule(NAME, "0 3 * * *", odd, payload={"text": EVIL}, owner=EVIL)
    app.store.prepare()
    with app.store.begin() as unit:
        publish_manifest(unit, app.manifest(EVIL))
        unit.write_events(
            [
                NewEvent(
                    EventType.QUEUE_CHANGED,
                    actor=EVIL,
                    owner=EVIL,
                    data={"queue": EVIL, "before": {EVIL: EVIL}, "after": {EVIL: 1}},
                )
            ]
        )
    with app.batch(EVIL, owner=EVIL) as batch:
        app.enqueue(NAME, {"text": EVIL}, owner=EVIL, unique=EVIL, batch=batch)
    app.enqueue(NAME, {"text": "park"})
    app.run_inline()
    app.enqueue(NAME, {"text": EVIL}, owner=EVIL, delay=60)
    app.subscriptions.add("job.died", Webhook("https://example.com/hook"), name=EVIL, reason=EVIL)
    app.queues.pause(NAME, reason=EVIL)
    app.kinds.hold(NAME, reason=EVIL)
    app.dependencies.open(NAME, reason=EVIL)
    app.alerts.silence("dead_letters", 3600, reason=EVIL)
    group = app.failures.groups()[0].fingerprint
    app.failures.mute(group, reason=EVIL)
    app.operations.start("discard", "state:dead", reason=EVIL)
    return app


ASKED = (
    ("/jobs", {"filter": f'"{EVIL[:25]}"'}),
    ("/events", {"filter": f"owner:{NAME}"}),
    ("/audit", {"actor": EVIL, "job": EVIL}),
    ("/policies", {"kind": EVIL}),
    ("/operations/new", {"action": EVIL, "filter": "state:dead"}),
    ("/batches", {"state": EVIL}),
    ("/notifications", {"state": EVIL}),
    ("/insight", {"kind": EVIL, "since": EVIL}),
    (f"/policies/rules/{NAME}", {}),
    ("/sign-in", {"next": EVIL, "link": EVIL}),
)


@pytest.mark.security("S25")
def test_hostile_fields_are_escaped_on_every_page(infested):
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
    with sign_in_with_key(infested, role="admin") as guest:
        for path in sorted(screens):
            found = re.findall(r'href="(/[^"#]*)"', guest.client.get(path).text)
            screens |= {
                one.replace("&amp;", "&")
                for one in found
                if re.match(r"/(jobs|failures|batches|operations|policies)/", one)
            }
        screens |= {f"{one}/edit" for one in screens if re.fullmatch(r"/jobs/\w{28}", one)}
        assert len(screens) > 25
        for path in sorted(screens):
            _is_clean(path, guest.client.get(path))
        for job in infested.jobs.list():
            _is_clean("status", guest.client.get(infested.status.link(job)))
        _is_clean("status", guest.client.get(infested.status.link(infested.batches.list()[0])))
        for path, params in ASKED:
            _is_clean(path, guest.client.get(path, params=params))


@pytest.mark.security("S25")
def test_hostile_fields_are_escaped_in_responses_to_forms(infested):
    job = infested.jobs.list("state:dead")[0]
    with sign_in_with_key(infested, role="admin") as guest:
        forms = {
            f"/jobs/{job.id}/edit": {
                "payload.text": EVIL,
                "at": EVIL,
                "reason": EVIL,
                "queue": NAME,
            },
            "/policies/what-if": {
                "text": NEEDLE + EVIL,
                "exception_type": EVIL,
                "kind": NAME,
                "program": EVIL,
            },
            "/queues/x/set": {"concurrency": EVIL, "reason": EVIL},
            "/queues/x/pause": {"until": EVIL},
            "/operations": {"action": EVIL, "filter": EVIL},
            f"/jobs/{job.id}/release": {"choice": EVIL},
        }
        mark = re.search(r'name="csrf" value="([0-9a-f]+)"', guest.client.get("/jobs").text)[1]
        for path, form in forms.items():
            _is_clean(path, guest.client.post(path, data={"csrf": mark, **form}))


def _is_clean(path, answer):
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
