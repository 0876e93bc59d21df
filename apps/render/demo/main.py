"""Start the service, a picture server, a worker and the dashboard."""

from __future__ import annotations

import os
from pathlib import Path

from mulligan.apps import stage

FAULTS = {
    "photo.jpg": "valid",
    "flaky.jpg": "refused twice, then valid",
    "missing.jpg": "missing",
    "page.jpg": "a web page",
    "cut.jpg": "its end is missing",
}


def main() -> None:
    """Run the demo until a signal ends it."""
    with (
        stage.open_demo("render", "Videos from pictures and texts.") as demo,
        stage.ServiceProcess("mulligan.apps.render.demo.world") as pictures,
    ):
        os.environ.setdefault("STORAGE_URL", f"file://{demo.folder}/videos")
        os.environ["ALLOW_PRIVATE_ADDRESSES"] = "true"  # the picture server is on this machine
        note = f"videos in {os.environ['STORAGE_URL']}"
        web = add_page(pictures.url)
        demo.serve(web, "mulligan.apps.render.jobs:app", "/demo", note=note, dashboard=True)


def add_page(pictures: str) -> object:
    """Add /demo, a page with a button for each fault, to the service. Return the service."""
    from mulligan.apps.render import web  # noqa: PLC0415 - reads settings on import

    web.templates.loader.searchpath.append(str(Path(__file__).parent))

    @web.web.get("/demo", response_class=web.HTMLResponse)
    def demo_page() -> str:
        return web.render_template("demo.html", pictures=pictures, faults=FAULTS)

    return web.web
