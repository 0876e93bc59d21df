"""`python -m watermark`: pages, a worker and a mailbox on one database; prints one address.

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import uvicorn
from fastapi.responses import PlainTextResponse

from watermark.mailbox import Mailbox

STOP_WITHIN = 15  # seconds


def main() -> None:
    said = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # by the way out that tidies up
    with ExitStack() as stack:
        folder = said.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="watermark-")))
        mailbox = stack.enter_context(Mailbox())
        os.environ |= {
            "MULLIGAN_DATABASE_URL": said.database or f"sqlite:///{folder.absolute() / 'watermark.db'}",
            "WATERMARK_FILES": str(folder.absolute() / "files"),
            **mailbox.settings,
        }
        serve(said.host, said.port, mailbox, stack)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="watermark", description="Watermark campaigns, with something to look at.")
    parser.add_argument("--database", help="sqlite:///… or postgresql://…; default: a file in the folder")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    return parser.parse_args()


def serve(host: str, port: int, mailbox: Mailbox, stack: ExitStack) -> None:
    from watermark import examples  # noqa: PLC0415 - the app reads its settings when it is imported
    from watermark.web import web  # noqa: PLC0415 - the same

    web.get("/mailbox")(lambda: PlainTextResponse("\n\n".join(mail.as_string() for mail in mailbox.mails)))
    listening = stack.enter_context(socket.create_server((host, port)))
    key = examples.account()
    stack.enter_context(worker())
    Thread(target=examples.fill, args=(key,), daemon=True).start()
    print(f"http://{host}:{listening.getsockname()[1]}/?key={key}", flush=True)
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning", timeout_graceful_shutdown=2))
    server.run(sockets=[listening])


@contextmanager
def worker() -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mulligan", "worker", "watermark.jobs:app", "--log-level", "ERROR"]
    )
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
