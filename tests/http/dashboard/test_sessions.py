"""Sign-in, sessions, CSRF protection, and what roles and scopes may do in the dashboard."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from mulligan.access.keys import Sessions
from mulligan.core.durations import SECOND
from mulligan.http.app import create_app
from support.dashboard_client import sign_in_with_key

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
    "/releases",
    "/events",
    "/audit",
    "/operations/new?filter=state:dead",
)
SHARED = (
    "/queues",
    "/dependencies",
    "/dependencies/gateway",
    "/schedules",
    "/insight",
    "/policies",
    "/events",
)


@pytest.fixture
def client(app):
    app.store.prepare()
    with TestClient(
        create_app(app.settings), base_url="http://localhost", follow_redirects=False
    ) as client:
        yield client


@pytest.fixture
def sign_in_as(app, client):
    """Return a function that signs the client in with a new key."""

    def sign_in(scope="*", role="operator"):
        created = app.keys.create(scope, role)
        assert client.post("/sign-in", data={"key": created.text}).status_code == 303
        return created.key

    return sign_in


def csrf_token(client, path="/failures"):
    """Return the CSRF token of the session."""
    return re.search(r'name="csrf" value="([0-9a-f]+)"', client.get(path).text)[1]


@pytest.fixture
def dead(app):
    job = app.enqueue("refuse", owner="acme")
    app.run_inline()
    return job


@pytest.mark.security("S01")
def test_every_screen_redirects_to_the_sign_in(client):
    for path in (*SCREENS, "/jobs/x", "/failures/x"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/sign-in")
    assert client.post("/jobs/x/retry", data={}).status_code == 403


def test_a_sign_in_link_works_once_and_for_ten_minutes(app, client):
    link = Sessions(lambda: app.store).create_link()
    unused = Sessions(lambda: app.store).create_link()
    for _ in range(2):
        assert "signs you in once" in client.get("/sign-in", params={"link": link}).text
    assert client.post("/sign-in", data={"link": link}).status_code == 303
    assert client.get("/").status_code == 200
    client.cookies.clear()
    assert client.post("/sign-in", data={"link": link}).status_code == 401
    app.store.shift_clock(601 * SECOND)
    assert client.post("/sign-in", data={"link": unused}).status_code == 401


@pytest.mark.security("S05", "S06")
def test_a_session_ends_by_revocation_expiry_or_sign_out(app, client, sign_in_as):
    key = sign_in_as()
    app.keys.revoke(key.id)
    assert client.get("/").status_code == 303
    sign_in_as()
    app.store.shift_clock(13 * 3600 * SECOND)
    assert client.get("/").status_code == 303
    sign_in_as()
    cookie = client.cookies["mulligan_0"]
    assert client.post("/sign-out", data={"csrf": csrf_token(client)}).status_code == 303
    client.cookies.set("mulligan_0", cookie, domain="localhost.local")
    assert client.get("/").status_code == 303


@pytest.mark.security("S04", "S06")
def test_the_cookie_is_protected_and_no_secret_is_stored(app, client):
    made = app.keys.create("*", "admin")
    cookie = client.post("/sign-in", data={"key": made.text}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    text = client.cookies["mulligan_0"]
    with app.store.begin() as tx:
        rows = tx.rows("list_api_keys")
    assert text not in str(rows)
    assert made.text not in str(rows)


@pytest.mark.security("S07")
def test_wrong_keys_at_the_sign_in_are_rate_limited(client):
    answers = [
        client.post("/sign-in", data={"key": f"mk_{guess}"}).status_code for guess in range(12)
    ]
    assert answers == [401] * 10 + [429] * 2


@pytest.mark.security("A16")
@pytest.mark.parametrize(
    "next_", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_the_sign_in_redirects_to_local_pages_only(app, client, next_):
    key = app.keys.create("*", "viewer").text
    assert client.post("/sign-in", data={"key": key, "next": next_}).headers["location"] == "/"


@pytest.mark.security("S29")
def test_a_form_without_csrf_token_or_from_another_site_is_refused(app, client, sign_in_as, dead):
    sign_in_as()
    csrf = csrf_token(client)
    path = f"/jobs/{dead.id}/retry"
    for data, headers in (
        ({}, {}),
        ({"csrf": "0" * 64}, {}),
        ({"csrf": csrf}, {"origin": "http://evil.example"}),
        ({"csrf": csrf}, {"origin": "null"}),
        ({"csrf": csrf}, {"sec-fetch-site": "cross-site"}),
    ):
        assert client.post(path, data=data, headers=headers).status_code == 403
    assert (
        client.post(
            path, content=f"csrf={csrf}", headers={"content-type": "text/plain"}
        ).status_code
        == 403
    )
    assert client.get(path).status_code == 405
    assert app.jobs.get(dead.id).generation == 1
    assert client.post(path, data={"csrf": csrf}).status_code == 303
    assert app.jobs.get(dead.id).generation == 2


@pytest.mark.security("S11", "S13", "S14")
def test_a_viewer_cannot_act_and_an_owner_sees_only_its_own_jobs(app, client, sign_in_as, dead):
    other = app.enqueue("refuse", owner="other")
    app.run_inline()
    sign_in_as("*", "viewer")
    csrf = csrf_token(client, "/")
    assert client.post(f"/jobs/{dead.id}/retry", data={"csrf": csrf}).status_code == 403
    sign_in_as("acme", "operator")
    csrf = csrf_token(client, "/failures")
    assert [path for path in SHARED if client.get(path).status_code != 403] == []
    assert client.get("/").headers["location"] == "/failures"
    assert other.id not in client.get("/jobs").text
    assert dead.id in client.get("/jobs").text
    unknown = "z" * len(other.id)
    answers = [client.get(f"/jobs/{job}") for job in (other.id, unknown)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(other.id, unknown) == answers[1].text
    client.post(f"/jobs/{other.id}/retry", data={"csrf": csrf})
    assert app.jobs.get(other.id).generation == 1
    assert client.post("/queues/default/pause", data={"csrf": csrf}).status_code == 403
    client.post(f"/jobs/{dead.id}/retry", data={"csrf": csrf, "reason": "fixed"})
    assert app.jobs.get(dead.id).generation == 2


def test_an_action_is_confirmed_and_audited_with_actor_and_reason(app, client, sign_in_as, dead):
    key = sign_in_as()
    answer = client.post(
        f"/jobs/{dead.id}/retry", data={"csrf": csrf_token(client), "reason": "disk is back"}
    )
    assert answer.headers["location"] == f"/jobs/{dead.id}"
    page = client.get(answer.headers["location"]).text
    assert "generation 2 starts" in page
    assert "generation 2 starts" not in client.get(f"/jobs/{dead.id}").text
    event = app.events.list()[0]
    assert (event.type, event.actor, event.data["reason"]) == (
        "job.retried",
        f"key:{key.id}",
        "disk is back",
    )
    again = client.post(f"/jobs/{dead.id}/retry", data={"csrf": csrf_token(client)})
    assert "Not done" in client.get(again.headers["location"]).text


def test_queues_dependencies_and_kinds_are_stopped_and_released(app, client, sign_in_as):
    app.job(name="call", uses="gateway")(lambda: None).enqueue()
    sign_in_as()
    csrf = csrf_token(client)

    def do(path, **fields):
        answer = client.post(path, data={"csrf": csrf, **fields})
        assert answer.status_code == 303
        return client.get(answer.headers["location"]).text

    assert "is paused" in do("/queues/default/pause", reason="lunch", until="2h")
    assert app.queues.get("default").paused
    assert "is resumed" in do("/queues/default/resume")
    assert "is open" in do("/dependencies/gateway/open", reason="they told us")
    assert app.dependencies.get("gateway").state == "open"
    assert "is closed" in do("/dependencies/gateway/close")
    assert "is held" in do("/kinds/call/hold")
    assert "is released" in do("/kinds/call/release")
    assert "Not done: until" in do("/queues/default/pause", until="soon")
    assert client.post("/queues/default/explode", data={"csrf": csrf}).status_code == 400


def test_a_bulk_retry_is_previewed_and_must_be_confirmed(app, client, sign_in_as):
    app.store.prepare()
    for _ in range(101):
        app.enqueue("refuse")
    app.run_inline()
    sign_in_as()
    page = client.get("/operations/new", params={"action": "retry", "filter": "state:dead"}).text
    assert "101 jobs" in page
    assert app.operations.list() == []
    form = {"csrf": csrf_token(client), "action": "retry", "filter": "state:dead", "careful": "1"}
    refused = client.post("/operations", data=form)
    assert "type the number" in client.get(refused.headers["location"]).text
    started = client.post("/operations", data={**form, "count": "101", "reason": "fixed"})
    assert "Started" in client.get(started.headers["location"]).text
    assert [(one.action, one.filter, one.reason) for one in app.operations.list()] == [
        ("retry", "state:dead", "fixed")
    ]


def test_selected_jobs_are_retried_one_by_one(app, client, sign_in_as):
    jobs = [app.enqueue("refuse") for _ in range(3)]
    app.run_inline()
    waiting = app.enqueue("add", {"a": 1, "b": 2}, delay=60)
    sign_in_as()
    selected = [jobs[0].id, jobs[1].id, waiting.id]
    answer = client.post(
        "/jobs", data={"csrf": csrf_token(client), "verb": "retry", "id": selected, "back": "/jobs"}
    )
    page = client.get(answer.headers["location"]).text
    assert "2 of 3 done; not done: " in page
    assert [app.jobs.get(job.id).generation for job in (*jobs, waiting)] == [2, 2, 1, 1]


@pytest.mark.security("S14")
def test_quoted_search_finds_private_text_for_operators_only(app, client, sign_in_as):
    app.enqueue("crash", {"text": "nowhere-else"}, owner="acme")
    app.run_inline()
    found = {}
    for scope, role in (
        ("*", "operator"),
        ("*", "viewer"),
        ("acme", "viewer"),
        ("other", "operator"),
    ):
        sign_in_as(scope, role)
        for path in ("/jobs", "/failures"):
            found[scope, role, path] = (
                "crash" in client.get(path, params={"filter": '"nowhere-else"'}).text
            )
    operator = [("*", "operator", "/jobs"), ("*", "operator", "/failures")]
    assert [request for request, matched in found.items() if matched] == operator


def test_every_entry_of_an_owners_menu_can_be_opened(app):
    with sign_in_with_key(app, scope="acme", role="viewer") as owner:
        page = owner.page("/failures")
        menu = re.search(r'<nav class="rail".*?</nav>', page, re.DOTALL)[0]
        paths = re.findall(r'href="([^"]+)"', menu)
        assert {"/failures", "/jobs"} <= set(paths)
        answers = {path: owner.client.get(path).status_code for path in paths}
    assert set(answers.values()) == {200}, answers
