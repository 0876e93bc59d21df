"""POST /api/upload: refused early, deduplicated, stored."""

from __future__ import annotations

import errno
import os

import pytest

from mulligan.apps.pdfxml.settings import MEGABYTE
from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def failing_fsync(number):
    """Return an fsync that always fails."""

    def fsync(_):
        raise OSError(number, os.strerror(number), "/srv/secret/files")

    return fsync


@pytest.mark.seed("001-04", "001-05", "001-50", "001-83")
def test_wrong_file_type_answers_400_and_records_a_failed_job(world, ann):
    answer = ann.post(PNG, name="report.pdf")
    assert answer.status_code == 400  # 001-04, 001-05
    assert answer.json() | {"job_id": ""} == {
        "error_code": "NOT_PDF",
        "error_message": "Only PDF files are supported.",
        "retryable": False,
        "job_id": "",
    }
    world.run()
    job = ann.job(answer.json()["job_id"])
    assert (job.status, job.error_code, job.error_message) == (
        "failed",
        "NOT_PDF",
        "Only PDF files are supported.",
    )  # 001-50, 001-83
    assert (job.attempt_count, job.file) == (0, "report.pdf")
    assert (world.calls(), world.sources()) == ([], [])  # 001-05: before any work
    assert ann.retry(job.id).status_code == 404  # there is no source to retry


@pytest.mark.any_store
@pytest.mark.seed("001-06")
def test_size_limit_is_exact(make_world):
    world = make_world(MAX_UPLOAD_MB="0.25")
    ann = world.visitor()
    assert ann.post(make_pdf(size=MEGABYTE // 4)).status_code == 201
    assert ann.post(make_pdf(size=MEGABYTE // 4 + 1)).json()["error_code"] == "TOO_LARGE"
    assert ann.post(make_pdf(size=2 * MEGABYTE)).status_code == 413  # refused unread
    assert len(world.sources()) == 1


@pytest.mark.slow
@pytest.mark.seed("001-06", "001-51", "001-84")
def test_fifty_megabytes_pass_and_one_byte_more_answers_413(world, ann):
    assert ann.post(make_pdf(size=50 * MEGABYTE)).status_code == 201  # 001-06
    answer = ann.post(make_pdf(size=50 * MEGABYTE + 1))
    assert (answer.status_code, answer.json()["error_code"]) == (413, "TOO_LARGE")  # 001-06, 001-84
    assert answer.json()["error_message"] == "File exceeds 50 MB limit."  # 001-51


@pytest.mark.seed("001-51", "001-84")
def test_far_too_large_body_answers_413_and_records_a_failed_job(world, ann):
    answer = ann.client.post(
        "/api/upload", content=bytes(8), headers={"content-length": str(60 * MEGABYTE)}
    )
    assert (answer.status_code, answer.json()["error_code"]) == (413, "TOO_LARGE")  # 001-84
    assert answer.json()["error_message"] == "File exceeds 50 MB limit."  # 001-51
    assert ann.job(answer.json()["job_id"]).error_code == "TOO_LARGE"


@pytest.mark.seed("001-07", "001-12")
def test_disk_error_answers_500_and_records_a_failed_job(world, ann, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing_fsync(errno.ENOSPC))
    answer = ann.post()
    assert (answer.status_code, answer.json()["error_code"]) == (500, "IO_ERROR")  # 001-07
    assert answer.json()["error_message"] == "Temporary storage issue."
    assert "secret" not in answer.text
    world.run(until_done=True)
    job = ann.job(answer.json()["job_id"])
    assert (job.status, job.error_code, job.attempt_count) == (
        "failed",
        "IO_ERROR",
        0,
    )  # 001-07, 001-12
    assert "retry" not in job.error_message  # 001-12
    assert world.sources() == []


@pytest.mark.seed("001-08")
def test_duplicate_upload_returns_the_existing_job(world, ann):
    first = ann.post().json()["id"]
    again = ann.post()
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (
        200,
        first,
        True,
    )
    world.run()
    complete = ann.post().json()
    assert (complete["id"], complete["status"]) == (first, "complete")  # 001-08
    assert len(world.calls()) == len(world.sources()) == len(world.xml()) == 1  # 001-08


@pytest.mark.any_store
@pytest.mark.seed("001-08")
def test_duplicate_upload_is_answered_even_if_the_disk_fails(world, ann, monkeypatch):
    first = ann.post().json()["id"]
    monkeypatch.setattr(os, "fsync", failing_fsync(errno.EIO))
    assert ann.post().json()["id"] == first


@pytest.mark.seed("001-09")
def test_failed_job_does_not_block_a_new_upload(world, ann):
    world.add_order(400, times=1)
    first = ann.post().json()["id"]
    world.run()
    second = ann.post().json()["id"]
    world.run()
    assert first != second
    assert [ann.job(job_id).status for job_id in (first, second)] == ["failed", "complete"]


@pytest.mark.seed("001-70")
def test_another_session_mapping_or_byte_creates_another_job(world, ann):
    content = make_pdf("same")
    job_ids = [
        ann.post(content).json()["id"],
        ann.post(content, mapping="layout").json()["id"],
        ann.post(content + b"\n").json()["id"],
        world.visitor().post(content).json()["id"],
    ]
    assert len(set(job_ids)) == 4


@pytest.mark.any_store
@pytest.mark.seed("001-80")
def test_paused_uploads_answer_503_and_store_nothing(world, ann):
    world.app.queues.pause("uploads", until=600, reason="the disk is full")
    answer = ann.post()
    assert (answer.status_code, answer.json()["error_code"]) == (503, "IO_ERROR")
    assert 0 < int(answer.headers["retry-after"]) <= 600
    assert (world.sources(), ann.client.get("/api/jobs").json()) == ([], [])
    assert "Uploads are paused" in ann.page()
    world.app.queues.resume("uploads")
    assert ann.post().status_code == 201


@pytest.mark.any_store
@pytest.mark.parametrize(
    "form", [{"data": {"mapping": "text"}}, {"content": b"x"}, {"files": {"other": b"x"}}]
)
def test_form_without_a_file_is_refused(ann, form):
    assert ann.client.post("/api/upload", **form).json()["error_code"] == "NOT_PDF"


@pytest.mark.any_store
def test_file_name_is_sanitised(ann):
    job = ann.post(name="../../etc/<b>passwd<\u202e.pdf").json()
    assert job["file"] == "<b>passwd<?.pdf"
    assert "<b>" not in ann.page()


@pytest.mark.any_store
def test_unexpected_errors_have_a_code(world, ann, monkeypatch):
    form = {
        "content": b"--x\r\nnonsense",
        "headers": {"content-type": "multipart/form-data; boundary=x"},
    }
    assert ann.client.post("/api/upload", **form).json()["error_code"] == "NOT_PDF"
    assert ann.client.post("/api/upload", content=iter([b"x"])).status_code == 411
    monkeypatch.setattr(world.views, "list_conversions", lambda _: 1 / 0)
    answer = ann.client.get("/api/jobs")
    assert (answer.status_code, answer.json()["error_code"]) == (500, "UNKNOWN")
    assert "division" not in answer.text
