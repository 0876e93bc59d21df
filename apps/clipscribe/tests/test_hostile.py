"""What users, admins and strangers may send: refused with a 4xx, never answered with a 5xx."""

from __future__ import annotations

import json

import pytest

from mulligan import Fail
from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_no_order_and_no_address_breaks_the_service(world):
    home = world.places["service"]
    order = {
        "url": "http://127.0.0.1:9/a.mp4",
        "user": "ann@example.com",
        "duration": 3.5,
        "size": 7,
        "model": "gemini-pro",
    }
    more = [
        order | {"user": user}
        for user in ("a\0@b", "\ud800@b", "a@\u20ac", "a@b" + "c" * 300, "a\u2028@b")
    ]
    more += [
        order | {"url": url}
        for url in ("http://\0", "http://\ud800", "ftp://a", "http://a b", "http://" + "a" * 3000)
    ]
    bodies = [json.dumps(one).encode() for one in (*hostile.objects(order), *more)]
    headers = {"content-type": "application/json"}
    http = world.http
    answers = [
        http.post(f"{home}/jobs", content=body, headers=headers)
        for body in (*bodies, *hostile.BODIES)
    ]
    for one in hostile.IDS:
        answers += [
            http.get(f"{home}/{path}/{one}", params={"key": one}) for path in ("jobs", "status")
        ]
        answers += [
            http.get(f"{home}/status/{one}"),
            http.post(f"{home}/jobs/{one}/retry", params={"key": one}),
        ]
        answers += [world.admin("POST", f"/dlq/{one}/retry")]
        answers += [world.admin("POST", f"/admin/review/{one}", data={"choice": "process"})]
    for text in hostile.TEXTS:
        answers += [http.get(f"{home}/admin", params={"key": text})]
        answers += [world.admin("POST", "/dlq/recover", data={"error_type": text})]
        answers += [
            http.post(f"{home}/hooks/jobs", content=text.encode(), headers={"webhook-id": "1"})
        ]
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


def test_hostile_feedback_is_words(world):
    job = world.order()
    with world.force(Fail("InvalidInput", "no", final=True)):
        world.run()
    for text in hostile.TEXTS:
        assert world.ask("POST", f"/jobs/{job}/feedback", job, data={"text": text}).status_code in (
            303,
            409,
            422,
        )
        assert world.ask("POST", f"/jobs/{job}/retry", job, data={"model": text}).status_code in (
            303,
            409,
            422,
        )
    assert "<script>alert" not in world.admin("GET", "/admin").text


def test_without_samples_there_is_a_page_all_the_same(world, monkeypatch):
    monkeypatch.delenv("CLIPSCRIBE_SAMPLES")
    assert world.http.get(world.places["service"]).status_code == 200


def test_jobs_of_other_kinds_are_none_of_its(world):
    other = str(world.app.enqueue("something.else", {}).id)
    assert world.ask("GET", f"/jobs/{other}", other).status_code == 404
    assert world.admin("POST", f"/dlq/{other}/retry").status_code == 404
    assert (
        world.admin("POST", f"/admin/review/{other}", data={"choice": "process"}).status_code == 404
    )


def test_a_storage_that_is_away_is_told(world, monkeypatch):
    job = world.order("private.mp4")
    world.run()

    def away(*_):
        raise OSError("the bucket does not answer")

    monkeypatch.setattr(world.storage, "read", away)
    monkeypatch.setattr(world.storage, "write", away)
    assert world.ask("GET", f"/status/{job}", job).status_code == 503
    assert world.ask("POST", f"/jobs/{job}/feedback", job, data={"text": "why?"}).status_code == 503
