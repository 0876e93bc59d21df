"""Take the screenshots of README and docs from a running demo: `make pictures`.

Each waits for the content that its caption names, and has a fixed size. With a folder as argument,
every screen is saved there too, at both widths and in both themes.
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
from mulligan.http.app import MENU
from support import browser as browsers
from support.browser import DESKTOP_WIDTH, PHONE_WIDTH, BrowserSession
from support.waiting import until

FOLDER = Path(__file__).parent / "pictures"
MAX_BYTES = 250_000  # of one picture
TIMEOUT = 90  # seconds; the demo shows everything within a minute


class Screenshot(NamedTuple):
    """One screenshot and how to reach it."""

    name: str
    # Opens the screen and waits for the content that the caption names.
    reach: Callable[[BrowserSession, Mulligan], Page]
    width: int = DESKTOP_WIDTH
    height: int = 900
    theme: str = "light"


def _open_screen(person: BrowserSession, path: str, *selectors: str) -> Page:
    """Open a screen and wait until it shows all of these selectors. Screens update themselves."""
    page = person.go(path)
    together = "".join(f":has({one})" for one in selectors)
    expect(page.locator(f"main{together}")).to_be_visible(timeout=TIMEOUT * 1000)
    return page


def _overview(person: BrowserSession, _: Mulligan) -> Page:
    return _open_screen(
        person, "/", ".notices:has-text('is down')", ".groups tbody tr:nth-child(4)"
    )


def _failures(person: BrowserSession, _: Mulligan) -> Page:
    return _open_screen(person, "/failures", ".groups tbody tr:nth-child(4)")


def _group(person: BrowserSession, app: Mulligan) -> Page:
    groups = until(
        lambda: [one for one in app.failures.groups() if one.code == "BAD_FILE"],
        TIMEOUT,
        "a group of BAD_FILE",
    )
    return _open_screen(person, f"/failures/{groups[0].fingerprint}", ".jobs tbody tr")


def _job(person: BrowserSession, app: Mulligan) -> Page:
    """Show a job that failed three times and then succeeded."""

    def recovered() -> list[Job]:
        return [
            job
            for job in app.jobs.list("kind:send_receipt state:succeeded", limit=1000)
            if job.failures == 3
        ]

    return _open_screen(
        person, f"/jobs/{until(recovered, TIMEOUT)[0].id}", ".attempts li:nth-child(4)"
    )


def _policies(person: BrowserSession, _: Mulligan) -> Page:
    return _open_screen(person, "/policies?kind=send_receipt", ".delays")


def _batches(person: BrowserSession, _: Mulligan) -> Page:
    return _open_screen(
        person, "/batches", ".badge:has-text('ready')", ".badge:has-text('partial')"
    )


def _status(person: BrowserSession, app: Mulligan) -> Page:
    dead = until(
        lambda: app.jobs.list("state:dead kind:import_table", limit=1),
        TIMEOUT,
        "a dead import_table job",
    )
    return _open_screen(person, app.status.link(dead[0]), "button")


SHOTS = (
    Screenshot("overview", _overview),
    Screenshot("overview-phone", _overview, PHONE_WIDTH, 844, "dark"),
    Screenshot("failures", _failures, height=620, theme="dark"),
    Screenshot("group", _group),
    Screenshot("job", _job),
    Screenshot("policies", _policies, height=760),
    Screenshot("batches", _batches, height=420),
    Screenshot("status", _status, width=600, height=480),
)


@contextmanager
def run_demo(folder: str) -> Iterator[tuple[str, Mulligan]]:
    """Run `mulligan demo` in a folder. Yield its address and an app on its database."""
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


def take(browser: Browser, home: str, app: Mulligan, shot: Screenshot) -> None:
    size = {"width": shot.width, "height": shot.height}
    with browsers.open_session(browser, home, viewport=size, color_scheme=shot.theme) as person:
        person.sign_in(f"{home}/sign-in?link={Sessions(lambda: app.store).create_link()}")
        page = shot.reach(person, app)
        save(page.screenshot(animations="disabled"), FOLDER / f"{shot.name}.png")


def save(picture: bytes, path: Path) -> None:
    """Save a picture with 256 colours, which takes a third of the bytes."""
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        sys.exit(f"{path.name} has {path.stat().st_size:,} bytes (limit {MAX_BYTES:,})")
    print(f"{path.relative_to(Path.cwd())}: {path.stat().st_size:,} bytes")  # noqa: T201 - a script


def save_all_screens(browser: Browser, home: str, app: Mulligan, folder: Path) -> None:
    """Save full-page screenshots of every screen, for visual review."""
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
    def job(filter_: str) -> str:
        found = app.jobs.list(filter_, limit=1)
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
        run_demo(folder) as (home, app),
        browsers.browser(found) as browser,
    ):
        for shot in SHOTS:
            take(browser, home, app, shot)
        if everything:
            save_all_screens(browser, home, app, Path(everything))


if __name__ == "__main__":
    main(*sys.argv[1:])
