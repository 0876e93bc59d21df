"""Orders become videos, or failures with a code and a message."""

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


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def retry_delays(job: str) -> list[float]:
    """Return the seconds from the end of each attempt to the earliest start of the next."""
    return [
        (item.next_run_at - item.ended_at) / 1e6
        for item in app.jobs.attempts(job)
        if item.next_run_at
    ]


def remaining_workdirs(tmp_path: Path) -> list[Path]:
    """Return the work directories that attempts have not removed."""
    return [path for path in tmp_path.rglob("*.work/*") if path.is_dir()]


@pytest.mark.seed("003-34", "003-35", "003-36", "003-45", "003-58", "003-60")
def test_timeline_is_rendered_and_stored(service, tmp_path):
    job = service.order(service.clip(text="One"), service.clip("other.jpg", text="Two"))
    assert service.fetch(job)["state"] == "QUEUED"
    service.mulligan.drain()
    job_view = service.fetch(job)
    assert (job_view["state"], job_view["attempts"], job_view["error"]) == ("COMPLETED", 1, None)
    assert [item.type for item in app.jobs.history(job)] == [
        "job.queued",
        "job.started",
        "job.succeeded",
    ]
    assert remaining_workdirs(tmp_path) == []
    file = tmp_path / "video.mp4"
    file.write_bytes(service.client.get(job_view["video"]).content)
    ffmpeg_output = subprocess.run(
        [pictures.find_ffmpeg(), "-i", str(file)], capture_output=True, text=True, check=False
    ).stderr
    assert "Duration: 00:00:02.00" in ffmpeg_output
    assert "640x360" in ffmpeg_output


@pytest.mark.seed("003-02", "003-12", "003-40", "003-41", "003-43", "003-14", "003-37")
def test_unavailable_picture_is_retried_after_1_2_and_4_seconds(service):
    job_view = service.run_order(service.clip("down.jpg"))
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 4)
    assert retry_delays(job_view["id"]) == pytest.approx([1, 2, 4], abs=0.2)
    assert job_view["error"] == {
        "code": "IMAGE_DOWNLOAD_FAILED",
        "message": "Failed to download image: the server answered 503",
        "details": {"url": f"{service.picture_server}/down.jpg"},
    }


@pytest.mark.seed("003-02")
def test_picture_available_at_the_third_attempt_is_rendered(service):
    job_view = service.run_order(service.clip("flaky-a.jpg"))
    assert (job_view["state"], job_view["attempts"]) == ("COMPLETED", 3)


@pytest.mark.seed("003-38")
def test_between_attempts_a_job_is_processing_and_has_the_next_time(service):
    job = service.order(service.clip("down.jpg"))
    service.mulligan.drain()
    job_view = service.fetch(job)
    assert job_view["state"] == "PROCESSING"
    assert job_view["nextRetryAt"]
    assert job_view["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"


@pytest.mark.seed("003-57")
def test_unknown_host_fails_after_all_retries(service):
    job_view = service.run_order(service.clip("http://nowhere.invalid/image.jpg"))
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 4)
    assert job_view["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"


@pytest.mark.seed("003-03", "003-04", "003-15", "003-37", "003-47")
@pytest.mark.parametrize("picture", ["missing.jpg", "page.jpg"])
def test_missing_or_invalid_picture_is_not_retried(service, picture, tmp_path):
    job_view = service.run_order(service.clip(), service.clip(picture))
    assert remaining_workdirs(tmp_path) == []
    app.close()  # the failure survives a restart
    assert service.fetch(job_view["id"])["error"] == job_view["error"]
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 1)
    assert world.requests_by_name[picture] == 1


@pytest.mark.seed("003-14")
def test_password_in_an_address_is_not_shown(service):
    host = urlsplit(service.picture_server).netloc
    job_view = service.run_order(
        service.clip(f"http://ann:hunter2@{host}/missing.jpg?key=topsecret")
    )
    assert job_view["error"]["details"] == {"url": f"http://{host}/missing.jpg"}
    assert "hunter2" not in service.client.get("/").text


@pytest.mark.seed("003-13")
def test_download_times_out_and_is_retried(service, set_config):
    assert read_config({}).download_timeout_ms == 30_000
    set_config(download_timeout_ms=200)
    job = service.order(service.clip("hang.jpg"))
    service.mulligan.drain()
    error = service.fetch(job)["error"]
    assert error["message"] == "Failed to download image: timeout of 200ms exceeded"
    service.mulligan.assert_will_retry(job, after=1, code="IMAGE_DOWNLOAD_FAILED")


@pytest.mark.seed("003-16", "003-18", "003-19")
def test_unreadable_picture_is_downloaded_once_more(service):
    job_view = service.run_order(service.clip("broken.jpg"))
    assert (job_view["state"], job_view["attempts"], world.requests_by_name["broken.jpg"]) == (
        "FAILED",
        2,
        2,
    )
    assert job_view["error"]["code"] == "FFMPEG_ERROR"
    assert (
        job_view["error"]["message"]
        == "FFmpeg exited with code 183: Invalid data found when processing input"
    )


@pytest.mark.seed("003-17")
def test_ffmpeg_without_an_output_file_is_a_failure(service, fake_ffmpeg):
    fake_ffmpeg("exit 0")
    job_view = service.run_order()
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 4)
    assert job_view["error"]["code"] == "FFMPEG_ERROR"
    assert job_view["error"]["message"] == "FFmpeg exited with code 0: no output file"


@pytest.mark.seed("003-20")
def test_ffmpeg_killed_for_memory_is_retried(service, fake_ffmpeg):
    fake_ffmpeg("kill -9 $$")
    job = service.order()
    service.mulligan.drain()
    assert service.fetch(job)["error"]["message"].startswith("FFmpeg exited with code -9")
    service.mulligan.assert_will_retry(job, after=1, code="FFMPEG_ERROR")


@pytest.mark.seed("003-05", "003-54")
def test_output_of_ffmpeg_is_stored_for_operators_only(service, fake_ffmpeg):
    fake_ffmpeg("echo 'x264 [error]: malloc of size 12345 failed' >&2; exit 1")
    job = service.order()
    service.mulligan.drain()
    assert "malloc of size 12345" in app.jobs.attempts(job)[0].private
    assert "malloc" not in service.client.get(f"/jobs/{job}").text


@pytest.mark.seed("003-26", "003-27", "003-28", "003-29")
def test_storage_outage_is_retried_and_loses_no_video(service, set_config, tmp_path, monkeypatch):
    stored_videos = []
    store = jobs._store

    def record(video, name):
        stored_videos.append(video)
        return store(video, name)

    monkeypatch.setattr(jobs, "_store", record)
    set_config(storage_endpoint="http://127.0.0.1:9")
    job = service.order()
    service.mulligan.drain()
    assert [video.name for video in stored_videos] == ["video.mp4"]
    assert (stored_videos[0].parent.exists(), remaining_workdirs(tmp_path)) == (False, [])
    assert service.fetch(job)["error"]["code"] == "STORAGE_UPLOAD_FAILED"
    assert service.fetch(job)["error"]["message"].startswith("Failed to upload video: ")
    service.mulligan.assert_will_retry(job, after=1)
    set_config(storage_endpoint=service.s3)
    service.mulligan.drain(scheduled=True)
    assert service.fetch(job)["state"] == "COMPLETED"


@pytest.mark.seed("003-25", "003-24")
def test_attempt_over_the_time_limit_is_retried(service):
    job = service.order()
    with service.mulligan.force(render, "timeout"):
        service.mulligan.drain()
    assert service.fetch(job)["error"] == {
        "code": "FFMPEG_TIMEOUT",
        "message": "FFmpeg timeout after 300000ms",
    }
    service.mulligan.assert_will_retry(job, after=1, code="FFMPEG_TIMEOUT")


@pytest.mark.seed("003-31")
def test_order_that_kills_its_worker_fails_after_two_losses(service):
    job = service.order()
    with service.mulligan.force(render, "lost", times=3):
        service.mulligan.drain()
    job_view = service.fetch(job)
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 3)


@pytest.mark.seed("003-44")
def test_stack_is_shown_in_development_only(service, set_config):
    job_view = service.run_order(service.clip("missing.jpg"))
    assert "stack" not in job_view["error"]
    set_config(development=True)
    assert "jobs.py" in service.fetch(job_view["id"])["error"]["stack"]


@pytest.mark.seed("003-39")
def test_only_a_failed_order_can_be_retried(service):
    job_view = service.run_order(service.clip("missing.jpg"))
    assert service.client.post(f"/jobs/{job_view['id']}/retry").json()["state"] == "QUEUED"
    assert service.client.post(f"/jobs/{job_view['id']}/retry").status_code == 409
    assert service.client.post("/jobs/nothing/retry").json()["message"] == "Job not found"


@pytest.mark.seed("003-21", "003-42")
def test_settings_come_from_the_environment():
    defaults = read_config({})
    assert (defaults.job_timeout_ms, defaults.stalled_interval_ms, defaults.max_stalled_count) == (
        300_000,
        30_000,
        2,
    )
    assert (policy.max_retries, policy.max_losses) == (3, 2)
    assert app.manifest().kinds["render"].timeout == 300 * 1_000_000
    overridden = read_config(
        {
            "JOB_TIMEOUT_MS": "1000",
            "MAX_RETRIES": "1",
            "STALLED_INTERVAL_MS": "6000",
            "MAX_STALLED_COUNT": "5",
        }
    )
    assert (overridden.job_timeout_ms, overridden.max_retries, overridden.max_stalled_count) == (
        1000,
        1,
        5,
    )
    assert overridden.worker == {"MULLIGAN_WORKER__LEASE": "6", "MULLIGAN_WORKER__HEARTBEAT": "1"}


@pytest.mark.seed("003-04", "003-22", "003-23", "003-59")
@pytest.mark.any_store
def test_ffmpeg_is_killed_at_the_time_limit_and_nothing_is_left(
    service, fake_ffmpeg, tmp_path, monkeypatch
):
    """Run a real worker, which ends the attempt from outside."""
    marker = tmp_path / "left"
    program = fake_ffmpeg(f"pwd > {marker}; sleep 300 & echo $! >> {marker}; wait")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JOB_TIMEOUT_MS", "2000")
    monkeypatch.setenv("MAX_RETRIES", "0")
    with service.mulligan.worker():
        job = app.jobs.wait(service.order(), timeout=40)
    assert service.fetch(job.id)["error"]["code"] == "FFMPEG_TIMEOUT"
    workdir, pid = marker.read_text().split()
    assert not Path(workdir).exists()
    assert (
        not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.seed("003-33", "003-48")
@pytest.mark.slow
def test_files_of_a_killed_worker_are_removed_by_the_next_one(
    service, fake_ffmpeg, tmp_path, monkeypatch
):
    marker = tmp_path / "left"
    program = fake_ffmpeg(
        f"[ -e {marker} ] && exit 1; pwd > {marker}.new; mv {marker}.new {marker}; sleep 60"
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
        until(marker.exists)
        worker.kill()
    assert Path(marker.read_text().strip()).exists()
    with service.mulligan.worker(env=quick):
        # The ffmpeg of the second worker fails.
        assert app.jobs.wait(job, timeout=30).state == "dead"
        until(lambda: not Path(marker.read_text().strip()).exists())
