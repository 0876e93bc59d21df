"""Accessibility of every screen: axe-core, narrow screens, touch targets and the keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from mulligan import Mulligan
from support.axe import find_violations
from support.browser import DESKTOP_WIDTH, PHONE_WIDTH
from support.dashboard_browser import (
    FIND_HORIZONTAL_OVERFLOW,
    check_pages,
    serve_dashboard,
    sign_in,
)
from support.sample_data import MENU_PATHS, SampleTexts, create_sample_data
from support.store import BackgroundCall

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Mulligan, list[str]]]:
    """A server with data on every screen, and the paths of the screens."""
    with serve_dashboard(tmp_path_factory.mktemp("filled")) as (home, app):
        yield (
            home,
            app,
            BackgroundCall(lambda: create_sample_data(app, SampleTexts())).result(60),
        )  # not on this thread, which runs the browser's event loop


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Mulligan, list[str]]]:
    with serve_dashboard(tmp_path_factory.mktemp("empty")) as (home, app):
        yield home, app, list(MENU_PATHS)


@pytest.mark.slow
@pytest.mark.parametrize("width", [DESKTOP_WIDTH, PHONE_WIDTH])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("server", ["filled", "empty"])
def test_axe_finds_nothing_serious_on_any_screen(chromium, request, server, theme, width):
    home, app, paths = request.getfixturevalue(server)
    with sign_in(chromium, home, app, width=width, color_scheme=theme) as person:
        assert check_pages(person, paths, find_violations) == ""


@pytest.mark.slow
@pytest.mark.parametrize("text_size", ["100%", "200%"])
def test_no_screen_scrolls_sideways_on_a_phone_even_with_double_text_size(
    chromium, filled, text_size
):
    home, app, paths = filled

    def find_overflow(page: Page) -> list[str]:
        page.evaluate("(size) => { document.documentElement.style.fontSize = size; }", text_size)
        return page.evaluate(FIND_HORIZONTAL_OVERFLOW)

    with sign_in(chromium, home, app, width=PHONE_WIDTH) as person:
        assert check_pages(person, paths, find_overflow) == ""


@pytest.mark.slow
@pytest.mark.parametrize("width", [DESKTOP_WIDTH, 1440])
def test_no_screen_is_wider_than_the_window(chromium, filled, width):
    home, app, paths = filled
    with sign_in(chromium, home, app, width=width) as person:
        find = lambda page: page.evaluate(FIND_HORIZONTAL_OVERFLOW)  # noqa: E731
        assert check_pages(person, paths, find) == ""


# Columns of a chart are links of its table, too, which are as large as text.
SMALL = """() => [...document.querySelectorAll("a, button, input, select, summary")]
  .filter((one) => one.checkVisibility() && !one.closest(".axes, .hint, p, td, th, li, dd, h2, figcaption, .unseen, .skip, .name"))
  .map((one) => [`${one.tagName} "${one.textContent.slice(0, 30)}"`, one.getBoundingClientRect()])
  .filter(([, box]) => box.width > 0 && (box.width < 24 || box.height < 24))
  .map(([name, box]) => `${name} is ${box.width.toFixed()} × ${box.height.toFixed()}`)"""


@pytest.mark.slow
def test_controls_are_large_enough_for_touch(chromium, filled):
    home, app, paths = filled
    with sign_in(chromium, home, app, width=PHONE_WIDTH) as person:
        assert check_pages(person, paths, lambda page: page.evaluate(SMALL)) == ""


FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const visible = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [at.tagName, visible || at === document.body, at.textContent.trim().slice(0, 20)];
}"""


@pytest.mark.slow
def test_the_keyboard_focus_is_visible_and_can_skip_the_menu(chromium, filled):
    home, app, _ = filled
    with sign_in(chromium, home, app) as person:
        page = person.go("/failures")
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED)[2] == "Skip to content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "live"
        page.reload()
        hidden = []
        for _ in range(40):
            page.keyboard.press("Tab")
            tag, is_visible, text = page.evaluate(FOCUSED)
            if not is_visible:
                hidden.append(f"{tag} {text}")
        assert hidden == []


MOVING = """() => document.getAnimations().filter((one) => one.playState === "running").length"""


@pytest.mark.slow
def test_reduced_motion_disables_animations(chromium, filled):
    home, app, paths = filled
    with sign_in(chromium, home, app, reduced_motion="reduce") as person:
        moving = [path for path in paths if person.go(path).evaluate(MOVING)]
        assert moving == []
