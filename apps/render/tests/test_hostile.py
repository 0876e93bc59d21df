"""Hostile requests are refused in the error format and never cause a 5xx."""

from __future__ import annotations

import json

import httpx2
import obstore
import pytest

from mulligan import testing
from mulligan.apps.render import jobs
from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_hostile_orders_and_addresses_never_cause_a_5xx(service):
    bodies = [{"timeline": {"clips": [clip]}} for clip in hostile.objects(service.clip())]
    bodies += [{"timeline": value} for value in hostile.VALUES] + [
        {"timeline": {"clips": v}} for v in hostile.VALUES
    ]
    encoded = [json.dumps(body).encode() for body in bodies]
    answers = [service.client.post("/jobs", content=body) for body in (*encoded, *hostile.BODIES)]
    for job_id in hostile.IDS:
        answers += [service.client.get(f"/jobs/{job_id}{rest}") for rest in ("", "/video")]
        answers += [
            service.client.post(f"/jobs/{job_id}/retry"),
            service.client.delete(f"/jobs/{job_id}"),
        ]
    assert {answer.status_code for answer in answers} <= {201, 400, 404, 405, 413}
    for answer in answers:
        if answer.status_code != 201:
            assert set(answer.json()) == {"statusCode", "message", "error"}


def test_job_of_another_kind_is_not_found(service):
    other_job = jobs.app.enqueue("something.else", {}).id
    for answer in (
        service.client.get(f"/jobs/{other_job}"),
        service.client.get(f"/jobs/{other_job}/video"),
    ):
        assert (answer.status_code, answer.json()["message"]) == (404, "Job not found")
    assert service.client.post(f"/jobs/{other_job}/retry").status_code == 404


def test_removed_video_answers_404_and_storage_outage_503(service, set_config):
    job = service.run_order()["id"]
    obstore.delete(jobs.storage(), f"{job}.mp4")
    gone = service.client.get(f"/jobs/{job}/video")
    assert (gone.status_code, gone.json()["error"]) == (404, "Not Found")
    set_config(storage_url="s3://videos", storage_endpoint="http://127.0.0.1:9")
    outage = service.client.get(f"/jobs/{job}/video")
    assert (outage.status_code, outage.json()["error"]) == (503, "Service Unavailable")
    assert outage.headers["retry-after"]


def test_download_has_no_timeout_except_the_configured_one(service, monkeypatch):
    client_options = []
    real = httpx2.AsyncClient.__init__

    def record(self, **options):
        client_options.append(options)
        real(self, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "__init__", record)
    service.run_order()
    assert [options["timeout"] for options in client_options] == [None]


@pytest.mark.parametrize(
    "address",
    ["http://a..b/x.jpg", "http://xn--a.example/", "http://[::1]:99999/a.jpg", "http://%00/"],
)
def test_invalid_address_is_a_failed_download(service, address):
    answer = service.client.post("/jobs", json={"timeline": {"clips": [service.clip(address)]}})
    if answer.status_code == 201:
        testing.drain(jobs.app, scheduled=True)
        assert service.fetch(answer.json()["id"])["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"
