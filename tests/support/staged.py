"""The demos of the applications in apps/, running, with something on each of their pages."""

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

SOON = 300  # seconds until everything is as it should be: they really make videos


class Page(NamedTuple):
    name: str
    address: str
    cookies: tuple[tuple[str, str], ...] = ()


class Demo:
    """`mulligan demo NAME`: where it is, and what it has said on stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.address = process.stdout.readline().strip() if process.stdout else ""
        self.home = re.sub(r"(?<=\d)/.*", "", self.address)
        self.client = httpx2.Client(
            base_url=self.home, verify=False, timeout=60, follow_redirects=True
        )
        self._said: list[str] = []
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            self._said.append(line)

    def told(self, pattern: str) -> str:
        """What matches in the lines it wrote to stderr."""
        return until(lambda: next(iter(re.findall(pattern, "".join(self._said))), ""), 60, pattern)

    def has(self, path: str, *words: str) -> str:
        """The page, once all of these words are on it."""

        def look() -> str:
            text = self.client.get(path).text
            return text if all(re.search(word, text) for word in words) else ""

        return until(look, SOON, f"{path} with {words}")


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
def opened(chromium: Browser, page: Page, **options: Any) -> Iterator[browsers.Page]:
    """Somebody who looks at it."""
    home = "/".join(page.address.split("/")[:3])
    with browsers.visit(chromium, home, **options) as person:
        person.forgiven = ("status of 401",)  # a page to sign in at is the answer to who is not
        person.context.add_cookies(
            [{"name": name, "value": value, "url": home} for name, value in page.cookies]
        )
        person.page.goto(page.address)
        if "#" in page.address:  # it asks for the rest by itself
            expect(person.page.locator("table:visible tbody tr").first).to_be_visible()
        yield person.page


# -- each with something to see ---------------------------------------------------------------------
def watermark(at: Demo) -> list[Page]:
    key = at.address.partition("key=")[2]
    at.client.cookies.set("key", key)
    campaigns = at.has("/campaigns", "state-ready", "state-partial", "state-failed")
    autumn = re.findall(r'href="(/campaigns/[^"]+)">Autumn<', campaigns)[0]
    failed = at.client.post("/detect", files={"file": ("a.mp4", b"no video")}).url.path
    at.has(failed, "The detection failed")
    copy = next(
        answer.content
        for link in re.findall(r'href="(/t/[^"]+)"', at.client.get(autumn).text)
        if (answer := at.client.get(link)).status_code == 200
    )
    found = at.client.post("/detect", files={"file": ("a.mp4", copy)}).url.path
    at.has(found, "This is the copy of")
    pages = {
        "campaigns": "/campaigns",
        "campaign": autumn,
        "detect": "/detect",
        "found": found,
        "not-found": failed,
    }
    own = [Page(name, at.home + path, (("key", key),)) for name, path in pages.items()]
    return [*own, Page("sign-in", f"{at.home}/campaigns")]


def pdfxml(at: Demo) -> list[Page]:
    gateway = at.told(r"http://\S+\d")

    def upload(name: str, content: bytes) -> None:
        at.client.post("/api/upload", files={"file": (name, content)})

    def tell(do: str) -> None:
        httpx2.post(f"{gateway}/say", data={"do": do}, verify=False)

    upload("report.pdf", a_pdf("Hello"))
    upload("a_name_that_goes_on_and_on_without_a_space_and_then_some.pdf", a_pdf("World"))
    upload("picture.pdf", b"\x89PNG")
    at.has("/", "(?s)badge complete.*badge complete")
    tell("400")
    upload("odd.pdf", a_pdf("odd"))
    at.has("/", "Couldn’t convert")
    session = (("session", at.client.cookies["session"]),)
    tell("503")
    for number in range(6):
        upload(f"page {number}.pdf", a_pdf(str(number)))
    at.has("/", 'class="banner">Gateway busy')
    return [
        Page("page", f"{at.home}/", session),
        Page("runbook", f"{at.home}/runbook"),
        Page("empty", f"{at.home}/"),
        Page("gateway", f"{gateway}/"),
    ]


def videogen(at: Demo) -> list[Page]:
    key = at.address.partition("#")[2]
    at.client.headers["Authorization"] = f"Bearer {key}"
    for wish in ("", "[503 x1]", "[policy]", "[401]"):
        order = {"model": "nimbus-1", "prompt": f"the sea at night {wish}".strip(), "seconds": 2}
        at.client.post("/v1/videos/generations", json=order).raise_for_status()
    at.has("/v1/videos/generations/tasks", '"succeeded"', '"failed"', "Retry 1/3 scheduled")
    providers = at.told(r"http://\S+\d")
    return [
        Page("page", f"{at.home}/#{key}"),
        Page("sign-in", f"{at.home}/"),
        Page("providers", f"{providers}/"),
    ]


def render(at: Demo) -> list[Page]:
    images = re.findall(r'value="(http[^"]+)/photo.jpg"', at.client.get("/").text)[0]
    for picture in ("photo", "flaky", "missing", "page", "broken"):
        clip = {"image": f"{images}/{picture}.jpg", "text": "Hello", "duration": 2}
        at.client.post("/jobs", json={"timeline": {"clips": [clip]}}).raise_for_status()
    at.has("/", "(?s)COMPLETED.*COMPLETED", '(?s)"FAILED".*"FAILED".*"FAILED"')
    return [Page("page", f"{at.home}/")]


def clipscribe(at: Demo) -> list[Page]:
    admin = at.told(r"http://\S+/admin\S+")
    samples = re.findall(r'value="(http[^"]+)/talk.mp4"', at.client.get("/").text)[0]
    pages = {}
    ends = {
        "talk": "COMPLETED",
        "private": "FAILED",
        "busy-1": "RETRYING",
        "talk-9h": "MANUAL_REVIEW",
    }
    for video in ends:
        order = {"url": f"{samples}/{video}.mp4", "user": "ann@example.com"}
        pages[video] = at.client.post("/jobs", json=order).json()["status_url"]
    for video, state in ends.items():
        at.has(pages[video], f'class="{state}"')
    about = pages["private"].replace("/status/", "/jobs/").replace("?", "/feedback?")
    at.client.post(about, data={"text": "It is not private for me."}).raise_for_status()
    own = [Page(ends[video].lower(), at.home + path) for video, path in pages.items()]
    return [Page("home", f"{at.home}/"), Page("page", admin), *own]


def a_pdf(text: str) -> bytes:
    canvas: Any = Canvas("", invariant=1)
    canvas.drawString(72, 800, text)
    return bytes(canvas.getpdfdata())


FURNISHED: dict[str, Callable[[Demo], list[Page]]] = {
    made.__name__: made for made in (watermark, pdfxml, videogen, render, clipscribe)
}
