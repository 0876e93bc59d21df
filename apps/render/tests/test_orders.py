"""What is refused at the door: 400, one sentence, no job."""

from __future__ import annotations

import pytest

from render import timeline

CLIP = {"image": "https://example.com/a.jpg", "text": "Test", "duration": 3}


def order(service, *clips):
    return service.client.post("/jobs", json={"timeline": {"clips": clips}})


@pytest.mark.seed("003-01", "003-06", "003-07", "003-08", "003-09", "003-10", "003-11", "003-56")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "timeline is required"),
        ({"timeline": {}}, "timeline.clips is required"),
        ({"timeline": {"clips": []}}, "a timeline needs at least one clip"),
        (
            {"timeline": {"clips": [{"text": "a", "duration": 3}]}},
            "timeline.clips[0].image is required",
        ),
        ({"timeline": {"clips": [CLIP | {"image": "abc"}]}}, "image must be an http or https URL"),
        (
            {"timeline": {"clips": [CLIP | {"image": "file:///etc/passwd"}]}},
            "image must be an http or https URL",
        ),
        ({"timeline": {"clips": [CLIP | {"duration": 0.5}]}}, "Duration must be at least 1 second"),
        ({"timeline": {"clips": [CLIP | {"duration": 61}]}}, "Duration must be at most 60 seconds"),
        (
            {"timeline": {"clips": [CLIP | {"text": "a" * 201}]}},
            "text must be at most 200 characters",
        ),
        ({"timeline": {"clips": [CLIP] * 51}}, "Too many clips: 51, at most 50"),
    ],
)
def test_a_wrong_order_is_refused_with_one_sentence_and_makes_no_job(service, body, message):
    answer = service.client.post("/jobs", json=body)
    assert answer.status_code == 400
    assert answer.json() == {"statusCode": 400, "message": message, "error": "Bad Request"}
    service.mulligan.refute_enqueued()


@pytest.mark.seed("003-10", "003-58")
def test_an_order_at_every_limit_is_taken(service):
    longest = CLIP | {"duration": timeline.LONGEST, "text": "a" * timeline.MOST_TEXT}
    assert order(service, *[longest] * timeline.MOST_CLIPS).status_code == 201


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
def test_what_is_no_order_at_all_is_refused_too(service, body):
    answer = service.client.post("/jobs", content=body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"statusCode", "message", "error"}
    service.mulligan.refute_enqueued()


def test_a_body_without_an_end_is_not_read_to_its_end(service):
    assert service.client.post("/jobs", content=b" " * 300_000).status_code == 413


@pytest.mark.seed("003-60")
def test_an_order_nobody_made_is_not_found(service):
    answer = service.client.get("/jobs/nothing")
    assert (answer.status_code, answer.json()["message"]) == (404, "Job not found")


def test_words_of_a_user_are_words_on_the_page(service):
    service.ended(service.clip("http://nowhere.invalid/<script>alert(1)</script>.jpg", text="<b>"))
    page = service.client.get("/").text
    assert "<script>alert" not in page
    assert "IMAGE_DOWNLOAD_FAILED" in page
