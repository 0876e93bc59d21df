"""The page, in a real browser."""

from __future__ import annotations

import subprocess
import sys

import pytest
from playwright.sync_api import expect

from support import browser as browsers

pytestmark = pytest.mark.processes


@pytest.fixture
def address(tmp_path):
    command = [sys.executable, "-m", "mulligan", "demo", "videogen"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True)
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait(30)
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_tasks_are_created_watched_retried_and_archived_on_the_page(address):
    program = browsers.find_browser()
    if program is None:
        pytest.skip(browsers.MISSING)
    with browsers.browser(program) as browser:
        page = browser.new_page()
        errors = []
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        expect(page.get_by_text("There is no task yet")).to_be_visible()
        assert "mk_" not in page.url
        for fault in ("", "[policy]", "[503 x1]"):
            page.get_by_label("Prompt").fill(f"the sea {fault}")
            page.get_by_role("button", name="Generate").click()
        expect(
            page.get_by_text("Retry 1/3 scheduled: The provider is not available.")
        ).to_be_visible(timeout=60_000)
        page.get_by_role("button", name="Watch").click(timeout=60_000)
        expect(page.locator("video")).to_be_visible()
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("button", name="Retry")).to_be_visible(timeout=60_000)
        page.get_by_role("row").filter(has_text="VALIDATION_ERROR").get_by_role(
            "button", name="Archive"
        ).click()
        expect(page.get_by_text("VALIDATION_ERROR")).to_have_count(0)
        assert errors == []
