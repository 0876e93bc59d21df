"""The dashboard on a server thread, and a browser session that is signed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from mulligan import Mulligan
from mulligan.access.keys import Sessions
from mulligan.config import read_settings
from support import browser as browsers
from support.browser import BrowserSession
from support.web_server import run_server

# Unknown pages and invalid filters are among the screens.
EXPECTED_ERRORS = ("status of 40",)


@contextmanager
def serve_dashboard(folder: Path, url: str = "") -> Iterator[tuple[str, Mulligan]]:
    settings = read_settings(
        {"database_url": url or f"sqlite:///{folder}/mulligan.db"},
        environ={},
        file=folder / "none.toml",
    )
    app = Mulligan(settings=settings)
    app.store.prepare()
    with run_server(settings) as at:
        yield f"http://{at.host}:{at.port}", app
    app.close()


@contextmanager
def sign_in(
    chromium: Browser, home: str, app: Mulligan, **options: Any
) -> Iterator[BrowserSession]:
    with browsers.open_session(chromium, home, **options) as session:
        session.expected_errors = EXPECTED_ERRORS
        session.sign_in(f"{home}/sign-in?link={Sessions(lambda: app.store).create_link()}")
        yield session


def check_pages(
    session: BrowserSession, paths: list[str], find_problems: Callable[[Page], list[str]]
) -> str:
    """Return the problems of all pages, one per line."""
    problems = [
        f"{path} {problem}" for path in paths for problem in find_problems(session.go(path))
    ]
    return "\n".join(problems)


FIND_HORIZONTAL_OVERFLOW = """() => {
  const over = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (over <= 0) return [];
  const wide = [...document.querySelectorAll("main *, header *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
  return [`scrolls sideways by ${over}: ${wide.slice(0, 3).map((one) => one.tagName + "." + one.className).join(" ")}`];
}"""
