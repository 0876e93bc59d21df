"""A real mail server for the demo that keeps the mails it has received."""

from __future__ import annotations

import socket
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from aiosmtpd.controller import Controller


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Mailbox:
    """A mail server: `with Mailbox() as mailbox:`. `settings` are Mulligan's variables for it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self._server = Controller(self, hostname="127.0.0.1", port=free_port())

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
