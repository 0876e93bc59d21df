"""`mulligan demo videogen`: the API, a worker and the providers on one database; the address has a key in it."""

from __future__ import annotations

import os

import stage
from videogen.settings import PREFIX, read_settings

PACE = "3"  # seconds that a video takes
PROVIDERS = ("videogen.emulator", "--port", "0", "--pace", PACE)


def main() -> None:
    about = "Videos by prompt, from providers that fail."
    with stage.open_demo("videogen", about) as demo, stage.ServiceProcess(*PROVIDERS) as providers:
        os.environ.setdefault(f"{PREFIX}Folder", str(demo.folder / "videos"))
        os.environ |= {f"{PREFIX}ProviderUrl": providers.url, **read_settings().worker}
        from videogen.jobs import app  # noqa: PLC0415 - the app reads its settings when it is imported
        from videogen.web import web  # noqa: PLC0415 - the same

        app.open()
        key = app.keys.create(
            "*", "operator", name="demo", expires=86_400, reason="printed by the demo"
        )
        more = f"The providers do as they are told at {providers.url}/"
        demo.serve(web, "videogen.jobs:app", f"/#{key.text}", note=more)


if __name__ == "__main__":
    main()
