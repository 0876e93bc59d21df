"""All of it: the world outside, the service, and a Mulligan with its worker and dashboard."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn

STOP_WITHIN = 15  # seconds


def main() -> None:
    said = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((said.host, said.port)))
        settle(said, listening, stack)
        up = [sys.executable, "-m", "mulligan", "up", "clipscribe.jobs:app", "--port", "0"]
        stack.enter_context(running([sys.executable, "-m", "clipscribe.world", "--port", os.environ["WORLD_PORT"]]))
        stack.enter_context(running(up))
        here = os.environ["CLIPSCRIBE_URL"]
        print(f"clipscribe: {here}/  (admin: {here}/admin?key={os.environ['CLIPSCRIBE_ADMIN_KEY']})", flush=True)
        server = uvicorn.Server(uvicorn.Config("clipscribe.web:web", log_level="warning", timeout_graceful_shutdown=2))
        server.run(sockets=[listening])


def arguments() -> argparse.Namespace:
    known = argparse.ArgumentParser(prog="mulligan demo clipscribe")
    known.add_argument("--database", default="", help="sqlite:///… or postgresql://…")
    known.add_argument("--host", default="127.0.0.1")
    known.add_argument("--port", type=int, default=8004)
    return known.parse_args()


def settle(said: argparse.Namespace, listening: socket.socket, stack: ExitStack) -> None:
    """Everything that worker and service must agree on, in the environment of both."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mulligan-clipscribe-"))
    world = free_port()
    own = {
        "WORLD_PORT": str(world),
        "CLIPSCRIBE_MODEL_URL": f"http://127.0.0.1:{world}/model",
        "CLIPSCRIBE_STORAGE_URL": f"file://{folder}/objects",
        "CLIPSCRIBE_SECRET": secrets.token_hex(),
        "CLIPSCRIBE_ADMIN_KEY": secrets.token_hex(8),
        "CLIPSCRIBE_URL": f"http://{said.host}:{listening.getsockname()[1]}",
        "CLIPSCRIBE_SAMPLES": f"http://127.0.0.1:{world}/videos",
    }
    apps = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [apps, os.environ.get("PYTHONPATH")]))
    os.environ |= own | {name: os.environ[name] for name in own if name in os.environ}
    from clipscribe.config import read_config  # noqa: PLC0415 - it reads the environment when it is imported

    os.environ |= read_config().mulligan
    os.environ["MULLIGAN_DATABASE_URL"] = said.database or f"sqlite:///{folder}/clipscribe.db"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
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
