"""The acceptance list of the specification, on worker and web as the README starts them.

Only HTTP, a browser, the file system and signals are used. The gateway is the emulated one; it is
the outside world. An id after an assertion is the requirement that it proves.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from mulligan.apps.stage import ServiceProcess
from support import browser as browsers
from support.browser import open_session
from support.deployment import Deployment
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(900),
]
BUSY = "Gateway busy, paused. Will retry automatically."
REFUSED = "Couldn’t convert this file with the selected mapping."
MEGABYTE = 1024 * 1024
_numbers = itertools.count()


class Site:
    """The deployed application and the gateway."""

    def __init__(self, deployment: Deployment, gateway: ServiceProcess) -> None:
        self.deployment = deployment
        self.gateway = gateway
        self.files = Path(deployment.environ["STORAGE_URL"])
        self.http = httpx2.Client(base_url=deployment.url, timeout=60, verify=False)
        self.http.get("/")

    def order(self, do: str | int, **options: Any) -> None:
        """Order the gateway to fail."""
        order = {"do": str(do), **options}
        self.http.post(f"{self.gateway.url}/orders", json=order).raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        return list(self.http.get(f"{self.gateway.url}/calls").json())

    def clear_orders(self) -> None:
        """Forget orders and calls."""
        self.http.delete(f"{self.gateway.url}/orders").raise_for_status()

    def post(self, content: bytes, name: str = "report.pdf", mapping: str = "text") -> Any:
        return self.http.post(
            "/api/upload", files={"file": (name, content)}, data={"mapping": mapping}
        )

    def upload(self, content: bytes = b"", mapping: str = "text") -> str:
        """Upload a PDF, by default one with a text of its own."""
        answer = self.post(content or make_pdf(f"page {next(_numbers)}"), mapping=mapping)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> SimpleNamespace:
        return SimpleNamespace(**self.http.get(f"/api/jobs/{job_id}").json())

    def wait(self, job_id: str, *statuses: str) -> SimpleNamespace:
        wanted = statuses or ("complete", "failed")

        def find() -> SimpleNamespace | None:
            job = self.job(job_id)
            return job if job.status in wanted else None

        return until(find, 120, f"a job that is {' or '.join(wanted)}")

    def events(self, job_id: str) -> list[str]:
        return [event["event"] for event in self.http.get(f"/api/jobs/{job_id}/events").json()]

    def download(self, job_id: str) -> Any:
        return self.http.get(f"/api/jobs/{job_id}/download")

    def retry(self, job_id: str) -> Any:
        return self.http.post(f"/api/jobs/{job_id}/retry")


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Iterator[Site]:
    with ServiceProcess("mulligan.apps.pdfxml.demo.gateway") as gateway:
        deployment = Deployment(
            "pdfxml",
            tmp_path,
            MULLIGAN_DATABASE_URL=store_url,
            GATEWAY_URL=gateway.url,
            STORAGE_URL=str(tmp_path / "files"),
            GATEWAY_TIMEOUT="2",
            BREAKER_COOL_DOWN="1",
        )
        with deployment:
            site = Site(deployment, gateway)
            yield site
            site.http.close()
            site.gateway.close()


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    program = browsers.find_browser()
    if program is None:
        pytest.skip(browsers.MISSING)
    home = site.deployment.url
    with (
        browsers.browser(program) as chromium,
        open_session(chromium, home, accept_downloads=True) as session,
    ):
        yield session.go("/")


@pytest.mark.seed("001-83", "001-84", "001-85", "001-86", "001-87", "001-88", "001-89", "001-90")
@pytest.mark.seed("001-91", "001-01", "001-07", "001-11", "001-37", "001-38", "001-40", "001-49")
@pytest.mark.seed("001-10", "001-59", "001-79")
def test_acceptance_list_on_worker_and_web_as_the_readme_starts_them(site, page):
    key = site.deployment.run("mulligan keys create").strip().splitlines()[-1]
    slow = check_timeouts_and_failed_writes_begin(site)
    check_refused_uploads(site)
    check_broken_connection(site)
    check_refused_conversions(site)
    check_timeouts_and_failed_writes_end(site, *slow)
    check_unwritable_upload(site)
    check_outage_in_the_browser(site, page)
    check_killed_worker(site)
    check_fail_fast(site)
    check_retention(site)
    check_operator_pages(site, key)


def check_refused_uploads(site: Site) -> None:
    answer = site.post(b"\x89PNG\r\n\x1a\n" + bytes(64))
    assert (answer.status_code, answer.json()["error_code"]) == (400, "NOT_PDF")  # 001-83
    refused = site.job(answer.json()["job_id"])
    assert (refused.status, refused.error_code) == ("failed", "NOT_PDF")  # 001-83
    large = make_pdf(size=50 * MEGABYTE + 1)
    answer = site.post(large)
    assert (answer.status_code, answer.json()["error_code"]) == (413, "TOO_LARGE")  # 001-84
    site.order(400, document=hashlib.sha256(large[:-1]).hexdigest())
    answer = site.post(large[:-1])
    assert answer.status_code == 201  # 001-84: 50 MB are allowed
    site.wait(answer.json()["id"])  # its retries would be calls in the checks that count calls


def check_broken_connection(site: Site) -> None:
    """Upload, hang up without having read the answer, and upload again."""
    content = make_pdf("cut off")
    request = site.http.build_request("POST", "/api/upload", files={"file": ("cut.pdf", content)})
    lines = [
        "POST /api/upload HTTP/1.1",
        *[f"{name}: {value}" for name, value in request.headers.items()],
    ]

    def find() -> list[str]:
        return [job["id"] for job in site.http.get("/api/jobs").json() if job["file"] == "cut.pdf"]

    with socket.create_connection(("127.0.0.1", site.deployment.port)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.read())
        [job_id] = until(find, 60, "the job of the upload")  # its answer is never read
    again = site.post(content, name="cut.pdf")
    assert (again.status_code, again.json()["id"]) == (200, job_id)  # 001-11
    assert find() == [job_id]  # 001-11: one job
    assert site.wait(job_id).status == "complete"


def check_unwritable_upload(site: Site) -> None:
    uploads = site.files / "uploads"
    aside = uploads.rename(site.files / "uploads.aside")
    uploads.write_text("a file where the folder should be")
    answer = site.post(make_pdf("cannot be stored"))
    uploads.unlink()
    aside.rename(uploads)
    assert (answer.status_code, answer.json()["error_code"]) == (500, "IO_ERROR")  # 001-07
    failed = site.job(answer.json()["job_id"])
    assert (failed.status, failed.error_code, failed.attempt_count) == (
        "failed",
        "IO_ERROR",
        0,
    )  # 001-07


def check_refused_conversions(site: Site) -> None:
    document = make_pdf("refused")
    site.order(400, document=hashlib.sha256(document).hexdigest())
    bad_file = site.upload(document)
    bad_mapping = site.upload(mapping="poetry")  # the gateway answers 406
    for job_id in (bad_file, bad_mapping):
        job = site.wait(job_id)
        assert (job.status, job.error_code, job.attempt_count) == ("failed", "GW_4XX", 1)  # 001-85
        assert job.error_message.startswith(REFUSED)
        assert site.events(job_id) == ["queued", "processing", "failed"]  # 001-85: no retry


def check_timeouts_and_failed_writes_begin(site: Site) -> tuple[str, str, str]:
    """Start what waits for retries of 5 and 15 s, so that the other checks fill the time."""
    document = make_pdf("hangs")
    site.order("hang", document=hashlib.sha256(document).hexdigest())
    hanging = site.upload(document)
    results = site.files / "results"
    results.parent.mkdir(exist_ok=True)
    results.write_text("a file where the folder should be")
    unwritten = site.upload()
    written_later = site.upload()
    for job_id in (unwritten, written_later):
        waiting = until(lambda one=job_id: (job := site.job(one)).notice and job, 60, "a failure")
        assert waiting.notice == "Temporary storage issue. We’ll retry."
    results.unlink()
    assert site.wait(written_later).status == "complete"
    return hanging, unwritten, written_later


def check_timeouts_and_failed_writes_end(
    site: Site, hanging: str, recovered: str, also_recovered: str
) -> None:
    for job_id in (recovered, also_recovered):
        job = site.wait(job_id)
        assert (job.status, job.attempt_count) == ("complete", 2)  # 001-88: one retry
    results = site.files / "results"
    results.rename(site.files / "aside")
    results.write_text("a file where the folder should be")
    unwritten = site.wait(site.upload())
    assert (unwritten.status, unwritten.error_code) == ("failed", "IO_ERROR")  # 001-88
    assert unwritten.attempt_count == 2  # 001-88
    results.unlink()
    (site.files / "aside").rename(results)
    job = site.wait(hanging)
    assert (job.status, job.error_code, job.attempt_count) == ("failed", "GW_TIMEOUT", 3)  # 001-87
    assert job.error_message == "Conversion is taking too long."
    events = site.events(hanging)
    assert events == ["queued", *["processing", "retry"] * 2, "processing", "failed"]  # 001-87
    starts = [
        event["at"]
        for event in site.http.get(f"/api/jobs/{hanging}/events").json()
        if event["event"] == "processing"
    ]
    assert seconds_between(*starts[:2]) >= 2 + 4  # 001-87: the time limit, then 5 s - 20 %
    assert seconds_between(*starts[1:]) >= 2 + 12  # 001-87: the time limit, then 15 s - 20 %


def seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def check_outage_in_the_browser(site: Site, page: Page) -> None:
    """Walk the queue page of one visitor through an outage of the gateway."""

    def upload(name: str, content: bytes) -> None:
        file = {"name": name, "mimeType": "application/pdf", "buffer": content}
        page.get_by_label("File").set_input_files(file)
        page.get_by_role("button", name="Upload").click()

    def row(name: str) -> Any:
        return page.get_by_role("row").filter(has_text=name)

    document = make_pdf("bad once")
    site.order(400, document=hashlib.sha256(document).hexdigest(), times=1)
    upload("bad.pdf", document)
    expect(row("bad.pdf")).to_contain_text(f"{REFUSED}", timeout=60_000)
    expect(row("bad.pdf").locator("code")).to_have_text("GW_4XX")  # 001-01: the page has the code
    row("bad.pdf").get_by_role("button", name="Retry").click()  # 001-49
    expect(row("bad.pdf")).to_contain_text("complete", timeout=60_000)  # 001-90
    with page.expect_download() as download:
        row("bad.pdf").get_by_role("link", name="Download").click()
    assert "<line>bad once</line>" in Path(download.value.path()).read_text()
    site.clear_orders()
    site.gateway.close()
    for n in range(8):
        upload(f"outage {n}.pdf", make_pdf(f"outage {n}"))
    expect(page.locator(".banner")).to_have_text(BUSY, timeout=60_000)  # 001-37
    expect(row("outage").filter(has_text="queued")).to_have_count(8)  # 001-86: they stay queued
    assert "/runbook" not in page.content()
    port = str(site.gateway.port)
    site.gateway = ServiceProcess("mulligan.apps.pdfxml.demo.gateway", "--port", port)
    expect(row("outage").filter(has_text="complete")).to_have_count(
        8, timeout=90_000
    )  # 001-38, 001-40, 001-86
    expect(page.locator(".banner")).to_have_count(0, timeout=60_000)


def check_killed_worker(site: Site) -> None:
    """Kill the worker during a call, then start another."""
    document = make_pdf("killed")
    site.order("hang", document=hashlib.sha256(document).hexdigest(), times=1)
    job_id = site.upload(document)
    site.wait(job_id, "processing")
    until(site.calls, 60, "the call of the gateway")
    early = site.download(job_id)
    assert (early.status_code, early.json()["error_code"]) == (409, "NOT_READY")  # 001-89
    site.deployment.kill("mulligan worker")
    site.deployment.start("mulligan worker")
    job = site.wait(job_id)
    assert (job.status, job.attempt_count, job.manual_retry_count) == ("complete", 2, 0)  # 001-91
    files = [file.name for file in (site.files / "results").iterdir() if job_id in file.name]
    assert files == [f"{job_id}.xml"]  # 001-91: one XML, no half one
    lost = ["queued", "processing", "retry", "processing", "complete"]
    assert site.events(job_id) == lost  # 001-91: one lease after the other


def check_fail_fast(site: Site) -> None:
    site.deployment.restart(BREAKER_MODE="fail_fast", RETRY_MAX_ATTEMPTS="1")
    site.clear_orders()
    site.order(503)
    failed: dict[str, SimpleNamespace] = {}  # by document
    reason = None
    while reason != "breaker" and len(failed) < 60:
        document = make_pdf(f"page {next(_numbers)}")
        job = failed[hashlib.sha256(document).hexdigest()] = site.wait(site.upload(document))
        reason = job.error_reason
    assert {(job.status, job.error_code) for job in failed.values()} == {
        ("failed", "GW_5XX")
    }  # 001-86
    *sent, unsent_document = failed
    unsent = failed[unsent_document]
    assert unsent.error_reason == "breaker"  # 001-86: fails fast
    assert [call["document"] for call in site.calls()] == sent  # 001-86: without a call
    site.clear_orders()
    answer = until(
        lambda: (answer := site.retry(unsent.id)).status_code == 200 and answer, 60, "a retry"
    )
    body = answer.json()
    assert (body["status"], body["error_code"], body["error_message"]) == (
        "queued",
        None,
        None,
    )  # 001-90
    assert site.wait(unsent.id).status == "complete"  # 001-86, 001-90


def check_retention(site: Site) -> None:
    site.deployment.restart(BREAKER_MODE="hold", RETENTION_HOURS="0.001")
    document = make_pdf("expires")
    job_id = site.upload(document)
    assert site.wait(job_id).status == "complete"
    expired = until(
        lambda: (answer := site.download(job_id)).status_code == 404 and answer, 60, "an expiry"
    )
    assert expired.json()["error_code"] == "EXPIRED"  # 001-89
    site.deployment.restart(RETENTION_HOURS="72")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(site.post, [document] * 8))
    [again] = {answer.json()["id"] for answer in answers}  # 001-10: one for all who ask
    assert again != job_id
    assert site.wait(again).status == "complete"
    assert "<line>expires</line>" in site.download(again).text  # 001-10
    with httpx2.Client(base_url=site.deployment.url, timeout=60, verify=False) as stranger:
        answer = stranger.get(f"/api/jobs/{again}/download")
    assert (answer.status_code, answer.json()["error_code"]) == (403, "FORBIDDEN")
    assert answer.json()["error_message"] == "This file isn’t yours."  # 001-59


def check_operator_pages(site: Site, key: str) -> None:
    assert [site.http.get(path).status_code for path in ("/metrics", "/runbook")] == [401, 401]
    steps = site.http.get("/runbook", auth=("", key)).text  # as a browser sends a password
    for code in ("GW_5XX", "GW_TIMEOUT", "GW_4XX", "IO_ERROR", "UNKNOWN"):
        assert f'id="{code}"' in steps  # 001-79
    headers = {"Authorization": f"Bearer {key}"}
    text = site.http.get("/metrics", headers=headers).text
    failed = set(re.findall(r'^jobs_failed_total\{error_code="(\w+)"\}', text, re.MULTILINE))
    assert failed == {
        "NOT_PDF",
        "TOO_LARGE",
        "GW_4XX",
        "IO_ERROR",
        "GW_TIMEOUT",
        "GW_5XX",
    }  # 001-01
    logged = set(re.findall(r"failed with (\w+) \(", site.deployment.log("worker")))
    assert logged == {"GW_4XX", "GW_5XX", "GW_TIMEOUT", "IO_ERROR", "UNKNOWN"}  # 001-01
    answered = set(re.findall(r"answered \d+ (\w+)", site.deployment.log("uvicorn")))
    assert answered >= {"NOT_PDF", "TOO_LARGE", "NOT_READY", "EXPIRED", "FORBIDDEN"}  # 001-01
