"""`mulligan demo render`: the service, a picture server, a worker and the dashboard."""

from __future__ import annotations

import os

import stage
from render.config import read_config


def main() -> None:
    description = "Videos from pictures and texts."
    with (
        stage.open_demo("render", description) as demo,
        stage.ServiceProcess("render.world") as pictures,
    ):
        os.environ.setdefault("STORAGE_URL", f"file://{demo.folder}/videos")
        os.environ |= {"IMAGES": pictures.url, **read_config().worker}
        note = f"videos in {os.environ['STORAGE_URL']}"
        demo.serve("render.web:web", "render.jobs:app", note=note, dashboard=True)


if __name__ == "__main__":
    main()
