"""`mulligan demo render`: the service, a server of pictures, and a Mulligan with its worker and dashboard."""

from __future__ import annotations

import os

import stage
from render.config import read_config


def main() -> None:
    about = "Videos from pictures and words."
    with stage.opened("render", about) as here, stage.Program("render.world") as pictures:
        os.environ.setdefault("STORAGE_URL", f"file://{here.folder}/videos")
        os.environ |= {"IMAGES": pictures.url, **read_config().worker}
        more = f"videos in {os.environ['STORAGE_URL']}"
        here.play("render.web:web", "render.jobs:app", more=more, dashboard=True)


if __name__ == "__main__":
    main()
