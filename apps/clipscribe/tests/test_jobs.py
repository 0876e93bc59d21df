"""Videos become analyses, or failures with a message for the owner."""

from __future__ import annotations

import html
import os
import re

import httpx2
import pytest

from mulligan.apps.clipscribe.demo import world as external

# The messages of the specification (§4.2): about the failure, and what is added before a retry.
MESSAGES = {
    "NetworkTimeout": ("The video processing timed out.", "We'll retry automatically."),  # 004-41
    "RateLimitExceeded": (
        "We've hit our processing limit.",
        "Your video will be processed soon.",
    ),  # 004-42
    "InvalidInput": ("This video cannot be processed. It may be private or deleted.", ""),  # 004-43
    "VideoExceedsLimits": (
        "This video exceeds our current processing limits (6+ hours or 10GB+).",
        "",
    ),  # 004-44
    "QuotaExceeded": (
        "You've reached your plan's monthly limit. Please upgrade or wait for reset.",
        "",
    ),  # 004-45
    "AuthenticationFailure": (
        "We couldn't access this video. Please check if it's publicly available.",
        "",
    ),  # 004-46
    "TemporaryServiceError": (
        "Our processing service is temporarily unavailable.",
        "Retrying...",
    ),  # 004-47
    "ResourceConstraint": (
        "This video requires more resources than available.",
        "Moving to priority queue.",
    ),  # 004-48
    "UnknownError": ("An unexpected error occurred. Our team has been notified.", ""),  # 004-49
    "PaymentRequired": (
        "Our account with a service that we need is used up or unpaid. Our team has been notified.",
        "",
    ),  # 004-50
    "ContentViolation": ("This video cannot be processed because of its content.", ""),  # 004-50
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


def assert_true(world, job):
    """Assert that every statement of the message is true about the job as it is now."""
    view = world.fetch(job)
    message = view["error"]["message"]
    waits_for_retry = view["state"] == "RETRYING" and bool(view["next_retry_at"])
    if re.search(r"\b(retry|retrying|soon|automatically|again)\b", message, re.IGNORECASE):
        assert waits_for_retry, view
    if "priority queue" in message:
        assert waits_for_retry, view
        assert world.job(job).queue == "priority"
    if "team has been notified" in message:
        assert any(view["error"]["type"] in mail for mail in world.mails()), world.mails()
    assert "paused" not in message
    assert view["error"]["is_permanent"] is (view["state"] == "FAILED")
    assert message in html.unescape(world.page(job))
    return view


@pytest.mark.seed("004-02")
def test_video_is_analysed_frame_by_frame(world):
    job = world.order()
    assert world.fetch(job)["state"] == "QUEUED"
    world.run()
    view = world.fetch(job)
    result = world.job(job).result
    assert (view["state"], view["error"], view["attempts"]) == ("COMPLETED", None, 1)  # 004-02
    assert (result["duration"], result["chunk_strategy"], result["model"]) == (
        20,
        "fixed",
        "gemini-pro",
    )
    assert "sees a test card" in result["chunks"][0]
    assert "sees a test card" in world.page(job)
    assert world.manifest(job)["state"] == "COMPLETED"


# --- Messages ------------------------------------------------------------------------------------
ENDINGS = {
    "NetworkTimeout": TimeoutError("Connection timeout"),
    "RateLimitExceeded": http_error(429),
    "InvalidInput": http_error(404),
    "VideoExceedsLimits": RuntimeError("video too large"),
    "QuotaExceeded": RuntimeError("You have reached your tier limit"),
    "AuthenticationFailure": http_error(403),
    "TemporaryServiceError": http_error(503),
    "ResourceConstraint": MemoryError(),
    "UnknownError": RuntimeError("what is this"),
    "PaymentRequired": http_error(402),
    "ContentViolation": RuntimeError("Blocked by content policy"),
}


@pytest.mark.seed(
    "004-41",
    "004-42",
    "004-43",
    "004-44",
    "004-45",
    "004-46",
    "004-47",
    "004-48",
    "004-49",
    "004-50",
    "004-56",
)
@pytest.mark.parametrize("error_type", MESSAGES)
@pytest.mark.any_store
def test_message_is_the_specified_one_and_true_after_each_failure(world, error_type):
    sentence, promise = MESSAGES[error_type]
    job = world.order()
    with world.force(ENDINGS[error_type], times=6):
        world.run()
        while world.fetch(job)["state"] == "RETRYING":
            view = assert_true(world, job)
            assert view["error"]["type"] == error_type
            assert view["error"]["message"] == f"{sentence} {promise}".strip()
            world.advance(6000)
    view = assert_true(world, job)  # 004-56
    assert (view["state"], view["error"]["type"]) == ("FAILED", error_type)
    assert view["error"]["message"] == sentence


@pytest.mark.seed("004-56", "004-02")
@pytest.mark.any_store
@pytest.mark.parametrize("ending", ["timeout", "lost"])
def test_message_about_a_killed_attempt_is_true_and_of_a_specified_type(world, ending):
    job = world.order()
    with world.force(ending, times=10):
        for _ in range(12):
            world.run()
            view = world.fetch(job)
            if view["error"]:
                assert_true(world, job)  # 004-56
                assert view["error"]["type"] in MESSAGES  # 004-02
            world.advance(6000)
    assert world.fetch(job)["state"] == "FAILED"
    assert assert_true(world, job)["error"]["type"] in MESSAGES


@pytest.mark.seed("004-56", "004-50")
@pytest.mark.any_store
def test_message_of_an_error_of_the_program_itself_is_true(world):
    job = world.order()
    with world.force(KeyError("frames")):
        world.run()
    view = assert_true(world, job)
    assert (view["state"], view["error"]["type"]) == ("FAILED", "UnknownError")  # 004-50, 004-56


@pytest.mark.seed("004-50", "004-10", "004-13", "004-02")
@pytest.mark.any_store
def test_quota_of_the_model_holds_the_job_until_its_reset(world):
    job = world.order()
    with world.force(http_error(402, retry_after=3600)):
        world.run()
    assert world.job(job).phase == "held"  # 004-10, 004-13
    view = assert_true(world, job)  # 004-50
    assert view["waits_for"]  # 004-02
    world.advance(3700)
    world.run(until_done=True)
    assert world.fetch(job)["state"] == "COMPLETED"


# --- Retries -------------------------------------------------------------------------------------
@pytest.mark.seed("004-67", "004-68", "004-04", "004-24", "004-26", "004-36", "004-37", "004-38")
def test_two_timeouts_then_success_are_three_attempts(world):
    job = world.order()
    with world.force(TimeoutError("Connection timeout")):
        world.run()
    view = world.fetch(job)
    assert (view["state"], view["attempts"]) == ("RETRYING", 1)  # 004-36
    error = view["error"]
    assert set(error) == {"type", "message", "is_permanent", "timestamp"}  # 004-37
    assert (error["type"], error["is_permanent"]) == ("NetworkTimeout", False)
    assert view["updated_at"] == error["timestamp"]
    assert world.manifest(job)["state"] == "RETRYING"  # 004-38
    other = world.order(user="bob@example.com")
    world.run()
    assert world.fetch(other)["state"] == "COMPLETED"  # 004-26: the wait occupies no worker
    assert world.fetch(job)["state"] == "RETRYING"
    with world.force(TimeoutError("Connection timeout")):
        world.run(until_done=True)
    assert (world.fetch(job)["state"], world.fetch(job)["attempts"]) == ("COMPLETED", 3)  # 004-67
    assert world.manifest(job)["state"] == "COMPLETED"
    assert_near(world.retry_delays(job), 30, 60)  # 004-04 004-24 004-68


@pytest.mark.seed("004-06", "004-22", "004-19", "004-03")
@pytest.mark.any_store
def test_model_that_stays_down_is_called_four_times(world):
    view = world.run_order("down.mp4")
    assert (view["state"], view["attempts"]) == ("FAILED", 4)  # 004-06
    assert view["error"]["type"] == "TemporaryServiceError"
    assert_near(world.retry_delays(view["job_id"]), 30, 60, 120)  # 004-06
    assert external.requests_by_name["model down.mp4"] == 4  # 004-03 004-19
    [letter] = world.letters()
    assert (letter["error_type"], letter["attempts"]) == ("TemporaryServiceError", 4)  # 004-22
    assert "The model is overloaded" in letter["error_message"]  # 004-22


@pytest.mark.seed("004-23")
@pytest.mark.any_store
def test_failures_are_counted_by_type_and_in_all(world):
    job = world.order()
    mixed = [TimeoutError("Connection timeout"), http_error(429)] * 5
    with world.force(*mixed):
        world.run(until_done=True)
    view = world.fetch(job)
    assert (view["state"], view["attempts"]) == ("FAILED", 6)  # 004-23: the total of five retries
    assert_near(world.retry_delays(job), 30, 60, 120, 180, 480)


@pytest.mark.seed("004-06")
@pytest.mark.any_store
def test_model_that_is_busy_twice_answers_at_the_third_attempt(world):
    view = world.run_order("busy.mp4")
    assert (view["state"], view["attempts"]) == ("COMPLETED", 3)


@pytest.mark.seed("004-05")
@pytest.mark.any_store
def test_rate_limit_is_retried_with_growing_delays(world):
    view = world.run_order("overrun.mp4")  # a quota of requests per minute
    assert (view["state"], view["attempts"]) == ("FAILED", 6)  # 004-05
    assert view["error"]["type"] == "RateLimitExceeded"
    assert_near(world.retry_delays(view["job_id"]), 60, 180, 540, 1620, 4860)  # 004-05


@pytest.mark.seed("004-05")
@pytest.mark.any_store
def test_wait_is_at_least_as_long_as_the_model_asks_for(world):
    job = world.order()
    with world.force(http_error(429, retry_after=700)):
        world.run()
    [delay] = world.retry_delays(job)
    assert delay >= 700


@pytest.mark.seed("004-07", "004-51")
def test_memory_shortage_moves_the_job_to_the_priority_queue(world):
    job = world.order()
    with world.force(MemoryError(), MemoryError(), MemoryError()):
        world.run()
        assert world.job(job).queue == "priority"  # 004-51: of the next attempt
        world.run(until_done=True)
    assert (world.fetch(job)["state"], world.fetch(job)["attempts"]) == ("FAILED", 3)  # 004-07
    assert_near(world.retry_delays(job), 30, 45)  # 004-07
    assert world.job(job).queue == "priority"  # 004-51


@pytest.mark.seed("004-07")
@pytest.mark.any_store
def test_ffmpeg_killed_for_memory_is_a_resource_constraint(make_world, monkeypatch, tmp_path):
    """A program that ends like one that the kernel killed is in the place of ffmpeg."""
    external.make_video(0)  # with the real ffmpeg
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    world = make_world()
    view = world.run_order()
    assert (view["state"], view["attempts"]) == ("FAILED", 3)  # 004-07
    assert view["error"]["type"] == "ResourceConstraint"  # 004-07
    assert_near(world.retry_delays(view["job_id"]), 30, 45)  # 004-07
    assert world.job(view["job_id"]).queue == "priority"


@pytest.mark.seed(
    "004-08",
    "004-09",
    "004-10",
    "004-11",
    "004-20",
    "004-36",
    "004-43",
    "004-46",
    "004-44",
    "004-53",
)
@pytest.mark.any_store
def test_unprocessable_videos_are_not_retried(world):
    expected = {
        "private.mp4": "InvalidInput",  # 004-08
        "missing.mp4": "InvalidInput",
        "deleted.mp4": "InvalidInput",
        "broken.mp4": "InvalidInput",
        "locked.mp4": "AuthenticationFailure",  # 004-09
        "unpaid.mp4": "PaymentRequired",  # 004-10
        "huge.mp4": "VideoExceedsLimits",  # 004-53
        "rude.mp4": "ContentViolation",  # 004-11
        "blocked.mp4": "ContentViolation",
        "removed.mp4": "ContentViolation",
    }
    jobs = {video: world.order(video) for video in expected}
    world.run(until_done=True)
    for video, job in jobs.items():
        view = world.fetch(job)
        assert (view["state"], view["attempts"]) == ("FAILED", 1), video  # 004-20 004-36
        assert external.requests_by_name[video] == 1
        assert view["error"]["type"] == expected[video]
        assert view["error"]["message"] == MESSAGES[expected[video]][0]  # 004-43 004-44 004-46
    assert {item["job_id"] for item in world.letters()} == set(jobs.values())


@pytest.mark.seed("004-53", "004-44")
@pytest.mark.any_store
def test_video_declared_too_large_is_not_downloaded(world):
    answer = world.post("talk.mp4", size=11 * 1024**3).json()
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "VideoExceedsLimits")
    assert answer["error"]["message"] == MESSAGES["VideoExceedsLimits"][0]  # 004-44
    world.run(until_done=True)
    assert external.requests_by_name["talk.mp4"] == 0  # 004-53
    assert len(world.letters()) == 1


@pytest.mark.seed("004-13", "004-45")
@pytest.mark.any_store
def test_exceeded_plan_fails_at_once(make_world):
    world = make_world(PLAN_VIDEOS="2")
    for _ in range(2):
        world.order()
    answer = world.post().json()
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "QuotaExceeded")  # 004-13
    assert answer["error"]["message"] == MESSAGES["QuotaExceeded"][0]  # 004-45
    assert world.post(user="bob@example.com").json()["state"] == "QUEUED"


@pytest.mark.seed("004-16", "004-49", "004-52", "004-24")
@pytest.mark.any_store
def test_unknown_answer_is_mailed_at_the_first_failure_and_retried_twice(world):
    jobs = [world.order("odd.mp4"), world.order("odd.mp4", user="bob@example.com")]
    world.run()
    assert world.fetch(jobs[0])["state"] == "RETRYING"
    assert len(world.mails()) == 1, world.mails()  # 004-52: before any retry
    assert "UnknownError" in world.mails()[0]
    world.run(until_done=True)
    view = world.fetch(jobs[0])
    assert (view["state"], view["attempts"]) == ("FAILED", 3)  # 004-16
    assert view["error"]["message"] == MESSAGES["UnknownError"][0]  # 004-49
    assert_near(world.retry_delays(jobs[0]), 30, 60)  # 004-16 004-24


@pytest.mark.seed("004-86", "004-82", "004-02")
def test_outage_holds_jobs_and_is_followed_by_an_automatic_recovery(world):
    """The circuit breaker opens, jobs wait uncharged, and what died is retried when it closes."""
    died = world.order()
    with world.force(http_error(503), times=4):
        world.run(until_done=True)
    assert world.fetch(died)["state"] == "FAILED"
    others = [world.order() for _ in range(6)]
    external.model_is_down = True
    try:
        world.run()
        model = world.app.dependencies.get("model")
        assert model.state == "open"  # 004-86
        waiting = world.order()
        world.run()
        view = world.fetch(waiting)
        assert (view["state"], view["attempts"]) == ("QUEUED", 0)  # 004-86: held while open
        assert view["waits_for"]  # 004-02
        assert world.fetch(died)["state"] == "FAILED"  # 004-82: not before the model is back
    finally:
        external.model_is_down = False
    for _ in range(30):
        world.advance(60)
    assert world.app.dependencies.get("model").state != "open"
    states = {world.fetch(job)["state"] for job in (*others, waiting)}
    assert states == {"COMPLETED"}  # 004-86
    assert world.fetch(died)["state"] == "COMPLETED"  # 004-82
    [retried] = world.events(died, "job.retried")
    assert "automatic recovery" in retried.data["reason"]


# --- Very long videos ----------------------------------------------------------------------------
@pytest.mark.seed("004-54", "004-12", "004-73")
def test_undeclared_seven_hour_video_moves_to_larger_machines(world):
    job = world.order("talk-7h.mp4")
    world.run()
    world.advance(5)
    view = world.fetch(job)
    assert view["state"] == "COMPLETED"  # 004-12
    result = world.job(job).result
    assert result["processing_tier"] == "compute-engine-high-memory"  # 004-54
    assert (result["chunk_strategy"], result["model"]) == ("adaptive", "gemini-flash")  # 004-54
    assert len(result["chunks"]) == 8
    assert world.job(job).failures == 0  # 004-54: the move is no failure
    goals = {item["name"]: item for item in world.admin("GET", "/success").json()}
    assert goals["Retry Success Rate"]["cohort"] == "0 of 0"  # 004-73: and no rescue


@pytest.mark.seed("004-54")
@pytest.mark.any_store
@pytest.mark.parametrize("declared", [None, 7 * 3600])
def test_seven_hour_video_is_retried_once_on_the_larger_machines(world, declared):
    job = world.order("down-7h.mp4", duration=declared)
    world.run(until_done=True)
    view = world.fetch(job)
    assert (view["state"], view["error"]["type"]) == ("FAILED", "TemporaryServiceError")
    assert world.job(job).failures == 2  # 004-54: one retry
    assert external.requests_by_name["model down-7h.mp4"] == 2
    assert world.job(job).queue == "compute-engine-high-memory"


@pytest.mark.seed("004-54")
@pytest.mark.any_store
def test_seven_hour_video_that_fails_once_is_completed_by_its_retry(world):
    job = world.order("busy-7h.mp4")
    external.requests_by_name["model busy-7h.mp4"] = 1  # it fails once more
    world.run(until_done=True)
    assert world.fetch(job)["state"] == "COMPLETED"
    assert world.job(job).result["processing_tier"] == "compute-engine-high-memory"


@pytest.mark.seed("004-54")
@pytest.mark.any_store
def test_failure_before_the_move_does_not_cost_the_retry(world):
    job = world.order("down-7h.mp4")
    with world.force(TimeoutError("Connection timeout")):  # of the download, on the usual machines
        world.run()
    world.run(until_done=True)
    assert external.requests_by_name["model down-7h.mp4"] == 2
    assert world.fetch(job)["state"] == "FAILED"


@pytest.mark.seed("004-55")
def test_nine_hour_video_waits_for_a_decision_and_the_admin_gets_a_mail(world):
    found = world.order("talk-9h.mp4")
    declared = world.order("talk-9h.mp4", duration=9 * 3600)
    world.run(until_done=True)
    for job in (found, declared):
        view = assert_true(world, job)
        assert (view["state"], view["attempts"]) == ("MANUAL_REVIEW", 1)
        assert view["error"]["message"] == "Please contact support for videos over 8 hours"
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
        str(world.manifest(job)),  # 004-39
        str(world.letters()),  # 004-35
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


@pytest.mark.any_store
def test_orders_need_a_key_and_belong_to_its_owner(world):
    address = world.addresses["service"]
    order = {"url": "https://videos.example/a.mp4", "user": "mallory@example.com"}
    assert world.http.post(f"{address}/jobs", json=order).status_code == 401
    wrong = {"authorization": "Bearer mk_wrong"}
    assert world.http.post(f"{address}/jobs", json=order, headers=wrong).status_code == 401
    headers = {"authorization": f"Bearer {world.key_of('ann@example.com')}"}
    job = world.http.post(f"{address}/jobs", json=order, headers=headers).json()["job_id"]
    assert world.job(job).owner == "ann@example.com"
    assert world.http.get(f"{address}/jobs/{job}", headers=headers).status_code == 200
    headers = {"authorization": f"Bearer {world.key_of('bob@example.com')}"}
    assert world.http.get(f"{address}/jobs/{job}", headers=headers).status_code == 404


@pytest.mark.any_store
def test_key_opens_the_pages_of_its_role(world):
    address = world.addresses["service"]
    assert world.http.get(f"{address}/").status_code == 401
    for path in ("/admin", "/dlq", "/metrics", "/success"):
        assert world.http.get(f"{address}{path}").status_code == 401
        headers = {"authorization": f"Bearer {world.key_of('ann@example.com')}"}
        assert world.http.get(f"{address}{path}", headers=headers).status_code == 403
        assert world.admin("GET", path).status_code == 200
    for user, path in (("ann@example.com", "/"), ("*", "/admin")):
        form = {"key": world.key_of(user), "path": path}
        answer = world.http.post(f"{address}/sign-in", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert world.http.get(f"{address}{path}", headers=cookie).status_code == 200
    form = {"key": world.key_of("*"), "path": "https://elsewhere.example"}
    assert world.http.post(f"{address}/sign-in", data=form).headers["location"] == "/"


@pytest.mark.any_store
def test_videos_in_private_networks_are_not_downloaded(make_world):
    world = make_world(ALLOW_PRIVATE="0")
    job = world.order("talk.mp4")
    world.run()
    view = world.fetch(job)
    assert (view["state"], view["error"]["type"]) == ("FAILED", "InvalidInput")
    assert external.requests_by_name["talk.mp4"] == 0


@pytest.mark.any_store
def test_invalid_order_is_refused_and_creates_no_job(world):
    wrong = [{"model": "gpt"}, {"duration": -1}, {"x": 1}]
    assert {
        world.post("file://host/etc/passwd").status_code,
        world.post("http:// a").status_code,
    } == {422}
    assert {world.post(**fields).status_code for fields in wrong} == {422}
    assert world.app.jobs.list() == []
