"""E-mail: one message, one Message-ID, text and HTML. Without a mail server nothing is sent, and nothing breaks."""

from __future__ import annotations

import smtplib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from mulligan.config import Mail
from mulligan.errors import ConfigError, Fail
from mulligan.notify.addresses import read_address, read_addresses
from mulligan.notify.calling import called
from mulligan.notify.channels import Receipt, Sending
from mulligan.notify.composing import Parts, compose, default_parts, sender_of
from mulligan.notify.message import Message
from mulligan.notify.smtp import Refusals, hand_over

NO_HOST = "mail.host is not set, so no mail is sent"
NOBODY = "there is nobody to tell"
RENDERED = ("subject", "text", "html")


@dataclass(frozen=True, repr=False)
class Email:
    """Mails a message. `to`: addresses, or a function of the message that returns them (nobody: nothing is sent).

    `subject` is a text or a function of the message. `render` is a function that returns the text of the mail, or a
    dict of `text`, `html` and `subject`.
    """

    to: str | Sequence[str] | Callable[[Message], Any]
    render: Callable[[Message], Any] | None = None
    subject: str | Callable[[Message], Any] | None = None

    kind: ClassVar[str] = "email"
    endpoint: ClassVar[str] = "smtp"  # whoever the mail is for, one server takes it

    def __post_init__(self) -> None:
        if not callable(self.to) and not read_addresses(self.to):
            _refuse("to= names nobody")

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
        mail = sending.settings.mail
        if not mail.host:
            return {"skipped": NO_HOST}
        try:
            to = read_addresses(await called(self.to, message) if callable(self.to) else self.to)
            sender = sender_of(read_address(mail.sender) if mail.sender else None)
        except ConfigError as error:
            raise Fail("BAD_ADDRESS", str(error), final=True) from error
        if not to:
            return {"skipped": NOBODY}
        letter = compose(message, await self._parts(message), sender, to)
        rest = [address.addr_spec for address in to if address.addr_spec not in sending.reached]
        refused = await _handed(mail, letter, sender.addr_spec, rest) if rest else {}
        return await _told(refused, rest, sending)

    async def _parts(self, message: Message) -> Parts:
        made = default_parts(message) if self.render is None else _rendered(await called(self.render, message), message)
        if self.subject is None:
            return made
        subject = await called(self.subject, message) if callable(self.subject) else self.subject
        return made._replace(subject=str(subject))


async def _handed(mail: Mail, letter: Any, sender: str, rest: list[str]) -> Refusals:
    try:
        return await hand_over(mail, letter, sender, rest)
    except smtplib.SMTPRecipientsRefused as error:
        return dict(error.recipients)


async def _told(refused: Refusals, asked: Iterable[str], sending: Sending) -> Receipt:
    """Who has it never gets it again. Those who may be let in later are asked again before anything is given up."""
    reached = sending.reached | {address for address in asked if address not in refused}
    if not refused:
        return {"reached": len(reached)}
    if reached != sending.reached:
        await sending.remember(reached)
    later = {address: answer for address, answer in refused.items() if answer[0] < 500}
    raise smtplib.SMTPRecipientsRefused(later or refused)


def _rendered(made: Any, message: Message) -> Parts:
    if isinstance(made, str):
        return Parts(message.summary, made)
    if not isinstance(made, Mapping) or set(made) - set(RENDERED) or not made.get("text"):
        raise Fail("BAD_OUTCOME", "render must return a text, or a dict of text, html and subject", final=True)
    return Parts(str(made.get("subject") or message.summary), str(made["text"]), str(made.get("html") or ""))


def _refuse(why: str) -> NoReturn:
    message = f"e-mail: {why}"
    raise ConfigError(message)
