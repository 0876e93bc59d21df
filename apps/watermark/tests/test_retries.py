"""Which failures are retried, and when (acceptance 1)."""

from __future__ import annotations

import errno
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mulligan import testing
from mulligan.apps.watermark import data, jobs, marks, views
from mulligan.testing import Returns
from support.waiting import until

RETRYABLE = {
    "transient": ConnectionResetError("peer"),
    "resource": OSError(errno.ENOSPC, "No space left on device"),
    "timeout": "timeout",
    "unknown": RuntimeError("x"),
}


def retry_delays(job) -> list[float]:
    """Return the seconds from each failure to the time the next attempt may start."""
    retry_events = [
        event for event in jobs.app.jobs.history(job.id) if event.type == "job.retry_scheduled"
    ]
    return [(event.data["next_retry_at"] - event.at) / 1e6 for event in retry_events]


@pytest.mark.seed("000-21", "000-22", "000-49", "000-101", "000-32", "000-93")
@pytest.mark.any_store
@pytest.mark.parametrize("cls", RETRYABLE)
def test_retryable_failures_are_retried_after_1_5_and_15_minutes(world, cls):
    campaign = world.publish(world.campaign("ada"))
    with world.mulligan.force(jobs.watermark, RETRYABLE[cls], times=4):
        world.mulligan.drain(scheduled=True)
    job, token = world.job(campaign), world.token(campaign)
    assert retry_delays(job) == pytest.approx([60, 300, 900], abs=0.5)  # 000-21, 000-49, 000-101
    assert (job.attempts, token.status) == (4, "FAILED")  # 000-22
    assert (token.retry_count, token.max_retries) == (3, 3)  # 000-32, 000-93


KILLED = 'case "$*" in *yuv4mpegpipe\\ pipe:1*) kill -9 $$;; esac; exec "$FFMPEG" "$@"'


@pytest.mark.seed("000-01", "000-17", "000-18", "000-19", "000-25", "000-27", "000-30", "000-46")
def test_killed_ffmpeg_is_retried_and_its_token_becomes_active(world, tool):
    campaign = world.publish(world.campaign("ada"))
    before = world.token(campaign)
    assert before.retry_count == 0  # 000-17
    assert before.max_retries == 3  # 000-18
    assert before.next_retry_at is None  # 000-19
    tool(KILLED)
    world.mulligan.drain()
    waiting, job = world.token(campaign), world.job(campaign)
    assert (waiting.status, waiting.retry_count) == ("PENDING", 1)  # 000-01, 000-25
    assert waiting.next_retry_at.utcoffset() == timedelta(0)  # 000-19, 000-25
    assert (waiting.percent, waiting.started_at) == (0, None)  # 000-30
    assert waiting.error == "The video needed more memory than there was."  # 000-30
    assert job.error["code"] == "OUT_OF_MEMORY"  # 000-46
    assert world.state(campaign) == "PROCESSING"
    world.mulligan.advance(55)
    assert world.mulligan.drain().attempts == 0  # 000-27
    tool('exec "$FFMPEG" "$@"')
    world.mulligan.drain(scheduled=True)
    after = world.token(campaign)
    assert (after.status, after.retry_count) == ("ACTIVE", 1)  # 000-01
    assert after.next_retry_at is None  # 000-19
    assert world.state(campaign) == "READY"


@pytest.mark.any_store
@pytest.mark.seed("000-03", "000-32")
def test_ffmpeg_killed_for_memory_is_retried_after_1_5_and_15_minutes(world, tool):
    campaign = world.publish(world.campaign("ada"))
    tool(KILLED)
    world.mulligan.drain(scheduled=True)
    job, token = world.job(campaign), world.token(campaign)
    assert retry_delays(job) == pytest.approx([60, 300, 900], abs=0.5)  # 000-03
    assert (token.status, job.error["code"]) == ("FAILED", "OUT_OF_MEMORY")  # 000-03
    assert (token.retry_count, token.max_retries) == (3, 3)  # 000-32


def watch_percents(world, campaign, **options):
    """Run what is due. Return the percentages that the page showed meanwhile."""
    percents = []
    drain = threading.Thread(target=world.mulligan.drain, kwargs=options)
    drain.start()
    while drain.is_alive():
        token = world.token(campaign)
        if token.status == "PROCESSING" and token.percent:
            percents.append(token.percent)
        time.sleep(0.05)
    return percents


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-16", "000-24", "000-30")
def test_second_attempt_encodes_from_the_first_frame_on(world, tool, tmp_path):
    """The first attempt is killed in the middle of the film; the film is decoded in real time."""
    film, killed = tmp_path / "film.mp4", tmp_path / "killed"
    picture = ["-f", "lavfi", "-i", "testsrc2=duration=6:size=160x96:rate=10"]
    subprocess.run([marks.find_ffmpeg(), "-loglevel", "error", *picture, str(film)], check=True)
    campaign = world.publish(world.campaign("ada", asset=world.asset(film.read_bytes())))
    tool(f"""case "$*" in *yuv4mpegpipe\\ pipe:1*) ;; *) exec "$FFMPEG" "$@";; esac
[ -e {killed} ] && exec "$FFMPEG" -re "$@"
"$FFMPEG" -re "$@" & sleep 4; touch {killed}; kill -9 $!; kill -9 $$""")
    first = watch_percents(world, campaign)
    assert max(first) > 30  # 000-24: it was PROCESSING
    waiting = world.token(campaign)
    assert (waiting.status, waiting.percent, waiting.started_at) == ("PENDING", 0, None)  # 000-30
    assert waiting.error == "The video needed more memory than there was."  # 000-30
    second = watch_percents(world, campaign, scheduled=True)
    assert min(second) < 20  # 000-16
    assert second == sorted(second)
    copy = data.copy_of(world.token(campaign).id)
    assert sum(1 for _ in marks.Video(copy).frames()) == 60  # 000-16


@pytest.mark.seed("000-20")
def test_times_with_and_without_a_fraction_are_compared_as_times(world):
    """Compare times, not texts: as a text, 12:00:00Z is after 12:00:00.120Z."""
    second = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=100)
    later = second + timedelta(milliseconds=120)
    early, late = (
        jobs.watermark.options(delay=at).enqueue(token=str(at)) for at in (second, later)
    )
    stored = [data.format_time(at) for at in (later, second)]
    assert sorted(stored) == [data.format_time(at) for at in (second, later)]  # 000-20
    assert {len(text) for text in stored} == {24}  # 000-20
    with world.mulligan.force(jobs.watermark, Returns(), Returns()):
        world.mulligan.drain(scheduled=True)
    started = [world.mulligan.assert_state(job, "succeeded").started_at for job in (early, late)]
    assert started[0] < started[1]  # 000-20: each started when it was due
    assert [at >= due for at, due in zip(started, (second, later), strict=True)] == [True, True]


@pytest.mark.any_store
@pytest.mark.seed("000-06", "000-26", "000-31", "000-41", "000-42", "000-101")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("truncated", "moov atom not found"),  # 000-42
        ("garbage", "Invalid data found when processing input"),  # 000-41
    ],
)
def test_damaged_upload_fails_without_a_retry(world, clip, damage, reason):
    content = clip.read_bytes()[:3000] if damage == "truncated" else b"no video at all " * 100
    campaign = world.publish(world.campaign("ada", asset=world.asset(content)))
    world.mulligan.drain()
    token, job = world.token(campaign), world.job(campaign)
    assert (token.status, job.attempts, token.retry_count, token.next_retry_at) == (
        "FAILED",
        1,
        0,
        None,
    )  # 000-06, 000-26, 000-101
    assert reason in jobs.app.jobs.attempts(job.id)[0].private  # 000-41, 000-42: of ffmpeg itself
    assert (
        token.error == "The video file is damaged and cannot be processed. Please upload it again."
    )
    assert token.completed_at is not None  # 000-31
    assert world.state(campaign) == "FAILED"


@pytest.mark.any_store
@pytest.mark.seed("000-43")
def test_missing_source_fails_without_a_retry(world):
    asset = world.asset()
    campaign = world.publish(world.campaign("ada", asset=asset))
    Path(asset.path).unlink()
    world.mulligan.drain()
    job = world.job(campaign)
    assert (job.state, job.attempts, job.error["code"]) == ("dead", 1, "SOURCE_GONE")


@pytest.mark.any_store
@pytest.mark.seed("000-43")
def test_missing_output_folder_is_retried(world):
    campaign = world.publish(world.campaign("ada"))
    text = "/srv/a/b.mp4: No such file or directory\nError opening output file /srv/a/b.mp4."
    with world.mulligan.force(jobs.watermark, RuntimeError(text)):
        world.mulligan.drain()
    assert world.job(campaign).state == "queued"


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-04", "000-48")
def test_full_disk_is_retried(world, tool):
    campaign = world.publish(world.campaign("ada"))
    tool(
        'case "$*" in *copy.mp4) exec "$FFMPEG" "$@" -f mp4 -y /dev/full;; '
        '*) exec "$FFMPEG" "$@";; esac'
    )
    world.mulligan.drain()
    assert world.job(campaign).error["code"] == "DISK_WRITE"  # 000-48
    tool('exec "$FFMPEG" "$@"')
    world.mulligan.drain(scheduled=True)
    assert world.token(campaign).status == "ACTIVE"  # 000-04


@pytest.mark.any_store
@pytest.mark.seed("000-48")
def test_missing_permission_is_retried_on_the_same_schedule(world):
    campaign = world.run_campaign(
        PermissionError(errno.EACCES, "Permission denied", "/files/copies/a.part"), names=("ada",)
    )
    assert world.job(campaign).error["code"] == "DISK_WRITE"
    world.mulligan.assert_will_retry(world.job(campaign), after=60)


@pytest.mark.any_store
@pytest.mark.seed("000-05")
def test_missing_ffmpeg_is_retried(world, monkeypatch):
    campaign = world.publish(world.campaign("ada"))
    monkeypatch.setenv("WATERMARK_FFMPEG", "/opt/venv/bin/ffmpeg")
    world.mulligan.drain()
    assert world.job(campaign).error["code"] == "TOOL_MISSING"
    monkeypatch.delenv("WATERMARK_FFMPEG")
    world.mulligan.drain(scheduled=True)
    assert world.token(campaign).status == "ACTIVE"


@pytest.mark.any_store
@pytest.mark.seed("000-41", "000-42", "000-44", "000-45", "000-47", "000-48")
@pytest.mark.parametrize(
    ("ending", "retried", "code"),
    [
        (
            RuntimeError("clip.mp4: INVALID DATA FOUND WHEN PROCESSING INPUT"),  # 000-41, 000-45
            False,
            "CORRUPT_SOURCE",
        ),
        (RuntimeError("[mov,mp4] Moov Atom Not Found"), False, "CORRUPT_SOURCE"),  # 000-42
        (RuntimeError("unknown job type: frobnicate"), False, "UNKNOWN_JOB_TYPE"),  # 000-44
        (MemoryError(), True, "OUT_OF_MEMORY"),
        ("timeout", True, "ENCODE_TIMEOUT"),  # 000-47
        (OSError(errno.ENOSPC, "No space left on device"), True, "DISK_WRITE"),  # 000-48
    ],
)
def test_failures_get_the_codes_of_the_specification(world, ending, retried, code):
    campaign = world.run_campaign(ending, names=("ada",))
    job = world.job(campaign)
    assert ((job.state == "queued"), job.error["code"]) == (retried, code)


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.processes
@pytest.mark.seed("000-10", "000-23")
@pytest.mark.parametrize(("limit", "expected"), [(1, [60]), (5, [60, 300, 900, 900, 900])])
def test_retry_limit_is_one_setting_of_the_system(world, tool, limit, expected, monkeypatch):
    """A real worker reads the setting; the clock of the database is moved to each retry."""
    monkeypatch.setattr(views, "MAX_RETRIES", limit)  # the pages have the same setting
    campaign = world.publish(world.campaign("ada"))
    tool("kill -9 $$")
    environment = {"WATERMARK_MAX_RETRIES": str(limit)}
    with testing.worker(jobs.app, "mulligan.apps.watermark.jobs:app", env=environment):
        for number, seconds in enumerate(expected, 1):
            until(lambda: world.job(campaign).failures == number, 60, f"failure {number}")  # noqa: B023
            world.mulligan.advance(seconds + 1)
        until(lambda: world.token(campaign).failed, 60, "the last failure")
    token, job = world.token(campaign), world.job(campaign)
    assert job.attempts == limit + 1  # 000-10
    assert (token.retry_count, token.max_retries) == (limit, limit)  # 000-10
    assert retry_delays(job) == pytest.approx(expected, abs=1)  # 000-23


@pytest.mark.any_store
@pytest.mark.seed("000-15")
def test_retry_limit_of_one_job_survives_a_manual_retry(world):
    job = jobs.watermark.options(max_retries=1).enqueue(token="x")
    with world.mulligan.force(jobs.watermark, RuntimeError("x"), times=2):
        world.mulligan.drain(scheduled=True)
    assert world.mulligan.assert_state(job, "dead").attempts == 2
    assert jobs.app.jobs.retry(job.id).max_retries == 1


@pytest.mark.any_store
@pytest.mark.seed("000-24")
def test_existing_copy_is_not_made_again(world):
    campaign = world.publish(world.campaign("ada"))
    goal = data.copy_of(world.token(campaign).id)
    goal.parent.mkdir(parents=True)
    goal.write_bytes(b"made by an attempt whose worker died before it was settled")
    with world.mulligan.force(jobs.watermark, Returns()) as never:
        never.undo()
        world.mulligan.drain()
    assert world.token(campaign).status == "ACTIVE"
    assert jobs.app.jobs.history(world.job(campaign).id)[-1].data["skipped"]
