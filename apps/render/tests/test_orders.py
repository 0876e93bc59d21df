"""Invalid orders are refused with 400 and one sentence, and create no job."""

from __future__ import annotations

import pytest

from mulligan.apps.render import timeline

CLIP = {"image": "https://example.com/a.jpg", "text": "Test", "duration": 3}


def order(service, *clips):
    return service.client.post("/jobs", json={"timeline": {"clips": clips}})


@pytest.mark.seed("003-01", "003-06", "003-07", "003-08", "003-09", "003-10", "003-11", "003-56")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "timeline is required"),  # 003-07
        ({"timeline": {}}, "timeline.clips is required"),
        ({"timeline": {"clips": []}}, "a timeline needs at least one clip"),  # 003-56
        (
            {"timeline": {"clips": [{"text": "a", "duration": 3}]}},
            "timeline.clips[0].image is required",
        ),
        (
            {"timeline": {"clips": [CLIP | {"image": "abc"}]}},
            "image must be an http or https URL",
        ),  # 003-08
        (
            {"timeline": {"clips": [CLIP | {"image": "file:///etc/passwd"}]}},
            "image must be an http or https URL",
        ),
        (
            {"timeline": {"clips": [CLIP | {"duration": 0.5}]}},
            "Duration must be at least 1 second",
        ),  # 003-09
        ({"timeline": {"clips": [CLIP | {"duration": 61}]}}, "Duration must be at most 60 seconds"),
        (
            {"timeline": {"clips": [CLIP | {"text": "a" * 201}]}},
            "text must be at most 200 characters",
        ),
        ({"timeline": {"clips": [CLIP] * 51}}, "Too many clips: 51, at most 50"),  # 003-10
    ],
)
def test_invalid_order_is_refused_with_one_sentence_and_creates_no_job(service, body, message):
    answer = service.client.post("/jobs", json=body)
    assert answer.status_code == 400
    assert answer.json() == {
        "statusCode": 400,
        "message": message,
        "error": "Bad Request",
    }  # 003-06
    service.mulligan.refute_enqueued()  # 003-01, 003-11


@pytest.mark.seed("003-10", "003-58")
def test_order_at_every_limit_is_accepted(service):
    longest = CLIP | {"duration": timeline.MAX_SECONDS, "text": "a" * timeline.MAX_TEXT}
    assert order(service, *[longest] * timeline.MAX_CLIPS).status_code == 201  # 003-10, 003-58


@pytest.mark.seed("003-01")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 50_000,
        b'"\xff"',
        b'{"timeline": {"clips": [{"duration": NaN}]}}',
        b"null",
        b"[]",
        b"7",
    ],
    ids=["empty", "half", "deep", "bytes", "nan", "null", "list", "number"],
)
def test_malformed_bodies_are_refused(service, body):
    answer = service.client.post("/jobs", content=body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"statusCode", "message", "error"}
    service.mulligan.refute_enqueued()


def test_too_large_body_is_refused(service):
    assert service.client.post("/jobs", content=b" " * 300_000).status_code == 413


@pytest.mark.seed("003-60")
def test_unknown_job_is_not_found(service):
    answer = service.client.get("/jobs/nothing")
    assert (answer.status_code, answer.json()["message"]) == (404, "Job not found")


def test_texts_of_users_are_escaped_on_the_page(service):
    service.run_order(
        service.clip("http://nowhere.invalid/<script>alert(1)</script>.jpg", text="<b>")
    )
    page = service.client.get("/").text
    assert "<script>alert" not in page
    assert "IMAGE_DOWNLOAD_FAILED" in page
