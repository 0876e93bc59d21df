"""All of it: a server of pictures, the service, and a Mulligan with its worker and dashboard."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn

from render.config import read_config


def main() -> None:
    said = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # by the way out that takes the worker along
    with tempfile.TemporaryDirectory(prefix="mulligan-render-", ignore_cleanup_errors=True) as folder:
        _run(said, folder)


def _run(said: argparse.Namespace, folder: str) -> None:
    os.environ["MULLIGAN_DATABASE_URL"] = said.database or f"sqlite:///{folder}/render.db"
    os.environ.setdefault("STORAGE_URL", f"file://{folder}/videos")
    os.environ.update(read_config().worker)
    pictures = _free_port()
    os.environ["IMAGES"] = f"http://127.0.0.1:{pictures}"
    up = [sys.executable, "-m", "mulligan", "up", "render.jobs:app", "--port", "0"]
    with subprocess.Popen(up, env=_with_path()) as worker:
        try:
            threading.Thread(target=_serve, args=("render.world:images", "127.0.0.1", pictures), daemon=True).start()
            print(f"render: http://{said.host}:{said.port}  (videos in {os.environ['STORAGE_URL']}; Ctrl-C ends it)")
            _serve("render.web:web", said.host, said.port)
        finally:
            worker.terminate()


def _arguments() -> argparse.Namespace:
    known = argparse.ArgumentParser(prog="mulligan demo render")
    known.add_argument("--database", default="", help="sqlite:///… or postgresql://…")
    known.add_argument("--host", default="127.0.0.1")
    known.add_argument("--port", type=int, default=8003)
    return known.parse_args()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _with_path() -> dict[str, str]:
    apps = str(Path(__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [apps, os.environ.get("PYTHONPATH")]))}


def _serve(application: str, host: str, port: int) -> None:
    uvicorn.Server(uvicorn.Config(application, host, port, log_level="warning")).run()


if __name__ == "__main__":
    main()
