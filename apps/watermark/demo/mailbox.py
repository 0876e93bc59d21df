"""A real mail server for the demo that keeps the mails it has received."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from aiosmtpd.controller import Controller


class LocalServer(Controller):
    """An SMTP server on a free port of this machine, which it holds from the start."""

    def __init__(self, handler: object) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        super().__init__(handler, hostname="127.0.0.1", port=self._socket.getsockname()[1])

    def _create_server(self) -> Coroutine[Any, Any, asyncio.AbstractServer]:
        """Listen on the socket. aiosmtpd calls this method by its name."""
        return self.loop.create_server(self._factory_invoker, sock=self._socket)


class Mailbox:
    """A mail server: `with Mailbox() as mailbox:`. `settings` are Mulligan's variables for it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self._server = LocalServer(self)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        """Store a mail. aiosmtpd calls this method by its name."""
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"

    @property
    def settings(self) -> dict[str, str]:
        mail = {
            "HOST": self._server.hostname,
            "PORT": str(self._server.port),
            "TLS": "none",
            "SENDER": "Watermark <marks@example.com>",
        }
        return {f"MULLIGAN_MAIL__{name}": value for name, value in mail.items()}

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
