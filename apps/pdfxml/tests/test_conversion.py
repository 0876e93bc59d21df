"""What the gateway and the disk may answer, and what becomes of the job."""

from __future__ import annotations

import errno
import hashlib
import os
from datetime import timedelta

import pytest

from pdfxml.tests.making import a_pdf

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


def disk(times, number):
    """So many writes fail."""
    left = [times]

    def fsync(_):
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), "/srv/secret/files")

    return fsync


@pytest.mark.any_store
@pytest.mark.seed("001-01", "001-02")
def test_there_are_ten_codes_and_each_has_a_sentence_that_promises_nothing(world):
    assert set(world.rules.LINES) == set(CODES)
    assert all(line.endswith(".") and "retry" not in line for line in world.rules.LINES.values())
    assert world.rules.known("WORKER_LOST") == "UNKNOWN"


@pytest.mark.seed("001-13", "001-25", "001-52", "001-85")
def test_400_406_413_and_415_are_final(world, ann):
    found = {}
    for status in (400, 406, 413, 415):
        world.tell(status, times=1, say="see /var/log/gateway.log")
        found[status] = ann.upload(f"status {status}")
        world.run(all_of_it=True)
    for job in map(ann.job, found.values()):
        assert (job.status, job.error_code, job.error_message) == ("failed", "GW_4XX", REFUSED)
        assert (job.attempt_count, job.next_attempt_at) == (1, None)
    assert len(world.calls()) == 4


@pytest.mark.any_store
@pytest.mark.seed("001-53", "001-85")
def test_the_gateways_own_words_follow_where_they_are_safe(world, ann):
    job = ann.upload(mapping="poetry")
    world.run()
    assert ann.job(job).error_message == f"{REFUSED} Unsupported mapping."
    assert world.jobs.safe_words("No /etc/passwd today.") == ""
    assert world.jobs.safe_words("Ask bob@example.com.") == ""
    assert world.jobs.safe_words("Traceback (most recent call last):\n  File") == ""


@pytest.mark.any_store
@pytest.mark.seed("001-14", "001-54", "001-66", "001-68")
@pytest.mark.parametrize("fault", [500, 502, "reset", "cut", "lose"])
def test_5xx_and_a_broken_line_are_tried_again(world, ann, fault):
    world.tell(fault, times=1)
    job = ann.upload()
    world.run()
    waiting = ann.job(job)
    assert (waiting.status, waiting.notice) == ("queued", f"{ISSUE} We’ll retry shortly.")
    assert (waiting.error_code, waiting.error_message, waiting.failed_at) == (None, None, None)
    assert waiting.next_attempt_at is not None
    [attempt] = world.app.jobs.attempts(job)
    assert attempt.code == "GW_5XX"
    world.run(all_of_it=True)
    assert (ann.job(job).status, ann.job(job).attempt_count) == ("complete", 2)
    assert len(world.xml()) == 1


@pytest.mark.any_store
@pytest.mark.seed("001-14")
def test_a_gateway_that_is_not_there_is_tried_again(world, ann):
    world.gateway.close()
    job = ann.upload()
    world.run()
    assert ann.job(job).notice == f"{ISSUE} We’ll retry shortly."


@pytest.mark.seed(
    "001-15", "001-26", "001-27", "001-28", "001-29", "001-30", "001-55", "001-60", "001-87"
)
def test_timeouts_are_tried_up_to_the_limit_and_then_the_line_promises_nothing(make_world):
    world = make_world(GATEWAY_TIMEOUT="0.1", RETRY_MAX_ATTEMPTS="4")
    world.tell("hang")
    ann = world.visitor()
    job, waits = ann.upload(), []
    world.run()
    while (waiting := ann.job(job)).status == "queued":
        assert waiting.notice == "Conversion is taking too long. We’ll retry."
        waits.append(world.soonest())
        world.later(waits[-1] + 0.01)
        world.run()
    assert all(
        0.8 * much - 0.5 <= wait <= 1.2 * much
        for wait, much in zip(waits, (5, 15, 45), strict=True)
    )
    failed = ann.job(job)
    assert (failed.status, failed.error_code, failed.attempt_count) == ("failed", "GW_TIMEOUT", 4)
    assert failed.error_message == "Conversion is taking too long."
    assert failed.failed_at > failed.last_attempt_at >= failed.started_at
    assert len(world.calls()) == 4


@pytest.mark.any_store
@pytest.mark.seed("001-27")
@pytest.mark.parametrize(("said", "calls"), [({}, 3), ({"RETRY_MAX_ATTEMPTS": "1"}, 1)])
def test_the_setting_counts_attempts(make_world, said, calls):
    world = make_world(**said)
    ann = world.visitor()
    world.tell(500, document=hashlib.sha256(a_pdf()).hexdigest())
    job = ann.upload()
    world.run(all_of_it=True)
    assert (ann.job(job).status, ann.job(job).error_message) == ("failed", ISSUE)
    assert len(world.calls()) == calls


@pytest.mark.any_store
@pytest.mark.parametrize("said", ["0", "many", "-1", "nan"])
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(make_world, said):
    with pytest.raises(ValueError, match="RETRY_MAX_ATTEMPTS"):
        make_world(RETRY_MAX_ATTEMPTS=said)


@pytest.mark.any_store
@pytest.mark.seed("001-16")
def test_other_refusals_have_a_code_too(world, ann):
    found = {}
    for status in (401, 403, 404, 408, 422):
        world.tell(status, times=1)
        found[status] = ann.upload(f"status {status}")
    world.run()
    shown = {status: ann.job(job) for status, job in found.items()}
    codes = {status: (job.status, job.error_code) for status, job in shown.items() if status != 408}
    assert codes == dict.fromkeys((401, 403, 404, 422), ("failed", "GW_4XX"))
    assert (shown[404].error_message, shown[422].error_message) == (REFUSED, REFUSED)
    assert (
        shown[401].error_message
        == "Converter service rejected our credentials. An operator must check them."
    )
    assert shown[408].notice == "Conversion is taking too long. We’ll retry."


@pytest.mark.any_store
@pytest.mark.seed("001-16")
def test_a_gateway_that_asks_for_patience_gets_it(world, ann):
    world.tell(429, times=1, retry_after=300)
    first, second = ann.upload("first"), ann.upload("second")
    world.run()
    assert len(world.calls()) == 1  # the second was not even sent
    assert world.app.jobs.get(first).run_at - world.now() > timedelta(minutes=4)
    assert ann.job(second).notice == world.rules.BUSY
    world.run(all_of_it=True)
    assert [ann.job(one).status for one in (first, second)] == ["complete", "complete"]


@pytest.mark.any_store
@pytest.mark.seed("001-03")
def test_garbage_with_status_200_is_unknown_and_tried_like_the_others(world, ann):
    world.tell("garbage")
    job = ann.upload()
    world.run(all_of_it=True)
    failed = ann.job(job)
    assert (failed.status, failed.error_code, failed.attempt_count) == ("failed", "UNKNOWN", 3)
    assert failed.error_message == "Something went wrong while converting this file."


@pytest.mark.seed("001-17", "001-25", "001-56", "001-88")
@pytest.mark.parametrize(("times", "status"), [(1, "complete"), (9, "failed")])
def test_a_result_that_cannot_be_written_is_tried_once_more(world, ann, monkeypatch, times, status):
    job = ann.upload()
    monkeypatch.setattr(os, "fsync", disk(times, errno.EIO))
    world.run()
    assert ann.job(job).notice == "Temporary storage issue. We’ll retry."
    world.run(all_of_it=True)
    ended = ann.job(job)
    assert (ended.status, ended.attempt_count) == (status, 2)
    assert ended.error_code == ("IO_ERROR" if status == "failed" else None)
    assert ended.error_message == ("Temporary storage issue." if status == "failed" else None)
    assert len(world.xml()) == (status == "complete")
    assert world.app.dependencies.get("gateway").failed == 0  # it has answered


@pytest.mark.any_store
@pytest.mark.seed("001-18")
def test_a_full_disk_is_not_tried_again_by_itself(world, ann, monkeypatch):
    job = ann.upload()
    monkeypatch.setattr(os, "fsync", disk(9, errno.ENOSPC))
    world.run(all_of_it=True)
    assert (ann.job(job).error_code, ann.job(job).attempt_count) == ("IO_ERROR", 1)


@pytest.mark.any_store
@pytest.mark.seed("001-61", "001-62")
def test_the_technical_reason_is_in_the_log_and_nowhere_an_owner_looks(world, ann, caplog):
    world.tell("garbage")
    job = ann.upload()
    world.run(all_of_it=True)
    assert "bytes with status 200" in caplog.text
    seen = (
        ann.page()
        + ann.client.get(f"/api/jobs/{job}").text
        + str(ann.events(job))
        + ann.retry("nobody").text
    )
    for word in ("no XML", "status 200", "Traceback", "jobs.py", str(world.place), "site-packages"):
        assert word not in seen


@pytest.mark.seed("001-71", "001-72")
def test_a_result_that_is_there_already_is_not_made_again(world, ann):
    job = ann.upload()
    world.jobs.storage.write(f"results/{job}.xml", __import__("io").BytesIO(b"<document/>"))
    world.run()
    assert (ann.job(job).status, ann.download(job).text) == ("complete", "<document/>")
    assert world.calls() == []


@pytest.mark.any_store
def test_both_mappings_are_real(world, ann):
    text, layout = (
        ann.upload("Größe & <b>", mapping="text"),
        ann.upload("Größe & <b>", mapping="layout"),
    )
    world.run()
    assert "<line>Größe &amp; &lt;b&gt;</line>" in ann.download(text).text
    assert "<textbox" in ann.download(layout).text or "<text " in ann.download(layout).text


@pytest.mark.any_store
@pytest.mark.seed("001-91")
def test_half_a_result_of_a_worker_that_was_killed_is_none_and_does_not_stay(world, ann):
    job = ann.upload()
    (world.place / "results").mkdir()
    (world.place / "results" / f"{job}.0815.draft").write_text("<docu")
    world.run()
    assert [file.name for file in world.xml()] == [f"{job}.xml"]
    assert ann.download(job).text.endswith("</document>")
