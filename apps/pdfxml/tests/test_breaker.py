"""The breaker: jobs wait for the gateway, or fail at once, as it is set."""

from __future__ import annotations

import hashlib

import pytest

from pdfxml.tests.making import a_pdf
from stage import ServiceProcess

pytestmark = pytest.mark.processes

BUSY = "Gateway busy, paused. Will retry automatically."


def back(world):
    """The gateway is there again, where it was."""
    world.gateway = ServiceProcess("pdfxml.gateway", "--port", str(world.gateway.port))
    world.held["gateway"] = world.gateway


@pytest.mark.seed("001-33", "001-34", "001-36", "001-37", "001-38", "001-40", "001-86")
def test_while_the_gateway_is_down_jobs_stay_queued_and_all_complete_when_it_is_back(world, ann):
    world.gateway.close()
    found = [ann.upload(f"page {n}") for n in range(8)]
    world.run()
    assert world.app.dependencies.get("gateway").state == "open"
    assert {ann.job(job).status for job in found} == {"queued"}
    assert {ann.job(job).notice for job in found} == {BUSY}
    assert ann.page().count(BUSY) == 9
    attempts = sum(ann.job(job).attempt_count for job in found)
    assert attempts < 8  # the rest was not sent
    back(world)
    world.run(all_of_it=True)
    assert {ann.job(job).status for job in found} == {"complete"}
    assert len(world.xml()) == 8
    assert BUSY not in ann.page()


@pytest.mark.seed("001-33", "001-39", "001-86")
def test_failing_fast_ends_what_was_never_sent_with_the_breaker_as_its_reason(make_world):
    world = make_world(BREAKER_MODE="fail_fast", RETRY_MAX_ATTEMPTS="1")
    ann = world.visitor()
    world.tell(503)
    found = [ann.upload(f"page {n}") for n in range(10)]
    world.run()
    jobs = [ann.job(job) for job in found]
    assert {(job.status, job.error_code) for job in jobs} == {("failed", "GW_5XX")}
    assert {job.error_message for job in jobs} == {"Converter service is having an issue."}
    by_breaker = [job for job in jobs if job.error_reason == "breaker"]
    assert len(world.calls()) < 10 <= len(by_breaker) + len(world.calls())
    assert world.app.dependencies.get("gateway").failed <= len(world.calls())
    answer = ann.retry(by_breaker[0].id)
    assert (answer.status_code, answer.json()["error_code"], answer.json()["retryable"]) == (
        503,
        "GW_5XX",
        True,
    )
    world.forget()
    world.app.dependencies.close("gateway", reason="it is back")
    assert ann.retry(by_breaker[0].id).json()["status"] == "queued"
    world.run(all_of_it=True)
    assert ann.job(by_breaker[0].id).status == "complete"


@pytest.mark.any_store
@pytest.mark.seed("001-35", "001-41")
def test_one_failure_or_any_number_of_bad_files_leaves_it_closed(world, ann):
    world.tell(503, times=1)
    ann.upload("once")
    world.run()
    assert world.app.dependencies.get("gateway").state == "closed"
    world.tell(400)
    for n in range(12):
        ann.upload(f"bad {n}")
    world.run()
    assert world.app.dependencies.get("gateway").state == "closed"


@pytest.mark.any_store
@pytest.mark.seed("001-87")
def test_two_files_that_alone_make_it_hang_end_for_good(make_world):
    world = make_world(GATEWAY_TIMEOUT="0.1")
    ann = world.visitor()
    for name in ("one", "two"):
        world.tell("hang", document=hashlib.sha256(a_pdf(name)).hexdigest())
    found = [ann.upload("one"), ann.upload("two")]
    world.run(all_of_it=True)
    for job in map(ann.job, found):
        assert (job.status, job.error_code) == ("failed", "GW_TIMEOUT")
        assert job.attempt_count <= 6
