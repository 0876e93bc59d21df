"""`/jobs`: the actions that Python has for jobs, each for the roles and owners it is meant for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mulligan import Unique
from mulligan.manifest.declared import publish_manifest
from support.app_tools import run_job
from support.store import run_concurrently

UNKNOWN = "0" * 28
ACTIONS = ("retry", "cancel", "release", "discard")


def post(client, path, headers, **body):
    return client.post(f"/api/v1{path}", json=body, headers=headers)


def test_a_job_is_enqueued_read_explained_and_repaired(app, client, key):
    headers = key("*", "operator")
    made = post(
        client,
        "/jobs",
        headers,
        kind="fails",
        payload={"text": "row 17"},
        owner="acme",
        priority=-2,
    )
    assert made.status_code == 201
    job = made.json()
    assert (job["owner"], job["state"], job["priority"], job["deduplicated"]) == (
        "acme",
        "queued",
        -2,
        False,
    )
    app.run_inline()
    path = f"/api/v1/jobs/{job['id']}"
    dead = client.get(path, headers=headers).json()
    assert (dead["state"], dead["error"]["code"], dead["error"]["message"]) == (
        "dead",
        "BAD_FILE",
        "This file could not be read.",
    )
    (attempt,) = client.get(f"{path}/attempts", headers=headers).json()["attempts"]
    assert "row 17" in attempt["private"]["message"]
    events = client.get(f"{path}/events", headers=headers).json()["events"]
    assert [event["type"] for event in events] == ["job.queued", "job.started", "job.died"]
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    explained = client.get(f"{path}/explain", headers=headers).json()
    assert "retry by hand" in explained["moves"]
    again = post(
        client,
        f"/jobs/{job['id']}/retry",
        headers,
        reason="fixed",
        overrides={"max_retries": 1},
        at=60,
    )
    assert (again.json()["state"], again.json()["generation"], again.json()["max_retries"]) == (
        "queued",
        2,
        1,
    )
    action = app.events.list(type="job.retried")[0]
    assert action.actor.startswith("key:mk_")
    assert action.data["reason"] == "fixed"


def test_an_action_that_the_state_forbids_is_a_conflict_with_a_code(app, client, key):
    headers = key()
    job = run_job(app, app.enqueue("works"))
    for action in ACTIONS:
        answer = post(client, f"/jobs/{job.id}/{action}", headers, reason="x")
        assert (answer.status_code, answer.json()["code"]) == (409, "ILLEGAL_MOVE"), answer.text
    parked = run_job(app, app.enqueue("asks"))
    assert post(client, f"/jobs/{parked.id}/release", headers, choice="up").status_code == 422
    assert post(client, f"/jobs/{parked.id}/discard", headers).json()["code"] == "REASON_MISSING"
    assert (
        post(client, f"/jobs/{parked.id}/release", headers, choice="left").json()["state"]
        == "queued"
    )


@pytest.mark.security("S14")
def test_only_operators_see_the_private_part(app, client, key):
    job = run_job(app, app.enqueue("fails", {"text": "sk_live_0123456789abcdef"}, owner="acme"))
    for path in ("", "/attempts", "/events", "/explain"):
        for scope in ("acme", "*"):
            text = client.get(f"/api/v1/jobs/{job.id}{path}", headers=key(scope, "viewer")).text
            assert "private:" not in text
            assert "0123456789abcdef" not in text
    assert (
        "0123456789abcdef"
        in client.get(f"/api/v1/jobs/{job.id}", headers=key("acme", "operator")).text
    )


@pytest.mark.security("S09")
@pytest.mark.any_store
def test_another_owners_job_answers_like_an_unknown_one(app, client, key):
    """Scope and role by own, foreign and unknown, over every route of a job."""
    mine = run_job(app, app.enqueue("fails", owner="acme"))
    foreign = run_job(app, app.enqueue("fails", {"text": "B-7f3"}, owner="other"))
    for role in ("viewer", "operator", "admin"):
        headers = key("acme", role)
        for path in ("", "/attempts", "/events", "/explain"):
            own = client.get(f"/api/v1/jobs/{mine.id}{path}", headers=headers)
            theirs = client.get(f"/api/v1/jobs/{foreign.id}{path}", headers=headers)
            unknown = client.get(f"/api/v1/jobs/{UNKNOWN}{path}", headers=headers)
            assert own.status_code == 200
            assert (theirs.status_code, unknown.status_code) == (404, 404)
            assert theirs.text.replace(foreign.id, UNKNOWN) == unknown.text
        refused = 403 if role == "viewer" else 404
        for action in ACTIONS:
            theirs = post(client, f"/jobs/{foreign.id}/{action}", headers, reason="x")
            unknown = post(client, f"/jobs/{UNKNOWN}/{action}", headers, reason="x")
            assert (theirs.status_code, unknown.status_code) == (refused, refused)
            assert theirs.text.replace(foreign.id, UNKNOWN) == unknown.text
    assert app.jobs.get(foreign.id).generation == 1
    assert client.get(f"/api/v1/jobs/{foreign.id}", headers=key("*", "viewer")).status_code == 200
    assert post(client, f"/jobs/{mine.id}/retry", key("acme", "viewer")).status_code == 403
    assert post(client, "/jobs", key("acme", "viewer"), kind="works").status_code == 403
    for strange in ("nope", "0" * 29, "%00" * 28, "..%2f..%2fx", "A" * 28):
        assert client.get(f"/api/v1/jobs/{strange}", headers=key()).status_code == 404


@pytest.mark.security("S11", "S12")
def test_a_scoped_key_lists_and_creates_only_its_owners_jobs(app, client, key):
    headers = key("acme", "operator")
    app.enqueue("works", {"text": "B-7f3"}, owner="other", unique="B-key")
    made = post(client, "/jobs", headers, kind="works", unique="B-key")
    assert (made.status_code, made.json()["owner"]) == (201, "acme")
    assert post(client, "/jobs", headers, kind="works", owner="other").status_code == 403
    assert post(client, "/jobs", headers, kind="works", owner="acme").status_code == 403
    for filter_text in ("", "owner:other", "kind:works", '"B-key"', "owner:acme", "state:queued"):
        text = client.get("/api/v1/jobs", params={"filter": filter_text}, headers=headers).text
        assert "B-7f3" not in text
        assert "other" not in text.replace("owner:other", "")
    assert len(client.get("/api/v1/jobs", headers=key("*", "viewer")).json()["jobs"]) == 2


def test_a_duplicate_returns_the_existing_job(app, client, key):
    headers = key("acme", "operator")
    first = post(client, "/jobs", headers, kind="works", unique="one")
    second = post(client, "/jobs", headers, kind="works", unique="one")
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    assert second.json()["deduplicated"] is True
    other = post(client, "/jobs", headers, kind="works", unique="one", payload={"text": "x"})
    assert (other.status_code, other.json()["code"]) == (409, "UNIQUE_MISMATCH")


def test_a_list_continues_at_its_cursor(app, client, key):
    ids = [app.enqueue("works", {"text": str(number)}, owner="acme").id for number in range(7)]
    headers = key("acme", "viewer")
    found = []
    cursor = None
    while True:
        params = {"filter": "kind:works", "limit": 3}
        if cursor:
            params["cursor"] = cursor
        page = client.get("/api/v1/jobs", params=params, headers=headers).json()
        found += [job["id"] for job in page["jobs"]]
        first, cursor = cursor or page["next"], page["next"]
        if cursor is None:
            break
    assert found == ids[::-1]
    bent = ("A" if first[0] != "A" else "B") + first[1:]
    for params, who in (
        ({"filter": "kind:works", "cursor": bent}, headers),
        ({"filter": "kind:works", "cursor": first + "AAAA"}, headers),
        ({"filter": "kind:fails", "cursor": first}, headers),
        ({"filter": "kind:works", "cursor": first}, key("acme", "viewer")),
        ({"filter": "kind:works", "cursor": "~~~"}, headers),
    ):
        answer = client.get("/api/v1/jobs", params=params, headers=who)
        assert (answer.status_code, answer.json()["code"]) == (422, "CURSOR")


@pytest.mark.security("S21")
@pytest.mark.any_store
@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1000000000", "limit=x", "filter=state:ded", "filter=sort:x;--"]
)
def test_an_invalid_filter_is_refused(client, key, query):
    assert client.get(f"/api/v1/jobs?{query}", headers=key()).status_code == 422


def test_a_request_with_an_idempotency_key_runs_once(app, client, key):
    headers = {**key("acme", "operator"), "Idempotency-Key": "order-7"}
    first = post(client, "/jobs", headers, kind="works", payload={"text": "a"})
    again = post(client, "/jobs", headers, kind="works", payload={"text": "a"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    other = post(client, "/jobs", headers, kind="works", payload={"text": "b"})
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    stranger = post(
        client, "/jobs", {**key("acme", "operator"), "Idempotency-Key": "order-7"}, kind="works"
    )
    assert stranger.json()["id"] != first.json()["id"]
    assert len(app.jobs.list()) == 2


def test_a_refused_request_may_be_repeated_with_the_same_idempotency_key(app, client, key):
    job = app.enqueue("fails", owner="acme")
    headers = {**key("acme", "operator"), "Idempotency-Key": "mend"}
    assert post(client, f"/jobs/{job.id}/retry", headers).status_code == 409
    app.run_inline()
    assert post(client, f"/jobs/{job.id}/retry", headers).status_code == 200
    assert post(client, f"/jobs/{job.id}/retry", headers).json()["generation"] == 2
    for wrong in ("", "a b", "x" * 256, "\u00e9"):
        named = [*key().items(), ("idempotency-key", wrong.encode("latin-1"))]
        assert client.post("/api/v1/jobs", json={"kind": "works"}, headers=named).status_code == 422


def test_two_concurrent_requests_with_one_idempotency_key_make_one_job(app, client, key):
    headers = {**key("acme", "operator"), "Idempotency-Key": "order-8"}
    answers = run_concurrently(
        *(lambda: post(client, "/jobs", headers, kind="works") for _ in range(4))
    )
    assert len(app.jobs.list()) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {
        "IDEMPOTENCY_IN_FLIGHT"
    }


def test_internal_jobs_are_visible_to_scope_star_only(app, client, key):
    from support.store import a_job

    (job,) = app.insert([a_job(kind="mulligan.deliver", owner="acme")])
    assert client.get("/api/v1/jobs", headers=key("acme")).json()["jobs"] == []
    assert client.get(f"/api/v1/jobs/{job.id}", headers=key("acme")).status_code == 404
    assert post(client, f"/jobs/{job.id}/cancel", key("acme"), reason="x").status_code == 404
    assert client.get(f"/api/v1/jobs/{job.id}", headers=key()).status_code == 200


@pytest.mark.security("S14")
def test_only_operators_find_private_text(app, client, key):
    run_job(app, app.enqueue("fails", {"text": "row seventeen"}, owner="acme"))
    for path, name in (("/jobs", "jobs"), ("/failures", "failures")):
        for role, count in (("viewer", 0), ("operator", 1)):
            params = {"filter": '"row seventeen"'}
            answer = client.get(f"/api/v1{path}", params=params, headers=key("*", role))
            assert len(answer.json()[name]) == count, (path, role)


def test_a_job_over_http_is_what_the_manifest_declares(app, client, key):
    @app.job(name="charge", unique=Unique(by="payload.order"), uses="account-{account}")
    def charge(order: int, account: int) -> None: ...

    @app.job(name="compute", uses=lambda payload: payload["host"])
    def compute(host: str) -> None: ...

    with app.store.begin() as tx:
        publish_manifest(tx, replace(app.manifest("site:app"), release="next"))
    headers = key("*", "operator")
    payload = {"order": 7, "account": 9}
    first = post(client, "/jobs", headers, kind="charge", payload=payload)
    twin = post(client, "/jobs", headers, kind="charge", payload=payload)
    assert (first.status_code, twin.status_code) == (201, 200)
    assert twin.json()["deduplicated"]
    assert twin.json()["id"] == first.json()["id"]
    assert first.json()["uses"] == ["account-9"]
    many = post(client, "/jobs/bulk", headers, jobs=[{"kind": "charge", "payload": payload}] * 2)
    assert [job["id"] for job in many.json()["jobs"]] == [first.json()["id"]] * 2
    for kind, nonsense, detail in (
        ("charge", {"order": "seven", "account": 9}, 'order: expected an integer, got "seven"'),
        ("charge", {"order": 7}, "account: is missing"),
        ("compute", {"host": "a"}, "a function of the app computes its dependencies"),
    ):
        refused = post(client, "/jobs", headers, kind=kind, payload=nonsense)
        assert (refused.status_code, refused.json()["code"]) == (422, "PAYLOAD_REFUSED")
        assert detail in refused.json()["detail"]
    assert app.jobs.count("kind:charge,compute") == 1


SECRETS = {
    "password": "hunter2xyz",
    "nested": {"api_key": ["k-1", "k-2"], "url": "postgres://ada:pass99@db/x"},
    "command": ["login", "--password", "hunter2xyz"],
    "user": "ada",
    "count": 7,
}


@pytest.mark.security("S14")
def test_masked_arguments_are_json_and_cannot_be_probed(app, client, key):
    @app.job(name="login", index=("password", "user"), unique=Unique())
    def login(
        password: str, nested: dict[str, Any], command: list[str], user: str, count: int
    ) -> Any:
        return {"token": "abcdef123456", "ok": True}

    with app.store.begin() as tx:
        publish_manifest(tx, replace(app.manifest("site:app"), release="next"))
    job = run_job(app, login.options(owner="acme").enqueue(**SECRETS))
    viewer, operator = key("acme", "viewer"), key("acme", "operator")
    shown = client.get(f"/api/v1/jobs/{job.id}", headers=viewer).json()
    assert shown["payload"] == {
        "password": "[redacted]",
        "nested": {"api_key": "[redacted]", "url": "postgres://[redacted]@db/x"},
        "command": ["login", "--password", "[redacted]"],
        "user": "ada",
        "count": 7,
    }
    assert shown["result"] == {"token": "[redacted]", "ok": True}
    assert "hunter2xyz" not in str(shown)

    def count(text, headers):
        answer = client.get("/api/v1/jobs/count", params={"filter": text}, headers=headers)
        return answer.json().get("count", answer.json().get("code"))

    for guess in ("hunter2xyz", "wrong"):
        for text in (
            f"kind:login arg.password:{guess}",
            f"since:1d kind:login arg.nested.api_key:{guess}",
        ):
            assert count(text, viewer) == "REFUSED"
    assert count("kind:login arg.password:hunter2xyz", operator) == 1
    assert count("kind:login arg.user:ada", viewer) == 1
    assert (count('"[{"', operator), count('"[{"', viewer)) == (1, 0)


def test_only_operators_read_the_log_of_an_attempt(app, client, key):
    job = app.enqueue("fails", {"text": "B-7f3"}, owner="acme")
    app.run_inline()
    path = f"/api/v1/jobs/{job.id}/attempts/1/log"
    for scope in ("*", "acme"):
        answer = client.get(path, headers=key(scope, "operator"))
        (record,) = answer.json()["records"]
        assert record["message"] == "cannot read B-7f3 password=[redacted]"
        assert (record["level"], record["source"]) == ("WARNING", "site")
        assert client.get(path, headers=key(scope, "viewer")).status_code == 403
    assert client.get(path, headers=key("other", "operator")).status_code == 404
    assert client.get(path.replace("/1/", "/2/"), headers=key("*", "operator")).status_code == 404
    assert "B-7f3 password" not in client.get(f"/api/v1/jobs/{job.id}/attempts", headers=key()).text
