"""Answers of the gateway and of the disk, and the resulting jobs."""

from __future__ import annotations

import errno
import hashlib
import os
from datetime import timedelta

import pytest

from pdfxml.tests.pdf_maker import make_pdf

CODES = (
    "NOT_PDF",
    "TOO_LARGE",
    "GW_4XX",
    "GW_5XX",
    "GW_TIMEOUT",
    "IO_ERROR",
    "NOT_READY",
    "EXPIRED",
    "FORBIDDEN",
    "UNKNOWN",
)
REFUSED = "Couldn’t convert this file with the selected mapping."
ISSUE = "Converter service is having an issue."


def failing_fsync(times, number):
    """Return an fsync that fails so many times."""
    left = [times]

    def fsync(_):
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), "/srv/secret/files")

    return fsync


@pytest.mark.any_store
@pytest.mark.seed("001-01", "001-02")
def test_each_of_the_ten_codes_has_a_message_without_a_promise(world):
    assert set(world.rules.MESSAGES) == set(CODES)
    assert all(line.endswith(".") and "retry" not in line for line in world.rules.MESSAGES.values())
    assert world.rules.public_code("WORKER_LOST") == "UNKNOWN"


@pytest.mark.seed("001-13", "001-25", "001-52", "001-85")
def test_400_406_413_and_415_are_not_retried(world, ann):
    job_ids = {}
    for status in (400, 406, 413, 415):
        world.add_order(status, times=1, say="see /var/log/gateway.log")
        job_ids[status] = ann.upload(f"status {status}")
        world.run(until_done=True)
    for job in map(ann.job, job_ids.values()):
        assert (job.status, job.error_code, job.error_message) == ("failed", "GW_4XX", REFUSED)
        assert (job.attempt_count, job.next_attempt_at) == (1, None)
    assert len(world.calls()) == 4


@pytest.mark.any_store
@pytest.mark.seed("001-53", "001-85")
def test_safe_text_of_the_gateway_is_added_to_the_message(world, ann):
    job = ann.upload(mapping="poetry")
    world.run()
    assert ann.job(job).error_message == f"{REFUSED} Unsupported mapping."
    assert world.jobs.extract_safe_sentence("No /etc/passwd today.") == ""
    assert world.jobs.extract_safe_sentence("Ask bob@example.com.") == ""
    assert world.jobs.extract_safe_sentence("Traceback (most recent call last):\n  File") == ""


@pytest.mark.any_store
@pytest.mark.seed("001-14", "001-54", "001-66", "001-68")
@pytest.mark.parametrize("fault", [500, 502, "reset", "cut", "lose"])
def test_5xx_and_broken_connections_are_retried(world, ann, fault):
    world.add_order(fault, times=1)
    job = ann.upload()
    world.run()
    waiting = ann.job(job)
    assert (waiting.status, waiting.notice) == ("queued", f"{ISSUE} We’ll retry shortly.")
    assert (waiting.error_code, waiting.error_message, waiting.failed_at) == (None, None, None)
    assert waiting.next_attempt_at is not None
    [attempt] = world.app.jobs.attempts(job)
    assert attempt.code == "GW_5XX"
    world.run(until_done=True)
    assert (ann.job(job).status, ann.job(job).attempt_count) == ("complete", 2)
    assert len(world.xml()) == 1


@pytest.mark.any_store
@pytest.mark.seed("001-14")
def test_unreachable_gateway_is_retried(world, ann):
    world.gateway.close()
    job = ann.upload()
    world.run()
    assert ann.job(job).notice == f"{ISSUE} We’ll retry shortly."


@pytest.mark.seed(
    "001-15", "001-26", "001-27", "001-28", "001-29", "001-30", "001-55", "001-60", "001-87"
)
def test_timeouts_are_retried_up_to_the_limit_and_then_fail_without_a_promise(make_world):
    world = make_world(GATEWAY_TIMEOUT="0.1", RETRY_MAX_ATTEMPTS="4")
    world.add_order("hang")
    ann = world.visitor()
    job = ann.upload()
    delays = []
    world.run()
    while (waiting := ann.job(job)).status == "queued":
        assert waiting.notice == "Conversion is taking too long. We’ll retry."
        delays.append(world.next_delay())
        world.advance(delays[-1] + 0.01)
        world.run()
    assert all(
        0.8 * nominal - 0.5 <= delay <= 1.2 * nominal
        for delay, nominal in zip(delays, (5, 15, 45), strict=True)
    )
    failed = ann.job(job)
    assert (failed.status, failed.error_code, failed.attempt_count) == ("failed", "GW_TIMEOUT", 4)
    assert failed.error_message == "Conversion is taking too long."
    assert failed.failed_at > failed.last_attempt_at >= failed.started_at
    assert len(world.calls()) == 4


@pytest.mark.any_store
@pytest.mark.seed("001-27")
@pytest.mark.parametrize(("setting", "calls"), [({}, 3), ({"RETRY_MAX_ATTEMPTS": "1"}, 1)])
def test_setting_counts_attempts(make_world, setting, calls):
    world = make_world(**setting)
    ann = world.visitor()
    world.add_order(500, document=hashlib.sha256(make_pdf()).hexdigest())
    job = ann.upload()
    world.run(until_done=True)
    assert (ann.job(job).status, ann.job(job).error_message) == ("failed", ISSUE)
    assert len(world.calls()) == calls


@pytest.mark.any_store
@pytest.mark.parametrize("setting", ["0", "many", "-1", "nan"])
def test_invalid_setting_is_refused_with_its_name(make_world, setting):
    with pytest.raises(ValueError, match="RETRY_MAX_ATTEMPTS"):
        make_world(RETRY_MAX_ATTEMPTS=setting)


@pytest.mark.any_store
@pytest.mark.seed("001-16")
def test_other_4xx_answers_have_a_code(world, ann):
    job_ids = {}
    for status in (401, 403, 404, 408, 422):
        world.add_order(status, times=1)
        job_ids[status] = ann.upload(f"status {status}")
    world.run()
    jobs = {status: ann.job(job) for status, job in job_ids.items()}
    codes = {status: (job.status, job.error_code) for status, job in jobs.items() if status != 408}
    assert codes == dict.fromkeys((401, 403, 404, 422), ("failed", "GW_4XX"))
    assert (jobs[404].error_message, jobs[422].error_message) == (REFUSED, REFUSED)
    assert (
        jobs[401].error_message
        == "Converter service rejected our credentials. An operator must check them."
    )
    assert jobs[408].notice == "Conversion is taking too long. We’ll retry."


@pytest.mark.any_store
@pytest.mark.seed("001-16")
def test_retry_after_of_the_gateway_is_respected(world, ann):
    world.add_order(429, times=1, retry_after=300)
    first, second = ann.upload("first"), ann.upload("second")
    world.run()
    assert len(world.calls()) == 1  # the second was not sent
    assert world.app.jobs.get(first).run_at - world.now() > timedelta(minutes=4)
    assert ann.job(second).notice == world.rules.BUSY
    world.run(until_done=True)
    assert [ann.job(job).status for job in (first, second)] == ["complete", "complete"]


@pytest.mark.any_store
@pytest.mark.seed("001-03")
def test_answer_200_without_xml_is_unknown_and_retried(world, ann):
    world.add_order("garbage")
    job = ann.upload()
    world.run(until_done=True)
    failed = ann.job(job)
    assert (failed.status, failed.error_code, failed.attempt_count) == ("failed", "UNKNOWN", 3)
    assert failed.error_message == "Something went wrong while converting this file."


@pytest.mark.seed("001-17", "001-25", "001-56", "001-88")
@pytest.mark.parametrize(("times", "status"), [(1, "complete"), (9, "failed")])
def test_failed_write_of_a_result_is_retried_once(world, ann, monkeypatch, times, status):
    job = ann.upload()
    monkeypatch.setattr(os, "fsync", failing_fsync(times, errno.EIO))
    world.run()
    assert ann.job(job).notice == "Temporary storage issue. We’ll retry."
    world.run(until_done=True)
    ended = ann.job(job)
    assert (ended.status, ended.attempt_count) == (status, 2)
    assert ended.error_code == ("IO_ERROR" if status == "failed" else None)
    assert ended.error_message == ("Temporary storage issue." if status == "failed" else None)
    assert len(world.xml()) == (status == "complete")
    assert world.app.dependencies.get("gateway").failed == 0  # the gateway did not fail


@pytest.mark.any_store
@pytest.mark.seed("001-18")
def test_full_disk_is_not_retried_automatically(world, ann, monkeypatch):
    job = ann.upload()
    monkeypatch.setattr(os, "fsync", failing_fsync(9, errno.ENOSPC))
    world.run(until_done=True)
    assert (ann.job(job).error_code, ann.job(job).attempt_count) == ("IO_ERROR", 1)


@pytest.mark.any_store
@pytest.mark.seed("001-61", "001-62")
def test_technical_reason_is_logged_and_hidden_from_owners(world, ann, caplog):
    world.add_order("garbage")
    job = ann.upload()
    world.run(until_done=True)
    assert "bytes with status 200" in caplog.text
    public_text = (
        ann.page()
        + ann.client.get(f"/api/jobs/{job}").text
        + str(ann.events(job))
        + ann.retry("nobody").text
    )
    for secret in (
        "no XML",
        "status 200",
        "Traceback",
        "jobs.py",
        str(world.folder),
        "site-packages",
    ):
        assert secret not in public_text


@pytest.mark.seed("001-71", "001-72")
def test_existing_result_is_not_made_again(world, ann):
    job = ann.upload()
    world.jobs.storage.write(f"results/{job}.xml", __import__("io").BytesIO(b"<document/>"))
    world.run()
    assert (ann.job(job).status, ann.download(job).text) == ("complete", "<document/>")
    assert world.calls() == []


@pytest.mark.any_store
def test_both_mappings_convert(world, ann):
    text = ann.upload("Größe & <b>", mapping="text")
    layout = ann.upload("Größe & <b>", mapping="layout")
    world.run()
    assert "<line>Größe &amp; &lt;b&gt;</line>" in ann.download(text).text
    assert "<textbox" in ann.download(layout).text or "<text " in ann.download(layout).text


@pytest.mark.any_store
@pytest.mark.seed("001-91")
def test_partial_result_of_a_killed_worker_is_ignored_and_removed(world, ann):
    job = ann.upload()
    (world.folder / "results").mkdir()
    (world.folder / "results" / f"{job}.0815.draft").write_text("<docu")
    world.run()
    assert [file.name for file in world.xml()] == [f"{job}.xml"]
    assert ann.download(job).text.endswith("</document>")
