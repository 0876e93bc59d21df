"""Takes the pictures of README and docs from a running demo: `make pictures`.

Each is taken at a named moment, never after a time, and has a size of its own that never changes. With a folder as
argument every screen is put there too, at both widths and in both themes, to be looked at.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page, expect

from mulligan import Job, Mulligan
from mulligan.access.keys import Sessions
from mulligan.http.dashboard.renderer import MENU
from support import browser as browsers
from support.browser import PHONE_WIDTH, DESKTOP_WIDTH, BrowserSession
from support.waiting import until

FOLDER = Path(__file__).parent / "pictures"
LARGEST = 250_000  # bytes of one picture
WITHIN = 90  # seconds: all that the demo shows happens within a minute


class Shot(NamedTuple):
    name: str
    reach: Callable[
        [BrowserSession, Mulligan], Page
    ]  # waits until there is to be seen what the caption says
    width: int = DESKTOP_WIDTH
    height: int = 900
    theme: str = "light"


def _shown(person: BrowserSession, path: str, *what: str) -> Page:
    """The screen once all of these are on it together; it is live, so nothing is asked again."""
    page = person.go(path)
    together = "".join(f":has({one})" for one in what)
    expect(page.locator(f"main{together}")).to_be_visible(timeout=WITHIN * 1000)
    return page


def _overview(person: BrowserSession, _: Mulligan) -> Page:
    return _shown(person, "/", ".banner:has-text('is down')", ".groups tbody tr:nth-child(4)")


def _failures(person: BrowserSession, _: Mulligan) -> Page:
    return _shown(person, "/failures", ".groups tbody tr:nth-child(4)")


def _group(person: BrowserSession, app: Mulligan) -> Page:
    groups = until(
        lambda: [one for one in app.failures.groups() if one.code == "BAD_FILE"],
        WITHIN,
        "a bad file",
    )
    return _shown(person, f"/failures/{groups[0].fingerprint}", ".jobs tbody tr")


def _job(person: BrowserSession, app: Mulligan) -> Page:
    """One that failed three times and recovered."""

    def recovered() -> list[Job]:
        return [
            job
            for job in app.jobs.list("kind:send_receipt state:succeeded", limit=1000)
            if job.failures == 3
        ]

    return _shown(person, f"/jobs/{until(recovered, WITHIN)[0].id}", ".attempts li:nth-child(4)")


def _policies(person: BrowserSession, _: Mulligan) -> Page:
    return _shown(person, "/policies?kind=send_receipt", ".delays")


def _batches(person: BrowserSession, _: Mulligan) -> Page:
    return _shown(person, "/batches", ".badge:has-text('ready')", ".badge:has-text('partial')")


def _status(person: BrowserSession, app: Mulligan) -> Page:
    dead = until(
        lambda: app.jobs.list("state:dead kind:import_table", limit=1),
        WITHIN,
        "a table that was not read",
    )
    return _shown(person, app.status.link(dead[0]), "button")


SHOTS = (
    Shot("overview", _overview),
    Shot("overview-phone", _overview, PHONE_WIDTH, 844, "dark"),
    Shot("failures", _failures, height=620, theme="dark"),
    Shot("group", _group),
    Shot("job", _job),
    Shot("policies", _policies, height=760),
    Shot("batches", _batches, height=420),
    Shot("status", _status, width=600, height=480),
)


@contextmanager
def a_demo(folder: str) -> Iterator[tuple[str, Mulligan]]:
    """`mulligan demo` in a folder of its own; its address, and its database."""
    command = [
        sys.executable,
        "-m",
        "mulligan",
        "demo",
        "--port",
        "0",
        "--database",
        "sqlite:///demo.db",
    ]
    with subprocess.Popen(
        [*command, "--log-level", "ERROR"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as demo:
        try:
            home = str(demo.stdout and demo.stdout.readline()).partition("/sign-in")[0]
            with closing(Mulligan(f"sqlite:///{folder}/demo.db")) as app:
                yield home, app
        finally:
            demo.send_signal(signal.SIGTERM)


def take(browser: Browser, home: str, app: Mulligan, shot: Shot) -> None:
    size = {"width": shot.width, "height": shot.height}
    with browsers.open_session(browser, home, viewport=size, color_scheme=shot.theme) as person:
        person.sign_in(f"{home}/sign-in?link={Sessions(lambda: app.store).create_link()}")
        page = shot.reach(person, app)
        save(page.screenshot(animations="disabled"), FOLDER / f"{shot.name}.png")


def save(picture: bytes, path: Path) -> None:
    """256 colours are enough for a screen, and a third of the bytes."""
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        sys.exit(f"{path.name} has {path.stat().st_size:,} bytes")
    print(f"{path.relative_to(Path.cwd())}: {path.stat().st_size:,} bytes")  # noqa: T201 - a command


def every_screen(browser: Browser, home: str, app: Mulligan, folder: Path) -> None:
    """Whole pages, for whoever wants to see what is ugly."""
    folder.mkdir(parents=True, exist_ok=True)
    for width in (DESKTOP_WIDTH, PHONE_WIDTH):
        for theme in ("light", "dark"):
            with browsers.open_session(browser, home, width=width, color_scheme=theme) as person:
                person.sign_in(f"{home}/sign-in?link={Sessions(lambda: app.store).create_link()}")
                for name, path in _paths(app).items():
                    person.go(path).screenshot(
                        path=folder / f"{name}-{width}-{theme}.png", full_page=True
                    )


def _paths(app: Mulligan) -> dict[str, str]:
    def job(words: str) -> str:
        found = app.jobs.list(words, limit=1)
        return f"/jobs/{found[0].id}" if found else "/jobs"

    menu = {screen.name: screen.path for _, screens in MENU for screen in screens}
    jobs = {
        f"job-{state}": job(f"state:{state}")
        for state in ("dead", "parked", "running", "succeeded")
    }
    batch, operation = app.batches.list()[1], app.operations.list()[0]
    one: dict[str, Any] = {
        "group": f"/failures/{app.failures.groups()[0].fingerprint}",
        "batch": f"/batches/{batch.id}",
        "operation": f"/operations/{operation.id}",
        "preview": "/operations/new?action=retry&filter=state:dead",
        "status": app.status.link(batch),
        "sign-in": "/sign-in",
    }
    return menu | jobs | one


def main(everything: str = "") -> None:
    found = browsers.find_browser()
    if found is None:
        sys.exit(browsers.MISSING)
    for name in [name for name in os.environ if name.startswith("MULLIGAN_")]:
        del os.environ[name]
    with (
        tempfile.TemporaryDirectory() as folder,
        a_demo(folder) as (home, app),
        browsers.browser(found) as browser,
    ):
        for shot in SHOTS:
            take(browser, home, app, shot)
        if everything:
            every_screen(browser, home, app, Path(everything))


if __name__ == "__main__":
    main(*sys.argv[1:])
