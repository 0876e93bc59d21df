"""What becomes of a video: an analysis, or a failure its owner can read."""

from __future__ import annotations

import httpx2
import pytest

from clipscribe import world as outside

LINES = {
    "NetworkTimeout": ("The video processing timed out.", "We'll retry automatically."),
    "TemporaryServiceError": ("Our processing service is temporarily unavailable.", "Retrying..."),
    "UnknownError": ("An unexpected error occurred. Our team has been notified.", ""),
}


def answered(status, **headers):
    """What the client raises when a server answers so."""
    request = httpx2.Request("POST", "http://model.example/")
    said = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    response = httpx2.Response(status, headers=said, request=request)
    return httpx2.HTTPStatusError("no", request=request, response=response)


def between(waits, *middles):
    """Each wait within a fifth of its middle."""
    assert len(waits) == len(middles), waits
    assert all(
        0.8 * middle <= wait <= 1.2 * middle + 0.1
        for wait, middle in zip(waits, middles, strict=True)
    ), waits


@pytest.mark.seed("004-02")
def test_a_video_is_looked_at_frame_by_frame(world):
    job = world.order()
    assert world.look(job)["state"] == "QUEUED"
    world.run()
    seen, result = world.look(job), world.job(job).result
    assert (seen["state"], seen["error"], seen["attempts"]) == ("COMPLETED", None, 1)
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
def test_two_time_outs_then_success_are_three_attempts(world):
    job = world.order()
    with world.force(TimeoutError("Connection timeout"), times=2):
        world.run()
        seen = world.look(job)
        assert (seen["state"], seen["attempts"]) == ("RETRYING", 1)
        assert seen["error"]["type"] == "NetworkTimeout"
        assert seen["error"]["message"] == " ".join(LINES["NetworkTimeout"])
        assert (seen["error"]["is_permanent"], bool(seen["error"]["timestamp"])) == (False, True)
        assert world.manifest(job)["state"] == "RETRYING"
        world.run(all_of_it=True)
    assert (world.look(job)["state"], world.look(job)["attempts"]) == ("COMPLETED", 3)
    assert world.manifest(job)["state"] == "COMPLETED"
    between(world.waits(job), 30, 60)


@pytest.mark.seed("004-06", "004-22", "004-23", "004-47", "004-56", "004-19", "004-03")
@pytest.mark.any_store
def test_a_model_that_stays_down_is_asked_four_times_and_nothing_is_promised_then(world):
    seen = world.ended("down.mp4")
    assert (seen["state"], seen["attempts"], seen["error"]["type"]) == (
        "FAILED",
        4,
        "TemporaryServiceError",
    )
    assert seen["error"]["message"] == LINES["TemporaryServiceError"][0]
    assert seen["error"]["is_permanent"] is True
    between(world.waits(seen["job_id"]), 30, 60, 120)
    assert outside.asked["model down.mp4"] == 4
    assert "Retrying" not in world.page(seen["job_id"])


@pytest.mark.seed("004-06")
@pytest.mark.any_store
def test_one_that_is_busy_twice_answers_at_the_third_time(world):
    seen = world.ended("busy.mp4")
    assert (seen["state"], seen["attempts"]) == ("COMPLETED", 3)


@pytest.mark.seed("004-05", "004-42", "004-56")
@pytest.mark.any_store
def test_a_limit_of_the_model_is_waited_for_longer_each_time(world):
    job = world.order()
    with world.force(*[answered(429)] * 6):
        world.run()
        said = world.look(job)["error"]
        assert said["type"] == "RateLimitExceeded"
        assert (
            said["message"] == "We've hit our processing limit. Your video will be processed soon."
        )
        world.run(all_of_it=True)
    assert (world.look(job)["state"], world.look(job)["attempts"]) == ("FAILED", 6)
    between(world.waits(job), 60, 180, 540, 1620, 4860)


@pytest.mark.seed("004-07", "004-48", "004-51")
def test_too_little_memory_moves_it_to_the_priority_queue(world):
    job = world.order()
    with world.force(MemoryError(), MemoryError(), MemoryError()):
        world.run()
        said = world.look(job)["error"]
        assert said["type"] == "ResourceConstraint"
        assert (
            said["message"]
            == "This video requires more resources than available. Moving to priority queue."
        )
        assert world.job(job).queue == "priority"
        world.run(all_of_it=True)
    assert (world.look(job)["state"], world.look(job)["attempts"]) == ("FAILED", 3)
    between(world.waits(job), 30, 45)


@pytest.mark.seed(
    "004-08", "004-09", "004-11", "004-20", "004-43", "004-46", "004-44", "004-53", "004-21"
)
@pytest.mark.any_store
def test_what_cannot_be_processed_is_tried_once(world):
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
    world.run(all_of_it=True)
    for video, job in jobs.items():
        seen = world.look(job)
        assert (seen["state"], seen["attempts"], outside.asked[video]) == ("FAILED", 1, 1), video
        assert (seen["error"]["type"], seen["error"]["message"]) == expected[video]
        assert seen["error"]["message"].replace("'", "&#39;") in world.page(job)
    assert {one["job_id"] for one in world.letters()} == set(jobs.values())


@pytest.mark.seed("004-53", "004-44")
@pytest.mark.any_store
def test_a_video_that_is_said_to_be_too_large_is_not_even_fetched(world):
    answer = world.post("talk.mp4", size=11 * 1024**3).json()
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "VideoExceedsLimits")
    world.run(all_of_it=True)
    assert outside.asked["talk.mp4"] == 0
    assert len(world.letters()) == 1


@pytest.mark.seed("004-13", "004-45")
@pytest.mark.any_store
def test_who_has_used_up_the_plan_is_told_at_once(make_world):
    world = make_world(PLAN_VIDEOS="2")
    for _ in range(2):
        world.order()
    answer = world.post().json()
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "QuotaExceeded")
    said = "You've reached your plan's monthly limit. Please upgrade or wait for reset."
    assert answer["error"]["message"] == said
    assert world.post(user="bob@example.com").json()["state"] == "QUEUED"


@pytest.mark.seed("004-10", "004-13", "004-86", "004-02")
@pytest.mark.any_store
def test_a_quota_of_the_model_that_comes_back_holds_the_job(world):
    job = world.order()
    with world.force(answered(402, retry_after=3600)):
        world.run()
    assert world.job(job).phase == "held"
    assert world.look(job)["waits_for"]
    world.later(3700)
    world.run(all_of_it=True)
    assert world.look(job)["state"] == "COMPLETED"


@pytest.mark.seed("004-16", "004-49", "004-52", "004-24")
@pytest.mark.any_store
def test_an_answer_nobody_knows_is_tried_twice_more_and_the_team_is_told_once(world):
    jobs = [world.order("odd.mp4"), world.order("odd.mp4", user="bob@example.com")]
    world.run(all_of_it=True)
    seen = world.look(jobs[0])
    assert (seen["state"], seen["attempts"], seen["error"]["type"]) == ("FAILED", 3, "UnknownError")
    assert seen["error"]["message"] == LINES["UnknownError"][0]
    between(world.waits(jobs[0]), 30, 60)
    world.later(10)
    assert len(world.mails()) == 1, world.mails()


# -- very long ones ------------------------------------------------------------------------------
@pytest.mark.seed("004-54", "004-12")
def test_seven_hours_that_nobody_declared_go_to_the_other_machines_once(world):
    job = world.order("talk-7h.mp4")
    world.run()
    seen, result = world.look(job), world.job(job).result
    assert (seen["state"], seen["attempts"]) == ("COMPLETED", 2)
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
def test_seven_hours_are_tried_once_more_and_not_twice(world):
    jobs = [world.order("down-7h.mp4", duration=declared) for declared in (None, 7 * 3600)]
    world.run(all_of_it=True)
    for job in jobs:
        seen = world.look(job)
        assert (seen["state"], seen["attempts"], seen["error"]["type"]) == (
            "FAILED",
            2,
            "TemporaryServiceError",
        )
        assert world.job(job).queue == "compute-engine-high-memory"


@pytest.mark.seed("004-55")
def test_nine_hours_wait_for_a_person_and_the_admin_is_told(world):
    found, declared = world.order("talk-9h.mp4"), world.order("talk-9h.mp4", duration=9 * 3600)
    world.run(all_of_it=True)
    for job in (found, declared):
        seen = world.look(job)
        assert (seen["state"], seen["attempts"]) == ("MANUAL_REVIEW", 1)
        assert seen["error"]["message"] == "Please contact support for videos over 8 hours"
        assert seen["error"]["message"] in world.page(job)
    assert outside.asked["talk-9h.mp4"] == 1
    assert world.mails() == ["Manual review: a video over 8 hours"] * 2
    for job, choice in ((found, "refuse"), (declared, "process")):
        world.admin("POST", f"/admin/review/{job}", data={"choice": choice})
    world.run()
    assert world.look(found)["error"]["type"] == "VideoExceedsLimits"
    assert world.job(declared).result["model"] == "gemini-flash"


# -- who sees what -------------------------------------------------------------------------------
@pytest.mark.seed("004-35", "004-39")
@pytest.mark.any_store
def test_what_must_not_be_read_is_in_no_outlet(world):
    job = world.order("http://ann:hunter2@127.0.0.1:9/clips/ann.mp4?api_key=k1-short-key")
    error = "cannot open /srv/clips/ann.mp4 on 10.1.2.3 with sk-proj-abcdefghij0123456789abcdefghij0123456789"
    with world.force(RuntimeError(error), times=3):
        world.run(all_of_it=True)
    places = [str(world.look(job)), str(world.manifest(job)), str(world.letters()), world.page(job)]
    places += [
        world.admin("GET", "/admin").text,
        " ".join(str(one.body) for one in world.box.received),
    ]
    for place in places:
        for planted in ("hunter2", "k1-short-key", "/srv/clips", "10.1.2.3", "sk-proj-abcdef"):
            assert planted not in place


@pytest.mark.any_store
def test_only_who_has_the_link_sees_a_job(world):
    job = world.order()
    for path in (f"/jobs/{job}", f"/status/{job}"):
        assert world.ask("GET", path, "another").status_code == 404
    assert world.ask("GET", "/jobs/unknown", "unknown").status_code == 404
    assert world.admin("GET", "/admin").status_code == 200
    assert world.ask("GET", "/admin", job).status_code == 403


@pytest.mark.any_store
def test_nobody_else_can_write_a_manifest(world):
    assert world.admin("POST", "/hooks/jobs", json={"type": "job.died"}).status_code == 401


@pytest.mark.any_store
def test_a_wrong_order_is_refused_and_makes_no_job(world):
    wrong = [{"user": "x"}, {"model": "gpt"}, {"duration": -1}, {"x": 1}]
    assert {
        world.post("file://host/etc/passwd").status_code,
        world.post("http:// a").status_code,
    } == {422}
    assert {world.post(**said).status_code for said in wrong} == {422}
    assert world.app.jobs.list() == []
