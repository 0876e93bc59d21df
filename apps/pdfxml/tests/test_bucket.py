"""Files in an S3 bucket."""

from __future__ import annotations

import pytest
from moto.server import ThreadedMotoServer
from obstore.exceptions import GenericError

from pdfxml.tests.pdf_maker import make_pdf

pytestmark = pytest.mark.slow  # the server alone takes seconds to load


@pytest.fixture
def bucket(monkeypatch):
    import httpx2

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
        yield settings
    server.stop()


@pytest.mark.seed("001-82")
def test_sources_and_results_can_be_stored_in_a_bucket(make_world, bucket):
    world = make_world(**bucket)
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


@pytest.mark.seed("001-07", "001-17")
def test_unreachable_bucket_is_an_io_error(make_world, bucket):
    world = make_world(**bucket | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    answer = world.visitor().post()
    assert (answer.status_code, answer.json()["error_code"]) == (500, "IO_ERROR")


def test_pages_work_and_downloads_answer_503_during_a_bucket_outage(
    make_world, bucket, monkeypatch
):
    world = make_world(**bucket)
    ann = world.visitor()
    job = ann.upload()
    world.run()
    monkeypatch.setattr(type(world.jobs.storage), "read", raise_storage_error)
    monkeypatch.setattr(type(world.jobs.storage), "exists", raise_storage_error)
    assert "complete" in ann.page()
    assert (ann.download(job).status_code, ann.download(job).json()["error_code"]) == (
        503,
        "IO_ERROR",
    )


def raise_storage_error(*_):
    raise GenericError("http://10.0.0.7/pdfs does not answer")
