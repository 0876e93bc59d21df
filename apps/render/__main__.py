"""`mulligan demo render`: the service, a server of pictures, and a Mulligan with its worker and dashboard."""

from __future__ import annotations

import os

import stage
from render.config import read_config


def main() -> None:
    about = "Videos from pictures and words."
    with stage.open_demo("render", about) as demo, stage.ServiceProcess("render.world") as pictures:
        os.environ.setdefault("STORAGE_URL", f"file://{demo.folder}/videos")
        os.environ |= {"IMAGES": pictures.url, **read_config().worker}
        more = f"videos in {os.environ['STORAGE_URL']}"
        demo.serve("render.web:web", "render.jobs:app", note=more, dashboard=True)


if __name__ == "__main__":
    main()
