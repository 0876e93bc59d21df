"""Hostile requests are refused in the error format of the API and never cause a 5xx."""

from __future__ import annotations

import json

import pytest

from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]
TASKS = "/v1/videos/generations/tasks"


def test_hostile_orders_and_addresses_never_cause_a_5xx(ann):
    order = {"model": "nimbus-1", "prompt": "a cat", "seconds": 1, "size": "320x180"}
    bodies = [json.dumps(item).encode() for item in hostile.objects(order)]
    headers = ann.headers | {"Content-Type": "application/json"}
    answers = [
        ann.client.post("/v1/videos/generations", content=body, headers=headers) for body in bodies
    ]
    answers += [
        ann.client.post("/v1/videos/generations", content=body, headers=headers)
        for body in hostile.BODIES
    ]
    for item in hostile.IDS:
        answers += [
            ann.get(f"{TASKS}/{item}"),
            ann.get(f"{TASKS}/{item}/content"),
            ann.retry(item),
            ann.archive(item),
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
