"""E-mail: one Message-ID per message, text and HTML. Without a mail server nothing is sent."""

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
from mulligan.core.durations import to_datetime
from mulligan.core.errors import ConfigError, Fail
from mulligan.core.format import one_line, safe_text
from mulligan.notifications.channels import NO_MAIL_SERVER, Receipt, SendContext
from mulligan.notifications.message import Message, call_app_function

if TYPE_CHECKING:
    from jinja2 import Template


# --- The channel ---

NO_RECIPIENTS = "no recipients"
RENDERED_FIELDS = ("subject", "text", "html")


@dataclass(frozen=True, repr=False)
class Email:
    """Channel that mails each message.

    `to` is an address, several, or a function of the message that returns them; for no address
    nothing is sent. `subject` is a text or a function of the message. `render` is a function that
    returns the text of the mail, or a dict of `text`, `html` and `subject`.
    """

    to: str | Sequence[str] | Callable[[Message], Any]
    render: Callable[[Message], Any] | None = None
    subject: str | Callable[[Message], Any] | None = None

    kind: ClassVar[str] = "email"
    endpoint: ClassVar[str] = "smtp"  # one mail server takes the mail of all recipients

    def __post_init__(self) -> None:
        if not callable(self.to) and not parse_addresses(self.to):
            _refuse("to= has no recipients")

    def __repr__(self) -> str:
        return "Email(…)"

    @property
    def storable(self) -> bool:
        """False if any part is a function."""
        return self.render is None and not callable(self.to) and not callable(self.subject)

    def to_dict(self) -> dict[str, Any]:
        """Return the channel as a JSON object."""
        if not self.storable or callable(self.to):
            _refuse("a channel with functions cannot be stored. Declare it in code.")
        to = [self.to] if isinstance(self.to, str) else list(self.to)
        return {"channel": self.kind, "to": to, "subject": self.subject}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Email:
        """Build the channel from its JSON object."""
        return cls(tuple(body["to"]), subject=body.get("subject"))

    @staticmethod
    def describe_target(body: Mapping[str, Any]) -> str:
        """List the recipients of a stored channel."""
        return ", ".join(body.get("to", ()))

    async def send(self, message: Message, context: SendContext) -> Receipt:
        """Mail a message to all recipients that did not accept it in an earlier attempt."""
        mail = context.settings.mail
        if not mail.host:
            return {"skipped": NO_MAIL_SERVER}
        try:
            recipients = parse_addresses(await self._recipients(message))
            configured_sender = parse_address(mail.sender) if mail.sender else None
            sender = sender_or_default(configured_sender)
        except ConfigError as error:
            raise Fail("BAD_ADDRESS", str(error), final=True) from error
        if not recipients:
            return {"skipped": NO_RECIPIENTS}
        email = compose_email(message, await self._parts(message), sender, recipients)
        addresses = [recipient.addr_spec for recipient in recipients]
        remaining = [address for address in addresses if address not in context.accepted]
        refused: Refusals = {}
        if remaining:
            refused = await _send_to_remaining(mail, email, sender.addr_spec, remaining)
        return await _build_receipt(refused, remaining, context)

    async def _recipients(self, message: Message) -> Any:
        if callable(self.to):
            return await call_app_function(self.to, message)
        return self.to

    async def _parts(self, message: Message) -> EmailParts:
        if self.render is None:
            parts = default_parts(message)
        else:
            parts = _check_rendered(await call_app_function(self.render, message), message)
        if self.subject is None:
            return parts
        subject: Any = self.subject
        if callable(self.subject):
            subject = await call_app_function(self.subject, message)
        return parts._replace(subject=str(subject))


async def _send_to_remaining(
    mail: MailSection, email: EmailMessage, sender: str, remaining: list[str]
) -> Refusals:
    try:
        return await send_over_smtp(mail, email, sender, remaining)
    except smtplib.SMTPRecipientsRefused as error:
        return dict(error.recipients)


async def _build_receipt(
    refused: Refusals, addresses: Iterable[str], context: SendContext
) -> Receipt:
    """Save the recipients that accepted the mail, so that a retry skips them.

    Recipients refused with a 4xx code are retried; 5xx is final.
    """
    accepted = context.accepted | {address for address in addresses if address not in refused}
    if not refused:
        return {"reached": len(accepted)}
    if accepted != context.accepted:
        await context.save_accepted(accepted)
    temporary = {address: reply for address, reply in refused.items() if reply[0] < 500}
    raise smtplib.SMTPRecipientsRefused(temporary or refused)


def _check_rendered(rendered: Any, message: Message) -> EmailParts:
    if isinstance(rendered, str):
        return EmailParts(message.summary, rendered)
    if not _is_rendered_dict(rendered):
        problem = "render must return a text, or a dict of text, html and subject"
        raise Fail("BAD_OUTCOME", problem, final=True)
    return EmailParts(
        subject=str(rendered.get("subject") or message.summary),
        text=str(rendered["text"]),
        html=str(rendered.get("html") or ""),
    )


def _is_rendered_dict(rendered: Any) -> bool:
    if not isinstance(rendered, Mapping) or not rendered.get("text"):
        return False
    return set(rendered) <= set(RENDERED_FIELDS)


def _refuse(reason: str) -> NoReturn:
    message = f"e-mail: {reason}"
    raise ConfigError(message)


# --- Addresses ---

MAX_ADDRESS = 254  # characters
MAX_RECIPIENTS = 100
_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_ADDRESS = rf"[\w.!#$%&'*+/=?^`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{0,9}}"
_NAMED_OR_BARE = re.compile(
    rf"(?:(?P<name>[^<>\"@,;:\\]{{0,100}}?)\s*<(?P<named>{_ADDRESS})>|(?P<bare>{_ADDRESS}))"
)


def parse_address(text: Any) -> Address:
    """Parse `kim@example.com` or `Kim <kim@example.com>`.

    Stricter than RFC 5322: an address with quotes or comments could inject a header or recipient.
    """
    if not isinstance(text, str):
        _refuse(f"invalid address of type {type(text).__name__}. Use a text.")
    address = None
    if len(text) <= MAX_ADDRESS and text.isprintable():
        address = _match_address(text.strip(" "))
    if address is None:
        _refuse(f"invalid address {text!r:.150}")
    return address


def _match_address(text: str) -> Address | None:
    found = _NAMED_OR_BARE.fullmatch(text)
    if found is None:
        return None
    user, _, domain = (found["named"] or found["bare"]).rpartition("@")
    if ".." in user:
        return None
    name = (found["name"] or "").strip()
    try:
        return Address(name, user, domain.encode("idna").decode("ascii"))
    except UnicodeError:
        return None


def parse_addresses(value: Any) -> list[Address]:
    """Parse one address, several or none. Duplicates are removed."""
    texts: Iterable[Any] = value or ()
    if isinstance(texts, str):
        texts = [texts]
    found = {address.addr_spec: address for address in map(parse_address, texts)}
    if len(found) > MAX_RECIPIENTS:
        _refuse(f"{len(found)} recipients (limit {MAX_RECIPIENTS} per message)")
    return list(found.values())


def sender_or_default(sender: Address | None) -> Address:
    """Return `sender`, or mulligan at this host."""
    return sender or Address("Mulligan", "mulligan", _host_name())


def _host_name() -> str:
    return socket.gethostname() or "localhost"


# --- Composing. The same message always gives the same mail, with one Message-ID and date ---

MAX_SUBJECT = 200  # characters
MAX_MAIL_TEXT = 50_000


class EmailParts(NamedTuple):
    """Subject, text and optional HTML of a mail."""

    subject: str
    text: str
    html: str = ""


def compose_email(
    message: Message, parts: EmailParts, sender: Address, to: Sequence[Address]
) -> EmailMessage:
    """Build the mail of a message."""
    email = EmailMessage(policy=SMTP)
    email["From"] = sender
    email["To"] = tuple(to)
    # A mail client would decode "=?…?=" from a payload; break it up.
    subject = one_line(parts.subject, MAX_SUBJECT).replace("=?", "= ?")
    email["Subject"] = subject or message.type
    email["Date"] = format_datetime(to_datetime(message.at))
    email["Message-ID"] = f"<{message.id}@{sender.domain}>"
    if message.thread:
        thread_id = _thread_id(message.thread, sender.domain)
        email["In-Reply-To"] = thread_id
        email["References"] = thread_id
    email["Auto-Submitted"] = "auto-generated"
    email["X-Auto-Response-Suppress"] = "All"
    email.set_content(f"{safe_text(parts.text, MAX_MAIL_TEXT)}\n")
    if parts.html:
        email.add_alternative(safe_text(parts.html, MAX_MAIL_TEXT), subtype="html")
    return email


def _thread_id(thread: str, domain: str) -> str:
    digest = hashlib.sha256(thread.encode("utf-8", "replace")).hexdigest()[:26]
    return f"<thread.{digest}@{domain}>"


def default_parts(message: Message) -> EmailParts:
    """Return the parts of a mail without `render`."""
    return EmailParts(message.summary, render_text(message), _template().render(message=message))


def render_text(message: Message) -> str:
    """Return a message as text, for mails and chats."""
    links = []
    if message.link:
        links.append(f"Dashboard: {message.link}")
    if message.runbook:
        links.append(f"Runbook: {message.runbook}")
    details = [f"{label}: {value}" for label, value in message.details]
    sections = (message.summary, "\n".join(links), "\n".join(details))
    return "\n\n".join(section for section in sections if section)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - slow import

    environment = Environment(
        loader=PackageLoader("mulligan.notifications"),
        autoescape=True,  # payloads and errors may contain HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("mail.html")


# --- SMTP ---

Refusals = dict[str, tuple[int, bytes]]  # recipient: code and text of the server's reply


class _SmtpClient(smtplib.SMTP):
    """SMTP client that does not connect in its constructor.

    The caller holds the client before it connects, so that it can close it on a timeout.
    """

    def __init__(self, mail: MailSection) -> None:
        super().__init__(local_hostname=_host_name(), timeout=mail.timeout)
        self._host = mail.host  # STARTTLS checks the certificate against it


class _SmtpsClient(smtplib.SMTP_SSL):
    """SMTP client over TLS that does not connect in its constructor."""

    def __init__(self, mail: MailSection) -> None:
        context = ssl.create_default_context()
        super().__init__(local_hostname=_host_name(), timeout=mail.timeout, context=context)
        self._host = mail.host


async def send_over_smtp(
    mail: MailSection, email: EmailMessage, sender: str, to: list[str]
) -> Refusals:
    """Send a mail and return the recipients that the server refused.

    Raises the exceptions of smtplib, or `Fail` if the server cannot be reached in time.
    """
    client = _SmtpsClient(mail) if mail.tls == "tls" else _SmtpClient(mail)
    try:
        async with asyncio.timeout(mail.timeout):
            return await asyncio.to_thread(_send, client, mail, email, sender, to)
    except TimeoutError as error:
        public = f"The mail server did not accept the mail within {mail.timeout:g} s."
        raise Fail("TIMEOUT", public, public=public) from error
    except smtplib.SMTPException:
        raise
    except OSError as error:
        raise _unreachable(mail, error) from error
    finally:
        _shut_down(client)


def _send(
    client: smtplib.SMTP, mail: MailSection, email: EmailMessage, sender: str, to: list[str]
) -> Refusals:
    try:
        _connect(client, mail)
        refused: Any = client.send_message(email, sender, to)
        # The server has accepted the mail: an error of QUIT must not cause a retry.
        with suppress(smtplib.SMTPException, OSError):
            client.quit()
        return dict(refused)
    finally:
        client.close()


def _connect(client: smtplib.SMTP, mail: MailSection) -> None:
    code, reply = client.connect(mail.host, mail.port)
    if code != 220:
        raise smtplib.SMTPConnectError(code, reply)
    if mail.tls == "starttls":
        client.starttls(context=ssl.create_default_context())
    if mail.username:
        client.login(mail.username, read_password(mail))


def read_password(mail: MailSection) -> str:
    """Return the password from the settings, or the first line of `mail.password_file`."""
    if not mail.password_file:
        return mail.password
    try:
        lines = Path(mail.password_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = "mail.password_file cannot be read"
        raise Fail("MISCONFIGURED", problem, public="No mail can be sent.") from error
    return lines[0].strip() if lines else ""


def _unreachable(mail: MailSection, error: OSError) -> Fail:
    """Return a failure that is retried, certificates included: an expired one gets renewed."""
    public = "The mail server could not be reached."
    if isinstance(error, ssl.SSLError):
        public = "The TLS connection to the mail server failed. Check its certificate and mail.tls."
    problem = f"{mail.host}:{mail.port}: {type(error).__name__}: {error}"
    return Fail("CONNECTION", problem, public=public)


def _shut_down(client: smtplib.SMTP) -> None:
    """Close the socket, so that a thread that still waits for the server ends."""
    if client.sock is not None:
        with suppress(OSError):
            client.sock.shutdown(socket.SHUT_RDWR)
