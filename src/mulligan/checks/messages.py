"""Messages: whether mail is sent and what is set for it can work, and what webhooks may reach. Nobody is called."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from mulligan.checks.finding import FAIL, OK, WARN, Check, Checks
from mulligan.config import Mail, Settings
from mulligan.errors import ConfigError, Fail
from mulligan.notify.addresses import read_address
from mulligan.notify.smtp import password_of

METADATA = ip_address("169.254.169.254")
HERE = ("localhost", "127.0.0.1", "::1")


def message_checks(settings: Settings) -> Checks:
    yield from mail_checks(settings)
    wide = [name for name in settings.notify.allow_private if METADATA in ip_network(name)]
    if wide:
        found = f"webhooks may reach {', '.join(wide)}, and so whatever a cloud tells this host about itself"
        yield Check(WARN, "webhooks", found, "name the networks you mean in notify.allow_private")


def mail_checks(settings: Settings) -> Checks:
    mail = settings.mail
    if not mail.host:
        yield Check(OK, "mail", "mail.host is not set: deliveries by e-mail are skipped, nothing else changes")
        return
    found = [check for check in (_sender(mail), _password(mail), _clear(mail)) if check]
    yield from found or [Check(OK, "mail", f"{mail.host}:{mail.port}, {mail.tls}")]


def _sender(mail: Mail) -> Check | None:
    if not mail.sender:
        advice = "MULLIGAN_MAIL__SENDER='Jobs <jobs@example.com>'"
        return Check(WARN, "mail", "mail.sender is not set: many servers refuse a sender that names this host", advice)
    try:
        read_address(mail.sender)
    except ConfigError:
        return Check(FAIL, "mail", "mail.sender is no address", "MULLIGAN_MAIL__SENDER='Jobs <jobs@example.com>'")
    return None


def _password(mail: Mail) -> Check | None:
    try:
        known = bool(password_of(mail))
    except Fail as failed:
        return Check(FAIL, "mail", str(failed.message), "MULLIGAN_MAIL__PASSWORD_FILE=/run/secrets/mail")
    if known == bool(mail.username):
        return None
    what = "a username and no password" if mail.username else "a password and no username"
    return Check(WARN, "mail", f"there is {what}: nobody signs in", "MULLIGAN_MAIL__USERNAME, MULLIGAN_MAIL__PASSWORD")


def _clear(mail: Mail) -> Check | None:
    if mail.tls != "none" or mail.host in HERE:
        return None
    return Check(
        WARN, "mail", f"mails go to {mail.host} unencrypted, and so does the password", "MULLIGAN_MAIL__TLS=starttls"
    )
