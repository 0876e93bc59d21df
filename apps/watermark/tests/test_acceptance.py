"""The four milestones of the specification, on worker and pages as the README starts them.

Only HTTP, a browser, mail, a webhook and signals are used. ffmpeg is the real one; a script in
front of it lets it die, run slowly or refuse a file. An id after an assertion is the requirement
that it proves.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from mulligan.apps.watermark import marks
from mulligan.apps.watermark.demo.mailbox import Mailbox
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
PATIENCE = 150  # seconds; the first retry is due after 60
FFMPEG = """#!/bin/sh
cd {folder}
case "$*" in *yuv4mpegpipe\\ pipe:1*) ;; *) exec {ffmpeg} "$@";; esac
[ -e killed ] && kill -9 $$
rm damaged 2>/dev/null && {{ echo "Invalid data found when processing input" >&2; exit 183; }}
[ -e slow ] && exec {ffmpeg} -re "$@"
exec {ffmpeg} "$@"
"""


class Site:
    """The deployed application, its owner's key, and what ffmpeg does next."""

    def __init__(self, folder: Path, deployment: Deployment, page: Page, mailbox: Mailbox) -> None:
        self.folder = folder
        self.deployment = deployment
        self.page = page
        self.mailbox = mailbox
        self.key = deployment.run("python -m mulligan.apps.watermark.accounts").strip()
        self.http = httpx2.Client(
            base_url=deployment.url, cookies={"key": self.key}, timeout=60, verify=False
        )

    def sign_in(self) -> None:
        self.page.goto(f"{self.deployment.url}/campaigns")
        self.page.get_by_role("textbox").fill(self.key)
        self.page.get_by_role("button", name="Sign in").click()

    def upload(self, file: Path) -> None:
        self.page.goto(f"{self.deployment.url}/campaigns")
        self.page.get_by_label("File").set_input_files(file)
        self.page.get_by_role("button", name="Upload").click()
        expect(self.page.locator(".flash")).to_have_text(f"{file.name} is uploaded.")

    def publish(self, name: str, video: Path, *recipients: str) -> str:
        """Create and publish a campaign in the browser. Return its path."""
        page = self.page
        page.goto(f"{self.deployment.url}/campaigns")
        page.get_by_label("Name").fill(name)
        page.locator("select[name=asset]").select_option(label=video.name)
        page.get_by_label("Recipients, one per line").fill("\n".join(recipients))
        page.get_by_role("button", name="Create").click()
        expect(page.locator(".campaign-state")).to_have_text("DRAFT")
        page.get_by_role("button", name="Publish").click()
        expect(page.locator(".campaign-state")).not_to_have_text("DRAFT")
        return page.url.removeprefix(self.deployment.url)

    def token(self, path: str, recipient: str) -> dict[str, Any]:
        tokens = self.http.get(f"{path}/tokens").json()["tokens"]
        return next(token for token in tokens if token["recipient"] == recipient)

    def wait(self, path: str, recipient: str, **fields: Any) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            token = self.token(path, recipient)
            return token if fields.items() <= token.items() else None

        return until(find, PATIENCE, f"{recipient}: {fields}; {self.deployment.log('worker')}")

    def ffmpeg(self, *switches: str) -> None:
        for name in ("killed", "damaged", "slow"):
            (self.folder / name).unlink(missing_ok=True)
        for name in switches:
            (self.folder / name).touch()

    def mails(self, part: str) -> list[str]:
        return [mail["subject"] for mail in self.mailbox.mails if part in mail["subject"]]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a film of eight seconds with sound, and one of which the second half is missing."""
    folder = tmp_path_factory.mktemp("films")
    picture = ["-f", "lavfi", "-i", "testsrc2=duration=8:size=320x192:rate=10"]
    sound = ["-f", "lavfi", "-i", "sine=duration=8", "-movflags", "+faststart"]
    whole, half = folder / "talk.mp4", folder / "half.mp4"
    command = [marks.find_ffmpeg(), "-loglevel", "error", *picture, *sound, str(whole)]
    subprocess.run(command, check=True)
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    return {"whole": whole, "half": half}


@pytest.fixture
def hooks() -> Iterator[WebReceiver]:
    receiver = WebReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def site(empty_url: str, tmp_path: Path, hooks: WebReceiver) -> Iterator[Site]:
    found = browsers.find_browser()
    if found is None:
        pytest.skip(browsers.MISSING)
    program = tmp_path / "ffmpeg"
    program.write_text(FFMPEG.format(folder=tmp_path, ffmpeg=marks.find_ffmpeg()))
    program.chmod(0o755)
    with ExitStack() as stack:
        mailbox = stack.enter_context(Mailbox())
        deployment = Deployment(
            "watermark",
            tmp_path,
            **mailbox.settings,
            MULLIGAN_DATABASE_URL=empty_url,
            WATERMARK_FILES=str(tmp_path / "files"),
            WATERMARK_FFMPEG=str(program),
            WATERMARK_WEBHOOK=hooks.url("campaigns"),
            WATERMARK_ALERTS_TO="operators@example.com",
        )
        stack.enter_context(deployment)
        browser = stack.enter_context(browsers.browser(found))
        session = stack.enter_context(browsers.open_session(browser, deployment.url))
        session.expected_errors = ("401",)  # before signing in
        site = Site(tmp_path, deployment, session.page, mailbox)
        stack.enter_context(site.http)
        site.sign_in()
        yield site


@pytest.mark.seed("000-06", "000-26", "000-32", "000-38", "000-55", "000-93", "000-94", "000-101")
def test_milestone_1_retries_and_permanent_failures(site: Site, films: dict[str, Path]) -> None:
    site.upload(films["whole"])
    site.ffmpeg("killed")
    path = site.publish("Spring", films["whole"], "Ada <ada@example.com>")
    token = site.wait(path, "Ada", retry_count=1)
    due = datetime.fromisoformat(token["next_retry_at"])
    assert 30 < (due - datetime.now(UTC)).total_seconds() <= 60  # 000-101
    assert token["status"] == "PENDING"  # 000-101
    failed_with = r" ERROR .* of watermark failed with OUT_OF_MEMORY .* job=\w+ kind=watermark"
    assert re.search(failed_with, site.deployment.log("worker"))  # 000-38
    site.page.reload()
    expect(site.page.locator(".retry-count")).to_have_text("1/3")  # 000-93

    site.ffmpeg()
    site.upload(films["half"])
    half = site.publish("Half", films["half"], "Bo")
    failed = site.wait(half, "Bo", status="FAILED")
    assert failed["next_retry_at"] is None  # 000-26
    assert failed["retry_count"] == 0  # 000-06, 000-101: no retry was made
    site.page.reload()
    expect(site.page.locator(".retry-count")).to_be_hidden()  # 000-32
    site.page.get_by_text("Error", exact=True).click()
    expect(site.page.locator(".error-details")).to_contain_text("damaged")  # 000-94
    link = site.page.get_by_role("link", name="/t/").get_attribute("href")
    assert site.http.get(link).status_code == 409  # 000-06: half a film is never delivered

    site.wait(path, "Ada", status="ACTIVE", retry_count=1)  # 000-101: retried when it was due
    expect(site.page.locator(".campaign-state")).to_have_text("FAILED")  # 000-55
    until(lambda: site.mails("Half: its only copy failed"), PATIENCE, "the mail")  # 000-55
    assert site.mails("Spring") == []


@pytest.mark.seed("000-07", "000-11", "000-88", "000-91", "000-102")
def test_milestone_2_a_killed_worker_costs_nothing(site: Site, films: dict[str, Path]) -> None:
    site.upload(films["whole"])
    site.ffmpeg("slow")
    path = site.publish("Spring", films["whole"], "Ada")
    badge = site.page.locator(".status-badge")
    expect(badge).to_have_text(re.compile(r"PROCESSING \([1-9]\d?%\)"), timeout=60_000)  # 000-91
    site.deployment.kill("mulligan worker")
    site.deployment.start("mulligan worker")
    token = site.wait(path, "Ada", status="ACTIVE")  # 000-07, 000-11, 000-102
    assert token["retry_count"] == 0  # 000-88
    expect(badge).to_have_text("ACTIVE")  # 000-91
    expect(site.page.locator(".campaign-state")).to_have_text("READY")


@pytest.mark.seed(
    "000-73", "000-75", "000-96", "000-98", "000-100", "000-103", "000-104", "000-105"
)
def test_milestones_3_and_4_retry_in_the_browser_and_notifications(
    site: Site, films: dict[str, Path], hooks: WebReceiver
) -> None:
    page = site.page
    site.upload(films["whole"])
    site.ffmpeg("damaged", "slow")
    path = site.publish("Spring", films["whole"], "Ada", "Bo")
    page.evaluate("window.stillHere = true")
    row = page.locator("tr", has=page.locator(".status-failed"))
    expect(row.locator(".status-badge")).to_have_text("FAILED", timeout=60_000)  # 000-104: stream
    row.get_by_text("Error", exact=True).click()
    expect(row.locator(".error-details")).to_contain_text("damaged")  # 000-73, 000-96
    expect(page.locator(".campaign-state")).to_have_text("PARTIAL", timeout=60_000)
    expect(page.locator(".banner")).to_contain_text("1 watermarking job(s) failed")  # 000-100
    assert page.evaluate("window.stillHere")  # 000-96
    name = row.locator("td").first.inner_text()
    until(lambda: site.mails(f"Spring: the copy for {name} failed"), PATIENCE, "mail")  # 000-75
    until(lambda: site.mails("Spring: 1 copy is ready, 1 failed"), PATIENCE, "mail")  # 000-104
    page.goto(f"{site.deployment.url}/campaigns")
    expect(page.locator(".state-partial")).to_have_text("PARTIAL")  # 000-98

    page.goto(site.deployment.url + path)
    page.get_by_role("button", name=f"Retry {name}").click()
    expect(page.locator(".flash")).to_have_text(f"Retry queued for {name}.")  # 000-103
    expect(page.locator(".campaign-state")).to_have_text("PROCESSING")  # 000-103
    page.evaluate("window.stillHere = true")
    expect(page.locator(".campaign-state")).to_have_text("READY", timeout=60_000)  # 000-103
    expect(page.locator(".status-active")).to_have_count(2)
    assert page.evaluate("window.stillHere")  # 000-103: without a reload
    until(lambda: len(hooks.bodies("campaigns")) == 2, PATIENCE, "two hooks")
    assert [body["state"] for body in hooks.bodies("campaigns")] == ["PARTIAL", "READY"]  # 000-105


@pytest.mark.seed("000-83", "000-92")
def test_a_link_delivers_the_copy_and_the_copy_names_its_recipient(
    site: Site, films: dict[str, Path], tmp_path: Path
) -> None:
    site.upload(films["whole"])
    path = site.publish("Spring", films["whole"], "Ada", "Bo")
    site.wait(path, "Bo", status="ACTIVE")
    copy = tmp_path / "leaked.mp4"
    link = f"/t/{site.token(path, 'Bo')['id']}"
    copy.write_bytes(httpx2.get(site.deployment.url + link, timeout=60).content)  # 000-92
    assert marks.measure_seconds(copy) == pytest.approx(8, abs=0.2)  # 000-92
    site.page.goto(f"{site.deployment.url}/detect")
    site.page.locator("input[type=file]").set_input_files(copy)
    site.page.locator("main button").first.click()
    site.page.wait_for_url("**/detections/*")
    expect(site.page.locator("main")).to_contain_text(  # 000-83
        "the copy of Bo", timeout=PATIENCE * 1000
    )
