"""POST /api/upload: refused early, deduplicated, stored."""

from __future__ import annotations

import errno
import os

import pytest

from pdfxml.settings import MEGABYTE
from pdfxml.tests.making import a_pdf

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def broken(number):
    """A disk that cannot be written to."""

    def fsync(_):
        raise OSError(number, os.strerror(number), "/srv/secret/files")

    return fsync


@pytest.mark.seed("001-04", "001-05", "001-50", "001-83")
def test_a_bad_type_is_a_400_and_a_failed_job_that_nobody_ever_ran(world, ann):
    answer = ann.post(PNG, name="report.pdf")
    assert answer.status_code == 400
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
    )
    assert (job.attempt_count, job.file) == (0, "report.pdf")
    assert (world.calls(), world.sources()) == ([], [])
    assert ann.retry(job.id).status_code == 404  # there is nothing to try again


@pytest.mark.any_store
@pytest.mark.seed("001-06")
def test_the_limit_passes_and_a_byte_more_does_not(make_world):
    world = make_world(MAX_UPLOAD_MB="0.25")
    ann = world.visitor()
    assert ann.post(a_pdf(size=MEGABYTE // 4)).status_code == 201
    assert ann.post(a_pdf(size=MEGABYTE // 4 + 1)).json()["error_code"] == "TOO_LARGE"
    assert ann.post(a_pdf(size=2 * MEGABYTE)).status_code == 413  # refused unread
    assert len(world.sources()) == 1


@pytest.mark.slow
@pytest.mark.seed("001-06", "001-51", "001-84")
def test_fifty_megabytes_pass_and_a_byte_more_is_a_413(world, ann):
    assert ann.post(a_pdf(size=50 * MEGABYTE)).status_code == 201
    answer = ann.post(a_pdf(size=50 * MEGABYTE + 1))
    assert (answer.status_code, answer.json()["error_code"]) == (413, "TOO_LARGE")
    assert answer.json()["error_message"] == "File exceeds 50 MB limit."


@pytest.mark.seed("001-51", "001-84")
def test_what_is_far_too_large_is_a_413_and_a_failed_job_too(world, ann):
    answer = ann.client.post(
        "/api/upload", content=bytes(8), headers={"content-length": str(60 * MEGABYTE)}
    )
    assert (answer.status_code, answer.json()["error_code"]) == (413, "TOO_LARGE")
    assert answer.json()["error_message"] == "File exceeds 50 MB limit."
    assert ann.job(answer.json()["job_id"]).error_code == "TOO_LARGE"


@pytest.mark.seed("001-07", "001-12")
def test_a_disk_that_fails_is_a_500_and_a_failed_job_without_a_promise(world, ann, monkeypatch):
    monkeypatch.setattr(os, "fsync", broken(errno.ENOSPC))
    answer = ann.post()
    assert (answer.status_code, answer.json()["error_code"]) == (500, "IO_ERROR")
    assert answer.json()["error_message"] == "Temporary storage issue."
    assert "secret" not in answer.text
    world.run(all_of_it=True)
    job = ann.job(answer.json()["job_id"])
    assert (job.status, job.error_code, job.attempt_count) == ("failed", "IO_ERROR", 0)
    assert "retry" not in job.error_message
    assert world.sources() == []


@pytest.mark.seed("001-08", "001-11")
def test_a_twin_in_progress_or_complete_is_the_answer(world, ann):
    first = ann.post().json()["id"]
    again = ann.post()
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (
        200,
        first,
        True,
    )
    world.run()
    complete = ann.post().json()
    assert (complete["id"], complete["status"]) == (first, "complete")
    assert len(world.calls()) == len(world.sources()) == len(world.xml()) == 1


@pytest.mark.any_store
@pytest.mark.seed("001-08")
def test_a_twin_is_the_answer_even_where_nothing_can_be_written(world, ann, monkeypatch):
    first = ann.post().json()["id"]
    monkeypatch.setattr(os, "fsync", broken(errno.EIO))
    assert ann.post().json()["id"] == first


@pytest.mark.seed("001-09")
def test_a_failed_twin_does_not_block(world, ann):
    world.tell(400, times=1)
    first = ann.post().json()["id"]
    world.run()
    second = ann.post().json()["id"]
    world.run()
    assert first != second
    assert [ann.job(one).status for one in (first, second)] == ["failed", "complete"]


@pytest.mark.seed("001-70")
def test_another_session_mapping_or_byte_is_another_job(world, ann):
    same = a_pdf("same")
    found = [
        ann.post(same).json()["id"],
        ann.post(same, mapping="layout").json()["id"],
        ann.post(same + b"\n").json()["id"],
        world.visitor().post(same).json()["id"],
    ]
    assert len(set(found)) == 4


@pytest.mark.any_store
@pytest.mark.seed("001-80")
def test_while_uploads_are_paused_they_are_answered_with_503_and_nothing_is_stored(world, ann):
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
def test_a_form_without_a_file_is_refused(ann, form):
    assert ann.client.post("/api/upload", **form).json()["error_code"] == "NOT_PDF"


@pytest.mark.any_store
def test_a_name_is_only_a_name(ann):
    job = ann.post(name="../../etc/<b>passwd<\u202e.pdf").json()
    assert job["file"] == "<b>passwd<?.pdf"
    assert "<b>" not in ann.page()


@pytest.mark.any_store
def test_whatever_else_goes_wrong_has_a_code_too(world, ann, monkeypatch):
    form = {
        "content": b"--x\r\nnonsense",
        "headers": {"content-type": "multipart/form-data; boundary=x"},
    }
    assert ann.client.post("/api/upload", **form).json()["error_code"] == "NOT_PDF"
    assert ann.client.post("/api/upload", content=iter([b"x"])).status_code == 411
    monkeypatch.setattr(world.views, "listed", lambda _: 1 / 0)
    answer = ann.client.get("/api/jobs")
    assert (answer.status_code, answer.json()["error_code"]) == (500, "UNKNOWN")
    assert "division" not in answer.text
