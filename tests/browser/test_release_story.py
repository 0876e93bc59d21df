"""A deploy made it worse: from the overview to the hold in three clicks, with two real workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from mulligan import Mulligan
from mulligan.access.keys import Sessions
from mulligan.config import read_settings
from mulligan.storage import open_store
from support import browser as browsers
from support.waiting import until
from support.worker import Worker

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(180)]

APP = "support.deployed_app:app"
# Without this the alert would hold the kind by itself.
ALERTS = '[[alerts.rules]]\nname = "release_worse"\naction = ""\n\n[alerts]\nevery = 1\n'


@pytest.fixture
def fleet(store_url: str, tmp_path: Path) -> Iterator[tuple[Mulligan, str]]:
    """Start `mulligan up` with the release that works, and a worker with the broken one."""
    with closing(open_store(store_url)) as store:
        store.prepare()
    (tmp_path / "mulligan.toml").write_text(ALERTS)
    settings = read_settings({"database_url": store_url}, environ={}, file=tmp_path / "none.toml")
    up = ("-m", "mulligan", "up")
    with ExitStack() as stack:
        app = Mulligan(settings=settings)
        stack.callback(app.close)
        site = Worker(
            store_url,
            tmp_path,
            app=APP,
            program=up,
            release="working",
            web__port="0",
            worker__runners="1",
        )
        stack.callback(site.end)
        until(lambda: "http://" in site.ready().text(), 60, "an address")
        address = next(word for word in site.text().split() if word.startswith("http://"))
        _run(app, 100)
        broken = Worker(store_url, tmp_path, app=APP, release="broken", worker__runners="1")
        stack.callback(broken.end)
        broken.ready()
        yield app, address.partition("sign-in")[0].rstrip("/")


def _run(app: Mulligan, jobs: int) -> None:
    for page in range(jobs):
        app.enqueue("bind", {"page": page})
    until(lambda: app.jobs.count("state:queued,running") == 0, 60, "all jobs ended")


def _run_until_worse(app: Mulligan) -> None:
    for _ in range(20):
        _run(app, 60)
        if app.releases.get("broken").worse_kinds:
            return
    pytest.fail("the broken release was not noticed")


@pytest.mark.any_store
def test_a_deploy_that_made_it_worse_is_held_in_three_clicks_from_the_overview(
    fleet: tuple[Mulligan, str], chromium: Browser
) -> None:
    app, home = fleet
    _run_until_worse(app)
    with browsers.open_session(chromium, home) as person:
        person.sign_in(f"{home}/sign-in?link={Sessions(lambda: app.store).create_link()}")
        page = person.go("/")
        expect(page.locator("main")).to_contain_text("bind fails more since release broken")
        page.get_by_role("link", name="Show release").click()
        expect(page.locator("main")).to_contain_text("KeyError")
        expect(page.locator("main")).to_contain_text("fails more")
        page.get_by_text("Hold …").click()
        page.get_by_role("button", name="Hold", exact=True).click()
        expect(page.locator(".notice")).to_contain_text("bind is held")
    dead = app.jobs.count("state:dead")
    _run(app, 60)
    assert app.jobs.count("state:dead") == dead
    assert {str(job.result) for job in app.jobs.list("kind:bind", limit=60)} == {"working"}
