"""Real receivers on this host: one of HTTP that answers as it is told, byte by byte, and one of mail."""

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

OK = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
Answer = bytes | Callable[[socket.socket], None]


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} Told", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Request(NamedTuple):
    line: str
    headers: dict[str, str]  # names in small letters; the last of several
    names: list[str]
    body: bytes


class HttpReceiver:
    """Answers with `answers` in their order, the last one again and again."""

    def __init__(self, *answers: Answer, context: ssl.SSLContext | None = None) -> None:
        self.answers, self.context = list(answers or (OK,)), context
        self.requests: list[Request] = []
        self.connections = 0
        self.heard = threading.Condition()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, self._wrapped(connection) as told:
            request = _read(told)
            with self.heard:
                self.requests.append(request)
                answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
                self.heard.notify_all()
            answer(told) if callable(answer) else told.sendall(answer)

    def _wrapped(self, connection: socket.socket) -> socket.socket:
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


class Letter(NamedTuple):
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
    """What a mail server got. `at_rcpt` and `at_data` answer in its place: by address, or one after the other."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.at_rcpt: dict[str, list[str]] = {}
        self.at_data: list[str] = []
        self.logins: list[tuple[str, str]] = []
        self.port = 0

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:  # noqa: N802
        if answers := self.at_rcpt.get(address):
            return answers.pop(0) if len(answers) > 1 else answers[0]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.at_data and (answer := self.at_data.pop(0)) != "250":
            if answer == "drop":
                self.letters.append(
                    Letter(envelope.mail_from, list(envelope.rcpt_tos), envelope.content)
                )
                server.transport.close()
            return answer
        self.letters.append(Letter(envelope.mail_from, list(envelope.rcpt_tos), envelope.content))
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
            port=_free(),
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


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
