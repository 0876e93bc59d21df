"""Harness of `mulligan demo NAME`: folder, database, worker, page, and emulated services.

An application runs without it: `mulligan worker` and `uvicorn`, as its README says. Its demo is in
`apps/NAME/demo/` and starts the same worker and page on a temporary database, with emulated outside
services as separate processes:

    with (
        stage.open_demo("shop", "A shop whose bank you can break.") as demo,
        stage.ServiceProcess("mulligan.apps.shop.demo.bank") as bank,
    ):
        os.environ["BANK_URL"] = bank.url  # what a deployment would set
        from mulligan.apps.shop.web import web  # reads its settings on import

        demo.serve(web, "mulligan.apps.shop.jobs:app")

The environment is for what differs between deployments: addresses, folders, keys. Settings of
Mulligan that the application needs everywhere belong into its code: `Mulligan(settings={...})`.

A worker that dies is started again. Everything ends together: with Ctrl-C, with SIGTERM, and with
SIGKILL.
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


# --- Demo --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Demo:
    """A demo in progress: its folder and the socket that its page listens on."""

    folder: Path
    listener: socket.socket

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"http://{host}:{port}"

    def serve(
        self, web: Any, app: str, start_path: str = "/", *, note: str = "", dashboard: bool = False
    ) -> None:
        """Run a worker and the page until a signal ends them. Print the page's address first."""
        with background_worker(app, page=dashboard):
            print(f"{self.url}{start_path}", flush=True)
            if note:
                print(note, file=sys.stderr, flush=True)
            config = uvicorn.Config(web, log_level="warning", timeout_graceful_shutdown=2)
            uvicorn.Server(config).run(sockets=[self.listener])


@contextmanager
def open_demo(name: str, description: str) -> Iterator[Demo]:
    """Prepare a demo in a temporary folder, unless --folder or --database is set."""
    arguments = _parse_arguments(name, description)
    # uvicorn raises SIGTERM once more after it has stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))
        folder = arguments.folder or stack.enter_context(
            tempfile.TemporaryDirectory(prefix=f"mulligan-{name}-")
        )
        path = Path(folder).absolute()
        listener = stack.enter_context(socket.create_server((arguments.host, arguments.port)))
        os.environ["MULLIGAN_DATABASE_URL"] = arguments.database or f"sqlite:///{path / name}.db"
        os.environ.setdefault("MULLIGAN_LOG__LEVEL", "ERROR")
        yield Demo(path, listener)


def _parse_arguments(name: str, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"mulligan demo {name}", description=description)
    parser.add_argument(
        "--database", help="sqlite:///… or postgresql://…; default: a file in the folder"
    )
    parser.add_argument("--folder", type=Path, help="default: a temporary folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    return parser.parse_args()


# --- Emulated external services -----------------------------------------------------------------
class ServiceProcess:
    """A running process of an emulated service: `ServiceProcess("mulligan.apps.pdfxml.demo.gateway")`.

    The process prints its address as the first line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *(arguments or ("--port", "0"))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,  # EOF ends the service, even if this process is killed
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to this process only
            text=True,
        )
        assert self.process.stdout is not None  # noqa: S101 - stdout is a pipe
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
body {{ font: 16px/1.6 system-ui, sans-serif; margin: 1.5rem }}
body {{ color: CanvasText; background: Canvas }}
th, td {{ padding: .3rem 1rem .3rem 0; text-align: left }}</style><main>{body}</main></html>"""


class Emulator(BaseHTTPRequestHandler):
    """HTTP handler of an emulated service whose failures are configured by requests."""

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

    def send_page(self, title: str, body: str) -> None:
        """Send an HTML page, used to choose how the service fails."""
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

    def drop_connection(self, *, reset: bool = False) -> None:
        """Close the connection; with `reset`, send RST instead of FIN."""
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass

    @classmethod
    def serve(cls, port: int) -> None:
        """Serve on this port (0: any free one) until stdin ends."""
        server = _Server(("127.0.0.1", port), cls)
        serve_until_eof(server.server_port, server.serve_forever)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore errors: the client closed the connection before the answer."""


def serve_until_eof(port: int, serve: Callable[[], object]) -> None:
    """Print the address and serve until stdin ends."""
    print(f"http://127.0.0.1:{port}", flush=True)
    threading.Thread(target=serve, daemon=True).start()
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


def serve_asgi(web: Any, port: int) -> None:
    """Serve an ASGI application on this port (0: any free one) until stdin ends."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(web, log_level="error"))
        serve_until_eof(listener.getsockname()[1], lambda: server.run(sockets=[listener]))


def parse_port(default: int) -> int:
    """Read --port from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=default)
    return int(parser.parse_known_args()[0].port)
