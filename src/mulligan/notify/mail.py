"""E-mail: one message, one Message-ID, text and HTML. Without a mail server nothing is sent, and nothing breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from mulligan.errors import ConfigError
from mulligan.notify.channels import Receipt, Sending
from mulligan.notify.message import Message

To = str | Sequence[str]


@dataclass(frozen=True, repr=False)
class Email:
    """Mails a message. `to`: addresses, or a function of the message that returns them (nobody: nothing is sent).

    `subject` and `render` are functions of the message; `render` returns the text, or a dict of `subject`, `text`
    and `html`.
    """

    to: To | Callable[[Message], Any]
    render: Callable[[Message], Any] | None = None
    subject: str | Callable[[Message], Any] | None = None

    kind: ClassVar[str] = "email"
    endpoint: ClassVar[str] = "smtp"  # whoever the mail is for, one server takes it

    def __repr__(self) -> str:
        return "Email(…)"

    @property
    def storable(self) -> bool:
        return self.render is None and not callable(self.to) and not callable(self.subject)

    def to_plain(self) -> dict[str, Any]:
        if not self.storable or callable(self.to):
            _refuse("one with functions can only be declared in code")
        to = [self.to] if isinstance(self.to, str) else list(self.to)
        return {"channel": self.kind, "to": to, "subject": self.subject}

    @classmethod
    def from_plain(cls, body: Mapping[str, Any]) -> Email:
        return cls(tuple(body["to"]), subject=body.get("subject"))

    async def send(self, message: Message, sending: Sending) -> Receipt:
        raise NotImplementedError


def _refuse(why: str) -> NoReturn:
    message = f"e-mail: {why}"
    raise ConfigError(message)
