"""The failure scenarios of the specification, on worker and web as the README starts them.

Only HTTP, a browser and signals are used. The picture server is emulated: it is the outside world.
An id after an assertion is the requirement that it proves.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from playwright.sync_api import Page, expect

from mulligan.apps.render.pictures import find_ffmpeg
from mulligan.apps.stage import ServiceProcess
from support import browser as browsers
from support.deployment import Deployment
from support.receivers import WebReceiver
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(600),
]
PATIENCE = 150  # seconds


class Site:
    """The deployed service and its picture server."""

    def __init__(self, deployment: Deployment, pictures: ServiceProcess, page: Page) -> None:
        self.deployment = deployment
        self.pictures = pictures
        self.page = page
        self.http = httpx2.Client(base_url=deployment.url, timeout=60, verify=False)

    def clip(self, picture: str = "photo.jpg", **fields: Any) -> dict[str, Any]:
        image = picture if picture.startswith("http") else f"{self.pictures.url}/{picture}"
        return {"image": image, "text": "Test", "duration": 3, **fields}

    def post(self, *clips: dict[str, Any]) -> httpx2.Response:
        return self.http.post("/jobs", json={"timeline": {"clips": clips}})

    def order(self, *clips: dict[str, Any]) -> str:
        answer = self.post(*(clips or [self.clip()]))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job: str) -> dict[str, Any]:
        return dict(self.http.get(f"/jobs/{job}").json())

    def wait(self, job: str, condition: Any) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            view = self.job(job)
            return view if condition(view) else None

        return until(find, PATIENCE, f"{job}: {self.deployment.log('worker')[-2000:]}")

    def finish(self, job: str) -> dict[str, Any]:
        return self.wait(job, lambda view: view["state"] in ("COMPLETED", "FAILED"))


@pytest.fixture
def site(empty_url: str, tmp_path: Path) -> Iterator[Site]:
    found = browsers.find_browser()
    if found is None:
        pytest.skip(browsers.MISSING)
    with ExitStack() as stack:
        pictures = stack.enter_context(ServiceProcess("mulligan.apps.render.demo.world"))
        alerts = WebReceiver()
        stack.callback(alerts.close)
        deployment = Deployment(
            "render",
            tmp_path,
            MULLIGAN_DATABASE_URL=empty_url,
            STORAGE_URL=f"file://{tmp_path}/videos",
            ALERTS_TO=alerts.url(),
            ALLOW_PRIVATE_ADDRESSES="true",
        )
        stack.enter_context(deployment)
        browser = stack.enter_context(browsers.browser(found))
        session = stack.enter_context(browsers.open_session(browser, deployment.url))
        session.expected_errors = ("400",)
        site = Site(deployment, pictures, session.page)
        stack.enter_context(site.http)
        yield site


@pytest.mark.seed("003-01", "003-06", "003-09", "003-12", "003-40", "003-53", "003-56", "003-57")
def test_invalid_input_and_image_download_failure(site: Site) -> None:
    """The first two scenarios of "Testing Failure Scenarios"."""
    empty = site.http.post("/jobs", json={"timeline": {"clips": []}})
    assert empty.status_code == 400  # 003-56
    assert set(empty.json()) == {"statusCode", "message", "error"}  # 003-06
    short = site.post(site.clip(duration=0.5)).json()
    assert short["message"] == "Duration must be at least 1 second"  # 003-09
    site.page.goto(site.deployment.url)
    expect(site.page.locator("main")).to_contain_text("Nothing has been rendered yet")  # 003-01

    job = site.order(site.clip("https://invalid-domain-xyz.invalid/image.jpg"))
    view = site.finish(job)
    assert (view["state"], view["attempts"]) == ("FAILED", 4)  # 003-40, 003-57
    assert view["error"]["code"] == "IMAGE_DOWNLOAD_FAILED"  # 003-57
    assert view["error"]["details"]["url"] == "https://invalid-domain-xyz.invalid/image.jpg"
    log = [line for line in site.deployment.log("worker").splitlines() if f"job={job}" in line]
    failures = [line for line in log if "failed with IMAGE_DOWNLOAD_FAILED" in line]
    assert len(failures) == 4  # 003-53
    assert all(" ERROR " in line for line in failures)  # 003-53
    seconds = [view[name] for name in ("createdAt", "finishedAt")]
    assert 7 <= _between(*seconds) < 60  # 003-12: 1 + 2 + 4 s


def _between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


# The real ffmpeg with one more filter: it renders one second of film per second.
SLOW_FFMPEG = """#!{python}
import os, sys
arguments = [argument.replace("v=1[all]", "v=1,realtime[all]") for argument in sys.argv[1:]]
os.execv({ffmpeg!r}, ["ffmpeg", *arguments])
"""


@pytest.mark.seed("003-22", "003-23", "003-25", "003-59")
def test_timeout_of_many_clips(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third scenario: many clips, until a limit that is enough for the downloads only.

    A fast machine renders 50 minutes of film within the limit, so ffmpeg keeps to real time.
    """
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    text = SLOW_FFMPEG.format(python=sys.executable, ffmpeg=find_ffmpeg())
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    site.deployment.restart(JOB_TIMEOUT_MS="30000")
    clips = [site.clip(f"photo-{number}.jpg", duration=60) for number in range(50)]
    job = site.order(*clips)
    view = site.wait(job, lambda view: view["error"])
    assert view["error"] == {
        "code": "FFMPEG_TIMEOUT",  # 003-25, 003-59
        "message": "FFmpeg timeout after 30000ms",  # 003-25
    }
    assert view["state"] == "PROCESSING"  # 003-59: retried
    site.deployment.stop("mulligan worker")
    below = [
        " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    ]
    assert [line for line in below if "ffmpeg" in line and str(tmp_path) in line] == []  # 003-22
    left = [path for path in tmp_path.rglob("picture-*") if path.is_file()]
    assert left == []  # 003-23


@pytest.mark.seed("003-04", "003-34", "003-36", "003-39", "003-60")
def test_order_in_the_browser_and_retry_a_failed_one(site: Site, tmp_path: Path) -> None:
    page = site.page
    page.goto(site.deployment.url)
    page.get_by_label("Picture").fill(f"{site.pictures.url}/missing.jpg")
    page.get_by_role("button", name="Render").click()
    row = page.locator("tbody tr").first
    expect(row.locator("td").nth(1)).to_have_text("FAILED", timeout=60_000)  # 003-34
    expect(row).to_contain_text("IMAGE_DOWNLOAD_FAILED")
    expect(row).to_contain_text(f"{site.pictures.url}/missing.jpg")
    job = str(row.locator("code").first.get_attribute("title"))
    ended_at = site.job(job)["finishedAt"]
    page.get_by_role("button", name=re.compile("Retry")).click()
    again = site.wait(job, lambda view: view["finishedAt"] not in (None, ended_at))
    assert again["state"] == "FAILED"  # 003-39, 003-60: it ran once more

    done = site.finish(site.order(site.clip(), site.clip("other.jpg")))
    assert (done["state"], done["progress"], done["error"]) == ("COMPLETED", 1, None)  # 003-34
    video = site.http.get(done["video"])
    assert video.content[4:8] == b"ftyp"  # 003-36
    assert (tmp_path / "videos" / f"{done['id']}.mp4").read_bytes() == video.content  # 003-36
    left = [path for path in tmp_path.rglob("picture-*") if path.is_file()]
    assert left == []  # 003-04


@pytest.mark.seed("003-32", "003-33", "003-35", "003-47", "003-48")
def test_worker_that_is_killed_and_started_again_finishes_the_job(
    site: Site, tmp_path: Path
) -> None:
    failed = site.finish(site.order(site.clip("missing.jpg")))
    clips = [site.clip(f"slow-{number}.jpg") for number in range(5)]
    job = site.order(*clips)
    site.wait(job, lambda view: view["state"] == "PROCESSING")  # 003-35
    until(lambda: list(tmp_path.rglob("picture-*")), 60, "a picture")  # the attempt has begun
    site.deployment.kill("mulligan worker")
    site.deployment.start("mulligan worker")  # as the service manager does: 003-32
    view = site.finish(job)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)  # 003-48
    assert site.job(failed["id"])["error"] == failed["error"]  # 003-47
    until(
        lambda: not [path for path in tmp_path.rglob("picture-*") if path.is_file()], 60, "files"
    )  # 003-33
