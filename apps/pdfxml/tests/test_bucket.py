"""Files in an S3 bucket."""

from __future__ import annotations

from typing import NamedTuple

import httpx2
import pytest
from moto.server import ThreadedMotoServer

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf

pytestmark = pytest.mark.slow  # the server alone takes seconds to load


class Bucket(NamedTuple):
    settings: dict[str, str]
    server: ThreadedMotoServer


@pytest.fixture
def bucket(monkeypatch):
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_REGION": "us-east-1",
        "STORAGE_URL": "s3://pdfs",
    }
    with httpx2.Client(verify=False) as client:
        client.put(f"{url}/pdfs").raise_for_status()
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield Bucket(settings, server)
    server.stop()


@pytest.mark.seed("001-82")
def test_sources_and_results_can_be_stored_in_a_bucket(make_world, bucket):
    world = make_world(**bucket.settings)
    ann = world.visitor()
    job = ann.upload("One")
    assert ann.post(make_pdf("One")).json()["id"] == job
    world.run()
    assert "<line>One</line>" in ann.download(job).text
    world.advance(73 * 3600)
    world.run()
    assert ann.download(job).json()["error_code"] == "EXPIRED"
    again = ann.upload("One")
    world.run()
    assert again != job
    assert ann.download(again).status_code == 200


@pytest.mark.seed("001-07")
def test_unreachable_bucket_is_an_io_error(make_world, bucket):
    world = make_world(**bucket.settings | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    answer = world.visitor().post()
    assert (answer.status_code, answer.json()["error_code"]) == (500, "IO_ERROR")  # 001-07


@pytest.mark.seed("001-17")
def test_outage_of_the_bucket_is_an_io_error_and_pages_still_work(make_world, bucket):
    world = make_world(**bucket.settings)
    ann = world.visitor()
    job = ann.upload("kept")
    world.run()
    waiting = ann.upload("waiting")
    bucket.server.stop()
    world.run(until_done=True)
    failed = ann.job(waiting)
    assert (failed.status, failed.error_code) == ("failed", "IO_ERROR")  # 001-17
    assert failed.attempt_count == 2  # 001-17: one retry
    assert world.app.dependencies.get("gateway").failed == 0
    assert "complete" in ann.page()
    assert (ann.download(job).status_code, ann.download(job).json()["error_code"]) == (
        503,
        "IO_ERROR",
    )
