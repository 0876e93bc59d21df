"""`mulligan demo videogen`: API, worker and providers. The printed address contains a key."""

from __future__ import annotations

import os

import stage
from videogen.settings import PREFIX, read_settings

SECONDS_PER_VIDEO = "3"
PROVIDERS = ("videogen.emulator", "--port", "0", "--pace", SECONDS_PER_VIDEO)


def main() -> None:
    description = "Videos from prompts, made by providers that fail."
    with (
        stage.open_demo("videogen", description) as demo,
        stage.ServiceProcess(*PROVIDERS) as providers,
    ):
        os.environ.setdefault(f"{PREFIX}Folder", str(demo.folder / "videos"))
        os.environ |= {f"{PREFIX}ProviderUrl": providers.url, **read_settings().worker}
        from videogen.jobs import app  # noqa: PLC0415 - reads settings on import
        from videogen.web import web  # noqa: PLC0415 - reads settings on import

        app.open()
        key = app.keys.create(
            "*", "operator", name="demo", expires=86_400, reason="printed by the demo"
        )
        note = f"The providers: choose how they fail at {providers.url}/"
        demo.serve(web, "videogen.jobs:app", f"/#{key.text}", note=note)


if __name__ == "__main__":
    main()
