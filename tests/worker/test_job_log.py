"""Counters, alerts, notifications and dashboard pages fit together."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

from mulligan import Email, Fail, Fixed, Policy, Webhook
from mulligan.access.keys import Sessions
from mulligan.alerts.chore import AlertChecker
from mulligan.http.app import create_app
from mulligan.observability.event_counts import EventCounter
from mulligan.observability.exporter import render
from support.app_tools import advance
from support.receivers import open_receiver

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

LOCAL = {
    "notify__allow_private": "127.0.0.0/8",
    "web__public_url": "http://localhost",
    "notify__gather": "0",
}


@pytest.fixture
def app(make_app):
    app = make_app(**LOCAL)

    @app.job(name="bill", cost=0.5, policy=Policy(max_retries=1, backoff=Fixed(1)))
    def bill() -> Fail:
        return Fail("GATEWAY", public="The gateway said no.")

    return app


def run_periodic_tasks(app, seconds=6):
    """Advance the clock and do what a worker does besides running jobs."""
    advance(app, seconds)
    while EventCounter(every=0).run_once(app.store):
        pass
    AlertChecker(app.settings.alerts).run_once(app.store)
    app.run_inline()


@pytest.fixture
def web():
    with open_receiver() as receiver:
        yield receiver


def test_the_cost_of_retries_is_counted_alerted_and_notified(app, web):
    hook = f"http://127.0.0.1:{web.port}/ops"
    app.notify(on="alert.fired", to=Webhook(hook), name="ops")
    run_periodic_tasks(app)
    for _ in range(25):
        app.enqueue("bill")
    app.run_inline()
    advance(app, 2)
    app.run_inline()
    run_periodic_tasks(app)
    details = [one.body["data"]["details"] for one in web.received]
    assert {one["rule"]: one["value"] for one in details}["retry_cost"] == pytest.approx(0.5)
    assert [one.rule for one in app.alerts.list() if one.rule == "retry_cost"] == ["retry_cost"]


def test_the_link_in_a_notification_leads_to_an_existing_page(app, web):
    app.notify(on="job.died", to=Webhook(f"http://127.0.0.1:{web.port}/each"), name="each")
    app.notify(
        on="job.died",
        to=Webhook(f"http://127.0.0.1:{web.port}/grown"),
        name="grown",
        form="incident",
    )
    app.run_inline()
    job = app.enqueue("bill", owner="acme")
    for _ in range(3):
        app.run_inline()
        advance(app, 2)
    app.run_inline()
    links = {one.to.strip("/"): json.dumps(one.body) for one in web.received}
    assert set(links) == {"each", "grown"}
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        client.post("/sign-in", data={"link": Sessions(lambda: app.store).create_link()})
        found = [
            link
            for body in links.values()
            for link in re.findall(r'http://localhost(/[^"\\]*)', body)
        ]
        assert {f"/jobs/{job.id}"} < set(found)
        assert {client.get(link).status_code for link in found} == {200}


def test_deliveries_are_counted_separately_and_have_no_owner(app, web):
    app.notify(on="job.*", to=Webhook(f"http://127.0.0.1:{web.port}/all"), name="all")
    run_periodic_tasks(app)
    app.enqueue("bill", owner="acme")
    for _ in range(4):
        app.run_inline()
        advance(app, 2)
    run_periodic_tasks(app)
    assert len(web.received) >= 4
    assert {one.body["data"]["details"]["kind"] for one in web.received} == {"bill"}
    page = render(app.store)
    counted = re.findall(
        r'^mulligan_notifications_total\{channel="webhook",outcome="succeeded"\} (\S+)$',
        page,
        re.MULTILINE,
    )
    assert [float(number) for number in counted] == [len(web.received)]
    assert "mulligan.deliver" not in page
    assert [job.kind for job in app.jobs.list()] == ["bill"]
    assert app.insight().numbers.jobs == 1


def test_without_a_mail_server_mail_is_skipped_and_the_page_explains_why(app):
    app.notify(on="job.died", to=Email("ops@example.com"), name="ops")
    app.run_inline()
    app.enqueue("bill")
    for _ in range(3):
        app.run_inline()
        advance(app, 2)
    app.run_inline()
    (delivery,) = app.deliveries.list()
    assert delivery.state == "cancelled"
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        client.post("/sign-in", data={"link": Sessions(lambda: app.store).create_link()})
        page = client.get("/notifications").text
        assert "email · ops · declared in code" in page
        assert delivery.message in page
        assert "skipped" in page
        assert "mail.host is not set" in page
