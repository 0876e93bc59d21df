"""Running demos of the applications in apps/, with content on each page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from playwright.sync_api import Browser, expect
from reportlab.pdfgen.canvas import Canvas

from support import browser as browsers
from support.waiting import until

TIMEOUT = 300  # seconds; the demos encode real videos


class Page(NamedTuple):
    name: str
    address: str
    cookies: tuple[tuple[str, str], ...] = ()


class Demo:
    """A running `mulligan demo NAME`: its address, an HTTP client, and its stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.address = process.stdout.readline().strip() if process.stdout else ""
        self.home = re.sub(r"(?<=\d)/.*", "", self.address)
        self.client = httpx2.Client(
            base_url=self.home, verify=False, timeout=60, follow_redirects=True
        )
        self._stderr: list[str] = []
        threading.Thread(target=self._read_stderr, args=(process,), daemon=True).start()

    def _read_stderr(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            self._stderr.append(line)

    def find_in_stderr(self, pattern: str) -> str:
        """Wait until stderr matches the pattern. Return the match."""
        return until(
            lambda: next(iter(re.findall(pattern, "".join(self._stderr))), ""), 60, pattern
        )

    def wait_for_text(self, path: str, *patterns: str) -> str:
        """Wait until the page matches all patterns. Return the page."""

        def matching_page() -> str:
            text = self.client.get(path).text
            return text if all(re.search(pattern, text) for pattern in patterns) else ""

        return until(matching_page, TIMEOUT, f"{path} with {patterns}")


@contextmanager
def demo(name: str, folder: Path, **environ: str) -> Iterator[Demo]:
    with subprocess.Popen(
        [sys.executable, "-m", "mulligan", "demo", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "MULLIGAN_WORKER__SHUTDOWN_GRACE": "3", **environ},
    ) as process:
        try:
            running = Demo(process)
            yield running
            running.client.close()
        finally:
            process.terminate()


@contextmanager
def open_page(chromium: Browser, page: Page, **options: Any) -> Iterator[browsers.Page]:
    """Open a page in a browser."""
    home = "/".join(page.address.split("/")[:3])
    with browsers.open_session(chromium, home, **options) as visitor:
        visitor.expected_errors = ("status of 401",)  # the sign-in page answers 401
        visitor.context.add_cookies(
            [{"name": name, "value": value, "url": home} for name, value in page.cookies]
        )
        visitor.page.goto(page.address)
        if "#" in page.address:  # the page loads its rows by script
            expect(visitor.page.locator("table:visible tbody tr").first).to_be_visible()
        yield visitor.page


# --- Content of each demo ---


def watermark(running: Demo) -> list[Page]:
    key = running.address.partition("key=")[2]
    running.client.cookies.set("key", key)
    campaigns = running.wait_for_text("/campaigns", "state-ready", "state-partial", "state-failed")
    autumn = re.findall(r'href="(/campaigns/[^"]+)">Autumn<', campaigns)[0]
    failed = running.client.post("/detect", files={"file": ("a.mp4", b"no video")}).url.path
    running.wait_for_text(failed, "The detection failed")
    copy = next(
        answer.content
        for link in re.findall(r'href="(/t/[^"]+)"', running.client.get(autumn).text)
        if (answer := running.client.get(link)).status_code == 200
    )
    found = running.client.post("/detect", files={"file": ("a.mp4", copy)}).url.path
    running.wait_for_text(found, "This is the copy of")
    pages = {
        "campaigns": "/campaigns",
        "campaign": autumn,
        "detect": "/detect",
        "found": found,
        "not-found": failed,
    }
    signed_in = [Page(name, running.home + path, (("key", key),)) for name, path in pages.items()]
    return [*signed_in, Page("sign-in", f"{running.home}/campaigns")]


def pdfxml(running: Demo) -> list[Page]:
    gateway = running.find_in_stderr(r"http://\S+\d")

    def upload(name: str, content: bytes) -> None:
        running.client.post("/api/upload", files={"file": (name, content)})

    def set_gateway(do: str) -> None:
        httpx2.post(f"{gateway}/say", data={"do": do}, verify=False)

    upload("report.pdf", make_pdf("Hello"))
    upload("a_name_that_goes_on_and_on_without_a_space_and_then_some.pdf", make_pdf("World"))
    upload("picture.pdf", b"\x89PNG")
    running.wait_for_text("/", "(?s)badge complete.*badge complete")
    set_gateway("400")
    upload("odd.pdf", make_pdf("odd"))
    running.wait_for_text("/", "Couldn’t convert")
    session = (("session", running.client.cookies["session"]),)
    set_gateway("503")
    for number in range(6):
        upload(f"page {number}.pdf", make_pdf(str(number)))
    running.wait_for_text("/", 'class="banner">Gateway busy')
    return [
        Page("page", f"{running.home}/", session),
        Page("runbook", f"{running.home}/runbook"),
        Page("empty", f"{running.home}/"),
        Page("gateway", f"{gateway}/"),
    ]


def videogen(running: Demo) -> list[Page]:
    key = running.address.partition("#")[2]
    running.client.headers["Authorization"] = f"Bearer {key}"
    for instruction in ("", "[503 x1]", "[policy]", "[401]"):
        order = {
            "model": "nimbus-1",
            "prompt": f"the sea at night {instruction}".strip(),
            "seconds": 2,
        }
        running.client.post("/v1/videos/generations", json=order).raise_for_status()
    running.wait_for_text(
        "/v1/videos/generations/tasks", '"succeeded"', '"failed"', "Retry 1/3 scheduled"
    )
    providers = running.find_in_stderr(r"http://\S+\d")
    return [
        Page("page", f"{running.home}/#{key}"),
        Page("sign-in", f"{running.home}/"),
        Page("providers", f"{providers}/"),
    ]


def render(running: Demo) -> list[Page]:
    images = re.findall(r'value="(http[^"]+)/photo.jpg"', running.client.get("/").text)[0]
    for picture in ("photo", "flaky", "missing", "page", "broken"):
        clip = {"image": f"{images}/{picture}.jpg", "text": "Hello", "duration": 2}
        running.client.post("/jobs", json={"timeline": {"clips": [clip]}}).raise_for_status()
    running.wait_for_text("/", "(?s)COMPLETED.*COMPLETED", '(?s)"FAILED".*"FAILED".*"FAILED"')
    return [Page("page", f"{running.home}/")]


def clipscribe(running: Demo) -> list[Page]:
    admin = running.find_in_stderr(r"http://\S+/demo/admin")
    samples = running.find_in_stderr(r"http://\S+/\?service=").partition("/?")[0] + "/videos"
    pages = {}
    ends = {
        "talk": "COMPLETED",
        "private": "FAILED",
        "busy-1": "RETRYING",
        "talk-9h": "MANUAL_REVIEW",
    }
    for video in ends:
        order = {"url": f"{samples}/{video}.mp4", "user": "ann@example.com"}
        pages[video] = running.client.post("/jobs", json=order).json()["status_url"]
    for video, state in ends.items():
        running.wait_for_text(pages[video], f'class="{state}"')
    about = pages["private"].replace("/status/", "/jobs/").replace("?", "/feedback?")
    running.client.post(about, data={"text": "It is not private for me."}).raise_for_status()
    status_pages = [Page(ends[video].lower(), running.home + path) for video, path in pages.items()]
    return [Page("home", f"{running.home}/"), Page("page", admin), *status_pages]


def make_pdf(text: str) -> bytes:
    canvas: Any = Canvas("", invariant=1)
    canvas.drawString(72, 800, text)
    return bytes(canvas.getpdfdata())


DEMO_PAGES: dict[str, Callable[[Demo], list[Page]]] = {
    build.__name__: build for build in (watermark, pdfxml, videogen, render, clipscribe)
}
