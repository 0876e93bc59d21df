"""Real receivers of messages on this host: an HTTP server and a mail server with planned failures.

Each request is recorded with the message's id. Without a plan it is accepted.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

OK = "ok"
HANG = "hang"
DROP = "drop"
RATE_LIMITED = "429"


@dataclass
class ReceivedMessage:
    """One received message. `confirmed`: the sender got a success response."""

    at: float
    to: str  # the path
    id: str
    body: Any
    headers: dict[str, str]
    confirmed: bool = False


@dataclass
class ResponsePlan:
    """Responses to the next requests to one path, in order, and to all after them."""

    next: list[str] = field(default_factory=list)
    then: str = OK

    def take(self) -> str:
        return self.next.pop(0) if self.next else self.then


class WebReceiver:
    """HTTP server at `http://127.0.0.1:PORT/NAME`; `plans[NAME]` has the responses of a path."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[ReceivedMessage] = []
        self.plans: defaultdict[str, ResponsePlan] = defaultdict(ResponsePlan)
        self.released = threading.Event()  # ends hanging requests
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.port = port
        self.listen()

    def listen(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop_listening(self) -> None:
        """Refuse connections until `listen` is called."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def url(self, name: str = "hook") -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def ids(self, name: str | None = None, *, confirmed: bool | None = None) -> list[str]:
        with self._lock:
            found = list(self.received)
        return [
            one.id for one in found if name in (None, one.to) and confirmed in (None, one.confirmed)
        ]

    def bodies(self, name: str = "hook") -> list[Any]:
        return [one.body for one in self.received if one.to == name]

    def _take(self, name: str, headers: dict[str, str], raw: bytes) -> tuple[ReceivedMessage, str]:
        with self._lock:
            body = json.loads(raw or b"null")
            one = ReceivedMessage(
                time.monotonic(), name, headers.get("webhook-id", ""), body, headers
            )
            self.received.append(one)
            return one, self.plans[name].take()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                one, response = receiver._take(self.path.lstrip("/"), headers, raw)
                self.close_connection = True
                if response == HANG:
                    receiver.released.wait(60)
                if response in (HANG, DROP):
                    return
                one.confirmed = response == OK
                self.send_response(200 if response == OK else int(response))
                if response == RATE_LIMITED:
                    self.send_header("retry-after", "1")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        return Handler

    def close(self) -> None:
        self.released.set()
        self.stop_listening()


class MailReceiver:
    """A mail server. `plan` has its next replies: "ok", a code such as "451", or "drop"."""

    def __init__(self) -> None:
        self.received: list[ReceivedMessage] = []
        self.plan = ResponsePlan()
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port: int = free.getsockname()[1]
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()

    async def handle_DATA(self, _server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - the library's name
        mail = message_from_bytes(envelope.content)
        one = ReceivedMessage(
            time.monotonic(),
            ",".join(envelope.rcpt_tos),
            mail["message-id"],
            mail,
            dict(mail.items()),
        )
        self.received.append(one)
        response = self.plan.take()
        if response == DROP:
            raise ConnectionResetError
        one.confirmed = response == OK
        return "250 accepted" if response == OK else f"{response} not now"

    def ids(self, *, confirmed: bool | None = None) -> list[str]:
        return [one.id for one in self.received if confirmed in (None, one.confirmed)]

    def close(self) -> None:
        self._controller.stop()


@contextmanager
def open_receiver(make: Callable[[], Any] = WebReceiver) -> Iterator[Any]:
    receiver = make()
    try:
        yield receiver
    finally:
        receiver.close()
