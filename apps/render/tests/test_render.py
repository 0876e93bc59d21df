"""Orders become videos, or failures with a code and a message."""

from __future__ import annotations

import io
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from PIL import Image, ImageChops, ImageStat

from mulligan.apps.render import jobs, pictures
from mulligan.apps.render.config import read_config
from mulligan.apps.render.demo import world
from mulligan.apps.render.jobs import app, render


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


def read_frame(video: Path, second: float) -> Image.Image:
    """Return the frame that a viewer sees at this time."""
    command = [pictures.find_ffmpeg(), "-loglevel", "error", "-ss", str(second), "-i", str(video)]
    output = ["-frames:v", "1", "-f", "image2pipe", "-c:v", "png", "-"]
    shown = subprocess.run([*command, *output], capture_output=True, check=True).stdout
    return Image.open(io.BytesIO(shown)).convert("RGB")


def compose_clip(content: bytes, text: str, folder: Path) -> Image.Image:
    """Return a frame with this image and the text on it."""
    frame = Image.open(io.BytesIO(content)).resize((pictures.WIDTH, pictures.HEIGHT))
    letters = Image.open(pictures.draw_text(text, folder / "text.png"))
    frame.paste(letters, mask=letters)
    return frame


def remaining_workdirs(tmp_path: Path) -> list[Path]:
    """Return the work directories that attempts have not removed."""
    return [path for path in tmp_path.rglob("*.work/*") if path.is_dir()]


@pytest.mark.seed("003-34", "003-35", "003-36", "003-45", "003-55", "003-58", "003-60")
def test_timeline_is_rendered_and_stored(service, tmp_path):
    job = service.order(service.clip(text="One"), service.clip("other.jpg", text="Two"))
    assert service.fetch(job)["state"] == "QUEUED"  # 003-34, 003-60
    service.mulligan.drain()
    job_view = service.fetch(job)
    assert (job_view["state"], job_view["attempts"], job_view["error"]) == (
        "COMPLETED",
        1,
        None,
    )  # 003-34
    assert job_view["progress"] == 1
    assert [item.type for item in app.jobs.history(job)] == [
        "job.queued",
        "job.started",  # 003-35
        "job.succeeded",
    ]  # 003-55
    assert remaining_workdirs(tmp_path) == []  # 003-45
    file = tmp_path / "video.mp4"
    file.write_bytes(service.client.get(job_view["video"]).content)
    ffmpeg_output = subprocess.run(
        [pictures.find_ffmpeg(), "-i", str(file)], capture_output=True, text=True, check=False
    ).stderr
    assert "Duration: 00:00:02.00" in ffmpeg_output  # 003-36, 003-58: 1 s each
    assert "640x360" in ffmpeg_output
    for second, (picture, text) in enumerate([("photo.jpg", "One"), ("other.jpg", "Two")]):
        expected = compose_clip(world.picture(picture), text, tmp_path)
        difference = ImageChops.difference(read_frame(file, second + 0.5), expected)
        assert max(ImageStat.Stat(difference).mean) < 4  # 003-58: image and text, in this order


@pytest.mark.seed("003-02", "003-12", "003-40", "003-41", "003-43", "003-14", "003-37")
def test_unavailable_picture_is_retried_after_1_2_and_4_seconds(service):
    job_view = service.run_order(service.clip("down.jpg"))
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 4)  # 003-37, 003-40
    assert retry_delays(job_view["id"]) == pytest.approx(
        [1, 2, 4], abs=0.2
    )  # 003-02, 003-12, 003-41
    assert job_view["error"] == {
        "code": "IMAGE_DOWNLOAD_FAILED",
        "message": "Failed to download image: the server answered 503",  # 003-43
        "details": {"url": f"{service.picture_server}/down.jpg"},  # 003-14
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
    assert remaining_workdirs(tmp_path) == []  # 003-04
    app.close()  # the failure survives a restart
    assert service.fetch(job_view["id"])["error"] == job_view["error"]  # 003-47
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 1)  # 003-03, 003-37
    assert world.requests_by_name[picture] == 1  # 003-15


@pytest.mark.seed("003-14", "003-43")
@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        ("down.jpg", "the server answered 503"),
        ("missing.jpg", "the server answered 404"),
        ("page.jpg", "this is not an image"),
        ("cut.jpg", "the image is damaged"),
        ("large.jpg", "it is too large"),
        ("redirect.jpg?to=http://127.0.0.1:9/x.jpg", "ConnectError"),
    ],
)
def test_every_failed_download_names_its_picture(service, picture, reason, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_PICTURE_BYTES", 100_000)
    clip = service.clip(picture)
    error = service.run_order(service.clip(), clip, service.clip("other.jpg"))["error"]
    assert error == {
        "code": "IMAGE_DOWNLOAD_FAILED",  # 003-43
        "message": f"Failed to download image: {reason}",  # 003-43
        "details": {"url": clip["image"].partition("?")[0]},  # 003-14
    }


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
def test_picture_that_ffmpeg_cannot_read_is_downloaded_once_more(service):
    """An animated WebP is a valid picture, but ffmpeg cannot decode it."""
    job_view = service.run_order(service.clip(), service.clip("animated.webp"))
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 2)  # 003-18
    assert world.requests_by_name["animated.webp"] == 2  # 003-18
    assert job_view["error"] == {
        "code": "FFMPEG_ERROR",  # 003-16
        "message": "FFmpeg exited with code 183: Invalid data found when processing input",  # 003-19
        "details": {"url": f"{service.picture_server}/animated.webp"},
    }


@pytest.mark.seed("003-03")
def test_truncated_picture_is_refused_after_a_second_download(service):
    """ffmpeg would fill the missing part with grey and succeed."""
    job_view = service.run_order(service.clip(), service.clip("cut.jpg"))
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 2)
    assert job_view["error"] == {
        "code": "IMAGE_DOWNLOAD_FAILED",
        "message": "Failed to download image: the image is damaged",
        "details": {"url": f"{service.picture_server}/cut.jpg"},
    }
    assert service.run_order(service.clip("mended-a.jpg"))["state"] == "COMPLETED"


@pytest.mark.parametrize("share", [10, 30, 60, 90, 99])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_truncated_pictures_of_every_format_are_found(kind, share):
    output = io.BytesIO()
    Image.effect_noise((160, 90), 60).convert("RGB").save(output, kind)
    content = output.getvalue()
    pictures.decode_picture(content)
    with pytest.raises(pictures.DamagedPicture):
        pictures.decode_picture(content[: len(content) * share // 100])


def test_picture_with_too_many_pixels_is_refused_before_it_is_decoded():
    output = io.BytesIO()
    Image.new("1", (8_000, 7_000)).save(output, "PNG")
    with pytest.raises(pictures.NotAPicture, match="too large"):
        pictures.decode_picture(output.getvalue())


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
    assert "malloc of size 12345" in app.jobs.attempts(job)[0].private  # 003-05, 003-54
    assert "malloc" not in service.client.get(f"/jobs/{job}").text


class HalfHeartedStorage(BaseHTTPRequestHandler):
    """Answer 503 to the first upload and accept the next."""

    uploads = 0

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).uploads += 1
        self.send_response(503 if self.uploads == 1 else 200)
        self.send_header("ETag", '"x"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.seed("003-26")
def test_storage_client_retries_first_and_the_job_does_not(service, set_config):
    HalfHeartedStorage.uploads = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), HalfHeartedStorage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        set_config(storage_endpoint=f"http://127.0.0.1:{server.server_port}")
        job_view = service.run_order()
        server.shutdown()
    assert HalfHeartedStorage.uploads == 2  # 003-26
    assert (job_view["state"], job_view["attempts"]) == ("COMPLETED", 1)  # 003-26


@pytest.mark.seed("003-27", "003-28", "003-29")
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
    assert (stored_videos[0].parent.exists(), remaining_workdirs(tmp_path)) == (False, [])  # 003-28
    assert service.fetch(job)["error"]["code"] == "STORAGE_UPLOAD_FAILED"  # 003-29
    assert service.fetch(job)["error"]["message"].startswith("Failed to upload video: ")
    service.mulligan.assert_will_retry(job, after=1)
    set_config(storage_endpoint=service.s3)
    service.mulligan.drain(scheduled=True)
    assert service.fetch(job)["state"] == "COMPLETED"  # 003-27


@pytest.mark.seed("003-21", "003-24", "003-25")
def test_ffmpeg_over_the_time_limit_is_stopped_and_retried(service, set_config, fake_ffmpeg):
    assert read_config({}).job_timeout_ms == 300_000  # 003-21
    set_config(job_timeout_ms=1_000)
    fake_ffmpeg("exec sleep 60")
    job = service.order()
    started = time.monotonic()
    service.mulligan.drain()
    assert 1 <= time.monotonic() - started < 30  # 003-21
    assert service.fetch(job)["error"] == {
        "code": "FFMPEG_TIMEOUT",  # 003-25
        "message": "FFmpeg timeout after 1000ms",  # 003-25
    }
    service.mulligan.assert_will_retry(job, after=1, code="FFMPEG_TIMEOUT")  # 003-24


def test_time_limit_during_the_downloads_names_the_picture_and_not_ffmpeg(service, set_config):
    set_config(job_timeout_ms=2_000)
    clips = [service.clip(), service.clip("hang-1.jpg"), service.clip("hang-2.jpg")]
    job = service.order(*clips)
    service.mulligan.drain()
    assert service.fetch(job)["error"] == {
        "code": "IMAGE_DOWNLOAD_FAILED",
        "message": "Failed to download image: timeout after 2000ms",
        "details": {"url": clips[1]["image"]},
    }
    service.mulligan.assert_will_retry(job, after=1)


def test_time_limit_during_the_upload_names_the_storage(service, set_config):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        set_config(job_timeout_ms=4_000, storage_endpoint=address)
        job = service.order()
        service.mulligan.drain()
    assert service.fetch(job)["error"] == {
        "code": "STORAGE_UPLOAD_FAILED",
        "message": "Failed to upload video: timeout after 4000ms",
    }
    service.mulligan.assert_will_retry(job, after=1)


def test_attempt_that_does_not_stop_at_its_limit_is_ended_without_blaming_ffmpeg(service):
    job = service.order()
    with service.mulligan.force(render, "timeout"):
        service.mulligan.drain()
    error = service.fetch(job)["error"]
    assert error == {"code": "JOB_TIMEOUT", "message": "Timeout after 300000ms"}
    service.mulligan.assert_will_retry(job, after=1)


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
    set_config(render_env="development")
    assert "jobs.py" in service.fetch(job_view["id"])["error"]["stack"]


@pytest.mark.seed("003-39")
def test_only_a_failed_order_can_be_retried(service):
    job_view = service.run_order(service.clip("missing.jpg"))
    assert service.client.post(f"/jobs/{job_view['id']}/retry").json()["state"] == "QUEUED"
    assert service.client.post(f"/jobs/{job_view['id']}/retry").status_code == 409
    assert service.client.post("/jobs/nothing/retry").json()["message"] == "Job not found"


@pytest.mark.seed("003-04", "003-22", "003-23")
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
    assert not Path(workdir).exists()  # 003-04, 003-23
    assert (
        not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    )  # 003-22


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
        assert app.jobs.wait(job, timeout=30).state == "dead"  # 003-48
        until(lambda: not Path(marker.read_text().strip()).exists())  # 003-33
