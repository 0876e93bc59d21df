"""What callers may send: refused in the form that clients of such APIs know, never answered with a 5xx."""

from __future__ import annotations

import json

import pytest

from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]
TASKS = "/v1/videos/generations/tasks"


def test_no_order_and_no_address_breaks_the_api(ann):
    order = {"model": "nimbus-1", "prompt": "a cat", "seconds": 1, "size": "320x180"}
    bodies = [json.dumps(one).encode() for one in hostile.objects(order)]
    headers = ann.headers | {"Content-Type": "application/json"}
    answers = [
        ann.client.post("/v1/videos/generations", content=body, headers=headers) for body in bodies
    ]
    answers += [
        ann.client.post("/v1/videos/generations", content=body, headers=headers)
        for body in hostile.BODIES
    ]
    for one in hostile.IDS:
        answers += [
            ann.get(f"{TASKS}/{one}"),
            ann.get(f"{TASKS}/{one}/content"),
            ann.retry(one),
            ann.archive(one),
        ]
    answers += [ann.get(f"{TASKS}?limit={number}") for number in hostile.NUMBERS]
    for text in hostile.TEXTS:
        key = (
            f"Bearer {text}".encode("latin-1", "replace")
            .replace(b"\r", b"")
            .replace(b"\n", b"")
            .replace(b"\0", b"")
        )
        answers.append(ann.client.get(TASKS, headers={"Authorization": key}))
    assert {answer.status_code for answer in answers} <= {200, 202, 400, 401, 404, 405, 409, 413}
    for answer in answers:
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "code"}
