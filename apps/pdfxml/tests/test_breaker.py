"""The breaker: jobs wait for the gateway or fail at once, depending on the setting."""

from __future__ import annotations

import hashlib

import pytest

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from mulligan.apps.stage import ServiceProcess

pytestmark = pytest.mark.processes

BUSY = "Gateway busy, paused. Will retry automatically."


def restart_gateway(world):
    """Start the gateway again on its port."""
    world.gateway = ServiceProcess(
        "mulligan.apps.pdfxml.demo.gateway", "--port", str(world.gateway.port)
    )
    world.services["gateway"] = world.gateway


@pytest.mark.any_store
@pytest.mark.seed("001-33", "001-34", "001-36", "001-37", "001-38", "001-40", "001-86")
def test_jobs_stay_queued_while_the_gateway_is_down_and_complete_afterwards(world, ann):
    world.gateway.close()
    job_ids = [ann.upload(f"page {n}") for n in range(8)]
    world.run()
    assert world.app.dependencies.get("gateway").state == "open"  # 001-34
    assert {ann.job(job).status for job in job_ids} == {"queued"}  # 001-33, 001-36
    assert {ann.job(job).notice for job in job_ids} == {BUSY}  # 001-37
    assert {ann.job(job).next_attempt_at for job in job_ids} == {None}  # held: no time is known
    assert ann.page().count(BUSY) == 9
    attempts = sum(ann.job(job).attempt_count for job in job_ids)
    assert attempts < 8  # 001-36: the others were not sent
    job_ids += [ann.upload(f"late {n}") for n in range(4)]
    world.run()
    assert {ann.job(job).status for job in job_ids} == {"queued"}  # 001-36
    assert {ann.job(job).attempt_count for job in job_ids[8:]} == {0}  # 001-36: nothing is sent
    assert sum(ann.job(job).attempt_count for job in job_ids) == attempts  # 001-36
    restart_gateway(world)
    world.run(until_done=True)
    assert {ann.job(job).status for job in job_ids} == {"complete"}  # 001-38, 001-40, 001-86
    assert len(world.xml()) == 12
    assert BUSY not in ann.page()


@pytest.mark.seed("001-33", "001-39", "001-86")
def test_fail_fast_mode_fails_unsent_jobs_with_reason_breaker(make_world):
    world = make_world(BREAKER_MODE="fail_fast", RETRY_MAX_ATTEMPTS="1")
    ann = world.visitor()
    world.add_order(503)
    job_ids = [ann.upload(f"page {n}") for n in range(10)]
    world.run()
    jobs = [ann.job(job) for job in job_ids]
    assert {(job.status, job.error_code) for job in jobs} == {
        ("failed", "GW_5XX")
    }  # 001-33, 001-39
    assert {job.error_message for job in jobs} == {"Converter service is having an issue."}
    by_breaker = [job for job in jobs if job.error_reason == "breaker"]
    assert len(world.calls()) < 10 <= len(by_breaker) + len(world.calls())  # 001-39
    assert world.app.dependencies.get("gateway").failed <= len(world.calls())
    answer = ann.retry(by_breaker[0].id)
    assert (answer.status_code, answer.json()["error_code"], answer.json()["retryable"]) == (
        503,
        "GW_5XX",
        True,
    )
    world.clear_orders()
    world.app.dependencies.close("gateway", reason="works again")
    assert ann.retry(by_breaker[0].id).json()["status"] == "queued"
    world.run(until_done=True)
    assert ann.job(by_breaker[0].id).status == "complete"  # 001-86


@pytest.mark.any_store
@pytest.mark.seed("001-34")
@pytest.mark.parametrize(
    ("failed", "minutes", "state"),
    [
        (10, 0, "open"),  # half of 20 calls
        (9, 0, "closed"),
        (10, 2, "open"),  # the first half of the calls was made two minutes before the second
        (10, 5, "closed"),  # five minutes: too long ago, and the rest is too few calls to judge
    ],
)
def test_half_of_the_calls_within_some_minutes_open_the_breaker(make_world, failed, minutes, state):
    world = make_world(RETRY_MAX_ATTEMPTS="1")
    ann = world.visitor()
    for n in range(21 - 2 * failed, 20, 2):  # every second call fails, the last one too
        document = hashlib.sha256(make_pdf(f"page {n}")).hexdigest()
        world.add_order(503, document=document)
    for n in range(20):
        ann.upload(f"page {n}")
        if n in (9, 19):
            world.run()
            world.advance(60 * minutes if n == 9 else 0)
    assert len(world.calls()) == 20
    assert world.app.dependencies.get("gateway").state == state


@pytest.mark.any_store
@pytest.mark.seed("001-35", "001-41")
def test_one_failure_or_many_bad_files_leave_the_breaker_closed(world, ann):
    world.add_order(503, times=1)
    ann.upload("once")
    world.run()
    assert world.app.dependencies.get("gateway").state == "closed"  # 001-35
    world.add_order(400)
    for n in range(12):
        ann.upload(f"bad {n}")
    world.run()
    assert world.app.dependencies.get("gateway").state == "closed"  # 001-41


@pytest.mark.any_store
@pytest.mark.seed("001-87")
def test_files_that_make_the_gateway_hang_fail_permanently(make_world):
    world = make_world(GATEWAY_TIMEOUT="0.1")
    ann = world.visitor()
    for name in ("one", "two"):
        world.add_order("hang", document=hashlib.sha256(make_pdf(name)).hexdigest())
    job_ids = [ann.upload("one"), ann.upload("two")]
    world.run(until_done=True)
    for job in map(ann.job, job_ids):
        assert (job.status, job.error_code) == ("failed", "GW_TIMEOUT")
        assert job.attempt_count <= 6
