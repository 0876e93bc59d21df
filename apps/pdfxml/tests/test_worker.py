"""Real workers that are killed during conversions."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from mulligan.testing import worker
from support.receivers import open_receiver
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
]  # several processes, one after the other
APP = "mulligan.apps.pdfxml.jobs:app"
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
@pytest.mark.seed("001-28", "001-32", "001-91")
def test_job_of_a_killed_worker_is_finished_by_another_with_one_result(world, ann):
    world.add_order("hang", times=1)
    job = ann.upload()
    with worker(world.app, APP, env=QUICK) as first:
        until(world.calls, 30, "the call of the gateway")
        assert ann.job(job).status == "processing"
        first.kill()
    with worker(world.app, APP, env=QUICK):
        done = wait_for_end(ann, job)
        assert (done.status, done.attempt_count) == ("complete", 2)  # 001-28, 001-32
        assert done.manual_retry_count == 0
        assert (len(world.calls()), len(world.xml())) == (2, 1)  # 001-91: one XML
        assert world.app.jobs.get(job).failures == 0  # 001-32: the crash is not charged
        event_names = [event["event"] for event in ann.events(job)]
        assert event_names == ["queued", "processing", "retry", "processing", "complete"]


@pytest.mark.any_store
@pytest.mark.seed("001-75", "001-76", "001-77")
def test_metrics_of_the_specification_have_values_also_while_the_queue_is_empty(world, ann):
    operator = world.operator()

    def wait_for(**wanted):
        """Return the metrics once they have these values."""
        return until(
            lambda: (found := read_metrics(operator)).items() >= wanted.items() and found,
            60,
            f"metrics with {wanted}",
            interval=0.3,
        )

    def wait_for_queue(depth, active):
        return wait_for(
            **{'queue_depth{queue="pdf"}': depth, 'jobs_active{queue="pdf"}': active}
        )  # 001-77

    with worker(world.app, APP, env=QUICK):
        idle = wait_for_queue(0, 0)  # 001-77: there is a series before the first job
        assert idle["manual_retry_total"] == 0
        world.add_order("slow", times=1, seconds=12)  # metrics are up to 5 s old
        ann.upload("slow")
        wait_for_queue(0, 1)
        bad = [ann.upload(f"bad {n}", mapping="poetry") for n in range(3)]
        assert {wait_for_end(ann, job).status for job in bad} == {"failed"}
        ann.retry(bad[0])
        name = 'jobs_failed_total{error_code="GW_4XX"}'
        found = wait_for(**{name: 4, "manual_retry_total": 1})  # 001-75, 001-77
        buckets = {
            float(key.partition('le="')[2].partition('"')[0]): value
            for key, value in found.items()
            if key.startswith('job_processing_duration_seconds_bucket{kind="convert"')
        }
        assert len([limit for limit in buckets if 0.1 < limit < 60]) >= 5  # 001-76: P95, P99
        count = wait_for(**{'job_processing_duration_seconds_count{kind="convert"}': 5})
        assert count['job_processing_duration_seconds_sum{kind="convert"}'] >= 5  # 001-76
        wait_for_queue(0, 0)
    ann.upload("no worker")
    wait_for_queue(1, 0)  # 001-77: depth without activity


def read_metrics(operator):
    """Return the value of every series."""
    lines = operator.get("/metrics").text.splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("001-78")
@pytest.mark.parametrize(
    ("code", "rules"),
    [("IO_ERROR", {"failures_fast", "failure_spike"}), ("GW_4XX", {"dead_letters"})],
)
def test_spike_of_failed_jobs_reaches_the_channel_of_the_operators(make_world, code, rules):
    with open_receiver() as receiver:
        world = make_world(ALERT_WEBHOOK=receiver.url(), RETRY_MAX_ATTEMPTS="1")
        ann, operator = world.visitor(), world.operator()
        mapping = "text" if code == "IO_ERROR" else "poetry"
        counted = 'job_processing_duration_seconds_count{kind="convert"}'
        with worker(world.app, APP, env=QUICK):
            assert wait_for_end(ann, ann.upload("good")).status == "complete"
            until(lambda: read_metrics(operator).get(counted) == 1, 60, "the first number")
            (world.folder / "results").rename(world.folder / "aside")
            (world.folder / "results").write_text("a file where the folder should be")
            jobs = [ann.upload(f"page {n}", mapping=mapping) for n in range(12)]
            assert {wait_for_end(ann, job).error_code for job in jobs} == {code}
            message = until(lambda: find_alert(receiver, rules), 120, "the alert")  # 001-78
    steps, _, anchor = message["runbook"].partition("#")
    assert steps == "http://127.0.0.1:8000/runbook"
    assert f'id="{anchor}"' in world.operator().get("/runbook").text


def find_alert(receiver, rules):
    """Return the data of the message about an alert of these rules, or None."""
    for body in receiver.bodies():
        if body["type"] == "alert.fired" and body["data"]["details"]["rule"] in rules:
            return body["data"]
    return None


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
        assert {wait_for_end(ann, job).status for job in job_ids} == {"complete"}  # 001-32
    assert len(world.xml()) == 20  # 001-91
    assert {sum(event["event"] == "complete" for event in ann.events(job)) for job in job_ids} == {
        1
    }
    assert max(Counter(call["document"] for call in world.calls()).values()) <= 2  # 001-71
