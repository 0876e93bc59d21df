"""Take the screenshots in the READMEs of the applications: a part of `make pictures`.

With a folder as argument, every page is saved there too, at both widths and in both themes. Names
of applications as arguments restrict it to these.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from support import browser as browsers
from support.browser import DESKTOP_WIDTH, PHONE_WIDTH
from support.staged import DEMO_PAGES, Page, demo, open_page

APPS = Path(__file__).parent.parent / "apps"
HEIGHTS = {  # of the pictures that the READMEs show
    ("watermark", "campaigns"): 640,
    ("watermark", "campaign"): 560,
    ("pdfxml", "page"): 760,
    ("videogen", "page"): 620,
    ("render", "page"): 560,
    ("clipscribe", "page"): 900,
}


def take(
    chromium: Browser, page: Page, goal: Path, width: int, height: int, theme: str = "light"
) -> None:
    look = {"viewport": {"width": width, "height": height or 900}, "color_scheme": theme}
    with open_page(chromium, page, **look) as shown:
        shown.screenshot(path=goal, full_page=not height)
    sys.stdout.write(f"{goal}\n")


def take_all(chromium: Browser, name: str, pages: list[Page], folder: Path | None) -> None:
    for page in pages:
        if height := HEIGHTS.get((name, page.name)):
            take(chromium, page, APPS / name / f"{page.name}.png", DESKTOP_WIDTH, height)
        for width in (DESKTOP_WIDTH, PHONE_WIDTH) if folder else ():
            for theme in ("light", "dark"):
                goal = Path(str(folder)) / f"{name}-{page.name}-{width}-{theme}.png"
                take(chromium, page, goal, width, 0, theme)


def main() -> None:
    found = browsers.find_browser()
    if found is None:
        sys.exit(browsers.MISSING)
    names = [name for name in sys.argv[1:] if name in DEMO_PAGES] or list(DEMO_PAGES)
    folders = [Path(name) for name in sys.argv[1:] if name not in DEMO_PAGES]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory() as temporary, demo(name, Path(temporary)) as running:
            pages = DEMO_PAGES[name](running)
            with browsers.browser(found) as chromium:
                take_all(chromium, name, pages, next(iter(folders), None))


if __name__ == "__main__":
    main()
