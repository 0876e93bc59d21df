"""The pages of the applications in apps/: everybody can use each, at a desk and on a phone, by day and night."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from support.axe import judged
from support.browser import NARROW, WIDE
from support.house import SIDEWAYS
from support.staged import FURNISHED, Page, demo, opened

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=FURNISHED)
def pages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Page]]:
    with demo(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield FURNISHED[request.param](running)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_scrolls_sideways(
    chromium: Browser, pages, theme, width
):
    found = []
    for one in pages:
        with opened(chromium, one, width=width, color_scheme=theme) as page:
            found += [f"{one.name}: {words}" for words in (*judged(page), *page.evaluate(SIDEWAYS))]
    assert found == []
