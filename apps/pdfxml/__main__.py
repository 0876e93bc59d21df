"""`python -m pdfxml`: the page, a worker and the gateway on one database; prints one address.

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

from pdfxml.gateway import Gateway

STOP_WITHIN = 15  # seconds


def main() -> None:
    said = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it once more, when it has stopped
    with ExitStack() as stack:
        folder = said.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdfxml-")))
        gateway = stack.enter_context(closing(Gateway()))
        os.environ |= {
            "MULLIGAN_DATABASE_URL": said.database or f"sqlite:///{folder.absolute() / 'pdfxml.db'}",
            "STORAGE_URL": os.environ.get("STORAGE_URL", str(folder.absolute() / "files")),
            "GATEWAY_URL": gateway.url,
        }
        serve(said.host, said.port, stack)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pdfxml", description="PDF to XML through a gateway that can be told to fail."
    )
    parser.add_argument("--database", help="sqlite:///… or postgresql://…; default: a file in the folder")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    return parser.parse_args()


def serve(host: str, port: int, stack: ExitStack) -> None:
    from pdfxml.web import web  # noqa: PLC0415 - the app reads its settings when it is imported

    listening = stack.enter_context(socket.create_server((host, port)))
    stack.enter_context(worker())
    print(f"http://{host}:{listening.getsockname()[1]}/", flush=True)
    print(f"The gateway does as it is told at {os.environ['GATEWAY_URL']}/", file=sys.stderr, flush=True)
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning", timeout_graceful_shutdown=2))
    server.run(sockets=[listening])


@contextmanager
def worker() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "mulligan", "worker", "pdfxml.jobs:app", "--log-level", "ERROR"])
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
