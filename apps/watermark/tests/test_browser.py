"""The pages in a real browser: rows that change without a reload (acceptance 3, its other half)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from mulligan import Fail, testing
from mulligan.testing import Returns
from support import browser as browsers
from watermark import jobs, marks

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(120),
    pytest.mark.any_store,
]
DONE = Returns("made")
STRANGE = "<script>alert(1)</script> could not be read"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = browsers.find_browser()
    if found is None:
        pytest.skip(browsers.MISSING)
    with browsers.browser(found) as browser:
        yield browser


@pytest.fixture
def page(chromium, site, world) -> Iterator[Page]:
    """The owner's, signed in."""
    with browsers.open_session(chromium, site) as person:
        person.go(f"/?key={world.account.key}")
        yield person.page


def same_page(page: Page) -> bool:
    return page.evaluate("window.stillHere === true")


@pytest.mark.seed("000-91", "000-96", "000-97", "000-103")
def test_a_row_fails_is_retried_and_becomes_active_without_a_reload(world, site, page):
    campaign = world.publish(world.campaign("ada", "bo"))
    page.goto(f"{site}/campaigns/{campaign}")
    page.evaluate("window.stillHere = true")
    with world.mulligan.force(jobs.watermark, Fail("BAD_FILE", public=STRANGE, final=True), DONE):
        world.drain()
    row = page.locator("tr", has=page.locator(".status-failed"))
    expect(row.locator(".status-badge")).to_have_text("FAILED")
    expect(page.locator(".campaign-state")).to_have_text("PARTIAL")
    expect(page.locator(".banner")).to_contain_text(
        "Warning: 1 watermarking job(s) failed permanently."
    )
    row.get_by_text("Error").click()
    expect(row.locator(".error-details")).to_have_text(STRANGE)
    assert same_page(page)

    name = row.locator("td").first.inner_text()
    row.get_by_role("button", name="Retry").click()
    expect(page.locator(".flash")).to_have_text(f"Retry queued for {name}.")
    expect(page.locator(".campaign-state")).to_have_text("PROCESSING")
    page.evaluate("window.stillHere = true")
    with world.mulligan.force(jobs.watermark, DONE):
        world.drain()
    expect(page.locator(".campaign-state")).to_have_text("READY")
    expect(page.locator(".status-active")).to_have_count(2)
    expect(page.locator(".banner")).to_be_hidden()
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    assert same_page(page)


@pytest.mark.slow
@pytest.mark.seed("000-91")
def test_the_percentage_moves_while_a_copy_is_made(world, site, page, tool, tmp_path):
    long, lavfi = (
        tmp_path / "long.mp4",
        ["-f", "lavfi", "-i", "testsrc2=duration=6:size=160x96:rate=10"],
    )
    subprocess.run([marks.ffmpeg(), "-loglevel", "error", *lavfi, str(long)], check=True)
    tool('case "$*" in *pipe:1) exec "$FFMPEG" -re "$@";; *) exec "$FFMPEG" "$@";; esac')
    campaign = world.publish(world.campaign("ada", asset=world.asset(long.read_bytes())))
    page.goto(f"{site}/campaigns/{campaign}")
    seen: list[str] = []
    with testing.worker(jobs.app, "watermark.jobs:app"):
        while "ACTIVE" not in seen:
            seen.append(page.locator(".status-badge").inner_text())
            page.wait_for_timeout(100)
    shares = [
        int(share[1]) for one in seen if (share := re.fullmatch(r"PROCESSING \((\d+)%\)", one))
    ]
    assert shares == sorted(shares)
    assert len(set(shares)) > 2


@pytest.mark.seed("000-98", "000-99")
def test_partial_is_amber_in_the_list_and_its_tooltip_says_why(world, page, damaged):
    world.ended(DONE, damaged, names=("ada", "bo"))
    page.reload()
    badge = page.get_by_title("Some watermarking jobs failed. Click to review.")
    expect(badge).to_have_text("PARTIAL")
    expect(badge).to_have_css("background-color", "rgb(255, 191, 71)")
    badge.click()
    expect(page.locator(".banner")).to_be_visible()


@pytest.mark.seed("000-95")
def test_without_scripts_a_token_is_retried_by_its_form(world, site, chromium, damaged):
    campaign = world.ended(damaged, names=("ada",))
    with browsers.open_session(chromium, site, scripts=False) as person:
        person.go(f"/?key={world.account.key}")
        page = person.go(f"/campaigns/{campaign}")
        page.get_by_role("button", name="Retry ada").click()
        expect(page.locator(".flash")).to_have_text("Retry queued for ada.")
