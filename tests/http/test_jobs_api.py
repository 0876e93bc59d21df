"""`/jobs`: what Python can do with jobs, for whom it is meant and for nobody else."""

from __future__ import annotations

import pytest

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
    explained = client.get(f"{path}/explain", headers=headers).json()
    assert "retry by hand" in explained["moves"]
    again = post(
        client,
        f"/jobs/{job['id']}/retry",
        headers,
        reason="mended",
        overrides={"max_retries": 1},
        at=60,
    )
    assert (again.json()["state"], again.json()["generation"], again.json()["max_retries"]) == (
        "queued",
        2,
        1,
    )
    deed = app.events.list(type="job.retried")[0]
    assert deed.actor.startswith("key:mk_")
    assert deed.data["reason"] == "mended"


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
            own, theirs, none = (
                client.get(f"/api/v1/jobs/{one}{path}", headers=headers)
                for one in (mine.id, foreign.id, UNKNOWN)
            )
            assert own.status_code == 200
            assert (theirs.status_code, none.status_code) == (404, 404)
            assert theirs.text.replace(foreign.id, UNKNOWN) == none.text
        for action in ACTIONS:
            theirs, none = (
                post(client, f"/jobs/{one}/{action}", headers, reason="x")
                for one in (foreign.id, UNKNOWN)
            )
            assert theirs.status_code == none.status_code == (403 if role == "viewer" else 404)
            assert theirs.text.replace(foreign.id, UNKNOWN) == none.text
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
        params = {"filter": "kind:works", "limit": 3} | ({"cursor": cursor} if cursor else {})
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
        found = {
            role: len(
                client.get(
                    f"/api/v1{path}", params={"filter": '"row seventeen"'}, headers=key("*", role)
                ).json()[name]
            )
            for role in ("viewer", "operator")
        }
        assert found == {"viewer": 0, "operator": 1}, path
