"""Videos become analyses, or failures with a message for the owner."""

from __future__ import annotations

import httpx2
import pytest

from clipscribe import world as external

MESSAGES = {
    "NetworkTimeout": ("The video processing timed out.", "We'll retry automatically."),
    "TemporaryServiceError": ("Our processing service is temporarily unavailable.", "Retrying..."),
    "UnknownError": ("An unexpected error occurred. Our team has been notified.", ""),
}


def http_error(status, **headers):
    """Return the error of the HTTP client for an answer with this status."""
    request = httpx2.Request("POST", "http://model.example/")
    raw_headers = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    response = httpx2.Response(status, headers=raw_headers, request=request)
    return httpx2.HTTPStatusError("no", request=request, response=response)


def assert_near(waits, *expected):
    """Assert that each delay is within 20 % of the expected one."""
    assert len(waits) == len(expected), waits
    assert all(
        0.8 * nominal <= delay <= 1.2 * nominal + 0.1
        for delay, nominal in zip(waits, expected, strict=True)
    ), waits


@pytest.mark.seed("004-02")
def test_video_is_analysed_frame_by_frame(world):
    job = world.order()
    assert world.fetch(job)["state"] == "QUEUED"
    world.run()
    job_view = world.fetch(job)
    result = world.job(job).result
    assert (job_view["state"], job_view["error"], job_view["attempts"]) == ("COMPLETED", None, 1)
    assert (result["duration"], result["chunk_strategy"], result["model"]) == (
        20,
        "fixed",
        "gemini-pro",
    )
    assert result["chunks"][0].startswith("gemini-pro sees a test card")
    assert "sees a test card" in world.page(job)
    assert world.manifest(job)["state"] == "COMPLETED"


@pytest.mark.seed(
    "004-67", "004-68", "004-04", "004-24", "004-26", "004-36", "004-37", "004-41", "004-38"
)
def test_two_timeouts_then_success_are_three_attempts(world):
    job = world.order()
    with world.force(TimeoutError("Connection timeout"), times=2):
        world.run()
        job_view = world.fetch(job)
        assert (job_view["state"], job_view["attempts"]) == ("RETRYING", 1)
        assert job_view["error"]["type"] == "NetworkTimeout"
        assert job_view["error"]["message"] == " ".join(MESSAGES["NetworkTimeout"])
        assert (job_view["error"]["is_permanent"], bool(job_view["error"]["timestamp"])) == (
            False,
            True,
        )
        assert world.manifest(job)["state"] == "RETRYING"
        world.run(until_done=True)
    assert (world.fetch(job)["state"], world.fetch(job)["attempts"]) == ("COMPLETED", 3)
    assert world.manifest(job)["state"] == "COMPLETED"
    assert_near(world.retry_delays(job), 30, 60)


@pytest.mark.seed("004-06", "004-22", "004-23", "004-47", "004-56", "004-19", "004-03")
@pytest.mark.any_store
def test_model_that_stays_down_is_called_four_times_without_a_promise_at_the_end(world):
    job_view = world.run_order("down.mp4")
    assert (job_view["state"], job_view["attempts"], job_view["error"]["type"]) == (
        "FAILED",
        4,
        "TemporaryServiceError",
    )
    assert job_view["error"]["message"] == MESSAGES["TemporaryServiceError"][0]
    assert job_view["error"]["is_permanent"] is True
    assert_near(world.retry_delays(job_view["job_id"]), 30, 60, 120)
    assert external.requests_by_name["model down.mp4"] == 4
    assert "Retrying" not in world.page(job_view["job_id"])


@pytest.mark.seed("004-06")
@pytest.mark.any_store
def test_model_that_is_busy_twice_answers_at_the_third_attempt(world):
    job_view = world.run_order("busy.mp4")
    assert (job_view["state"], job_view["attempts"]) == ("COMPLETED", 3)


@pytest.mark.seed("004-05", "004-42", "004-56")
@pytest.mark.any_store
def test_rate_limit_is_retried_with_growing_delays(world):
    job = world.order()
    with world.force(*[http_error(429)] * 6):
        world.run()
        details = world.fetch(job)["error"]
        assert details["type"] == "RateLimitExceeded"
        assert (
            details["message"]
            == "We've hit our processing limit. Your video will be processed soon."
        )
        world.run(until_done=True)
    assert (world.fetch(job)["state"], world.fetch(job)["attempts"]) == ("FAILED", 6)
    assert_near(world.retry_delays(job), 60, 180, 540, 1620, 4860)


@pytest.mark.seed("004-07", "004-48", "004-51")
def test_memory_shortage_moves_the_job_to_the_priority_queue(world):
    job = world.order()
    with world.force(MemoryError(), MemoryError(), MemoryError()):
        world.run()
        details = world.fetch(job)["error"]
        assert details["type"] == "ResourceConstraint"
        assert (
            details["message"]
            == "This video requires more resources than available. Moving to priority queue."
        )
        assert world.job(job).queue == "priority"
        world.run(until_done=True)
    assert (world.fetch(job)["state"], world.fetch(job)["attempts"]) == ("FAILED", 3)
    assert_near(world.retry_delays(job), 30, 45)


@pytest.mark.seed(
    "004-08", "004-09", "004-11", "004-20", "004-43", "004-46", "004-44", "004-53", "004-21"
)
@pytest.mark.any_store
def test_unprocessable_videos_are_not_retried(world):
    expected = {
        "private.mp4": (
            "InvalidInput",
            "This video cannot be processed. It may be private or deleted.",
        ),
        "missing.mp4": (
            "InvalidInput",
            "This video cannot be processed. It may be private or deleted.",
        ),
        "deleted.mp4": (
            "InvalidInput",
            "This video cannot be processed. It may be private or deleted.",
        ),
        "broken.mp4": (
            "InvalidInput",
            "This video cannot be processed. It may be private or deleted.",
        ),
        "locked.mp4": (
            "AuthenticationFailure",
            "We couldn't access this video. Please check if it's publicly available.",
        ),
        "huge.mp4": (
            "VideoExceedsLimits",
            "This video exceeds our current processing limits (6+ hours or 10GB+).",
        ),
        "rude.mp4": ("ContentViolation", "This video cannot be processed because of its content."),
    }
    jobs = {video: world.order(video) for video in expected}
    world.run(until_done=True)
    for video, job in jobs.items():
        job_view = world.fetch(job)
        assert (job_view["state"], job_view["attempts"], external.requests_by_name[video]) == (
            "FAILED",
            1,
            1,
        ), video
        assert (job_view["error"]["type"], job_view["error"]["message"]) == expected[video]
        assert job_view["error"]["message"].replace("'", "&#39;") in world.page(job)
    assert {item["job_id"] for item in world.letters()} == set(jobs.values())


@pytest.mark.seed("004-53", "004-44")
@pytest.mark.any_store
def test_video_declared_too_large_is_not_downloaded(world):
    answer = world.post("talk.mp4", size=11 * 1024**3).json()
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "VideoExceedsLimits")
    world.run(until_done=True)
    assert external.requests_by_name["talk.mp4"] == 0
    assert len(world.letters()) == 1


@pytest.mark.seed("004-13", "004-45")
@pytest.mark.any_store
def test_exceeded_plan_fails_at_once(make_world):
    world = make_world(PLAN_VIDEOS="2")
    for _ in range(2):
        world.order()
    answer = world.post().json()
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "QuotaExceeded")
    details = "You've reached your plan's monthly limit. Please upgrade or wait for reset."
    assert answer["error"]["message"] == details
    assert world.post(user="bob@example.com").json()["state"] == "QUEUED"


@pytest.mark.seed("004-10", "004-13", "004-86", "004-02")
@pytest.mark.any_store
def test_quota_of_the_model_holds_the_job_until_its_reset(world):
    job = world.order()
    with world.force(http_error(402, retry_after=3600)):
        world.run()
    assert world.job(job).phase == "held"
    assert world.fetch(job)["waits_for"]
    world.advance(3700)
    world.run(until_done=True)
    assert world.fetch(job)["state"] == "COMPLETED"


@pytest.mark.seed("004-16", "004-49", "004-52", "004-24")
@pytest.mark.any_store
def test_unknown_answer_is_retried_twice_and_mailed_once(world):
    jobs = [world.order("odd.mp4"), world.order("odd.mp4", user="bob@example.com")]
    world.run(until_done=True)
    job_view = world.fetch(jobs[0])
    assert (job_view["state"], job_view["attempts"], job_view["error"]["type"]) == (
        "FAILED",
        3,
        "UnknownError",
    )
    assert job_view["error"]["message"] == MESSAGES["UnknownError"][0]
    assert_near(world.retry_delays(jobs[0]), 30, 60)
    world.advance(10)
    assert len(world.mails()) == 1, world.mails()


# --- Very long videos ----------------------------------------------------------------------------
@pytest.mark.seed("004-54", "004-12")
def test_undeclared_seven_hour_video_moves_to_larger_machines(world):
    job = world.order("talk-7h.mp4")
    world.run()
    job_view = world.fetch(job)
    result = world.job(job).result
    assert (job_view["state"], job_view["attempts"]) == ("COMPLETED", 2)
    assert result["processing_tier"] == "compute-engine-high-memory"
    assert (result["chunk_strategy"], result["model"], len(result["chunks"])) == (
        "adaptive",
        "gemini-flash",
        8,
    )
    first = world.app.jobs.explain(job).attempts[0]
    assert "compute-engine-high-memory" in first.reason


@pytest.mark.seed("004-54")
@pytest.mark.any_store
def test_seven_hour_video_is_retried_once(world):
    jobs = [world.order("down-7h.mp4", duration=declared) for declared in (None, 7 * 3600)]
    world.run(until_done=True)
    for job in jobs:
        job_view = world.fetch(job)
        assert (job_view["state"], job_view["attempts"], job_view["error"]["type"]) == (
            "FAILED",
            2,
            "TemporaryServiceError",
        )
        assert world.job(job).queue == "compute-engine-high-memory"


@pytest.mark.seed("004-55")
def test_nine_hour_video_waits_for_a_decision_and_the_admin_gets_a_mail(world):
    found = world.order("talk-9h.mp4")
    declared = world.order("talk-9h.mp4", duration=9 * 3600)
    world.run(until_done=True)
    for job in (found, declared):
        job_view = world.fetch(job)
        assert (job_view["state"], job_view["attempts"]) == ("MANUAL_REVIEW", 1)
        assert job_view["error"]["message"] == "Please contact support for videos over 8 hours"
        assert job_view["error"]["message"] in world.page(job)
    assert external.requests_by_name["talk-9h.mp4"] == 1
    assert world.mails() == ["Manual review: a video over 8 hours"] * 2
    for job, choice in ((found, "refuse"), (declared, "process")):
        world.admin("POST", f"/admin/review/{job}", data={"choice": choice})
    world.run()
    assert world.fetch(found)["error"]["type"] == "VideoExceedsLimits"
    assert world.job(declared).result["model"] == "gemini-flash"


# --- Access -------------------------------------------------------------------------------
@pytest.mark.seed("004-35", "004-39")
@pytest.mark.any_store
def test_secrets_are_in_no_output(world):
    job = world.order("http://ann:hunter2@127.0.0.1:9/clips/ann.mp4?api_key=k1-short-key")
    key = "sk-proj-abcdefghij0123456789abcdefghij0123456789"
    error = f"cannot open /srv/clips/ann.mp4 on 10.1.2.3 with {key}"
    with world.force(RuntimeError(error), times=3):
        world.run(until_done=True)
    outputs = [
        str(world.fetch(job)),
        str(world.manifest(job)),
        str(world.letters()),
        world.page(job),
    ]
    outputs += [
        world.admin("GET", "/admin").text,
        " ".join(str(item.body) for item in world.box.received),
    ]
    for output in outputs:
        for secret in ("hunter2", "k1-short-key", "/srv/clips", "10.1.2.3", "sk-proj-abcdef"):
            assert secret not in output


@pytest.mark.any_store
def test_job_is_visible_only_with_its_link(world):
    job = world.order()
    for path in (f"/jobs/{job}", f"/status/{job}"):
        assert world.request_as_owner("GET", path, "another").status_code == 404
    assert world.request_as_owner("GET", "/jobs/unknown", "unknown").status_code == 404
    assert world.admin("GET", "/admin").status_code == 200
    assert world.request_as_owner("GET", "/admin", job).status_code == 403


@pytest.mark.any_store
def test_unsigned_webhook_is_refused(world):
    assert world.admin("POST", "/hooks/jobs", json={"type": "job.died"}).status_code == 401


@pytest.mark.any_store
def test_invalid_order_is_refused_and_creates_no_job(world):
    wrong = [{"user": "x"}, {"model": "gpt"}, {"duration": -1}, {"x": 1}]
    assert {
        world.post("file://host/etc/passwd").status_code,
        world.post("http:// a").status_code,
    } == {422}
    assert {world.post(**fields).status_code for fields in wrong} == {422}
    assert world.app.jobs.list() == []
