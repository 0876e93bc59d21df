"""Accessibility of the pages of the applications in apps/, on desktop and phone, in both themes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from support.axe import find_violations
from support.browser import DESKTOP_WIDTH, PHONE_WIDTH
from support.dashboard_browser import FIND_HORIZONTAL_OVERFLOW
from support.staged import DEMO_PAGES, Page, demo, open_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=DEMO_PAGES)
def pages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Page]]:
    with demo(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield DEMO_PAGES[request.param](running)


@pytest.mark.parametrize("width", [DESKTOP_WIDTH, PHONE_WIDTH])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_scrolls_sideways(
    chromium: Browser, pages, theme, width
):
    found = []
    for one in pages:
        with open_page(chromium, one, width=width, color_scheme=theme) as page:
            found += [
                f"{one.name}: {words}"
                for words in (*find_violations(page), *page.evaluate(FIND_HORIZONTAL_OVERFLOW))
            ]
    assert found == []
