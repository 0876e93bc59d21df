"""Real workers that die (acceptance 2)."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager

import psutil
import pytest

from mulligan import testing
from mulligan.apps.watermark import data, jobs, marks
from support.waiting import until

pytestmark = pytest.mark.processes

HALF_AN_HOUR_AND_A_MINUTE = 31 * 60


@contextmanager
def worker_with_running_encode(world, **env: str):
    """Start a worker and wait until ffmpeg, which the fixture `tool` replaced, encodes a copy.

    A copy is PROCESSING from its claim on. A worker that is killed before the handler starts
    gives the job back uncharged.
    """
    encodes = world.folder / "encodes"
    with testing.worker(jobs.app, "mulligan.apps.watermark.jobs:app", env=env) as worker:
        until(encodes.exists, 50, f"an encode: {worker.output}")
        yield worker


@pytest.mark.any_store
@pytest.mark.seed("000-07", "000-11", "000-17", "000-88", "000-102")
def test_job_of_a_killed_worker_is_pending_after_one_sweep_and_spends_no_retry(world, tool):
    campaign = world.publish(world.campaign("ada"))
    tool('case "$*" in *yuv4mpegpipe*) exec sleep 600;; *) exec "$FFMPEG" "$@";; esac')
    with worker_with_running_encode(world) as worker:
        worker.kill()
    assert world.token(campaign).status == "PROCESSING"
    world.mulligan.advance(HALF_AN_HOUR_AND_A_MINUTE, leases=True)
    token, job = world.token(campaign), world.job(campaign)
    assert (token.status, token.percent, token.retry_count, token.next_retry_at) == (
        "PENDING",
        0,
        0,
        None,
    )  # 000-11, 000-17, 000-88, 000-102
    assert (job.failures, job.losses) == (0, 1)  # 000-88
    tool('exec "$FFMPEG" "$@"')
    world.mulligan.drain()
    assert world.token(campaign).status == "ACTIVE"  # 000-07


@pytest.fixture
def film(tmp_path) -> bytes:
    """Make a film of eight seconds."""
    file = tmp_path / "film.mp4"
    picture = ["-f", "lavfi", "-i", "testsrc2=duration=8:size=160x96:rate=10"]
    subprocess.run([marks.find_ffmpeg(), "-loglevel", "error", *picture, str(file)], check=True)
    return file.read_bytes()


# Real time: one second of film is decoded per second, as on a slow machine.
SLOW = 'case "$*" in *yuv4mpegpipe\\ pipe:1*) exec "$FFMPEG" -re "$@";; esac; exec "$FFMPEG" "$@"'
# The decoder stops in the middle of the film, as if its disk had gone away.
STUCK = """case "$*" in
*yuv4mpegpipe\\ pipe:1*) "$FFMPEG" -re "$@" & sleep 3; kill -STOP $!; wait;;
*) exec "$FFMPEG" "$@";;
esac"""


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-86", "000-87", "000-102")
def test_encode_that_makes_progress_outlives_the_stall_limit(world, film, tool):
    """The limit of half an hour is three seconds here; the encode takes eight."""
    assert jobs.STALL_SECONDS == 30 * 60  # 000-87
    campaign = world.publish(world.campaign("ada", asset=world.asset(film)))
    tool(SLOW)
    with worker_with_running_encode(world, WATERMARK_STALL="3"):
        started = world.job(campaign).started_at
        until(lambda: world.token(campaign).status != "PROCESSING", 60, "the end of the encode")
    job = world.job(campaign)
    assert (job.finished_at - started).total_seconds() > 6  # 000-86, 000-102
    assert (job.attempts, job.failures, job.losses) == (1, 0, 0)  # 000-86, 000-102
    assert world.token(campaign).status == "ACTIVE"  # 000-87
    assert world.state(campaign) == "READY"


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-47", "000-86")
def test_encode_without_progress_is_ended_at_the_stall_limit_and_retried(world, film, tool):
    campaign = world.publish(world.campaign("ada", asset=world.asset(film)))
    tool(STUCK)
    with worker_with_running_encode(world, WATERMARK_STALL="3") as worker:
        until(lambda: world.job(campaign).failures == 1, 60, f"the end: {worker.output}")
        left = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(data.files()) in " ".join(process.info["cmdline"] or [])
        ]
    job, token = world.job(campaign), world.token(campaign)
    assert job.error["code"] == "ENCODE_TIMEOUT"  # 000-47
    assert (token.status, token.retry_count) == ("PENDING", 1)  # 000-47, 000-86
    assert left == []


@pytest.mark.any_store
@pytest.mark.seed("000-47")
def test_time_limit_of_an_attempt_is_a_setting(world, film, tool):
    campaign = world.publish(world.campaign("ada", asset=world.asset(film)))
    tool(SLOW)
    with worker_with_running_encode(world, WATERMARK_TIME_LIMIT="1"):
        until(lambda: world.job(campaign).failures == 1, 60, "the end of the attempt")
    assert world.job(campaign).error["code"] == "ENCODE_TIMEOUT"  # 000-47
    assert world.token(campaign).status == "PENDING"  # 000-47


@pytest.mark.any_store
@pytest.mark.seed("000-89")
def test_copy_that_kills_its_worker_ends_as_failed(world):
    campaign = world.run_campaign("lost", "lost", "lost", names=("ada",))
    job, token = world.job(campaign), world.token(campaign)
    assert (job.state, job.attempts, job.error["code"]) == ("dead", 3, "WORKER_LOST")
    assert (token.status, token.retry_count) == ("FAILED", 0)
