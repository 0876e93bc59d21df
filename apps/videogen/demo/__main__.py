"""`mulligan demo videogen`: API, worker and providers. The printed address contains a key."""

from __future__ import annotations

import os

from mulligan.apps import stage
from mulligan.apps.videogen.settings import PREFIX

SECONDS_PER_VIDEO = "3"
PROVIDERS = ("mulligan.apps.videogen.demo.emulator", "--port", "0", "--pace", SECONDS_PER_VIDEO)


def main() -> None:
    description = "Videos from prompts, made by providers that fail."
    with (
        stage.open_demo("videogen", description) as demo,
        stage.ServiceProcess(*PROVIDERS) as providers,
    ):
        os.environ.setdefault(f"{PREFIX}Folder", str(demo.folder / "videos"))
        os.environ[f"{PREFIX}ProviderUrl"] = providers.url
        from mulligan.apps.videogen.jobs import app  # noqa: PLC0415 - reads settings on import
        from mulligan.apps.videogen.web import web  # noqa: PLC0415 - reads settings on import

        app.open()
        key = app.keys.create(
            "*", "operator", name="demo", expires=86_400, reason="printed by the demo"
        )
        note = f"The providers: choose how they fail at {providers.url}/"
        demo.serve(web, "mulligan.apps.videogen.jobs:app", f"/#{key.text}", note=note)


if __name__ == "__main__":
    main()
