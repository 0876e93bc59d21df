"""Releases in the dashboard: their page, their marks on charts, and what a person does about one."""

from __future__ import annotations

import pytest

from mulligan import Fail, Policy, Rule, State
from support.app_tools import advance, count_events
from support.dashboard_client import sign_in_with_key, text_of
from support.released import run_as

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`
RUNBOOK = "https://wiki.example/slow-gateway"


@pytest.fixture
def shop(app):
    """Let half of the jobs die under r42 and none under r41."""
    app.dependency("gateway")
    terms = {"runbook": RUNBOOK, "alarm": "page"}
    app.rules.add(Rule("x", verdict="MY_CODE", code="MY_CODE", cls="permanent", **terms))

    @app.job(name="render", uses="gateway", policy=Policy(max_retries=0))
    def render(clip: int) -> int | Fail:
        fails = app.settings.release == "r42" and clip % 2
        return Fail("MY_CODE", "moov atom") if fails else clip

    app.open()
    count_events(app)
    for release in ("r41", "r42"):
        render.enqueue_many([{"clip": clip} for clip in range(60)])
        run_as(app, release)
        advance(app, 120)
    count_events(app)
    return app


@pytest.fixture
def client(shop):
    with sign_in_with_key(shop) as client:
        yield client


def test_the_start_of_a_release_is_marked_on_every_chart_over_time(shop, client):
    group = shop.failures.groups()[0].fingerprint
    charts = {"/": 1, "/insight": 2, f"/failures/{group}": 2, "/dependencies/gateway": 1}
    for path, number in charts.items():
        page = client.page(path)
        assert page.count('<text class="mark') == number, path
        assert page.count(">r42</text>") == number, path
        assert ">r41</text>" not in page, "the first release of all is no deploy"
    for path in ("/dependencies", "/dependencies/gateway"):
        page = client.page(path)
        assert "<title>release r42</title>" in page, path
        assert "release r41" not in page


def test_a_kind_is_held_under_a_release_and_the_hold_is_ended(shop, client):
    page = text_of(client.page("/releases"))
    assert "render fails more 50 % 0 % 60" in page
    assert "30 deaths, new" in page
    held = text_of(client.submit("/releases/r42/hold", kind="render", reason="codec", until="2h"))
    assert "render is held" in held
    assert "codec" in held
    (hold,) = shop.releases.get("r42").holds
    assert (hold.kind, hold.reason, hold.until is not None) == ("render", "codec", True)
    client.submit("/releases/r42/unhold", kind="render")
    assert shop.releases.get("r42").holds == ()


def test_a_viewer_sees_releases_and_holds_none(shop):
    with sign_in_with_key(shop, role="viewer") as client:
        page = client.page("/releases")
        assert "fails more" in page
        assert "/releases/r42/hold" not in page


def test_a_cause_is_assigned_and_shows_suspect_runbook_and_alarm(shop, client):
    group = shop.failures.groups()[0].fingerprint
    page = text_of(client.submit(f"/failures/{group}/assign", person="ada"))
    assert shop.failures.get(group).assignee == "ada"
    assert "assigned it" in page
    for expected in (
        "began with r42: 0 of 60 attempts before",
        RUNBOOK,
        "alarm for operators page",
    ):
        assert expected in page
    assert " · ada" in client.page("/failures")
    assert "ada" in text_of(client.page(f"/failures/{group}"))


def test_a_discard_is_undone_on_the_page_of_the_job(shop, client):
    job = shop.jobs.list("state:dead")[0]
    client.submit(f"/jobs/{job.id}/discard", reason="not needed")
    assert job.refresh().state is State.CANCELLED
    assert "Undo discard" in client.page(f"/jobs/{job.id}")
    client.submit(f"/jobs/{job.id}/undiscard", reason="it is needed")
    assert job.refresh().state is State.DEAD
