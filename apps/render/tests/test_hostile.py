"""What callers may send: refused in the form of the error contract, never answered with a 5xx."""

from __future__ import annotations

import json

import httpx2
import obstore
import pytest

from mulligan import testing
from render import jobs
from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_no_order_and_no_address_breaks_the_service(service):
    bodies = [{"timeline": {"clips": [clip]}} for clip in hostile.objects(service.clip())]
    bodies += [{"timeline": value} for value in hostile.VALUES] + [
        {"timeline": {"clips": v}} for v in hostile.VALUES
    ]
    encoded = [json.dumps(body).encode() for body in bodies]
    answers = [service.client.post("/jobs", content=body) for body in (*encoded, *hostile.BODIES)]
    for one in hostile.IDS:
        answers += [service.client.get(f"/jobs/{one}{rest}") for rest in ("", "/video")]
        answers += [
            service.client.post(f"/jobs/{one}/retry"),
            service.client.delete(f"/jobs/{one}"),
        ]
    assert {answer.status_code for answer in answers} <= {201, 400, 404, 405, 413}
    for answer in answers:
        if answer.status_code != 201:
            assert set(answer.json()) == {"statusCode", "message", "error"}


def test_a_job_of_another_kind_is_none_of_its(service):
    other = jobs.app.enqueue("something.else", {}).id
    for answer in (
        service.client.get(f"/jobs/{other}"),
        service.client.get(f"/jobs/{other}/video"),
    ):
        assert (answer.status_code, answer.json()["message"]) == (404, "Job not found")
    assert service.client.post(f"/jobs/{other}/retry").status_code == 404


def test_a_video_that_is_gone_is_not_there_and_a_storage_that_is_away_is_told(service, configured):
    job = service.ended()["id"]
    obstore.delete(jobs.storage(), f"{job}.mp4")
    gone = service.client.get(f"/jobs/{job}/video")
    assert (gone.status_code, gone.json()["error"]) == (404, "Not Found")
    configured(storage_url="s3://videos", storage_endpoint="http://127.0.0.1:9")
    away = service.client.get(f"/jobs/{job}/video")
    assert (away.status_code, away.json()["error"]) == (503, "Service Unavailable")
    assert away.headers["retry-after"]


def test_a_picture_that_takes_longer_than_a_client_would_wait_by_itself_is_waited_for(
    service, monkeypatch
):
    seen = []
    real = httpx2.AsyncClient.__init__
    monkeypatch.setattr(
        httpx2.AsyncClient,
        "__init__",
        lambda self, **said: (seen.append(said), real(self, **said))[1],
    )
    service.ended()
    assert [said["timeout"] for said in seen] == [None]  # there is one limit, that of the job: 30 s


@pytest.mark.parametrize(
    "address",
    ["http://a..b/x.jpg", "http://xn--a.example/", "http://[::1]:99999/a.jpg", "http://%00/"],
)
def test_an_address_that_is_none_is_a_download_that_failed(service, address):
    answer = service.client.post("/jobs", json={"timeline": {"clips": [service.clip(address)]}})
    if answer.status_code == 201:
        testing.drain(jobs.app, scheduled=True)
        assert service.look(answer.json()["id"])["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"
