"""The page in a real browser, with a worker and a gateway behind it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from support import browser as browsers
from support.browser import open_session

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(300),
]
expect.set_options(timeout=60_000)
BUSY = "Gateway busy, paused. Will retry automatically."


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = browsers.find_browser()
    if found is None:
        pytest.skip(browsers.MISSING)
    with browsers.browser(found) as browser:
        yield browser


class Site:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.home = process.stdout.readline().strip().rstrip("/")
        stderr_lines = []
        while not stderr_lines or "The gateway" not in stderr_lines[-1]:
            stderr_lines.append(process.stderr.readline())
            assert stderr_lines[-1], "".join(stderr_lines)
        self.gateway = re.search(r"http://\S+\d", stderr_lines[-1])[0]

    def add_order(self, do: str) -> None:
        with httpx2.Client(verify=False) as client:
            assert client.post(f"{self.gateway}/say", data={"do": do}).status_code == 303


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Iterator[Site]:
    quick = {"BREAKER_COOL_DOWN": "1", "MULLIGAN_WORKER__RUNNERS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "mulligan", "demo", "pdfxml", "--database", store_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **quick},
        cwd=tmp_path,
    )
    try:
        yield Site(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def upload(page, name: str, content: bytes) -> None:
    page.get_by_label("File").set_input_files(
        {"name": name, "mimeType": "application/pdf", "buffer": content}
    )
    page.get_by_role("button", name="Upload").click()


def row(page, name: str):
    return page.get_by_role("row").filter(has_text=name)


@contextmanager
def open_page(chromium: Browser, site: Site, **options):
    with open_session(chromium, site.home, **options) as person:
        yield person.go("/")


@pytest.mark.seed("001-37", "001-49", "001-86", "001-90")
def test_upload_failure_retry_and_download_in_a_browser(chromium, site):
    with open_page(chromium, site, accept_downloads=True) as page:
        upload(page, "report.pdf", make_pdf("Hello"))
        expect(row(page, "report.pdf")).to_contain_text("complete")
        with page.expect_download() as download:
            row(page, "report.pdf").get_by_role("link", name="Download").click()
        assert "<line>Hello</line>" in Path(download.value.path()).read_text()
        upload(page, "picture.pdf", b"\x89PNG")
        expect(row(page, "picture.pdf")).to_contain_text("Only PDF files are supported.")
        site.add_order("400")
        upload(page, "bad.pdf", make_pdf("bad"))
        expect(row(page, "bad.pdf")).to_contain_text(
            "Couldn’t convert this file with the selected mapping."
        )
        site.add_order("ok")
        row(page, "bad.pdf").get_by_role("button", name="Retry").click()
        expect(row(page, "bad.pdf")).to_contain_text("complete")  # 001-49, 001-90
        site.add_order("503")
        for n in range(8):
            upload(page, f"page {n}.pdf", make_pdf(f"page {n}"))
        expect(page.locator(".banner")).to_have_text(BUSY)  # 001-37
        site.add_order("ok")
        expect(page.locator(".badge.complete")).to_have_count(10, timeout=90_000)  # 001-86


def test_page_works_without_javascript(chromium, site):
    with open_page(chromium, site, scripts=False) as page:
        site.add_order("400")
        upload(page, "bad.pdf", make_pdf())
        expect(row(page, "bad.pdf")).to_be_visible()
        for _ in range(100):
            page.reload()
            if row(page, "bad.pdf").get_by_role("button", name="Retry").count():
                break
            page.wait_for_timeout(100)
        site.add_order("ok")
        row(page, "bad.pdf").get_by_role("button", name="Retry").click()
        expect(row(page, "bad.pdf")).not_to_contain_text("failed")
