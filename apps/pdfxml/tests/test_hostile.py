"""Hostile requests are refused with one of the ten codes and never cause a 5xx."""

from __future__ import annotations

import pytest

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_hostile_uploads_and_addresses_never_cause_a_5xx(world, ann):
    client = ann.client
    pdf = make_pdf()
    answers = [client.post("/api/upload", content=body) for body in hostile.BODIES]
    kinds = (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=x",
        "text/\u20ac",
    )
    answers += [
        client.post(
            "/api/upload", content=body, headers={"Content-Type": kind.encode("latin-1", "replace")}
        )
        for kind in kinds
        for body in hostile.BODIES
    ]
    for text in hostile.TEXTS:
        answers += [ann.post(pdf, name=text or "a"), ann.post(pdf, mapping=text)]
        answers += [client.get("/", params={"code": text})]
    answers += [
        client.post("/api/upload", data={"file": "no file"}),
        client.post("/api/upload", files={"other": b"x"}),
    ]
    for hostile_id in hostile.IDS:
        answers += [
            client.get(f"/api/jobs/{hostile_id}{rest}") for rest in ("", "/events", "/download")
        ]
        answers += [ann.retry(hostile_id), client.post(f"/jobs/{hostile_id}/retry")]
    for length in ("-1", "abc", "9" * 30, ""):
        answers += [client.post("/api/upload", content=b"x", headers={"Content-Length": length})]
    assert {answer.status_code for answer in answers} <= {
        200,
        201,
        303,
        400,
        403,
        404,
        405,
        411,
        413,
    }
    for answer in answers:
        if answer.status_code >= 400:
            assert set(answer.json()) >= {"error_code", "error_message", "retryable"}, answer.text
    world.run()
    assert client.get("/").status_code == 200
    assert "<script>alert" not in client.get("/").text
