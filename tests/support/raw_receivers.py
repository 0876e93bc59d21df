"""Real receivers on this host: an HTTP server with byte-exact responses and a mail server."""

from __future__ import annotations

import email
import email.policy
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from typing import Any, NamedTuple

from support.postgres import free_port

OK = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
Response = bytes | Callable[[socket.socket], None]


def build_response(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} Planned", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Request(NamedTuple):
    line: str
    headers: dict[str, str]  # names in lower case; the last value of several
    names: list[str]
    body: bytes


class HttpReceiver:
    """Sends `responses` in order, the last one again and again."""

    def __init__(self, *responses: Response, context: ssl.SSLContext | None = None) -> None:
        self.responses = list(responses or (OK,))
        self.context = context
        self.requests: list[Request] = []
        self.connections = 0
        self.request_received = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, self._with_tls(connection) as stream:
            request = _read(stream)
            with self.request_received:
                self.requests.append(request)
                response = self.responses[min(len(self.requests), len(self.responses)) - 1]
                self.request_received.notify_all()
            if callable(response):
                response(stream)
            else:
                stream.sendall(response)

    def _with_tls(self, connection: socket.socket) -> socket.socket:
        return (
            self.context.wrap_socket(connection, server_side=True) if self.context else connection
        )


def _read(connection: socket.socket) -> Request:
    stream = connection.makefile("rb")
    line = stream.readline().decode().rstrip("\r\n")
    pairs = []
    while header := stream.readline().rstrip(b"\r\n"):
        name, _, value = header.decode("latin-1").partition(":")
        pairs.append((name.lower(), value.strip()))
    headers = dict(pairs)
    return Request(
        line,
        headers,
        [name for name, _ in pairs],
        stream.read(int(headers.get("content-length", 0))),
    )


class ReceivedMail(NamedTuple):
    sender: str
    to: list[str]
    raw: bytes

    @property
    def mail(self) -> EmailMessage:
        read = email.message_from_bytes(self.raw, policy=email.policy.default)
        assert isinstance(read, EmailMessage)
        return read

    def part(self, subtype: str) -> str:
        found = self.mail.get_body((subtype,))
        assert found is not None
        return str(found.get_content()).replace("\r\n", "\n")


class Mailbox:
    """Mails that a server got. `rcpt_replies` (by address) and `data_replies` replace its replies."""

    def __init__(self) -> None:
        self.mails: list[ReceivedMail] = []
        self.rcpt_replies: dict[str, list[str]] = {}
        self.data_replies: list[str] = []
        self.logins: list[tuple[str, str]] = []
        self.port = 0

    async def handle_RCPT(  # noqa: N802 - the library's name
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        replies = self.rcpt_replies.get(address)
        if replies:
            return replies.pop(0) if len(replies) > 1 else replies[0]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        reply = self.data_replies.pop(0) if self.data_replies else "250"
        if reply != "250":
            if reply == "drop":
                self.mails.append(
                    ReceivedMail(envelope.mail_from, list(envelope.rcpt_tos), envelope.content)
                )
                server.transport.close()
            return reply
        self.mails.append(
            ReceivedMail(envelope.mail_from, list(envelope.rcpt_tos), envelope.content)
        )
        return "250 OK"


@contextmanager
def mail_server(context: ssl.SSLContext | None = None, **options: Any) -> Iterator[Mailbox]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aiosmtpd.controller import Controller

        box = Mailbox()
        server = Controller(
            box,
            hostname="127.0.0.1",
            port=free_port(),
            ssl_context=None,
            tls_context=context,
            **options,
        )
        server.start()
        box.port = server.port
        try:
            yield box
        finally:
            server.stop()
