"""Real workers that die (acceptance 2)."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from mulligan import testing
from support.waiting import until
from watermark import jobs

pytestmark = pytest.mark.processes

HALF_AN_HOUR_AND_A_MINUTE = 31 * 60


@contextmanager
def worker_with_running_encode(world, campaign: str, **env: str):
    """Start a worker and wait until it encodes a copy."""
    with testing.worker(jobs.app, "watermark.jobs:app", env=env) as worker:
        until(
            lambda: world.token(campaign).status == "PROCESSING", 30, f"an encode: {worker.output}"
        )
        yield worker


@pytest.mark.any_store
@pytest.mark.seed("000-07", "000-11", "000-17", "000-88", "000-102")
def test_job_of_a_killed_worker_is_pending_after_one_sweep_and_spends_no_retry(world, tool):
    campaign = world.publish(world.campaign("ada"))
    tool('case "$*" in *yuv4mpegpipe*) exec sleep 600;; *) exec "$FFMPEG" "$@";; esac')
    with worker_with_running_encode(world, campaign) as worker:
        worker.kill()
    assert world.token(campaign).status == "PROCESSING"
    world.mulligan.advance(HALF_AN_HOUR_AND_A_MINUTE, leases=True)
    token, job = world.token(campaign), world.job(campaign)
    assert (token.status, token.percent, token.retry_count, token.next_retry_at) == (
        "PENDING",
        0,
        0,
        None,
    )
    assert (job.failures, job.losses) == (0, 1)
    tool('exec "$FFMPEG" "$@"')
    world.mulligan.drain()
    assert world.token(campaign).status == "ACTIVE"


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-86", "000-87", "000-102")
def test_encode_of_31_minutes_keeps_running_while_its_worker_is_alive(world, tool):
    assert jobs.HALF_AN_HOUR == 1800
    campaign = world.publish(world.campaign("ada"))
    tool('case "$*" in *yuv4mpegpipe*) exec sleep 600;; *) exec "$FFMPEG" "$@";; esac')
    with worker_with_running_encode(world, campaign, MULLIGAN_WORKER__SHUTDOWN_GRACE="0") as worker:
        world.mulligan.advance(HALF_AN_HOUR_AND_A_MINUTE)
        other_campaign = world.publish(world.campaign("bo"))
        until(
            lambda: world.token(other_campaign, "bo").status == "PROCESSING",
            30,
            f"another one: {worker.output}",
        )
        job = world.job(campaign)
        assert (job.state, job.attempts, job.losses) == ("running", 1, 0)


@pytest.mark.any_store
@pytest.mark.seed("000-89")
def test_copy_that_kills_its_worker_ends_as_failed(world):
    campaign = world.run_campaign("lost", "lost", "lost", names=("ada",))
    job, token = world.job(campaign), world.token(campaign)
    assert (job.state, job.attempts, job.error["code"]) == ("dead", 3, "WORKER_LOST")
    assert (token.status, token.retry_count) == ("FAILED", 0)
