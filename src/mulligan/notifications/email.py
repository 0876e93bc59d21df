"""E-mail: one message, one Message-ID, text and HTML. Without a mail server nothing is sent, and nothing breaks."""

from __future__ import annotations

import asyncio
import hashlib
import re
import smtplib
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

from mulligan.config import MailSection
from mulligan.core.errors import ConfigError, Fail
from mulligan.core.format import one_line, safe
from mulligan.core.job import to_datetime
from mulligan.notifications.channels import Receipt, Sending
from mulligan.notifications.message import Message, called

if TYPE_CHECKING:
    from jinja2 import Template


# Addresses of e-mail. What is not plainly one is refused: a header is no place for doubt.

LONG = 254  # characters
MANY = 100  # recipients of one message
_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_ADDRESS = rf"[\w.!#$%&'*+/=?^`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{0,9}}"
_WRITTEN = re.compile(
    rf"(?:(?P<name>[^<>\"@,;:\\]{{0,100}}?)\s*<(?P<named>{_ADDRESS})>|(?P<bare>{_ADDRESS}))"
)


def read_address(text: Any) -> Address:
    """`kim@example.com` or `Kim <kim@example.com>`."""
    fit = isinstance(text, str) and len(text) <= LONG and text.isprintable()
    found = _WRITTEN.fullmatch(text.strip(" ")) if fit else None
    user, _, domain = ((found["named"] or found["bare"]) if found else "").rpartition("@")
    try:
        if found and ".." not in user:
            return Address(
                (found["name"] or "").strip(), user, domain.encode("idna").decode("ascii")
            )
    except UnicodeError:
        pass
    message = (
        f"e-mail: {text!r} is no address"
        if isinstance(text, str)
        else "e-mail: an address is a text"
    )
    raise ConfigError(message[:200])


def read_addresses(given: Any) -> list[Address]:
    """One, several or none; each once."""
    several: Iterable[Any] = [given] if given and isinstance(given, str) else given or ()
    found = {address.addr_spec: address for address in map(read_address, several)}
    if len(found) > MANY:
        message = f"e-mail: {len(found)} recipients; at most {MANY} get one message"
        raise ConfigError(message)
    return list(found.values())


# A message as an e-mail. Made twice of the same message, it is the same mail: one Message-ID, one date.

SUBJECT = 200  # characters
TEXT = 50_000


class Parts(NamedTuple):
    subject: str
    text: str
    html: str = ""


def compose(message: Message, parts: Parts, sender: Address, to: Sequence[Address]) -> EmailMessage:
    mail = EmailMessage(policy=SMTP)
    mail["From"] = sender
    mail["To"] = tuple(to)
    # What looks like an encoded word would be decoded, into whatever somebody has put there.
    mail["Subject"] = one_line(parts.subject, SUBJECT).replace("=?", "= ?") or message.type
    mail["Date"] = format_datetime(to_datetime(message.at))
    mail["Message-ID"] = f"<{message.id}@{sender.domain}>"
    if message.thread:
        root = f"<thread.{hashlib.sha256(message.thread.encode('utf-8', 'replace')).hexdigest()[:26]}@{sender.domain}>"
        mail["In-Reply-To"] = root
        mail["References"] = root
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(f"{safe(parts.text, TEXT)}\n")
    if parts.html:
        mail.add_alternative(safe(parts.html, TEXT), subtype="html")
    return mail


def default_parts(message: Message) -> Parts:
    return Parts(message.summary, text_of(message), _template().render(message=message))


def text_of(message: Message) -> str:
    """For those who read mail as text, and for chats."""
    facts = "\n".join(f"{label}: {value}" for label, value in message.details)
    links = [
        f"{label}: {url}"
        for label, url in (("Look at it", message.link), ("What to do", message.runbook))
        if url
    ]
    return "\n\n".join(part for part in (message.summary, "\n".join(links), facts) if part)


def sender_of(written: Address | None) -> Address:
    return written or Address("Mulligan", "mulligan", socket.gethostname() or "localhost")


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - see above

    pages = Environment(
        loader=PackageLoader("mulligan.notifications"),
        autoescape=True,  # everything from a payload or an error is hostile
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("mail.html")


# One mail, handed to a mail server. Runs on a thread; who waits for it may cut it short.

Refusals = dict[str, tuple[int, bytes]]  # by address: the server's answer


class _Plain(smtplib.SMTP):
    """Connects only when told to: until then somebody else has time to get hold of it."""

    def __init__(self, mail: MailSection) -> None:
        super().__init__(local_hostname=socket.gethostname() or "localhost", timeout=mail.timeout)
        self._host = mail.host  # the certificate is checked against it


class _Wrapped(smtplib.SMTP_SSL):
    def __init__(self, mail: MailSection) -> None:
        name, context = socket.gethostname() or "localhost", ssl.create_default_context()
        super().__init__(local_hostname=name, timeout=mail.timeout, context=context)
        self._host = mail.host


async def hand_over(
    mail: MailSection, letter: EmailMessage, sender: str, to: list[str]
) -> Refusals:
    """Returns who was refused, if somebody was not; raises what smtplib raises, or `Fail` if nobody is there."""
    line = _Wrapped(mail) if mail.tls == "tls" else _Plain(mail)
    try:
        async with asyncio.timeout(mail.timeout):
            return await asyncio.to_thread(_hand_over, line, mail, letter, sender, to)
    except TimeoutError as error:
        public = f"The mail server did not take the mail within {mail.timeout:g} s."
        raise Fail("TIMEOUT", public, public=public) from error
    except smtplib.SMTPException:
        raise
    except OSError as error:
        raise _unreachable(mail, error) from error
    finally:
        _cut(line)


def _hand_over(
    line: smtplib.SMTP, mail: MailSection, letter: EmailMessage, sender: str, to: list[str]
) -> Refusals:
    try:
        _greet(line, mail)
        refused: Any = line.send_message(letter, sender, to)
        with suppress(smtplib.SMTPException, OSError):  # it has been taken, whatever comes now
            line.quit()
        return dict(refused)
    finally:
        line.close()


def _greet(line: smtplib.SMTP, mail: MailSection) -> None:
    code, answer = line.connect(mail.host, mail.port)
    if code != 220:
        raise smtplib.SMTPConnectError(code, answer)
    if mail.tls == "starttls":
        line.starttls(context=ssl.create_default_context())
    if mail.username:
        line.login(mail.username, password_of(mail))


def password_of(mail: MailSection) -> str:
    if not mail.password_file:
        return mail.password
    try:
        first, *_ = Path(mail.password_file).read_text(encoding="utf-8").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise Fail(
            "MISCONFIGURED", "mail.password_file cannot be read", public="No mail can be sent."
        ) from error
    return first.strip()


def _unreachable(mail: MailSection, error: OSError) -> Fail:
    """Certificates too: one that has expired is renewed sooner or later."""
    public = "The mail server could not be reached."
    if isinstance(error, ssl.SSLError):
        public = "The mail server's certificate was not accepted, or it does not speak TLS as it was told to."
    return Fail(
        "CONNECTION", f"{mail.host}:{mail.port}: {type(error).__name__}: {error}", public=public
    )


def _cut(line: smtplib.SMTP) -> None:
    """A thread that still waits for the server wakes up and ends."""
    if line.sock is not None:
        with suppress(OSError):
            line.sock.shutdown(socket.SHUT_RDWR)


# E-mail: one message, one Message-ID, text and HTML. Without a mail server nothing is sent, and nothing breaks.

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
        made = (
            default_parts(message)
            if self.render is None
            else _rendered(await called(self.render, message), message)
        )
        if self.subject is None:
            return made
        subject = await called(self.subject, message) if callable(self.subject) else self.subject
        return made._replace(subject=str(subject))


async def _handed(mail: MailSection, letter: Any, sender: str, rest: list[str]) -> Refusals:
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
        raise Fail(
            "BAD_OUTCOME",
            "render must return a text, or a dict of text, html and subject",
            final=True,
        )
    return Parts(
        str(made.get("subject") or message.summary), str(made["text"]), str(made.get("html") or "")
    )


def _refuse(why: str) -> NoReturn:
    message = f"e-mail: {why}"
    raise ConfigError(message)
