"""Lists: counts, filters in the address, pages, and what empty screens suggest."""

from __future__ import annotations

import re

import pytest

from support.dashboard_client import sign_in_with_key, sign_in_with_link

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def client(app):
    with sign_in_with_key(app) as client:
        yield client


def test_a_count_links_to_a_list_with_the_same_count(app, client):
    for _ in range(3):
        app.enqueue("refuse")
    app.enqueue("ask")
    app.run_inline()
    for number in range(60):
        app.enqueue("add", {"a": number, "b": 0}, delay=60)
    page = client.page("/")
    for state, count in (("dead", 3), ("parked", 1), ("queued", 60)):
        link = re.search(rf'href="([^"]*state%3A{state})"><span class="many">{count}<', page)[1]
        assert f"{count} job" in client.page(link)
    assert "60 jobs" in client.page(
        "/jobs", filter="kind:add", before=app.jobs.list("kind:add")[9].id
    )


def test_an_owner_sees_only_its_own_counts(app, client):
    for owner in ("acme", "acme", "globex"):
        app.enqueue("add", {"a": 1, "b": 1}, owner=owner, delay=60)
    client.sign_in("acme")
    assert "2 jobs" in client.page("/jobs")
    assert "0 jobs" in client.page("/jobs", filter="owner:globex")


def test_each_part_of_a_filter_can_be_removed_and_the_state_changed(client):
    page = client.page("/jobs", filter='state:dead kind:add "moov atom"')
    for link in (
        "/jobs?filter=kind%3Aadd+%22moov+atom%22",
        "/jobs?filter=state%3Adead+%22moov+atom%22",
        "/jobs?filter=state%3Aparked+kind%3Aadd+%22moov+atom%22",
    ):
        assert f'href="{link}"' in page
        client.page(link)


def test_events_are_filtered_by_the_address_and_paged(app, client):
    for _ in range(60):
        app.enqueue("add", {"a": 1, "b": 1})
    app.enqueue("refuse", owner="acme")
    app.run_inline()
    page = client.page("/events", filter="type:job.died")
    assert (page.count("job.died</td>"), page.count("job.succeeded</td>")) == (1, 0)
    assert "job.succeeded" in client.page("/events", filter="type:job.* kind:add")
    assert "No matching events" in client.page("/events", filter="kind:nobody")
    first = client.page("/events", filter="type:job.succeeded")
    older = re.search(r'href="(/events\?before=[^"]*)"', first)[1]
    assert first.count("job.succeeded</td>") == 50
    assert client.page(older).count("job.succeeded</td>") == 10
    assert client.client.get("/events", params={"filter": "colour:red"}).status_code == 400
    assert client.client.get("/events", params={"before": str(10**30)}).status_code == 422


SUGGESTED_COMMANDS = {
    "/": "mulligan enqueue",
    "/jobs": "mulligan enqueue",
    "/failures": "mulligan demo",
    "/batches": "app.batch(",
    "/queues": "mulligan worker APP",
    "/dependencies": '@app.job(uses="gateway")',
    "/operations": "mulligan failures retry",
    "/schedules": "app.schedule(",
    "/alerts": "app.notify(",
    "/notifications": "mulligan notify add",
    "/insight": "mulligan demo",
    "/policies": "app.rules.add(",
    "/events": "mulligan events tail",
    "/audit": "mulligan jobs retry",
}


def test_an_empty_screen_suggests_a_command(app):
    with sign_in_with_link(app) as client:
        assert [
            path for path, command in SUGGESTED_COMMANDS.items() if command not in client.page(path)
        ] == []


def test_an_operation_shows_its_rate_limit_and_progress(app, client):
    for _ in range(4):
        app.enqueue("refuse")
    app.run_inline()
    page = client.page("/operations/new", action="retry", filter="state:dead")
    assert "4 jobs" in page
    page = client.submit(
        "/operations", action="retry", filter="state:dead", careful="1", rate="2/s", stop_if="50 %"
    )
    assert "at most 2 a second" in page
    assert "more than 50% fail" in page
    assert 'role="progressbar"' in page
    for wrong in ({"stop_if": "all"}, {"rate": "often"}, {"filter": ""}):
        assert "Not done" in client.submit(
            "/operations", **{"action": "discard", "filter": "state:dead", **wrong}
        )


def test_a_bulk_move_requires_a_target_queue(app, client):
    app.enqueue("add", {"a": 1, "b": 1}, delay=60)
    assert "Enter the target queue" in client.page(
        "/operations/new", action="move", filter="state:queued"
    )
    assert "1 jobs" in client.page(
        "/operations/new", action="move", filter="state:queued", queue="slow"
    )
    client.submit("/operations", action="move", filter="state:queued", queue="slow")
    assert app.operations.list()[0].params["queue"] == "slow"
