"""A browser, and a site for it: `mulligan up` on its own database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from mulligan import Mulligan
from mulligan.access.keys import Sessions
from mulligan.config import read_settings
from mulligan.storage import open_store
from support import browser as browsers
from support.browser import BrowserSession
from support.waiting import until
from support.worker import Worker

APP = "support.operations_app:app"
expect.set_options(timeout=browsers.TIMEOUT)


class Site:
    """A running `mulligan up`, and an app on the same database."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.worker = Worker(
            url,
            folder,
            app=APP,
            program=("-m", "mulligan", "up"),
            web__port="0",
            worker__runners="1",
        )
        self.app = Mulligan(
            settings=read_settings({"database_url": url}, environ={}, file=folder / "none.toml")
        )

    def ready(self) -> Site:
        self.worker.ready()
        until(lambda: "http://" in self.worker.text(), 20, "an address")
        self.home = next(
            word for word in self.worker.text().split() if word.startswith("http://")
        ).partition("sign-in")[0]
        self.home = self.home.rstrip("/")
        return self

    def link(self) -> str:
        return f"{self.home}/sign-in?link={Sessions(lambda: self.app.store).create_link()}"

    def fills(self, shelf: str, clips: int) -> None:
        """Enqueue jobs that die of one cause until the file of that cause exists."""
        with self.app.transaction() as ours:
            for clip in range(clips):
                self.app.enqueue("convert", {"clip": clip, "shelf": shelf}, connection=ours)

    def happens(self, name: str) -> None:
        (self.folder / name).touch()

    def close(self) -> None:
        self.app.close()
        self.worker.end()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser per file. It is closed afterwards, because its event loop runs in this thread."""
    found = browsers.find_browser()
    if found is None:
        pytest.skip(browsers.MISSING)
    with browsers.browser(found) as browser:
        yield browser


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """One site for all tests of a file: starting it takes longer than most tests."""
    folder = tmp_path_factory.mktemp("site")
    sqlite = request.param == "sqlite"
    url = (
        f"sqlite:///{folder}/mulligan.db"
        if sqlite
        else request.getfixturevalue("postgres_server").create_database()
    )
    with closing(open_store(url)) as store:
        store.prepare()
    site = Site(url, folder)
    try:
        yield site.ready()
    finally:
        site.close()


@pytest.fixture
def open_browser(chromium: Browser, site: Site) -> Iterator[Callable[..., BrowserSession]]:
    """Return a function that opens a browser session, signed in by default."""
    with ExitStack() as sessions:

        def open_session(*, signed_in: bool = True, **options: Any) -> BrowserSession:
            person = sessions.enter_context(browsers.open_session(chromium, site.home, **options))
            if signed_in:
                person.sign_in(site.link())
            return person

        yield open_session
