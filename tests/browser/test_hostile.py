"""Hostile names and error texts are escaped on every screen, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from support.browser import PHONE_WIDTH
from support.dashboard_browser import (
    FIND_HORIZONTAL_OVERFLOW,
    check_pages,
    serve_dashboard,
    sign_in,
)
from support.sample_data import SampleTexts, create_sample_data
from support.store import BackgroundCall

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300), pytest.mark.slow]

TEXTS = {
    "script": "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>'\">",
    "template": "{{ 7*7 }}${7*7}<%= 7*7 %>{% raw %}</title></textarea></pre></script><!--",
    "elsewhere": "<link rel=stylesheet href=//evil.example/x.css><meta http-equiv=refresh content=0;url=//evil>",
    "bidirectional": "\u202egnp.exe\u202c \u2066x\u2069 مرحبا بالعالم שלום עולם",
    "one long word": "w" * 10_000,
    "controls": "\x1b[2J\x1b]0;owned\x07\x7f\x9b31m a\tb\r\nc\u2028d\u200be",
    "address": "javascript:alert(5)//https://evil.example/?q=\"'><",
}
FIND_MARKUP = """() => [
  ...[...document.querySelectorAll("main :is(script, img, iframe, [onload], [onerror])")].map((one) => one.tagName),
  ...[...document.links].map((one) => one.href).filter((href) => !href.startsWith(location.origin)),
]"""


def find_problems(page: Page) -> list[str]:
    return page.evaluate(FIND_MARKUP) + page.evaluate(FIND_HORIZONTAL_OVERFLOW)


@pytest.mark.security("S25")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_text_is_escaped_on_every_screen(text, chromium, tmp_path, store_url):
    name = "".join(
        letter
        for letter in text
        if letter not in " |,\t\r\n\x0b\x0c\u2028\u2029" and letter.isprintable()
    )[:200]
    with serve_dashboard(tmp_path, store_url) as (home, app):
        paths = BackgroundCall(
            lambda: create_sample_data(app, SampleTexts(text, name, text[:100]))
        ).result(60)
        with sign_in(chromium, home, app, width=PHONE_WIDTH) as person:
            assert check_pages(person, paths, find_problems) == ""
