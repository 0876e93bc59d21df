"""`mulligan demo clipscribe`: service, external services, worker and dashboard."""

from __future__ import annotations

import os
import secrets

import stage


def main() -> None:
    description = "Analysis of videos by a model that fails."
    with (
        stage.open_demo("clipscribe", description) as demo,
        stage.ServiceProcess("clipscribe.world") as world,
    ):
        variables = {  # shared by worker and service
            "CLIPSCRIBE_MODEL_URL": f"{world.url}/model",
            "CLIPSCRIBE_SAMPLES": f"{world.url}/videos",
            "CLIPSCRIBE_STORAGE_URL": f"file://{demo.folder}/objects",
            "CLIPSCRIBE_SECRET": secrets.token_hex(),
            "CLIPSCRIBE_ADMIN_KEY": secrets.token_hex(8),
            "CLIPSCRIBE_URL": demo.url,
        }
        os.environ |= {**variables, **os.environ}
        from clipscribe.config import read_config  # noqa: PLC0415 - reads settings on import

        os.environ |= read_config().mulligan
        note = f"for the admin: {demo.url}/admin?key={os.environ['CLIPSCRIBE_ADMIN_KEY']}"
        demo.serve("clipscribe.web:web", "clipscribe.jobs:app", note=note, dashboard=True)


if __name__ == "__main__":
    main()
