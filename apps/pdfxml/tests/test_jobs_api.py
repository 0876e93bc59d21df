"""GET /api/jobs/{id}, /download, /events and POST /retry: access, states and messages."""

from __future__ import annotations

import io

import pytest

from support.store import BackgroundCall
from support.waiting import until

DAY = 86_400


@pytest.mark.any_store
@pytest.mark.seed("001-19", "001-20", "001-24", "001-57", "001-63", "001-64", "001-89")
def test_download_before_completion_answers_409(world, ann):
    world.add_order("hang")
    job = ann.upload()
    queued = ann.download(job)
    assert (queued.status_code, queued.json()["error_code"]) == (
        409,
        "NOT_READY",
    )  # 001-19, 001-20, 001-89
    assert queued.json()["error_message"] == "Conversion not finished yet."  # 001-57
    assert (queued.json()["retryable"], queued.headers["retry-after"]) == (True, "5")  # 001-24
    work = BackgroundCall(world.run)
    until(world.calls, 20, "the call of the gateway")
    processing = ann.job(job)
    assert (processing.status, processing.started_at is None) == (
        "processing",
        False,
    )  # 001-63, 001-64
    assert ann.download(job).status_code == ann.retry(job).status_code == 409  # 001-20
    world.gateway.close()
    work.result()


@pytest.mark.any_store
@pytest.mark.seed("001-20", "001-64")
def test_download_of_a_failed_conversion_is_not_retryable(world, ann):
    world.add_order(400)
    job = ann.upload()
    world.run()
    answer = ann.download(job)
    assert (answer.status_code, answer.json()["error_code"], answer.json()["retryable"]) == (
        409,
        "NOT_READY",
        False,
    )  # 001-20
    assert ann.job(job).failed_at is not None  # 001-64


@pytest.mark.any_store
@pytest.mark.seed("001-19", "001-64", "001-67")
def test_complete_conversion_is_downloaded_as_a_file(world, ann):
    job = ann.upload("One", "Two")
    world.run()
    answer = ann.download(job)
    assert answer.status_code == 200  # 001-19
    assert answer.headers["content-disposition"] == 'attachment; filename="report.xml"'
    assert "<line>One</line><line>Two</line>" in answer.text
    assert (ann.job(job).status, ann.job(job).result_path) == (
        "complete",
        f"results/{job}.xml",
    )  # 001-64, 001-67


@pytest.mark.seed("001-22", "001-23", "001-45", "001-59")
def test_jobs_of_other_visitors_answer_403(world, ann):
    bob = world.visitor()
    job = ann.upload()
    other_requests = bob.client.get(f"/api/jobs/{job}"), bob.client.post(f"/jobs/{job}/retry")
    for answer in (bob.download(job), bob.retry(job), *other_requests):
        assert (answer.status_code, answer.json()["error_code"]) == (
            403,
            "FORBIDDEN",
        )  # 001-22, 001-23, 001-45
        assert answer.json()["error_message"] == "This file isn’t yours."  # 001-59
    assert bob.client.get("/api/jobs").json() == []


@pytest.mark.seed("001-21", "001-58", "001-89")
def test_expired_result_answers_404_and_the_page_explains_it(world, ann):
    job = ann.upload()
    world.run()
    world.advance(73 * 3600)
    world.run()
    answer = ann.download(job)
    assert (answer.status_code, answer.json()["error_code"]) == (404, "EXPIRED")  # 001-21, 001-89
    assert (
        answer.json()["error_message"] == "File was removed by retention. Re-upload to regenerate."
    )
    assert (world.xml(), world.sources()) == ([], [])
    assert "Re-upload to regenerate." in ann.page()  # 001-58
    assert "Download" not in ann.page()


class ProcessKilled(BaseException):
    """The process ends without clean-up."""


def test_file_without_a_job_is_removed_after_retention(world, ann, monkeypatch):
    """The process was killed after writing, or neither the job nor the removal succeeded."""
    stored_job = ann.upload("kept")
    with monkeypatch.context() as patch:
        patch.setattr(
            world.intake, "enqueue_conversion", lambda *_: (_ for _ in ()).throw(ProcessKilled)
        )
        patch.setattr(type(world.jobs.storage), "remove", lambda *_: None)
        with pytest.raises(ProcessKilled):
            world.intake.accept(
                world.intake.Upload("ann", "a.pdf", "text", 9, io.BytesIO(b"%PDF-1.4 "))
            )
    assert len(world.sources()) == 2
    world.advance(73 * 3600)
    world.run()
    assert [
        path.name in world.app.jobs.get(stored_job).payload["source"] for path in world.sources()
    ] == [True]
    assert ann.job(stored_job).status in ("queued", "complete")


def test_file_is_not_removed_before_its_job_is_enqueued(make_world):
    world = make_world(RETENTION_HOURS="0")
    world.jobs.expire.options(owner="ann").enqueue(source="uploads/x.pdf")
    world.jobs.storage.write("uploads/x.pdf", io.BytesIO(b"%PDF-1.4 "))
    world.run()
    assert len(world.sources()) == 1  # its job may still be enqueued
    world.advance(3601)
    world.run()
    assert world.sources() == []


def test_file_whose_conversion_takes_longer_than_the_retention_is_removed_soon_after(make_world):
    world = make_world(RETENTION_HOURS="0.001")
    world.add_order(503, times=1)
    world.visitor().upload("slow")
    for seconds in (0, 4, 10):  # the conversion fails, the removal finds it waiting, it succeeds
        world.advance(seconds)
        world.run()
    assert len(world.xml()) == 1
    world.advance(10)
    world.run()
    assert (world.sources(), world.xml()) == ([], [])


@pytest.mark.any_store
@pytest.mark.seed("001-21")
def test_lost_result_and_unknown_job_give_the_same_answer(world, ann):
    job = ann.upload()
    world.run()
    world.xml()[0].unlink()
    assert ann.download(job).json() == ann.download("0" * 28).json()
    assert ann.download(job).status_code == 404


@pytest.mark.seed("001-10", "001-21")
def test_upload_of_an_expired_file_converts_it_again(world, ann):
    first = ann.upload()
    world.run()
    world.advance(73 * 3600)
    world.run()
    second = ann.upload()
    assert ann.post().json()["id"] == second  # one new job for all uploads
    world.run()
    assert second != first
    assert ann.download(second).status_code == 200  # 001-10
    world.xml()[0].unlink()
    third = ann.upload()
    world.run()
    assert ann.download(third).status_code == 200  # 001-10, 001-21
    assert ann.post().json()["id"] == third


@pytest.mark.any_store
def test_retention_starts_when_the_last_conversion_ended(world, ann):
    world.add_order(400, times=1)
    job = ann.upload()
    world.run()
    world.advance(70 * 3600)
    ann.retry(job)
    world.run()
    world.advance(10 * 3600)
    world.run()
    assert ann.download(job).status_code == 200  # it ended ten hours ago
    world.advance(63 * 3600)
    world.run()
    assert ann.download(job).status_code == 404


# --- Manual retry -------------------------------------------------------------------------------
@pytest.mark.seed("001-42", "001-46", "001-47", "001-48", "001-64", "001-65", "001-90")
def test_manual_retry_restores_all_attempts_and_completes(world, ann):
    world.add_order(500, times=5)
    job = ann.upload()
    world.run(until_done=True)
    assert (ann.job(job).status, ann.job(job).attempt_count) == ("failed", 3)
    answer = ann.retry(job).json()
    assert (answer["status"], answer["error_code"], answer["error_message"]) == (
        "queued",
        None,
        None,
    )  # 001-42, 001-46
    assert (answer["manual_retry_count"], answer["failed_at"], answer["notice"]) == (
        1,
        None,
        None,
    )  # 001-47
    world.run(until_done=True)
    assert (ann.job(job).status, ann.job(job).attempt_count) == ("complete", 6)  # 001-48, 001-90
    event_names = [event["event"] for event in ann.events(job)]
    assert event_names == [
        "queued",
        *["processing", "retry"] * 2,
        "processing",
        "failed",
        "queued",
        *["processing", "retry"] * 2,
        "processing",
        "complete",
    ]  # 001-64, 001-65: queued again only by the manual retry


@pytest.mark.any_store
@pytest.mark.seed("001-43")
def test_only_failed_jobs_can_be_retried(world, ann):
    job = ann.upload()
    assert (ann.retry(job).status_code, ann.retry(job).json()["error_code"]) == (409, "NOT_READY")
    world.run()
    answer = ann.retry(job)
    assert (answer.status_code, answer.json()["error_message"]) == (
        409,
        "Only a failed conversion can be retried.",
    )
    assert ann.job(job).manual_retry_count == 0


@pytest.mark.any_store
@pytest.mark.seed("001-44")
def test_retry_without_its_source_is_refused_and_changes_nothing(world, ann):
    world.add_order(400)
    job = ann.upload()
    world.run()
    before = ann.job(job)
    world.sources()[0].unlink()
    answer = ann.retry(job)
    assert (answer.status_code, answer.json()["error_code"]) == (404, "EXPIRED")
    assert ann.job(job) == before


@pytest.mark.any_store
def test_retry_is_refused_if_the_file_was_uploaded_again(world, ann):
    world.add_order(400, times=1)
    first = ann.upload()
    world.run()
    ann.upload()
    answer = ann.retry(first)
    assert (answer.status_code, answer.json()["error_code"]) == (409, "NOT_READY")
    assert "uploaded again" in answer.json()["error_message"]
    assert ann.job(first).status == "failed"


@pytest.mark.any_store
def test_job_whose_source_disappears_fails_as_expired(world, ann):
    world.add_order(500, times=1)
    job = ann.upload()
    world.run()
    world.sources()[0].unlink()
    world.run(until_done=True)
    assert (ann.job(job).status, ann.job(job).error_code) == ("failed", "EXPIRED")


@pytest.mark.any_store
@pytest.mark.seed("001-49", "001-62")
def test_only_failed_rows_have_a_working_retry_button(world, ann):
    world.add_order(400, times=1)
    failed = ann.upload("bad")
    world.run()
    complete = ann.upload("good")
    world.run()
    ann.post(b"no PDF at all")
    page = ann.page()
    assert page.count("/retry") == 1  # 001-49: a refused upload has no source to retry
    assert page.count("badge failed") == 2  # 001-62
    assert f"/api/jobs/{complete}/download" in page
    answer = ann.client.post(f"/jobs/{failed}/retry", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    world.run()
    assert ann.job(failed).status == "complete"  # 001-49


@pytest.mark.any_store
def test_upload_form_redirects_to_the_page(world, ann):
    form = {"files": {"file": ("a.pdf", b"%PDF-1.4 broken")}, "follow_redirects": False}
    assert ann.client.post("/upload", **form).headers["location"] == "/"
    form["files"] = {"file": ("a.png", b"no")}
    assert ann.client.post("/upload", **form).headers["location"] == "/"
    assert "Only PDF files are supported." in ann.page()
    world.run()
    assert "This PDF cannot be read." in ann.page()
    world.app.queues.pause("uploads")
    assert ann.client.post("/upload", **form).headers["location"] == "/?code=IO_ERROR"
    assert ann.client.get("/?code=<script>").text.count("<script>") == 0


# --- Events and runbook -------------------------------------------------------------------------
@pytest.mark.seed("001-73", "001-74")
def test_every_transition_is_an_event_with_its_numbers(world, ann):
    world.add_order(503, times=1)
    job = ann.upload()
    world.run(until_done=True)
    events = ann.events(job)
    assert [event["event"] for event in events] == [
        "queued",
        "processing",
        "retry",
        "processing",
        "complete",
    ]  # 001-73
    retry = events[2]["meta"]
    assert (retry["attempt"], retry["gateway_http_status"], retry["error_code"]) == (
        1,
        503,
        "GW_5XX",
    )  # 001-74
    complete = events[4]["meta"]
    assert (complete["attempt"], complete["gateway_http_status"]) == (2, 200)  # 001-74
    assert complete["error_code"] is None  # 001-74
    assert all(event["meta"]["duration_ms"] >= 0 for event in (events[2], events[4]))  # 001-74


@pytest.mark.any_store
@pytest.mark.seed("001-74")
def test_event_of_a_result_found_without_a_call_has_no_http_status(world, ann):
    job = ann.upload()
    world.jobs.storage.write(f"results/{job}.xml", io.BytesIO(b"<document/>"))
    world.run()
    assert ann.events(job)[-1]["meta"]["gateway_http_status"] is None


@pytest.mark.seed("001-79")
@pytest.mark.any_store
def test_every_failure_leads_an_operator_to_the_steps_for_its_code(make_world):
    world = make_world(PUBLIC_URL="https://pdf.example.com")
    ann = world.visitor()
    steps = world.operator().get("/runbook").text
    world.add_order(400, times=1)
    world.add_order("garbage")
    ann.upload("refused")
    ann.upload("garbage")
    world.run(until_done=True)
    groups = [group.fingerprint for group in world.app.failures.groups("kind:convert")]
    found = [world.app.failures.get(group, private=True).sample for group in groups]
    page = "https://pdf.example.com/runbook"
    assert {sample.private["runbook"] for sample in found} == {f"{page}#GW_4XX", f"{page}#UNKNOWN"}
    assert all(f'id="{code}"' in steps for code in world.rules.MESSAGES)
    situations = {  # what the specification tells operators to do
        "GW_5XX": "Check the gateway: health, log, CPU and memory.",
        "GW_4XX": "<code>mulligan failures list kind:convert</code> names a sample",
        "IO_ERROR": "<code>mulligan queues pause uploads",
        "UNKNOWN": "<code>mulligan workers check</code>",
    }
    for code, step in situations.items():
        section = steps.partition(f'<h2 id="{code}"')[2].partition("<h2")[0]
        assert step in section, code


@pytest.mark.any_store
def test_metrics_and_runbook_need_a_key_for_all_owners(world, ann):
    keys = [world.app.keys.create("acme", "operator").text, "mk_unknown", ""]
    wrong = [f"Bearer {key}" for key in keys] + ["Basic !", "Basic /w==", ""]
    for path in ("/metrics", "/runbook"):
        answers = [ann.client.get(path, headers={"Authorization": value}) for value in wrong]
        assert {(one.status_code, one.json()["error_code"]) for one in answers} == {
            (401, "FORBIDDEN")
        }
        assert answers[0].headers["www-authenticate"].startswith("Basic ")
        assert world.operator().get(path).status_code == 200
        password = world.app.keys.create("*", "viewer").text
        assert ann.client.get(path, auth=("operator", password)).status_code == 200


@pytest.mark.any_store
@pytest.mark.seed("001-67", "001-68")
def test_result_and_error_are_set_only_in_their_states(world, ann):
    world.add_order(400, times=1)
    ann.upload("failed")
    world.run()
    ann.upload("complete")
    world.run()
    world.add_order(503, times=1)
    ann.upload("waits")
    world.run()
    ann.upload("queued")
    rows = ann.client.get("/api/jobs").json()
    assert sorted(row["status"] for row in rows) == ["complete", "failed", "queued", "queued"]
    for row in rows:
        assert (row["result_path"] is not None) == (row["status"] == "complete")  # 001-67
        assert (
            (row["error_code"] is not None)
            == (row["error_message"] is not None)
            == (row["status"] == "failed")
        )  # 001-68
