"""What becomes of an order: a video, or a failure that says what it was."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from render import jobs, pictures, world
from render.config import read_config
from render.jobs import app, policy, render


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def waits(job: str) -> list[float]:
    """Between the end of each attempt and the earliest start of the next, in seconds."""
    return [
        (one.next_run_at - one.ended_at) / 1e6 for one in app.jobs.attempts(job) if one.next_run_at
    ]


def left_of(tmp_path: Path) -> list[Path]:
    """What attempts have left in their work directories, which are below the worker's folder."""
    return [path for path in tmp_path.rglob("*.work/*") if path.is_dir()]


@pytest.mark.seed("003-34", "003-35", "003-36", "003-45", "003-58", "003-60")
def test_a_timeline_becomes_a_video_in_storage(service, tmp_path):
    job = service.order(service.clip(text="One"), service.clip("other.jpg", text="Two"))
    assert service.look(job)["state"] == "QUEUED"
    service.mulligan.drain()
    seen = service.look(job)
    assert (seen["state"], seen["attempts"], seen["error"]) == ("COMPLETED", 1, None)
    assert [one.type for one in app.jobs.history(job)] == [
        "job.queued",
        "job.started",
        "job.succeeded",
    ]
    assert left_of(tmp_path) == []
    file = tmp_path / "video.mp4"
    file.write_bytes(service.client.get(seen["video"]).content)
    told = subprocess.run(
        [pictures.ffmpeg(), "-i", str(file)], capture_output=True, text=True, check=False
    ).stderr
    assert "Duration: 00:00:02.00" in told
    assert "640x360" in told


@pytest.mark.seed("003-02", "003-12", "003-40", "003-41", "003-43", "003-14", "003-37")
def test_a_picture_whose_server_is_down_is_tried_after_1_2_and_4_seconds(service):
    seen = service.ended(service.clip("down.jpg"))
    assert (seen["state"], seen["attempts"]) == ("FAILED", 4)
    assert waits(seen["id"]) == pytest.approx([1, 2, 4], abs=0.2)
    assert seen["error"] == {
        "code": "IMAGE_DOWNLOAD_FAILED",
        "message": "Failed to download image: the server answered 503",
        "details": {"url": f"{service.hosted}/down.jpg"},
    }


@pytest.mark.seed("003-02")
def test_one_that_is_there_at_the_third_try_is_rendered(service):
    seen = service.ended(service.clip("flaky-a.jpg"))
    assert (seen["state"], seen["attempts"]) == ("COMPLETED", 3)


@pytest.mark.seed("003-38")
def test_between_two_tries_it_is_processing_and_says_when_it_goes_on(service):
    job = service.order(service.clip("down.jpg"))
    service.mulligan.drain()
    seen = service.look(job)
    assert seen["state"] == "PROCESSING"
    assert seen["nextRetryAt"]
    assert seen["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"


@pytest.mark.seed("003-57")
def test_a_host_that_does_not_exist_fails_after_all_retries(service):
    seen = service.ended(service.clip("http://nowhere.invalid/image.jpg"))
    assert (seen["state"], seen["attempts"]) == ("FAILED", 4)
    assert seen["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"


@pytest.mark.seed("003-03", "003-04", "003-15", "003-37", "003-47")
@pytest.mark.parametrize("picture", ["missing.jpg", "page.jpg"])
def test_what_is_not_there_or_no_picture_is_not_asked_for_again(service, picture, tmp_path):
    seen = service.ended(service.clip(), service.clip(picture))
    assert left_of(tmp_path) == []
    app.close()  # whoever comes after a restart finds the same failure
    assert service.look(seen["id"])["error"] == seen["error"]
    assert (seen["state"], seen["attempts"]) == ("FAILED", 1)
    assert world.asked[picture] == 1


@pytest.mark.seed("003-14")
def test_a_password_in_an_address_is_in_no_answer(service):
    host = urlsplit(service.hosted).netloc
    seen = service.ended(service.clip(f"http://ann:hunter2@{host}/missing.jpg?key=topsecret"))
    assert seen["error"]["details"] == {"url": f"http://{host}/missing.jpg"}
    assert "hunter2" not in service.client.get("/").text


@pytest.mark.seed("003-13")
def test_a_picture_that_never_comes_is_given_up_in_time(service, configured):
    assert read_config({}).download_timeout_ms == 30_000
    configured(download_timeout_ms=200)
    job = service.order(service.clip("hang.jpg"))
    service.mulligan.drain()
    error = service.look(job)["error"]
    assert error["message"] == "Failed to download image: timeout of 200ms exceeded"
    service.mulligan.assert_will_retry(job, after=1, code="IMAGE_DOWNLOAD_FAILED")


@pytest.mark.seed("003-16", "003-18", "003-19")
def test_a_picture_that_cannot_be_read_is_fetched_once_more(service):
    seen = service.ended(service.clip("broken.jpg"))
    assert (seen["state"], seen["attempts"], world.asked["broken.jpg"]) == ("FAILED", 2, 2)
    assert seen["error"]["code"] == "FFMPEG_ERROR"
    assert (
        seen["error"]["message"]
        == "FFmpeg exited with code 183: Invalid data found when processing input"
    )


@pytest.mark.seed("003-17")
def test_an_ffmpeg_that_is_content_and_has_made_nothing_has_failed(service, instead_of_ffmpeg):
    instead_of_ffmpeg("exit 0")
    seen = service.ended()
    assert (seen["state"], seen["attempts"]) == ("FAILED", 4)
    assert seen["error"]["code"] == "FFMPEG_ERROR"
    assert seen["error"]["message"] == "FFmpeg exited with code 0: no output file"


@pytest.mark.seed("003-20")
def test_an_ffmpeg_that_is_killed_for_memory_is_started_again(service, instead_of_ffmpeg):
    instead_of_ffmpeg("kill -9 $$")
    job = service.order()
    service.mulligan.drain()
    assert service.look(job)["error"]["message"].startswith("FFmpeg exited with code -9")
    service.mulligan.assert_will_retry(job, after=1, code="FFMPEG_ERROR")


@pytest.mark.seed("003-05", "003-54")
def test_what_ffmpeg_said_is_kept_for_operators(service, instead_of_ffmpeg):
    instead_of_ffmpeg("echo 'x264 [error]: malloc of size 12345 failed' >&2; exit 1")
    job = service.order()
    service.mulligan.drain()
    assert "malloc of size 12345" in app.jobs.attempts(job)[0].private
    assert "malloc" not in service.client.get(f"/jobs/{job}").text


@pytest.mark.seed("003-26", "003-27", "003-28", "003-29")
def test_a_storage_that_is_away_for_a_while_costs_a_try_and_no_video(
    service, configured, tmp_path, monkeypatch
):
    places = []
    stored = jobs._store
    monkeypatch.setattr(
        jobs, "_store", lambda video, name: (places.append(video), stored(video, name))[1]
    )
    configured(storage_endpoint="http://127.0.0.1:9")
    job = service.order()
    service.mulligan.drain()
    assert [video.name for video in places] == ["video.mp4"]
    assert (places[0].parent.exists(), left_of(tmp_path)) == (False, [])
    assert service.look(job)["error"]["code"] == "STORAGE_UPLOAD_FAILED"
    assert service.look(job)["error"]["message"].startswith("Failed to upload video: ")
    service.mulligan.assert_will_retry(job, after=1)
    configured(storage_endpoint=service.s3)
    service.mulligan.drain(scheduled=True)
    assert service.look(job)["state"] == "COMPLETED"


@pytest.mark.seed("003-25", "003-24")
def test_an_attempt_that_takes_too_long_is_told_so_and_tried_again(service):
    job = service.order()
    with service.mulligan.force(render, "timeout"):
        service.mulligan.drain()
    assert service.look(job)["error"] == {
        "code": "FFMPEG_TIMEOUT",
        "message": "FFmpeg timeout after 300000ms",
    }
    service.mulligan.assert_will_retry(job, after=1, code="FFMPEG_TIMEOUT")


@pytest.mark.seed("003-31")
def test_an_order_that_kills_its_worker_is_given_up_after_two_losses(service):
    job = service.order()
    with service.mulligan.force(render, "lost", times=3):
        service.mulligan.drain()
    seen = service.look(job)
    assert (seen["state"], seen["attempts"]) == ("FAILED", 3)


@pytest.mark.seed("003-44")
def test_the_stack_is_shown_in_development_only(service, configured):
    seen = service.ended(service.clip("missing.jpg"))
    assert "stack" not in seen["error"]
    configured(development=True)
    assert "jobs.py" in service.look(seen["id"])["error"]["stack"]


@pytest.mark.seed("003-39")
def test_a_failed_order_can_be_tried_again_by_hand_and_no_other(service):
    seen = service.ended(service.clip("missing.jpg"))
    assert service.client.post(f"/jobs/{seen['id']}/retry").json()["state"] == "QUEUED"
    assert service.client.post(f"/jobs/{seen['id']}/retry").status_code == 409
    assert service.client.post("/jobs/nothing/retry").json()["message"] == "Job not found"


@pytest.mark.seed("003-21", "003-42")
def test_the_numbers_are_the_environments():
    known = read_config({})
    assert (known.job_timeout_ms, known.stalled_interval_ms, known.max_stalled_count) == (
        300_000,
        30_000,
        2,
    )
    assert (policy.max_retries, policy.max_losses) == (3, 2)
    assert app.manifest().kinds["render"].timeout == 300 * 1_000_000
    said = read_config(
        {
            "JOB_TIMEOUT_MS": "1000",
            "MAX_RETRIES": "1",
            "STALLED_INTERVAL_MS": "6000",
            "MAX_STALLED_COUNT": "5",
        }
    )
    assert (said.job_timeout_ms, said.max_retries, said.max_stalled_count) == (1000, 1, 5)
    assert said.worker == {"MULLIGAN_WORKER__LEASE": "6", "MULLIGAN_WORKER__HEARTBEAT": "1"}


@pytest.mark.seed("003-04", "003-22", "003-23", "003-59")
@pytest.mark.any_store
def test_at_the_limit_ffmpeg_is_killed_and_nothing_is_left(
    service, instead_of_ffmpeg, tmp_path, monkeypatch
):
    """With a real worker: what runs is ended from outside."""
    left = tmp_path / "left"
    program = instead_of_ffmpeg(f"pwd > {left}; sleep 300 & echo $! >> {left}; wait")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JOB_TIMEOUT_MS", "2000")
    monkeypatch.setenv("MAX_RETRIES", "0")
    with service.mulligan.worker():
        job = app.jobs.wait(service.order(), timeout=40)
    assert service.look(job.id)["error"]["code"] == "FFMPEG_TIMEOUT"
    workdir, pid = left.read_text().split()
    assert not Path(workdir).exists()
    assert (
        not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.seed("003-33", "003-48")
@pytest.mark.slow
def test_what_a_killed_worker_left_on_disk_goes_with_the_next_one(
    service, instead_of_ffmpeg, tmp_path, monkeypatch
):
    left = tmp_path / "left"
    program = instead_of_ffmpeg(
        f"[ -e {left} ] && exit 1; pwd > {left}.new; mv {left}.new {left}; sleep 60"
    )
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("MAX_RETRIES", "0")
    quick = {
        "MULLIGAN_WORKER__LEASE": "4",
        "MULLIGAN_WORKER__HEARTBEAT": "1",
        "MULLIGAN_WORKER__SWEEP": "1",
    }
    with service.mulligan.worker(env=quick) as worker:
        job = service.order()
        until(left.exists)
        worker.kill()
    assert Path(left.read_text().strip()).exists()
    with service.mulligan.worker(env=quick):
        assert (
            app.jobs.wait(job, timeout=30).state == "dead"
        )  # by the second worker, whose ffmpeg fails
        until(lambda: not Path(left.read_text().strip()).exists())
