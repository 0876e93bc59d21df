"""Hostile requests are refused with a 4xx and never cause a 5xx."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from mulligan import Fail
from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_hostile_orders_and_addresses_never_cause_a_5xx(world):
    address = world.addresses["service"]
    order = {
        "url": "http://127.0.0.1:9/a.mp4",
        "duration": 3.5,
        "size": 7,
        "model": "gemini-pro",
    }
    hostile_orders = [
        order | {"user": user}
        for user in ("a\0@b", "\ud800@b", "a@\u20ac", "a@b" + "c" * 300, "a\u2028@b")
    ]
    hostile_orders += [
        order | {"url": url}
        for url in ("http://\0", "http://\ud800", "ftp://a", "http://a b", "http://" + "a" * 3000)
    ]
    bodies = [json.dumps(item).encode() for item in (*hostile.objects(order), *hostile_orders)]
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {world.key_of('ann@example.com')}",
    }
    http = world.http
    answers = [
        http.post(f"{address}/jobs", content=body, headers=headers)
        for body in (*bodies, *hostile.BODIES)
    ]
    for item in hostile.IDS:
        answers += [
            http.get(f"{address}/{path}/{item}", params={"key": item})
            for path in ("jobs", "status")
        ]
        answers += [
            http.get(f"{address}/status/{item}"),
            http.post(f"{address}/jobs/{item}/retry", params={"key": item}),
        ]
        answers += [world.admin("POST", f"/dlq/{item}/retry")]
        answers += [world.admin("POST", f"/admin/review/{item}", data={"choice": "process"})]
    for text in hostile.TEXTS:
        answers += [http.get(f"{address}/", params={"url": text})]
        answers += [http.post(f"{address}/sign-in", data={"key": text, "path": text})]
        answers += [http.get(f"{address}/admin", headers={"cookie": "key=" + quote(text)})]
        answers += [world.admin("POST", "/dlq/recover", data={"error_type": text})]
    answers += [world.admin("GET", "/dlq", params={"limit": number}) for number in hostile.NUMBERS]
    assert {answer.status_code for answer in answers} <= {
        200,
        201,
        303,
        400,
        401,
        403,
        404,
        405,
        409,
        422,
    }


def test_hostile_feedback_is_escaped(world):
    job = world.order()
    with world.force(Fail("InvalidInput", "no", final=True)):
        world.run()
    for text in hostile.TEXTS:
        assert world.request_as_owner(
            "POST", f"/jobs/{job}/feedback", job, data={"text": text}
        ).status_code in (
            303,
            409,
            422,
        )
        assert world.request_as_owner(
            "POST", f"/jobs/{job}/retry", job, data={"model": text}
        ).status_code in (
            303,
            409,
            422,
        )
    assert "<script>alert" not in world.admin("GET", "/admin").text


def test_jobs_of_other_kinds_are_not_found(world):
    other_job = str(world.app.enqueue("something.else", {}).id)
    assert world.request_as_owner("GET", f"/jobs/{other_job}", other_job).status_code == 404
    assert world.admin("POST", f"/dlq/{other_job}/retry").status_code == 404
    assert (
        world.admin("POST", f"/admin/review/{other_job}", data={"choice": "process"}).status_code
        == 404
    )


def test_storage_outage_answers_503(world, monkeypatch):
    job = world.order("private.mp4")
    world.run()

    def raise_storage_error(*_):
        raise OSError("the bucket does not answer")

    monkeypatch.setattr(world.storage, "read", raise_storage_error)
    monkeypatch.setattr(world.storage, "write", raise_storage_error)
    assert world.request_as_owner("GET", f"/status/{job}", job).status_code == 503
    assert (
        world.request_as_owner(
            "POST", f"/jobs/{job}/feedback", job, data={"text": "why?"}
        ).status_code
        == 503
    )
