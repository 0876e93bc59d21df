"""What the demos of the applications have in common: a folder, a database, a worker, a page, a world outside.

All of it ends together: with Ctrl-C, with SIGTERM, and with a kill that leaves nobody time for anything.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import uvicorn

from mulligan import background_worker


# -- a demo --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Stage:
    folder: Path
    listening: socket.socket

    @property
    def url(self) -> str:
        host, port = self.listening.getsockname()[:2]
        return f"http://{host}:{port}"

    def play(
        self, web: Any, jobs: str, way_in: str = "/", *, more: str = "", dashboard: bool = False
    ) -> None:
        """A worker and the page, until somebody ends them. The first line on stdout is where to go."""
        with background_worker(jobs, page=dashboard):
            print(f"{self.url}{way_in}", flush=True)
            if more:
                print(more, file=sys.stderr, flush=True)
            quiet = uvicorn.Config(web, log_level="warning", timeout_graceful_shutdown=2)
            uvicorn.Server(quiet).run(sockets=[self.listening])


@contextmanager
def opened(name: str, about: str) -> Iterator[Stage]:
    """Everything is in a temporary folder that goes with it, unless --folder or --database name a place."""
    said = _arguments(name, about)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit()
    )  # uvicorn raises it once more, when it has stopped
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))
        folder = said.folder or stack.enter_context(
            tempfile.TemporaryDirectory(prefix=f"mulligan-{name}-")
        )
        place = Path(folder).absolute()
        listening = stack.enter_context(socket.create_server((said.host, said.port)))
        os.environ["MULLIGAN_DATABASE_URL"] = said.database or f"sqlite:///{place / name}.db"
        os.environ.setdefault("MULLIGAN_LOG__LEVEL", "ERROR")
        yield Stage(place, listening)


def _arguments(name: str, about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"mulligan demo {name}", description=about)
    parser.add_argument(
        "--database", help="sqlite:///… or postgresql://…; default: a file in the folder"
    )
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    return parser.parse_args()


# -- the world outside ---------------------------------------------------------------------------
class Program:
    """A program of the world outside, running: `Program("pdfxml.gateway")`. Its first line is its address."""

    def __init__(self, module: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *(words or ("--port", "0"))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,  # it ends when this does, and this ends with us
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us
            text=True,
        )
        assert self.process.stdout is not None  # noqa: S101 - asked for above
        self.url = self.process.stdout.readline().strip()
        self.port = urlsplit(self.url).port or 0

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PAGE = """<!doctype html><html lang="en"><title>{title}</title><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width"><style>
:root {{ color-scheme: light dark }} button {{ font: inherit; padding: .2rem .9rem }}
body {{ font: 16px/1.6 system-ui, sans-serif; margin: 1.5rem; color: CanvasText; background: Canvas }}
th, td {{ padding: .3rem 1rem .3rem 0; text-align: left }}</style><main>{body}</main></html>"""


class Emulator(BaseHTTPRequestHandler):
    """A service that answers what it was told to."""

    protocol_version = "HTTP/1.1"

    def send(
        self,
        status: int,
        body: bytes,
        kind: str,
        headers: Mapping[str, str],
        length: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def show(self, title: str, body: str) -> None:
        """A page where it is told what to do."""
        self.send(200, PAGE.format(title=title, body=body).encode(), "text/html; charset=utf-8", {})

    def get(self) -> None: ...
    def delete(self) -> None: ...
    def post(self, body: bytes) -> None: ...

    def do_GET(self) -> None:
        self.get()

    def do_DELETE(self) -> None:
        self.delete()

    def do_POST(self) -> None:
        self.post(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def hang_up(self, *, reset: bool = False) -> None:
        if reset:  # to linger for no time
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass

    @classmethod
    def stay(cls, port: int) -> None:
        server = _Server(("127.0.0.1", port), cls)
        stay(server.server_port, server.serve_forever)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Whoever asked did not wait for the answer."""


def stay(port: int, serve: Callable[[], object]) -> None:
    """What such a program does: tell its address, and serve until its stdin ends."""
    print(f"http://127.0.0.1:{port}", flush=True)
    threading.Thread(target=serve, daemon=True).start()
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


def stay_as(web: Any, port: int) -> None:
    """The same for an ASGI application."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        server = uvicorn.Server(uvicorn.Config(web, log_level="error"))
        stay(listening.getsockname()[1], lambda: server.run(sockets=[listening]))


def asked_port(otherwise: int) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=otherwise)
    return int(parser.parse_known_args()[0].port)
