"""`python -m videogen`: the API, a worker and the providers on one database; prints one address, with a key in it.

Everything is in a temporary folder that goes with it, unless --folder or --database name a place.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import uvicorn

from videogen.emulator import Emulator
from videogen.settings import PREFIX, read_settings

STOP_WITHIN = 15  # seconds
PACE = 3  # seconds that a video takes


def main() -> None:
    said = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it once more, when it has stopped
    with ExitStack() as stack:
        folder = said.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="videogen-")))
        providers = stack.enter_context(closing(Emulator(pace=PACE)))
        os.environ |= {
            "MULLIGAN_DATABASE_URL": said.database or f"sqlite:///{folder.absolute() / 'videogen.db'}",
            f"{PREFIX}Folder": os.environ.get(f"{PREFIX}Folder", str(folder.absolute() / "videos")),
            f"{PREFIX}ProviderUrl": providers.url,
            **read_settings().worker,
        }
        serve(said.host, said.port, stack)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="videogen", description="Videos by prompt, from providers that fail.")
    parser.add_argument("--database", help="sqlite:///… or postgresql://…; default: a file in the folder")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    return parser.parse_args()


def serve(host: str, port: int, stack: ExitStack) -> None:
    from videogen.jobs import app  # noqa: PLC0415 - the app reads its settings when it is imported
    from videogen.web import web  # noqa: PLC0415 - the same

    app.open()
    key = app.keys.create("*", "operator", name="demo", expires=86_400, reason="printed by the demo")
    listening = stack.enter_context(socket.create_server((host, port)))
    stack.enter_context(worker())
    print(f"http://{host}:{listening.getsockname()[1]}/#{key.text}", flush=True)
    print(f"The providers do as they are told at {os.environ[f'{PREFIX}ProviderUrl']}/", file=sys.stderr, flush=True)
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning", timeout_graceful_shutdown=2))
    server.run(sockets=[listening])


@contextmanager
def worker() -> Iterator[None]:
    command = [sys.executable, "-m", "mulligan", "worker", "videogen.jobs:app", "--log-level", "ERROR"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    main()
