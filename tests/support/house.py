"""The dashboard served from a thread of this process, and somebody who is signed in."""

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
from support.browser import Visit
from support.serving import served

EXPECTED = (
    "status of 40",
)  # pages that are not there, and what cannot be asked, are among the screens


@contextmanager
def a_house(folder: Path, url: str = "") -> Iterator[tuple[str, Mulligan]]:
    settings = read_settings(
        {"database_url": url or f"sqlite:///{folder}/mulligan.db"},
        environ={},
        file=folder / "none.toml",
    )
    app = Mulligan(settings=settings)
    app.store.prepare()
    with served(settings) as at:
        yield f"http://{at.host}:{at.port}", app
    app.close()


@contextmanager
def inside(chromium: Browser, home: str, app: Mulligan, **options: Any) -> Iterator[Visit]:
    with browsers.visit(chromium, home, **options) as person:
        person.forgiven = EXPECTED
        person.enter(f"{home}/sign-in?link={Sessions(lambda: app.store).link()}")
        yield person


def everywhere(person: Visit, paths: list[str], look: Callable[[Page], list[str]]) -> str:
    """What is wrong, a line each; nothing: "" """
    return "\n".join(f"{path} {words}" for path in paths for words in look(person.go(path)))


SIDEWAYS = """() => {
  const over = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (over <= 0) return [];
  const wide = [...document.querySelectorAll("main *, header *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
  return [`scrolls sideways by ${over}: ${wide.slice(0, 3).map((one) => one.tagName + "." + one.className).join(" ")}`];
}"""
