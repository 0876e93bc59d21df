"""`mulligan demo clipscribe`: the service, the world outside, and a Mulligan with its worker and dashboard."""

from __future__ import annotations

import os
import secrets

import stage


def main() -> None:
    about = "What a model sees in videos, and what is done when it does not."
    with (
        stage.open_demo("clipscribe", about) as demo,
        stage.ServiceProcess("clipscribe.world") as world,
    ):
        own = {  # what worker and service must agree on
            "CLIPSCRIBE_MODEL_URL": f"{world.url}/model",
            "CLIPSCRIBE_SAMPLES": f"{world.url}/videos",
            "CLIPSCRIBE_STORAGE_URL": f"file://{demo.folder}/objects",
            "CLIPSCRIBE_SECRET": secrets.token_hex(),
            "CLIPSCRIBE_ADMIN_KEY": secrets.token_hex(8),
            "CLIPSCRIBE_URL": demo.url,
        }
        os.environ |= {**own, **os.environ}
        from clipscribe.config import read_config  # noqa: PLC0415 - it reads the environment when it is imported

        os.environ |= read_config().mulligan
        more = f"for its admin: {demo.url}/admin?key={os.environ['CLIPSCRIBE_ADMIN_KEY']}"
        demo.serve("clipscribe.web:web", "clipscribe.jobs:app", note=more, dashboard=True)


if __name__ == "__main__":
    main()
