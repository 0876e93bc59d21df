"""Takes the pictures in the READMEs of the applications from their demos: `make pictures-apps`.

Each is taken once there is to be seen what its caption says, never after a time.
"""
# ruff: noqa: INP001 - a script beside the pages it illustrates

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page, expect

from support import browser as browsers

APPS = Path(__file__).parent.parent / "apps"
SOON = 120_000  # ms


class Shot(NamedTuple):
    name: str
    way: tuple[str, ...]  # what to click, one after the other
    shows: tuple[str, ...]  # what must be there
    height: int = 620


SHOTS = {
    "watermark": (
        Shot("campaigns", (), (".state-ready", ".state-partial", ".state-failed"), 640),
        Shot("campaign", ("a:text-is('Autumn')",), (".banner", ".status-active", ".status-failed"), 560),
    ),
}


@contextmanager
def demo(name: str) -> Iterator[str]:
    """Its address."""
    words = [sys.executable, "-m", "mulligan", "demo", name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip() if process.stdout else ""
        finally:
            process.terminate()


def take(page: Page, address: str, shot: Shot, goal: Path) -> None:
    page.goto(address)
    for step in shot.way:
        page.locator(step).first.click()
    for what in shot.shows:
        while not page.locator(what).first.is_visible():
            page.wait_for_timeout(1000)
            page.reload()
        expect(page.locator(what).first).to_be_visible(timeout=SOON)
    page.set_viewport_size({"width": browsers.WIDE, "height": shot.height})
    page.screenshot(path=goal)
    sys.stdout.write(f"{goal}\n")


def main() -> None:
    found = browsers.found()
    if found is None:
        sys.exit(browsers.MISSING)
    for name in sys.argv[1:] or SHOTS:
        with demo(name) as address, browsers.browser(found) as browser:
            page = browser.new_page(viewport={"width": browsers.WIDE, "height": 900})
            for shot in SHOTS[name]:
                take(page, address, shot, APPS / name / f"{shot.name}.png")


if __name__ == "__main__":
    main()
