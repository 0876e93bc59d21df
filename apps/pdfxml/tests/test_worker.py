"""Real workers that are killed during conversions."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from mulligan.testing import worker
from pdfxml.tests.pdf_maker import make_pdf
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
]  # several processes, one after the other
APP = "pdfxml.jobs:app"
QUICK = {
    "MULLIGAN_WORKER__LEASE": "2",
    "MULLIGAN_WORKER__HEARTBEAT": "0.5",
    "MULLIGAN_WORKER__SWEEP": "0.5",
    "MULLIGAN_WORKER__RUNNERS": "1",
    "MULLIGAN_WORKER__SHUTDOWN_GRACE": "1",
}


def wait_for_end(ann, job):
    def find_ended():
        current = ann.job(job)
        return current if current.status in {"complete", "failed"} else None

    return until(find_ended, 30, "the end of a job")


@pytest.mark.any_store
@pytest.mark.seed("001-28", "001-32", "001-71", "001-75", "001-76", "001-77", "001-91")
def test_job_of_a_killed_worker_is_finished_by_another_with_one_result(world, ann):
    world.add_order("hang", times=1)
    job = ann.upload()
    with worker(world.app, APP, env=QUICK) as first:
        until(world.calls, 30, "the call of the gateway")
        assert ann.job(job).status == "processing"
        first.kill()
    with worker(world.app, APP, env=QUICK):
        done = wait_for_end(ann, job)
        assert (done.status, done.attempt_count, done.manual_retry_count) == ("complete", 2, 0)
        assert (len(world.calls()), len(world.xml())) == (2, 1)
        assert world.app.jobs.get(job).failures == 0
        event_names = [event["event"] for event in ann.events(job)]
        assert event_names == ["queued", "processing", "retry", "processing", "complete"]
        bad = ann.upload(mapping="poetry")
        assert wait_for_end(ann, bad).status == "failed"
        ann.retry(bad)
        metrics = until(lambda: read_metrics(ann), 30, "the numbers")
    assert 'job_processing_duration_seconds_bucket{kind="convert",le="+Inf"}' in metrics
    assert "\n# TYPE queue_depth gauge" in metrics
    assert "\n# TYPE jobs_active gauge" in metrics


def read_metrics(ann):
    """Return the metrics once they include the failure and the retry, else ''."""
    text = ann.client.get("/metrics").text
    expected = ('jobs_failed_total{error_code="GW_4XX"} ', "\nmanual_retry_total 1.0")
    return text if all(line in text for line in expected) else ""


@pytest.mark.slow
@pytest.mark.seed("001-31")
def test_call_longer_than_three_leases_is_one_attempt(world, ann):
    world.add_order("slow", times=1)
    job = ann.upload()
    with worker(world.app, APP, env=QUICK):
        done = wait_for_end(ann, job)
    assert (done.status, done.attempt_count, len(world.calls())) == ("complete", 1, 1)


@pytest.mark.slow
@pytest.mark.seed("001-32", "001-71", "001-91")
@pytest.mark.parametrize("results_before_kill", [1, 10])
def test_twenty_jobs_of_a_killed_worker_complete_once_with_one_result_each(
    world, ann, results_before_kill
):
    """Kill the worker while some jobs are sent, some converted, some stored and some settled."""
    for n in range(20):
        world.add_order(
            "slow",
            times=1,
            seconds=0.05 * n,
            document=hashlib.sha256(make_pdf(f"page {n}")).hexdigest(),
        )
    job_ids = [ann.upload(f"page {n}") for n in range(20)]
    with worker(
        world.app, APP, env={**QUICK, "MULLIGAN_WORKER__CONCURRENCY": "20"}
    ) as first_worker:
        until(lambda: len(world.xml()) >= results_before_kill, 60, "some results")
        first_worker.kill()
    with worker(world.app, APP, env=QUICK):
        assert {wait_for_end(ann, job).status for job in job_ids} == {"complete"}
    assert len(world.xml()) == 20
    assert {sum(event["event"] == "complete" for event in ann.events(job)) for job in job_ids} == {
        1
    }
    assert max(Counter(call["document"] for call in world.calls()).values()) <= 2
