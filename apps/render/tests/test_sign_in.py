"""Strangers need a key; a key sees the jobs of its owner only."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan.apps.render import web
from mulligan.apps.render.jobs import app

STRANGER = ("203.0.113.7", 50000)
HTML = {"accept": "text/html"}


@pytest.fixture
def stranger(service) -> TestClient:
    return TestClient(web.web, client=STRANGER, follow_redirects=False)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_stranger_without_a_key_is_refused_everywhere(service, stranger):
    job = service.order()
    body = {"timeline": {"clips": [service.clip()]}}
    answers = [stranger.post("/jobs", json=body), stranger.post(f"/jobs/{job}/retry")]
    answers += [stranger.get(path) for path in ("/", f"/jobs/{job}", f"/jobs/{job}/video")]
    assert [answer.status_code for answer in answers] == [401] * 5
    assert answers[0].json()["message"] == "Sign in with a key. Create one: mulligan keys create"
    assert stranger.get("/", headers=bearer("mk_wrong")).status_code == 401
    assert 'action="/sign-in"' in stranger.get("/", headers=HTML).text


def test_a_key_orders_and_reads_the_jobs_of_its_owner_only(service, stranger):
    ann, bo = (app.keys.create(owner, "operator").text for owner in ("ann", "bo"))
    body = {"timeline": {"clips": [service.clip()]}}
    job = stranger.post("/jobs", json=body, headers=bearer(ann)).json()["id"]
    assert app.jobs.get(job).owner == "ann"
    assert stranger.get(f"/jobs/{job}", headers=bearer(ann)).status_code == 200
    unknown = stranger.get("/jobs/nothing", headers=bearer(bo))
    for answer in (
        stranger.get(f"/jobs/{job}", headers=bearer(bo)),
        stranger.post(f"/jobs/{job}/retry", headers=bearer(bo)),
    ):
        assert (answer.status_code, answer.json()) == (404, unknown.json())
    assert job[-6:] not in stranger.get("/", headers=bearer(bo)).text


def test_a_key_that_only_reads_cannot_order(service, stranger):
    viewer = app.keys.create("ann", "viewer").text
    body = {"timeline": {"clips": [service.clip()]}}
    assert stranger.post("/jobs", json=body, headers=bearer(viewer)).status_code == 403
    service.mulligan.refute_enqueued()


def test_the_page_signs_in_with_a_key(service, stranger):
    assert stranger.post("/sign-in", data={"key": "mk_wrong"}).status_code == 401
    key = app.keys.create("ann", "operator")
    answer = stranger.post("/sign-in", data={"key": key.text})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert stranger.get("/").status_code == 200
    app.keys.revoke(key.key.id)
    assert stranger.get("/").status_code == 401


def test_callers_on_this_machine_need_a_key_only_if_the_setting_says_so(service, set_config):
    assert service.client.get("/").status_code == 200
    set_config(sign_in="always")
    assert service.client.get("/").status_code == 401
