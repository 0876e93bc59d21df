"""A message as an e-mail. Made twice of the same message, it is the same mail: one Message-ID, one date."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from mulligan.job import to_datetime
from mulligan.notify.message import Message
from mulligan.policy.phrase import one_line
from mulligan.policy.redact import safe

if TYPE_CHECKING:  # programs that only declare a mail need not wait for it
    from jinja2 import Template

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
    links = [f"{label}: {url}" for label, url in (("Look at it", message.link), ("What to do", message.runbook)) if url]
    return "\n\n".join(part for part in (message.summary, "\n".join(links), facts) if part)


def sender_of(written: Address | None) -> Address:
    return written or Address("Mulligan", "mulligan", socket.gethostname() or "localhost")


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - see above

    pages = Environment(
        loader=PackageLoader("mulligan.notify"),
        autoescape=True,  # everything from a payload or an error is hostile
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("mail.html")
