"""Start the demo: external services, worker, service and dashboard."""

from __future__ import annotations

import os
import secrets

from mulligan.apps import stage


def main() -> None:
    description = "Analysis of videos by a model that fails."
    with (
        stage.open_demo("clipscribe", description) as demo,
        stage.ServiceProcess("mulligan.apps.clipscribe.demo.world") as world,
    ):
        variables = {  # shared by worker and service
            "CLIPSCRIBE_MODEL_URL": f"{world.url}/model",
            "CLIPSCRIBE_STORAGE_URL": f"file://{demo.folder}/objects",
            "CLIPSCRIBE_SECRET": secrets.token_hex(),
            "CLIPSCRIBE_URL": demo.url,
            "CLIPSCRIBE_OPEN": "1",
            "CLIPSCRIBE_ALLOW_PRIVATE": "1",
        }
        os.environ |= {**variables, **os.environ}
        note = f"videos to try: {world.url}/?service={demo.url}\n"
        note += f"for the admin: {demo.url}/demo/admin"
        demo.serve(
            "mulligan.apps.clipscribe.demo.service:web",
            "mulligan.apps.clipscribe.jobs:app",
            note=note,
            dashboard=True,
        )


if __name__ == "__main__":
    main()
