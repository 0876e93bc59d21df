"""Real workers, killed in the middle of it."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from mulligan.testing import worker
from pdfxml.tests.making import a_pdf
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


def ended(ann, job):
    return until(
        lambda: (found := ann.job(job)).status in {"complete", "failed"} and found, 30, "an end"
    )


@pytest.mark.any_store
@pytest.mark.seed("001-28", "001-32", "001-71", "001-75", "001-76", "001-77", "001-91")
def test_when_a_worker_dies_another_goes_on_and_there_is_one_xml(world, ann):
    world.tell("hang", times=1)
    job = ann.upload()
    with worker(world.app, APP, env=QUICK) as first:
        until(world.calls, 30, "the gateway is asked")
        assert ann.job(job).status == "processing"
        first.kill()
    with worker(world.app, APP, env=QUICK):
        done = ended(ann, job)
        assert (done.status, done.attempt_count, done.manual_retry_count) == ("complete", 2, 0)
        assert (len(world.calls()), len(world.xml())) == (2, 1)
        assert world.app.jobs.get(job).failures == 0
        told = [event["event"] for event in ann.events(job)]
        assert told == ["queued", "processing", "retry", "processing", "complete"]
        bad = ann.upload(mapping="poetry")
        assert ended(ann, bad).status == "failed"
        ann.retry(bad)
        numbers = until(lambda: counted(ann), 30, "the numbers")
    assert 'job_processing_duration_seconds_bucket{kind="convert",le="+Inf"}' in numbers
    assert "\n# TYPE queue_depth gauge" in numbers
    assert "\n# TYPE jobs_active gauge" in numbers


def counted(ann):
    """The numbers, once what has happened is among them."""
    text = ann.client.get("/metrics").text
    wanted = 'jobs_failed_total{error_code="GW_4XX"} ', "\nmanual_retry_total 1.0"
    return text if all(word in text for word in wanted) else ""


@pytest.mark.slow
@pytest.mark.seed("001-31")
def test_a_call_of_three_leases_is_one_attempt(world, ann):
    world.tell("slow", times=1)
    job = ann.upload()
    with worker(world.app, APP, env=QUICK):
        done = ended(ann, job)
    assert (done.status, done.attempt_count, len(world.calls())) == ("complete", 1, 1)


@pytest.mark.slow
@pytest.mark.seed("001-32", "001-71", "001-91")
@pytest.mark.parametrize("so_far", [1, 10])
def test_killed_in_twenty_places_at_once_every_file_ends_once_with_one_xml(world, ann, so_far):
    """Some are sent, some converted, some written, some written down."""
    for n in range(20):
        world.tell(
            "slow",
            times=1,
            seconds=0.05 * n,
            document=hashlib.sha256(a_pdf(f"page {n}")).hexdigest(),
        )
    found = [ann.upload(f"page {n}") for n in range(20)]
    with worker(world.app, APP, env={**QUICK, "MULLIGAN_WORKER__CONCURRENCY": "20"}) as killed:
        until(lambda: len(world.xml()) >= so_far, 60, "some results")
        killed.kill()
    with worker(world.app, APP, env=QUICK):
        assert {ended(ann, job).status for job in found} == {"complete"}
    assert len(world.xml()) == 20
    assert {sum(event["event"] == "complete" for event in ann.events(job)) for job in found} == {1}
    assert max(Counter(call["document"] for call in world.calls()).values()) <= 2
