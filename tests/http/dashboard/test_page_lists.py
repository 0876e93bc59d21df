"""Lists: their heads repeat the number that led there, their filters are in the address, their empty states teach."""

from __future__ import annotations

import re

import pytest

from support.visiting import visiting, visiting_by_link

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def guest(app):
    with visiting(app) as guest:
        yield guest


def test_a_number_leads_to_a_list_that_says_it_again(app, guest):
    for _ in range(3):
        app.enqueue("refuse")
    app.enqueue("ask")
    app.run_inline()
    for number in range(60):
        app.enqueue("add", {"a": number, "b": 0}, delay=60)
    page = guest.page("/")
    for state, many in (("dead", 3), ("parked", 1), ("queued", 60)):
        link = re.search(rf'href="([^"]*state%3A{state})"><span class="many">{many}<', page)[1]
        assert f"{many} job" in guest.page(link)
    assert "60 jobs" in guest.page(
        "/jobs", filter="kind:add", before=app.jobs.list("kind:add")[9].id
    )


def test_an_owner_counts_what_is_theirs(app, guest):
    for owner in ("acme", "acme", "globex"):
        app.enqueue("add", {"a": 1, "b": 1}, owner=owner, delay=60)
    guest.enter("acme")
    assert "2 jobs" in guest.page("/jobs")
    assert "0 jobs" in guest.page("/jobs", filter="owner:globex")


def test_each_part_of_a_filter_can_be_left_out_and_the_state_changed(guest):
    page = guest.page("/jobs", filter='state:dead kind:add "moov atom"')
    for link in (
        "/jobs?filter=kind%3Aadd+%22moov+atom%22",
        "/jobs?filter=state%3Adead+%22moov+atom%22",
        "/jobs?filter=state%3Aparked+kind%3Aadd+%22moov+atom%22",
    ):
        assert f'href="{link}"' in page
        guest.page(link)


def test_events_are_filtered_by_the_address_and_page_back(app, guest):
    for _ in range(60):
        app.enqueue("add", {"a": 1, "b": 1})
    app.enqueue("refuse", owner="acme")
    app.run_inline()
    page = guest.page("/events", filter="type:job.died")
    assert (page.count("job.died</td>"), page.count("job.succeeded</td>")) == (1, 0)
    assert "job.succeeded" in guest.page("/events", filter="type:job.* kind:add")
    assert "No event matches" in guest.page("/events", filter="kind:nobody")
    first = guest.page("/events", filter="type:job.succeeded")
    older = re.search(r'href="(/events\?before=[^"]*)"', first)[1]
    assert first.count("job.succeeded</td>") == 50
    assert guest.page(older).count("job.succeeded</td>") == 10
    assert guest.client.get("/events", params={"filter": "colour:red"}).status_code == 400
    assert guest.client.get("/events", params={"before": str(10**30)}).status_code == 422


TEACHES = {
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


def test_an_empty_screen_says_what_it_will_show_and_what_makes_the_first_one(app):
    with visiting_by_link(app) as guest:
        assert [path for path, command in TEACHES.items() if command not in guest.page(path)] == []


def test_an_operation_has_its_own_pace_and_tells_how_far_it_is(app, guest):
    for _ in range(4):
        app.enqueue("refuse")
    app.run_inline()
    page = guest.page("/operations/new", action="retry", filter="state:dead")
    assert "4 jobs" in page
    said = guest.do(
        "/operations", action="retry", filter="state:dead", careful="1", rate="2/s", stop_if="50 %"
    )
    assert "at most 2 a second" in said
    assert "more than 50% fail" in said
    assert 'role="progressbar"' in said
    for wrong in ({"stop_if": "all"}, {"rate": "often"}, {"filter": ""}):
        assert "Not done" in guest.do(
            "/operations", **{"action": "discard", "filter": "state:dead", **wrong}
        )


def test_jobs_are_moved_to_a_queue_that_is_named_first(app, guest):
    app.enqueue("add", {"a": 1, "b": 1}, delay=60)
    assert "Say to which queue" in guest.page(
        "/operations/new", action="move", filter="state:queued"
    )
    assert "1 jobs" in guest.page(
        "/operations/new", action="move", filter="state:queued", queue="slow"
    )
    guest.do("/operations", action="move", filter="state:queued", queue="slow")
    assert app.operations.list()[0].params["queue"] == "slow"
