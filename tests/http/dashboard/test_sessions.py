"""Who gets in, and what their forms may do."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from mulligan.access.keys import Sessions
from mulligan.core.job import SECOND
from mulligan.http.app import create_app

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

SCREENS = (
    "/",
    "/jobs",
    "/failures",
    "/batches",
    "/queues",
    "/dependencies",
    "/schedules",
    "/operations",
    "/insight",
    "/policies",
    "/events",
    "/audit",
    "/operations/new?filter=state:dead",
)
SHARED = ("/queues", "/dependencies", "/schedules", "/insight", "/policies", "/events")


@pytest.fixture
def stranger(app):
    app.store.prepare()
    with TestClient(
        create_app(app.settings), base_url="http://localhost", follow_redirects=False
    ) as client:
        yield client


@pytest.fixture
def enter(app, stranger):
    """Signs the visitor in with a key of this scope and role."""

    def entered(scope="*", role="operator"):
        made = app.keys.create(scope, role)
        assert stranger.post("/sign-in", data={"key": made.text}).status_code == 303
        return made.key

    return entered


def mark_of(client, path="/failures"):
    """What forms of this visitor carry."""
    return re.search(r'name="csrf" value="([0-9a-f]+)"', client.get(path).text)[1]


@pytest.fixture
def dead(app):
    job = app.enqueue("refuse", owner="acme")
    app.run_inline()
    return job


@pytest.mark.security("S01")
def test_a_stranger_sees_a_door_on_every_screen(stranger):
    for path in (*SCREENS, "/jobs/x", "/failures/x"):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/sign-in")
    assert stranger.post("/jobs/x/retry", data={}).status_code == 403


def test_a_link_lets_in_once_by_a_form_and_only_for_ten_minutes(app, stranger):
    link, late = Sessions(lambda: app.store).link(), Sessions(lambda: app.store).link()
    for _ in range(2):
        assert "signs you in once" in stranger.get("/sign-in", params={"link": link}).text
    assert stranger.post("/sign-in", data={"link": link}).status_code == 303
    assert stranger.get("/").status_code == 200
    stranger.cookies.clear()
    assert stranger.post("/sign-in", data={"link": link}).status_code == 401
    app.store.shift_clock(601 * SECOND)
    assert stranger.post("/sign-in", data={"link": late}).status_code == 401


@pytest.mark.security("S05", "S06")
def test_a_session_ends_with_its_key_its_time_or_its_visitor(app, stranger, enter):
    key = enter()
    app.keys.revoke(key.id)
    assert stranger.get("/").status_code == 303
    enter()
    app.store.shift_clock(13 * 3600 * SECOND)
    assert stranger.get("/").status_code == 303
    enter()
    cookie = stranger.cookies["mulligan_0"]
    assert stranger.post("/sign-out", data={"csrf": mark_of(stranger)}).status_code == 303
    stranger.cookies.set("mulligan_0", cookie, domain="localhost.local")
    assert stranger.get("/").status_code == 303


@pytest.mark.security("S04", "S06")
def test_the_cookie_is_for_the_browser_alone_and_nothing_that_lets_in_is_kept(app, stranger):
    made = app.keys.create("*", "admin")
    said = stranger.post("/sign-in", data={"key": made.text}).headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=lax" in said
    text = stranger.cookies["mulligan_0"]
    with app.store.begin() as unit:
        rows = unit.rows("api_keys")
    assert text not in str(rows)
    assert made.text not in str(rows)


@pytest.mark.security("S07")
def test_who_guesses_must_wait(stranger):
    answers = [
        stranger.post("/sign-in", data={"key": f"mk_{guess}"}).status_code for guess in range(12)
    ]
    assert answers == [401] * 10 + [429] * 2


@pytest.mark.security("A16")
@pytest.mark.parametrize(
    "next_", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_the_door_leads_to_our_own_pages_only(app, stranger, next_):
    key = app.keys.create("*", "viewer").text
    assert stranger.post("/sign-in", data={"key": key, "next": next_}).headers["location"] == "/"


@pytest.mark.security("S29")
def test_a_form_of_another_site_or_without_our_mark_does_nothing(app, stranger, enter, dead):
    enter()
    mark, path = mark_of(stranger), f"/jobs/{dead.id}/retry"
    for data, headers in (
        ({}, {}),
        ({"csrf": "0" * 64}, {}),
        ({"csrf": mark}, {"origin": "http://evil.example"}),
        ({"csrf": mark}, {"origin": "null"}),
        ({"csrf": mark}, {"sec-fetch-site": "cross-site"}),
    ):
        assert stranger.post(path, data=data, headers=headers).status_code == 403
    assert (
        stranger.post(
            path, content=f"csrf={mark}", headers={"content-type": "text/plain"}
        ).status_code
        == 403
    )
    assert stranger.get(path).status_code == 405
    assert app.jobs.get(dead.id).generation == 1
    assert stranger.post(path, data={"csrf": mark}).status_code == 303
    assert app.jobs.get(dead.id).generation == 2


@pytest.mark.security("S11", "S13", "S14")
def test_a_viewer_looks_and_an_owner_sees_and_moves_their_own_alone(app, stranger, enter, dead):
    other = app.enqueue("refuse", owner="other")
    app.run_inline()
    enter("*", "viewer")
    mark = mark_of(stranger, "/")
    assert stranger.post(f"/jobs/{dead.id}/retry", data={"csrf": mark}).status_code == 403
    enter("acme", "operator")
    mark = mark_of(stranger, "/failures")
    assert [path for path in SHARED if stranger.get(path).status_code != 403] == []
    assert stranger.get("/").headers["location"] == "/failures"
    assert other.id not in stranger.get("/jobs").text
    assert dead.id in stranger.get("/jobs").text
    unknown = "z" * len(other.id)
    answers = [stranger.get(f"/jobs/{job}") for job in (other.id, unknown)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(other.id, unknown) == answers[1].text
    stranger.post(f"/jobs/{other.id}/retry", data={"csrf": mark})
    assert app.jobs.get(other.id).generation == 1
    assert stranger.post("/queues/default/pause", data={"csrf": mark}).status_code == 403
    stranger.post(f"/jobs/{dead.id}/retry", data={"csrf": mark, "reason": "mended"})
    assert app.jobs.get(dead.id).generation == 2


def test_what_is_done_by_a_form_is_told_and_entered_with_who_and_why(app, stranger, enter, dead):
    key = enter()
    answer = stranger.post(
        f"/jobs/{dead.id}/retry", data={"csrf": mark_of(stranger), "reason": "disk is back"}
    )
    assert answer.headers["location"] == f"/jobs/{dead.id}"
    page = stranger.get(answer.headers["location"]).text
    assert "generation 2 begins" in page
    assert "generation 2 begins" not in stranger.get(f"/jobs/{dead.id}").text
    deed = app.events.list()[0]
    assert (deed.type, deed.actor, deed.data["reason"]) == (
        "job.retried",
        f"key:{key.id}",
        "disk is back",
    )
    again = stranger.post(f"/jobs/{dead.id}/retry", data={"csrf": mark_of(stranger)})
    assert "Not done" in stranger.get(again.headers["location"]).text


def test_every_shared_thing_can_be_stopped_and_let_go(app, stranger, enter):
    app.job(name="call", uses="gateway")(lambda: None).enqueue()
    enter()
    mark = mark_of(stranger)

    def do(path, **said):
        answer = stranger.post(path, data={"csrf": mark, **said})
        assert answer.status_code == 303
        return stranger.get(answer.headers["location"]).text

    assert "is paused" in do("/queues/default/pause", reason="lunch", until="2h")
    assert app.queues.get("default").paused
    assert "goes on" in do("/queues/default/resume")
    assert "held open" in do("/dependencies/gateway/open", reason="they told us")
    assert app.dependencies.get("gateway").state == "open"
    assert "go on" in do("/dependencies/gateway/close")
    assert "is held" in do("/kinds/call/hold")
    assert "is released" in do("/kinds/call/release")
    assert "Not done: until" in do("/queues/default/pause", until="soon")
    assert stranger.post("/queues/default/explode", data={"csrf": mark}).status_code == 400


def test_many_are_retried_after_a_look_and_never_by_a_slip(app, stranger, enter):
    app.store.prepare()
    for _ in range(101):
        app.enqueue("refuse")
    app.run_inline()
    enter()
    page = stranger.get("/operations/new", params={"action": "retry", "filter": "state:dead"}).text
    assert "101 jobs" in page
    assert app.operations.list() == []
    form = {"csrf": mark_of(stranger), "action": "retry", "filter": "state:dead", "careful": "1"}
    refused = stranger.post("/operations", data=form)
    assert "type the number" in stranger.get(refused.headers["location"]).text
    begun = stranger.post("/operations", data={**form, "count": "101", "reason": "mended"})
    assert "Begun" in stranger.get(begun.headers["location"]).text
    assert [(one.action, one.filter, one.reason) for one in app.operations.list()] == [
        ("retry", "state:dead", "mended")
    ]


def test_those_that_are_ticked_are_moved_one_by_one(app, stranger, enter):
    jobs = [app.enqueue("refuse") for _ in range(3)]
    app.run_inline()
    waiting = app.enqueue("add", {"a": 1, "b": 2}, delay=60)
    enter()
    chosen = [jobs[0].id, jobs[1].id, waiting.id]
    answer = stranger.post(
        "/jobs", data={"csrf": mark_of(stranger), "verb": "retry", "id": chosen, "back": "/jobs"}
    )
    page = stranger.get(answer.headers["location"]).text
    assert "2 of 3 done; not done: " in page
    assert [app.jobs.get(job.id).generation for job in (*jobs, waiting)] == [2, 2, 1, 1]


@pytest.mark.security("S14")
def test_words_in_quotes_find_what_is_private_for_operators_alone(app, stranger, enter):
    app.enqueue("crash", {"text": "nowhere-else"}, owner="acme")
    app.run_inline()
    seen = {}
    for scope, role in (
        ("*", "operator"),
        ("*", "viewer"),
        ("acme", "viewer"),
        ("other", "operator"),
    ):
        enter(scope, role)
        for path in ("/jobs", "/failures"):
            seen[scope, role, path] = (
                "crash" in stranger.get(path, params={"filter": '"nowhere-else"'}).text
            )
    operator = [("*", "operator", "/jobs"), ("*", "operator", "/failures")]
    assert [asked for asked, found in seen.items() if found] == operator
