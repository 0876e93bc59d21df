"""A real Chromium: from MULLIGAN_TEST_BROWSER, from PATH, or from Debian's packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from support.debian import unpack_packages, with_missing_dependencies

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
PACKAGES = ("chromium-headless-shell", "chromium-common")  # the second holds its data files
FONTS = "<fontconfig><dir>{folder}/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir></fontconfig>"
DESKTOP_WIDTH = 1280  # pixels
PHONE_WIDTH = 390
TIMEOUT = 20_000  # ms until an expected element counts as missing


class BrowserProgram(NamedTuple):
    program: str
    environ: Mapping[str, str]


def find_browser() -> BrowserProgram | None:
    configured = os.environ.get("MULLIGAN_TEST_BROWSER") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if configured:
        return BrowserProgram(configured, {})
    folder = unpack_packages(
        "browser", lambda: with_missing_dependencies(*PACKAGES, "fonts-dejavu-core"), PROGRAM
    )
    return BrowserProgram(str(folder / PROGRAM), _unpacked_environ(folder)) if folder else None


def _unpacked_environ(folder: Path) -> dict[str, str]:
    """Return the environment for an unpacked browser: its libraries, and fonts if none exist."""
    libraries = sorted({str(path.parent) for path in folder.rglob("*.so*")})
    environ = {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
    if not Path("/etc/fonts/fonts.conf").exists():
        fonts_file = folder / "fonts.conf"
        fonts_file.write_text(FONTS.format(folder=folder))
        environ["FONTCONFIG_FILE"] = str(fonts_file)
    return environ


@contextmanager
def browser(found: BrowserProgram) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found.program,
            env={**os.environ, **found.environ},
            chromium_sandbox=False,  # not available to root; it opens only our pages
        )
        yield launched
        launched.close()


# Report what the content security policy blocks, even if the console does not.
VIOLATIONS = """
window.addEventListener("securitypolicyviolation",
  (event) => console.error(`CSP: ${event.violatedDirective} refused ${event.blockedURI}`), true);
"""


class BrowserSession:
    """A browser context. Dialogs, console errors and requests to other hosts are errors."""

    def __init__(self, context: BrowserContext, home: str) -> None:
        self.home = home.rstrip("/")
        self.context = context
        self.errors: list[str] = []
        self.expected_errors: tuple[str, ...] = ()  # parts of errors that a test expects
        context.set_default_timeout(TIMEOUT)
        context.on("console", self._console)
        context.on("weberror", lambda error: self._add_error(f"error: {error.error}"))
        context.on("dialog", self._dialog)
        context.on("request", lambda request: self._check_host(request.url))
        context.add_init_script(VIOLATIONS)
        self.page: Page = context.new_page()

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.home}{path}")
        return self.page

    def sign_in(self, link: str) -> Page:
        """Sign in with a one-time link."""
        self.page.goto(link)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.home}/")
        return self.page

    def _add_error(self, text: str) -> None:
        if not any(expected in text for expected in self.expected_errors):
            self.errors.append(f"{text:.300} (at {self.page.url:.100})")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._add_error(f"console: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self._add_error(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _check_host(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.home).netloc and not url.startswith("about:"):
            self._add_error(f"request to another host: {url}")


@contextmanager
def open_session(
    browser: Browser, home: str, *, scripts: bool = True, width: int = DESKTOP_WIDTH, **options: Any
) -> Iterator[BrowserSession]:
    options.setdefault("viewport", {"width": width, "height": 900 if width > 600 else 844})
    options.setdefault("reduced_motion", "reduce")
    context = browser.new_context(
        java_script_enabled=scripts, locale="en-GB", timezone_id="UTC", **options
    )
    session = BrowserSession(context, home)
    try:
        yield session
        assert session.errors == [], "\n".join(session.errors)
    finally:
        context.close()
