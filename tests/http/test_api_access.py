"""Authentication, request bodies, methods, cursors and outages of the API."""

from __future__ import annotations

import json

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mulligan.http.api import create_api
from mulligan.http.app import create_app
from support.app_tools import advance
from support.waiting import until


@pytest.fixture
def store_url(sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return sqlite_url


def problem(answer, status, code=None):
    """Check that a response is a problem and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert {"type", "title", "detail", "code", "retryable"} <= set(document)
    assert code is None or document["code"] == code
    return document


def routes(client):
    document = client.get("/openapi.json").json()
    return [(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs]


@pytest.mark.security("S01")
def test_every_route_except_health_needs_a_key(client):
    found = routes(client)
    assert ("POST", "/jobs") in found
    for verb, path in found:
        answer = client.request(verb, f"/api/v1{path}".replace("{", "").replace("}", ""))
        if path in {"/livez", "/readyz", "/startupz"}:
            assert answer.status_code == 200
        else:
            problem(answer, 401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.security("S02")
@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer mk_nobody")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "KEY")],
        [("authorization", "Basic KEY")],
        [("authorization", "Bearer KEY"), ("authorization", "Bearer KEY")],
        [("authorization", "Bearer KEY, Bearer KEY")],
        [("authorization", "Bearer KEY\x00")],
        [("authorization", "Bearer \xe9KEY")],
        [("x-api-key", "KEY")],
    ],
    ids=repr,
)
def test_an_invalid_authorization_header_is_refused(app, client, headers):
    key = app.keys.create("*", "admin").text
    sent_headers = [(name, value.replace("KEY", key).encode("latin-1")) for name, value in headers]
    problem(client.get("/api/v1/jobs", headers=sent_headers), 401)


@pytest.mark.security("S02")
@pytest.mark.parametrize("query", ["token=x", "api_key=x", "access_token=x", "filter=KEY"])
def test_a_key_in_the_url_is_refused_even_with_a_valid_header(app, client, key, query):
    text = app.keys.create("*", "admin").text
    problem(client.get(f"/api/v1/jobs?{query.replace('KEY', text)}", headers=key()), 401)


@pytest.mark.security("S02", "S05")
def test_an_expired_key_is_refused(app, client):
    created = app.keys.create("*", "viewer", expires=60)
    headers = {"Authorization": f"bearer {created.text}"}
    assert client.get("/api/v1/jobs", headers=headers).status_code == 200
    until(lambda: app.keys.get(created.key.id).last_used_at, 10, "the use of the key is recorded")
    advance(app, 61)
    problem(client.get("/api/v1/jobs", headers=headers), 401)


REFUSED = [
    (b'{"kind": "works", "payload": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
    (b'{"kind": "works", "payload": ' + b'{"a":' * 150 + b"1" + b"}" * 151, 400),
    (b'{"kind": "works", "payload": {"text": NaN}}', 400),
    (b'{"kind": "works", "payload": {"text": Infinity}}', 400),
    (b'{"kind": "works", "kind": "fails"}', 400),
    (b'{"kind": "works", "payload": {"text": "\\ud800"}}', 400),
    (b'{"kind": "works", "payload": {"text": "\xff"}}', 400),
    (b'{"kind": "works", "payload": {"text": ' + b"9" * 5000 + b"}}", 400),
    (b'{"kind": "works"', 400),
    (b"[]", 422),
    (b'"works"', 422),
    (b"null", 422),
    (b'{"kind": 7}', 422),
    (b'{"kind": "works", "state": "succeeded"}', 422),
    (b'{"kind": "works", "token": 5}', 422),
    (b'{"kind": "works", "priority": true}', 422),
    (b'{"kind": "works", "priority": 9223372036854775808}', 422),
    (b'{"kind": "works", "delay": -1}', 422),
    (b'{"kind": "works", "run_at": "0001-01-01"}', 422),
    (b'{"kind": "works", "run_at": "yesterday"}', 422),
    (b'{"kind": "works", "run_at": "9999-12-31T23:59:59-14:00"}', 422),
    (b'{"kind": "works", "delay": 1, "run_at": "2027-01-01T00:00:00Z"}', 422),
    (b'{"kind": "works", "queue": "a b"}', 422),
    (b'{"kind": "works", "queue": "mulligan.x"}', 422),
    (b'{"kind": "works", "unique": "a\\u0000b"}', 422),
    (b'{"kind": "mulligan.deliver"}', 422),
    (b'{"kind": "__import__(\'os\')"}', 422),
    (b'{"kind": "../../x"}', 422),
    (b'{"kind": "no such kind"}', 422),
    (b'{"kind": "works", "batch_id": "nope"}', 404),
]


@pytest.mark.security("S12", "S17", "S18", "S20")
def test_an_invalid_body_is_refused_and_nothing_is_written(app, client, key):
    headers = {**key(), "content-type": "application/json"}
    for body, status in REFUSED:
        problem(client.post("/api/v1/jobs", content=body, headers=headers), status)
    assert app.jobs.list() == []


@pytest.mark.security("S17")
def test_a_body_above_the_limit_is_not_read_to_its_end(app, client, key):
    sent = 0

    def endless():
        nonlocal sent
        for _ in range(1000):
            sent += 65_536
            yield b"x" * 65_536

    headers = {**key(), "content-type": "application/json"}
    problem(
        client.post(
            "/api/v1/jobs", content=b"{}", headers={**headers, "content-length": str(10**8)}
        ),
        413,
    )
    problem(client.post("/api/v1/jobs", content=endless(), headers=headers), 413, "TOO_LARGE")


@pytest.mark.security("S17", "S29")
def test_only_json_bodies_are_accepted(app, client, key):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        answer = client.post(
            "/api/v1/jobs", content=b'{"kind":"works"}', headers={**key(), "content-type": kind}
        )
        problem(answer, 415)


def test_a_database_outage_is_a_retryable_503(app, client, key, monkeypatch):
    from mulligan.http import services

    headers = key()
    monkeypatch.setattr(
        services.StoreOpener,
        "__call__",
        lambda _: (_ for _ in ()).throw(services.StoreUnavailable("gone")),
    )
    answer = client.get("/api/v1/jobs", headers=headers)
    assert problem(answer, 503)["retryable"] is True
    assert answer.headers["retry-after"]
    assert client.get("/livez").status_code == 200
    problem(client.get("/readyz"), 503, "NOT_READY")


@pytest.mark.security("S28")
def test_an_unexpected_error_shows_no_details(app, client, key, monkeypatch):
    from mulligan.jobs.service import Jobs

    monkeypatch.setattr(Jobs, "list", lambda *_, **__: 1 // 0)
    answer = client.get("/api/v1/jobs", headers=key())
    assert "division" not in problem(answer, 500, "INTERNAL")["detail"]


def test_health_openapi_and_metrics_are_also_at_the_root(app, client, key):
    for path in ("/livez", "/readyz", "/startupz", "/api/v1/livez", "/api/v1/readyz"):
        assert client.get(path, headers={"host": "elsewhere.example"}).text == "ok\n"
    document = client.get("/openapi.json").json()
    assert document == client.get("/api/v1/openapi.json").json()
    assert document["servers"] == [{"url": "/api/v1"}]
    for verbs in document["paths"].values():
        for verb, operation in verbs.items():
            if "security" in operation:
                assert operation["responses"]["422"] == {"$ref": "#/components/responses/Problem"}
            assert verb == "get" or operation["security"] == [{"key": []}]
    assert any(
        one["name"] == "Idempotency-Key" for one in document["paths"]["/jobs"]["post"]["parameters"]
    )
    answer = client.get("/metrics", headers=key("acme"))
    problem(answer, 403)
    numbers = client.get("/metrics", headers=key("*", "viewer"))
    assert numbers.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "mulligan_jobs_enqueued_total" in numbers.text


@pytest.mark.security("A18")
def test_the_api_accepts_any_host_and_a_local_dashboard_only_loopback(app, client, key):
    elsewhere = {**key(), "host": "jobs.example"}
    assert client.get("/api/v1/jobs", headers=elsewhere).status_code == 200
    assert client.get("/", headers=elsewhere).status_code == 421
    open_to_all = app.settings.model_copy(
        update={"web": app.settings.web.model_copy(update={"host": "0.0.0.0"})}  # noqa: S104
    )
    with TestClient(create_app(open_to_all), base_url="http://localhost") as other:
        assert "Sign in" in other.get("/", headers=elsewhere).text
        assert other.get("/api/v1/jobs", headers=key()).status_code == 200


def test_the_api_can_be_mounted_in_another_application(app, key):
    site = FastAPI()
    site.mount("/mine", create_api(app))
    with TestClient(site) as client:
        created = client.post("/mine/jobs", json={"kind": "works"}, headers=key("acme", "operator"))
        assert created.status_code == 201, created.text
        assert (
            client.get(f"/mine/jobs/{created.json()['id']}", headers=key("acme", "viewer")).json()[
                "owner"
            ]
            == "acme"
        )
        refused = client.post(
            "/mine/jobs", json={"kind": "works", "payload": {"clip": 7}}, headers=key()
        )
        assert refused.json()["code"] == "PAYLOAD_REFUSED"
        assert (
            json.dumps(client.get("/mine/openapi.json").json()["servers"]) == '[{"url": "/mine"}]'
        )


def test_every_get_route_answers_head(app, client, key):
    headers = key()
    for path in ("/jobs", "/jobs/count", "/queues", "/metrics", "/livez", "/readyz"):
        head, got = (
            client.request(verb, f"/api/v1{path}", headers=headers) for verb in ("HEAD", "GET")
        )
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]
    assert client.head("/api/v1/jobs").status_code == 401
    assert client.head("/api/v1/jobs/nope", headers=headers).status_code == 404
    assert client.head("/api/v1/keys/x/revoke", headers=headers).status_code == 405


@pytest.mark.security("S32")
def test_unknown_methods_are_refused_on_every_path_without_cors_headers(client, key):
    headers = {**key(), "origin": "https://evil.example", "access-control-request-method": "POST"}
    for path, verbs in client.get("/openapi.json").json()["paths"].items():
        for verb in ("OPTIONS", "PUT", "TRACE", "BREW"):
            assert verb.lower() not in verbs
            answer = client.request(
                verb, f"/api/v1{path}".replace("{", "").replace("}", ""), headers=headers
            )
            problem(answer, 405, "METHOD_NOT_ALLOWED")
            assert set(verbs) <= set(answer.headers["allow"].lower().split(", "))
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.security("S31")
def test_method_overrides_are_ignored(app, client, key):
    job = app.enqueue("works")
    headers = {**key(), "x-http-method-override": "POST"}
    assert client.get(f"/api/v1/jobs/{job.id}?_method=DELETE", headers=headers).status_code == 200
    assert client.get(f"/api/v1/jobs/{job.id}/cancel", headers=headers).status_code == 405
    assert app.jobs.get(job.id).state == "queued"


CURSORS = (
    "x",
    "~~~",
    "=",
    "AAAA",
    "A" * 400,
    "'; DROP TABLE job",
    "\x00",
    "../x",
    "0",
    "-1",
    "9" * 30,
)


@pytest.mark.security("S21", "A19")
def test_an_invalid_or_foreign_cursor_is_refused(app, client, key):
    headers = key()
    other = key()
    for number in range(3):
        app.enqueue("works", {"text": str(number)})
        app.queues.pause(f"q{number}")
    mine, audit = (
        client.get(f"/api/v1/{path}?limit=1", headers=headers).json()["next"]
        for path in ("jobs", "audit")
    )
    assert mine
    assert audit
    for path, verbs in client.get("/openapi.json").json()["paths"].items():
        if "cursor" not in {one["name"] for one in verbs.get("get", {}).get("parameters", ())}:
            continue
        where = path.replace("{batch_id}", app.batch("b").id).replace(
            "{operation_id}", app.operations.start("cancel", "kind:none").id
        )
        for cursor in (
            *CURSORS,
            mine[:-1],
            mine + "A",
            mine.swapcase(),
            audit if path != "/audit" else mine,
        ):
            problem(
                client.get(f"/api/v1{where}", params={"cursor": cursor}, headers=headers),
                422,
                "CURSOR",
            )
        problem(
            client.get(f"/api/v1{where}", params={"cursor": mine}, headers=other), 422, "CURSOR"
        )
