"""A real Chromium: the one that is named, the machine's own, or one out of Debian's packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from support.debian import unpacked, with_what_is_missing

MISSING = (
    "no browser: MULLIGAN_TEST_BROWSER names none, no chromium, chromium-headless-shell or google-chrome is on PATH, "
    "and apt-get cannot fetch Debian's package chromium-headless-shell"
)
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
PROGRAM = "usr/lib/chromium/chromium-headless-shell"
PACKAGES = ("chromium-headless-shell", "chromium-common")  # its data must be beside it
FONTS = "<fontconfig><dir>{folder}/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir></fontconfig>"
DESKTOP_WIDTH, PHONE_WIDTH = 1280, 390  # pixels: a desk and a phone
TIMEOUT = 20_000  # ms until something that should be seen is given up


class BrowserProgram(NamedTuple):
    program: str
    environ: Mapping[str, str]


def find_browser() -> BrowserProgram | None:
    named = os.environ.get("MULLIGAN_TEST_BROWSER") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if named:
        return BrowserProgram(named, {})
    folder = unpacked(
        "browser", lambda: with_what_is_missing(*PACKAGES, "fonts-dejavu-core"), PROGRAM
    )
    return BrowserProgram(str(folder / PROGRAM), _unpacked_environ(folder)) if folder else None


def _unpacked_environ(folder: Path) -> dict[str, str]:
    """Its libraries are beside it, and so are letters where the machine has none."""
    libraries = sorted({str(path.parent) for path in folder.rglob("*.so*")})
    environ = {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
    if not Path("/etc/fonts/fonts.conf").exists():
        letters = folder / "fonts.conf"
        letters.write_text(FONTS.format(folder=folder))
        environ["FONTCONFIG_FILE"] = str(letters)
    return environ


@contextmanager
def browser(found: BrowserProgram) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found.program,
            env={**os.environ, **found.environ},
            chromium_sandbox=False,  # root has none, and it visits nobody but us
        )
        yield launched
        launched.close()


# Whatever a page refuses to load is told, also where the console says nothing of it.
VIOLATIONS = """
window.addEventListener("securitypolicyviolation",
  (event) => console.error(`CSP: ${event.violatedDirective} refused ${event.blockedURI}`), true);
"""


class BrowserSession:
    """One person's browser. Dialogs, errors in the console and requests to elsewhere are complaints."""

    def __init__(self, context: BrowserContext, home: str) -> None:
        self.home = home.rstrip("/")
        self.context = context
        self.errors: list[str] = []
        self.expected_errors: tuple[str, ...] = ()  # words of complaints that a story expects
        context.set_default_timeout(TIMEOUT)
        context.on("console", self._console)
        context.on("weberror", lambda error: self._complain(f"error: {error.error}"))
        context.on("dialog", self._dialog)
        context.on("request", lambda request: self._asked(request.url))
        context.add_init_script(VIOLATIONS)
        self.page: Page = context.new_page()

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.home}{path}")
        return self.page

    def sign_in(self, link: str) -> Page:
        """By a link that works once."""
        self.page.goto(link)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.home}/")
        return self.page

    def _complain(self, words: str) -> None:
        if not any(forgiven in words for forgiven in self.expected_errors):
            self.errors.append(f"{words:.300} (at {self.page.url:.100})")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._complain(f"console: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self._complain(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.home).netloc and not url.startswith("about:"):
            self._complain(f"asked elsewhere: {url}")


@contextmanager
def open_session(
    browser: Browser, home: str, *, scripts: bool = True, width: int = DESKTOP_WIDTH, **options: Any
) -> Iterator[BrowserSession]:
    options.setdefault("viewport", {"width": width, "height": 900 if width > 600 else 844})
    options.setdefault("reduced_motion", "reduce")
    context = browser.new_context(
        java_script_enabled=scripts, locale="en-GB", timezone_id="UTC", **options
    )
    person = BrowserSession(context, home)
    try:
        yield person
        assert person.errors == [], "\n".join(person.errors)
    finally:
        context.close()
