"""Answers of the gateway and of the disk, and the resulting jobs."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
from contextlib import contextmanager
from datetime import timedelta

import pytest

from mulligan.apps.pdfxml.settings import MEGABYTE
from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from mulligan.testing import force

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


def assert_same_code(world, ann, job, code, caplog):
    """Assert that page, API, event, job record, attempts and log have the same code."""
    failed = ann.job(job)
    assert (failed.status, failed.error_code) == ("failed", code)  # 001-01: API
    assert failed.error_message == world.rules.MESSAGES[code]  # 001-02
    [ending] = [event["meta"] for event in ann.events(job) if event["event"] == "failed"]
    assert ending["error_code"] == code  # 001-01: event
    assert world.app.jobs.get(job).error["code"] == code  # 001-01: job record
    assert {attempt.code for attempt in world.app.jobs.attempts(job)} <= {code}
    assert f'<code class="code">{code}</code>' in ann.page()  # 001-01: page
    logged = {record.code for record in caplog.records if getattr(record, "job", "") == job}
    assert logged <= {code}  # 001-01: log


@pytest.mark.seed("001-01", "001-02")
@pytest.mark.parametrize(
    ("fault", "code"),
    [("400", "GW_4XX"), ("500", "GW_5XX"), ("hang", "GW_TIMEOUT"), ("garbage", "UNKNOWN")],
)
def test_one_code_of_a_failed_call_in_api_event_record_log_and_page(
    make_world, caplog, fault, code
):
    world = make_world(GATEWAY_TIMEOUT="0.2")
    ann = world.visitor()
    world.add_order(fault)
    job = ann.upload()
    world.run(until_done=True)
    assert_same_code(world, ann, job, code, caplog)  # 001-01, 001-02
    assert f"failed with {code} (" in caplog.text  # 001-01: log


@pytest.mark.seed("001-01", "001-02")
@pytest.mark.parametrize(
    "fault",
    [
        KeyError("no such font"),
        FileExistsError(errno.EEXIST, "File exists"),
        MemoryError(),
        "lost",
    ],
    ids=["bug", "file", "memory", "lost worker"],
)
def test_whatever_else_happens_has_the_code_unknown_everywhere(world, ann, caplog, fault):
    """Bugs, errors of other parts and dead processes have codes of the engine elsewhere."""
    job = ann.upload()
    with force(world.app, "convert", fault, times=9):
        world.run(until_done=True)
    assert_same_code(world, ann, job, "UNKNOWN", caplog)  # 001-01, 001-02
    assert "failed with UNKNOWN (" in caplog.text


@pytest.mark.seed("001-01", "001-02")
def test_one_code_of_a_refusal_in_answer_log_record_and_page(make_world, caplog):
    world = make_world(MAX_UPLOAD_MB="0.25")
    ann = world.visitor()
    caplog.set_level("INFO", "pdfxml")
    for code, content in [("NOT_PDF", b"no"), ("TOO_LARGE", make_pdf(size=MEGABYTE // 2))]:
        answer = ann.post(content).json()
        assert answer["error_code"] == code  # 001-01: answer
        assert_same_code(world, ann, answer["job_id"], code, caplog)
    job = ann.upload()
    answers = {"NOT_READY": ann.download(job), "FORBIDDEN": world.visitor().download(job)}
    world.run()
    world.xml()[0].unlink()
    answers["EXPIRED"] = ann.download(job)
    for code, answer in answers.items():
        assert answer.json()["error_code"] == code  # 001-01: answer
        assert answer.json()["error_message"] == world.rules.MESSAGES[code]  # 001-02
    assert "Re-upload to regenerate." in ann.page()
    for code in ("NOT_PDF", "TOO_LARGE", *answers):
        assert re.search(rf"answered \d+ {code}", caplog.text)  # 001-01: log


@pytest.mark.any_store
@pytest.mark.seed("001-01", "001-60")
def test_no_other_code_exists_and_no_message_promises_a_retry(world):
    assert set(world.rules.MESSAGES) == set(CODES)  # 001-01: ten codes, no other
    lines = world.rules.MESSAGES.values()
    assert all(line.endswith(".") and "retry" not in line for line in lines)  # 001-60


@pytest.mark.seed("001-13", "001-25", "001-52", "001-85")
def test_400_406_413_and_415_are_not_retried(world, ann):
    job_ids = {}
    for status in (400, 406, 413, 415):
        world.add_order(status, times=1, say="see /var/log/gateway.log")
        job_ids[status] = ann.upload(f"status {status}")
        world.run(until_done=True)
    for job in map(ann.job, job_ids.values()):
        assert (job.status, job.error_code, job.error_message) == (
            "failed",
            "GW_4XX",
            REFUSED,
        )  # 001-13, 001-52
        assert (job.attempt_count, job.next_attempt_at) == (1, None)  # 001-25, 001-85
    assert len(world.calls()) == 4  # 001-13, 001-85


@pytest.mark.any_store
@pytest.mark.seed("001-53", "001-85")
def test_safe_text_of_the_gateway_is_added_to_the_message(world, ann):
    job = ann.upload(mapping="poetry")
    world.run()
    assert ann.job(job).error_message == f"{REFUSED} Unsupported mapping."  # 001-53, 001-85
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
    assert (waiting.status, waiting.notice) == (
        "queued",
        f"{ISSUE} We’ll retry shortly.",
    )  # 001-54, 001-66
    assert (waiting.error_code, waiting.error_message, waiting.failed_at) == (
        None,
        None,
        None,
    )  # 001-68
    assert waiting.next_attempt_at is not None
    [attempt] = world.app.jobs.attempts(job)
    assert attempt.code == "GW_5XX"  # 001-14, 001-68
    world.run(until_done=True)
    assert (ann.job(job).status, ann.job(job).attempt_count) == ("complete", 2)  # 001-14
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
        assert waiting.notice == "Conversion is taking too long. We’ll retry."  # 001-55
        delays.append(world.next_delay())
        world.advance(delays[-1] + 0.01)
        world.run()
    assert all(
        0.8 * nominal - 0.5 <= delay <= 1.2 * nominal
        for delay, nominal in zip(delays, (5, 15, 45), strict=True)
    )  # 001-26
    failed = ann.job(job)
    assert (failed.status, failed.error_code, failed.attempt_count) == (
        "failed",
        "GW_TIMEOUT",
        4,
    )  # 001-15, 001-27, 001-28, 001-30
    assert failed.error_message == "Conversion is taking too long."  # 001-60
    assert failed.failed_at > failed.last_attempt_at >= failed.started_at  # 001-29, 001-30
    assert len(world.calls()) == 4  # 001-27, 001-87


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


# --- Writing the result --------------------------------------------------------------------------
@contextmanager
def file_in_place_of_the_folder(world):
    """EEXIST: `results` is a file."""
    (world.folder / "results").write_text("a file")
    yield
    (world.folder / "results").unlink()


@contextmanager
def path_through_a_file(world):
    """ENOTDIR: the folder of all files was replaced by a file."""
    aside = world.folder.rename(f"{world.folder}.aside")
    world.folder.write_text("a file")
    yield
    world.folder.unlink()
    aside.rename(world.folder)


@contextmanager
def folder_that_refuses_files(world):
    """ENOENT: the folder is on a file system in which no file can be created."""
    (world.folder / "results").symlink_to("/proc")
    yield
    (world.folder / "results").unlink()


@contextmanager
def directory_in_place_of_the_file(world):
    """EISDIR: a folder has the name of the result."""
    [job] = world.app.jobs.list("kind:convert")
    target = world.folder / "results" / f"{job.id}.xml"
    target.mkdir(parents=True)
    yield
    target.rmdir()


@contextmanager
def limited_file_size(world):
    """EFBIG: the result is larger than the process may write."""
    world.add_order("large", bytes=40 * MEGABYTE)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * MEGABYTE, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    world.clear_orders()


def broken_device(number):
    """Return a situation in which the device answers with this error when data is flushed."""

    @contextmanager
    def situation(_world):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", failing_fsync(99, number))
            yield

    return situation


SITUATIONS = {
    "EEXIST": file_in_place_of_the_folder,
    "ENOTDIR": path_through_a_file,
    "ENOENT": folder_that_refuses_files,
    "EISDIR": directory_in_place_of_the_file,
    "EFBIG": limited_file_size,
    "EIO": broken_device(errno.EIO),
    "ETIMEDOUT": broken_device(errno.ETIMEDOUT),
    "EROFS": broken_device(errno.EROFS),
    "ESTALE": broken_device(errno.ESTALE),
}


@pytest.mark.seed("001-17", "001-25", "001-56", "001-88")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_result_that_cannot_be_written_is_an_io_error_with_one_retry(world, ann, caplog, situation):
    job = ann.upload()
    with SITUATIONS[situation](world):
        world.run()
        waiting = ann.job(job)
        assert (waiting.status, waiting.attempt_count) == ("queued", 1)
        assert waiting.notice == "Temporary storage issue. We’ll retry."  # 001-56
        world.run(until_done=True)
        failed = ann.job(job)
    assert (failed.status, failed.error_code) == ("failed", "IO_ERROR")  # 001-17, 001-88
    assert failed.attempt_count == 2  # 001-17, 001-25, 001-88: one retry
    assert failed.error_message == "Temporary storage issue."
    assert f"[Errno {getattr(errno, situation)}]" in caplog.text
    assert world.app.dependencies.get("gateway").failed == 0  # the gateway did not fail


@pytest.mark.seed("001-17", "001-25", "001-88")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_result_that_can_be_written_at_the_second_attempt_is_complete(world, ann, situation):
    job = ann.upload()
    with SITUATIONS[situation](world):
        world.run()
    world.run(until_done=True)
    ended = ann.job(job)
    assert (ended.status, ended.attempt_count) == ("complete", 2)  # 001-17, 001-25, 001-88
    assert ended.error_code is None
    assert [file.name for file in world.xml()] == [f"{job}.xml"]


def test_mount_that_times_out_does_not_open_the_breaker_of_the_gateway(world, ann):
    jobs = [ann.upload(f"page {n}") for n in range(12)]
    with broken_device(errno.ETIMEDOUT)(world):
        world.run(until_done=True)
    assert {ann.job(job).error_code for job in jobs} == {"IO_ERROR"}
    gateway = world.app.dependencies.get("gateway")
    assert (gateway.state, gateway.failed) == ("closed", 0)


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
    assert "bytes with status 200" in caplog.text  # 001-61
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
        assert secret not in public_text  # 001-61, 001-62


@pytest.mark.seed("001-71", "001-72")
def test_existing_result_is_not_made_again(world, ann):
    job = ann.upload()
    world.jobs.storage.write(f"results/{job}.xml", __import__("io").BytesIO(b"<document/>"))
    world.run()
    assert (ann.job(job).status, ann.download(job).text) == ("complete", "<document/>")  # 001-71
    assert world.calls() == []  # 001-71, 001-72


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
