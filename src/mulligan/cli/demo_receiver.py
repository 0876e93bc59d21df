"""Where the demo's webhooks go: a receiver on this machine that has its bad moments."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

REFUSES = 3  # one of so many


class Receiver:
    """`/hook` refuses one message of three, for the first time it comes; `/moved` is gone for good."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"


def _handler() -> type[BaseHTTPRequestHandler]:
    numbers = count()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(410 if self.path == "/moved" else 503 if next(numbers) % REFUSES == 0 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    return Handler
