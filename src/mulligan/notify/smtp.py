"""One mail, handed to a mail server. Runs on a thread; who waits for it may cut it short."""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from mulligan.config import Mail
from mulligan.errors import Fail

Refusals = dict[str, tuple[int, bytes]]  # by address: the server's answer


class _Plain(smtplib.SMTP):
    """Connects only when told to: until then somebody else has time to get hold of it."""

    def __init__(self, mail: Mail) -> None:
        super().__init__(local_hostname=socket.gethostname() or "localhost", timeout=mail.timeout)
        self._host = mail.host  # the certificate is checked against it


class _Wrapped(smtplib.SMTP_SSL):
    def __init__(self, mail: Mail) -> None:
        name, context = socket.gethostname() or "localhost", ssl.create_default_context()
        super().__init__(local_hostname=name, timeout=mail.timeout, context=context)
        self._host = mail.host


async def hand_over(mail: Mail, letter: EmailMessage, sender: str, to: list[str]) -> Refusals:
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


def _hand_over(line: smtplib.SMTP, mail: Mail, letter: EmailMessage, sender: str, to: list[str]) -> Refusals:
    try:
        _greet(line, mail)
        refused: Any = line.send_message(letter, sender, to)
        with suppress(smtplib.SMTPException, OSError):  # it has been taken, whatever comes now
            line.quit()
        return dict(refused)
    finally:
        line.close()


def _greet(line: smtplib.SMTP, mail: Mail) -> None:
    code, answer = line.connect(mail.host, mail.port)
    if code != 220:
        raise smtplib.SMTPConnectError(code, answer)
    if mail.tls == "starttls":
        line.starttls(context=ssl.create_default_context())
    if mail.username:
        line.login(mail.username, password_of(mail))


def password_of(mail: Mail) -> str:
    if not mail.password_file:
        return mail.password
    try:
        first, *_ = Path(mail.password_file).read_text(encoding="utf-8").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise Fail("MISCONFIGURED", "mail.password_file cannot be read", public="No mail can be sent.") from error
    return first.strip()


def _unreachable(mail: Mail, error: OSError) -> Fail:
    """Certificates too: one that has expired is renewed sooner or later."""
    public = "The mail server could not be reached."
    if isinstance(error, ssl.SSLError):
        public = "The mail server's certificate was not accepted, or it does not speak TLS as it was told to."
    return Fail("CONNECTION", f"{mail.host}:{mail.port}: {type(error).__name__}: {error}", public=public)


def _cut(line: smtplib.SMTP) -> None:
    """A thread that still waits for the server wakes up and ends."""
    if line.sock is not None:
        with suppress(OSError):
            line.sock.shutdown(socket.SHUT_RDWR)
