"""The pages in a real browser: rows change without a reload (acceptance 3, browser part)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from mulligan import Fail, testing
from mulligan.apps.watermark import jobs, marks
from mulligan.testing import Returns
from support import browser as browsers

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(120),
    pytest.mark.any_store,
]
DONE = Returns("made")
ERROR_WITH_HTML = "<script>alert(1)</script> could not be read"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = browsers.find_browser()
    if found is None:
        pytest.skip(browsers.MISSING)
    with browsers.browser(found) as browser:
        yield browser


@pytest.fixture
def page(chromium, site, world) -> Iterator[Page]:
    """Return a browser page that is signed in as the owner."""
    with browsers.open_session(chromium, site) as person:
        person.go(f"/?key={world.account.key}")
        yield person.page


def same_page(page: Page) -> bool:
    return page.evaluate("window.stillHere === true")


@pytest.mark.seed("000-91", "000-96", "000-97", "000-103")
def test_row_updates_without_reload_through_failure_retry_and_success(world, site, page):
    campaign = world.publish(world.campaign("ada", "bo"))
    page.goto(f"{site}/campaigns/{campaign}")
    page.evaluate("window.stillHere = true")
    with world.mulligan.force(
        jobs.watermark, Fail("BAD_FILE", public=ERROR_WITH_HTML, final=True), DONE
    ):
        world.drain()
    row = page.locator("tr", has=page.locator(".status-failed"))
    expect(row.locator(".status-badge")).to_have_text("FAILED")  # 000-91, 000-96
    expect(page.locator(".campaign-state")).to_have_text("PARTIAL")
    expect(page.locator(".banner")).to_contain_text(
        "Warning: 1 watermarking job(s) failed permanently."
    )
    row.get_by_text("Error").click()
    expect(row.locator(".error-details")).to_have_text(ERROR_WITH_HTML)  # 000-96
    assert same_page(page)

    name = row.locator("td").first.inner_text()
    row.get_by_role("button", name="Retry").click()  # 000-97
    expect(page.locator(".flash")).to_have_text(f"Retry queued for {name}.")
    expect(page.locator(".campaign-state")).to_have_text("PROCESSING")  # 000-103
    page.evaluate("window.stillHere = true")
    with world.mulligan.force(jobs.watermark, DONE):
        world.drain()
    expect(page.locator(".campaign-state")).to_have_text("READY")  # 000-103
    expect(page.locator(".status-active")).to_have_count(2)
    expect(page.locator(".banner")).to_be_hidden()
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    assert same_page(page)


@pytest.mark.slow
@pytest.mark.seed("000-91")
def test_percentage_moves_while_a_copy_is_made(world, site, page, tool, tmp_path):
    long = tmp_path / "long.mp4"
    lavfi = ["-f", "lavfi", "-i", "testsrc2=duration=6:size=160x96:rate=10"]
    subprocess.run([marks.find_ffmpeg(), "-loglevel", "error", *lavfi, str(long)], check=True)
    tool('case "$*" in *pipe:1*) exec "$FFMPEG" -re "$@";; *) exec "$FFMPEG" "$@";; esac')
    campaign = world.publish(world.campaign("ada", asset=world.asset(long.read_bytes())))
    page.goto(f"{site}/campaigns/{campaign}")
    badges: list[str] = []
    with testing.worker(jobs.app, "mulligan.apps.watermark.jobs:app"):
        while "ACTIVE" not in badges:
            badges.append(page.locator(".status-badge").inner_text())
            page.wait_for_timeout(100)
    percentages = [
        int(percentage[1])
        for badge in badges
        if (percentage := re.fullmatch(r"PROCESSING \((\d+)%\)", badge))
    ]
    assert percentages == sorted(percentages)
    assert len(set(percentages)) > 2


@pytest.mark.seed("000-98", "000-99")
def test_partial_badge_is_amber_and_its_tooltip_explains_it(world, page, damaged):
    world.run_campaign(DONE, damaged, names=("ada", "bo"))
    page.reload()
    badge = page.get_by_title("Some watermarking jobs failed. Click to review.")
    expect(badge).to_have_text("PARTIAL")  # 000-99
    expect(badge).to_have_css("background-color", "rgb(255, 191, 71)")  # 000-98
    badge.click()
    expect(page.locator(".banner")).to_be_visible()


@pytest.mark.seed("000-95")
def test_retry_form_works_without_javascript(world, site, chromium, damaged):
    campaign = world.run_campaign(damaged, names=("ada",))
    with browsers.open_session(chromium, site, scripts=False) as person:
        person.go(f"/?key={world.account.key}")
        page = person.go(f"/campaigns/{campaign}")
        page.get_by_role("button", name="Retry ada").click()
        expect(page.locator(".flash")).to_have_text("Retry queued for ada.")
