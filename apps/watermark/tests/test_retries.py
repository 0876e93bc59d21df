"""Which failures are retried, and when (acceptance 1)."""

from __future__ import annotations

import errno
import runpy
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan.testing import Returns
from watermark import data, jobs, rules

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
    assert retry_delays(job) == pytest.approx([60, 300, 900], abs=0.5)
    assert (job.attempts, token.status) == (4, "FAILED")
    assert (token.retry_count, token.max_retries) == (3, 3)


@pytest.mark.seed(
    "000-01",
    "000-03",
    "000-16",
    "000-17",
    "000-18",
    "000-19",
    "000-25",
    "000-27",
    "000-30",
    "000-46",
)
def test_killed_ffmpeg_is_retried_and_its_token_becomes_active(world, tool, tmp_path):
    campaign = world.publish(world.campaign("ada"))
    before = world.token(campaign)
    assert (before.retry_count, before.max_retries, before.next_retry_at) == (0, 3, None)
    tool('[ "$2" = -hide_banner ] && [ "$3" = -i ] && exec "$FFMPEG" "$@"; kill -9 $$')
    world.mulligan.drain()
    waiting, job = world.token(campaign), world.job(campaign)
    assert (waiting.status, waiting.retry_count, waiting.percent) == ("PENDING", 1, 0)
    assert waiting.started_at is None
    assert waiting.error == "The video needed more memory than there was."
    assert waiting.next_retry_at.utcoffset() == timedelta(0)
    assert job.error["code"] == "OUT_OF_MEMORY"
    assert world.state(campaign) == "PROCESSING"
    world.mulligan.advance(20)
    assert world.mulligan.drain().attempts == 0
    tool('exec "$FFMPEG" "$@"')
    world.mulligan.drain(scheduled=True)
    after = world.token(campaign)
    assert (after.status, after.retry_count, after.next_retry_at) == ("ACTIVE", 1, None)
    assert world.state(campaign) == "READY"


@pytest.mark.any_store
@pytest.mark.seed("000-06", "000-26", "000-31", "000-41", "000-42", "000-101")
@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_damaged_upload_fails_without_a_retry(world, clip, damage):
    content = clip.read_bytes()[:3000] if damage == "truncated" else b"no video at all " * 100
    campaign = world.publish(world.campaign("ada", asset=world.asset(content)))
    world.mulligan.drain()
    token, job = world.token(campaign), world.job(campaign)
    assert (token.status, job.attempts, token.retry_count, token.next_retry_at) == (
        "FAILED",
        1,
        0,
        None,
    )
    assert (
        token.error == "The video file is damaged and cannot be processed. Please upload it again."
    )
    assert token.completed_at is not None
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
    assert world.job(campaign).error["code"] == "DISK_WRITE"
    tool('exec "$FFMPEG" "$@"')
    world.mulligan.drain(scheduled=True)
    assert world.token(campaign).status == "ACTIVE"


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
@pytest.mark.seed("000-41", "000-42", "000-44", "000-45", "000-46", "000-47", "000-48")
@pytest.mark.parametrize(
    ("ending", "retried", "code"),
    [
        (
            RuntimeError("clip.mp4: INVALID DATA FOUND WHEN PROCESSING INPUT"),
            False,
            "CORRUPT_SOURCE",
        ),
        (RuntimeError("[mov,mp4] Moov Atom Not Found"), False, "CORRUPT_SOURCE"),
        (RuntimeError("unknown job type: frobnicate"), False, "UNKNOWN_JOB_TYPE"),
        (MemoryError(), True, "OUT_OF_MEMORY"),
        ("timeout", True, "ENCODE_TIMEOUT"),
    ],
)
def test_failures_get_the_codes_of_the_specification(world, ending, retried, code):
    campaign = world.run_campaign(ending, names=("ada",))
    job = world.job(campaign)
    assert ((job.state == "queued"), job.error["code"]) == (retried, code)


@pytest.mark.any_store
@pytest.mark.seed("000-10", "000-23")
@pytest.mark.parametrize(("limit", "expected"), [(1, [60]), (5, [60, 300, 900, 900, 900])])
def test_retry_limit_is_one_setting_of_the_system(world, monkeypatch, limit, expected):
    monkeypatch.setenv("WATERMARK_MAX_RETRIES", str(limit))
    policy = runpy.run_path(rules.__file__)["RETRIES"]
    job = jobs.watermark.options(policy=policy).enqueue(token="x")
    with world.mulligan.force(jobs.watermark, RuntimeError("x"), times=limit + 1):
        world.mulligan.drain(scheduled=True)
    assert world.mulligan.assert_state(job, "dead").attempts == limit + 1
    assert retry_delays(job) == pytest.approx(expected, abs=0.5)


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
