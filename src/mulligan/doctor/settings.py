"""Settings that are legal one by one and fight each other."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path
from shlex import quote

from mulligan.alerts.chore import checked_rules
from mulligan.config import SECRET, MailSection, Settings
from mulligan.core.errors import ConfigError, Fail
from mulligan.core.format import duration, span
from mulligan.doctor.environment import FAIL, OK, WARN, Check, Checks
from mulligan.manifest.declared import declared_subscriptions
from mulligan.notifications.dispatcher import READER, STRETCH
from mulligan.notifications.email import password_of, read_address
from mulligan.storage.base import Transaction
from mulligan.storage.notification_queries import SubscriptionRow
from mulligan.storage.url import shown_url

# Where secrets of the settings lie about: in files that others may read, in the list of processes.

URLS = ("database_url", "listen_url")


def secret_checks(settings: Settings) -> Checks:
    values = dict(settings.values())
    held = [name for name in SECRET if values[name]]
    held += [name for name in URLS if shown_url(values[name]) != values[name]]
    found = [*_typed(settings, held), *_files(settings, held)]
    yield from found or [
        Check(OK, "secrets", "none is in a file that others may read, or on the command line")
    ]


def _typed(settings: Settings, held: list[str]) -> Checks:
    for name in held:
        if settings.origin_of(name) == "flag":
            told = f"the password in {name} is on the command line, where every user of this host can read it"
            yield Check(
                WARN, "secrets", told, f"set MULLIGAN_{name.upper()} instead, or use ~/.pgpass"
            )


def _files(settings: Settings, held: list[str]) -> Checks:
    """The file of the settings, if a secret is in it, and the one that holds the password."""
    places = {settings.origin_of(name): name for name in held}
    if settings.mail.password_file:
        places[settings.mail.password_file] = "mail.password_file"
    for place, name in places.items():
        file = Path(place)
        if file.is_file() and file.stat().st_mode & 0o077:
            told = f"others may read {file} (mode {file.stat().st_mode & 0o777:o}), and {name} is there"
            yield Check(WARN, "secrets", told, f"chmod 600 {file}")


# Settings that are legal one by one and fight each other.

BEATS = 3  # renewals a lease should outlive
SYSTEMD = 90.0  # seconds after which systemd kills what it has asked to stop, unless told otherwise


def settings_checks(settings: Settings) -> Checks:
    yield lease(settings)
    looks = (_sweep, _grace, _kill, _runners, _alerts)
    fights = [check for look in looks if (check := look(settings))]
    yield from fights
    if not fights:
        yield Check(OK, "settings", "none is in another's way")


def lease(settings: Settings) -> Check:
    worker = settings.worker
    told = f"lease {duration(worker.lease)}, heartbeat {duration(worker.heartbeat)}"
    if worker.lease / worker.heartbeat < BEATS:
        advice = f"MULLIGAN_WORKER__HEARTBEAT={worker.lease / BEATS:g}"
        return Check(WARN, "lease", f"{told}: one slow renewal loses every running job", advice)
    return Check(OK, "lease", told)


def _sweep(settings: Settings) -> Check | None:
    worker = settings.worker
    if worker.sweep <= worker.lease:
        return None
    found = f"sweep {duration(worker.sweep)} is longer than lease {duration(worker.lease)}: lost jobs wait for the sweep"
    return Check(WARN, "settings", found, f"MULLIGAN_WORKER__SWEEP={min(5.0, worker.lease):g}")


def _grace(settings: Settings) -> Check | None:
    grace = settings.worker.shutdown_grace
    if grace < SYSTEMD:
        return None
    found = f"shutdown_grace {duration(grace)}: systemd kills after {duration(SYSTEMD)}, Kubernetes after 30 s, unless told"
    return Check(
        WARN,
        "settings",
        found,
        f"TimeoutStopSec={grace + 10:g}, terminationGracePeriodSeconds: {grace + 10:g}",
    )


def _kill(settings: Settings) -> Check | None:
    worker = settings.worker
    if not 0 < worker.shutdown_grace < worker.kill_grace:
        return None
    found = f"kill_grace {duration(worker.kill_grace)} is longer than shutdown_grace {duration(worker.shutdown_grace)}"
    return Check(
        WARN,
        "settings",
        f"{found}: a shutdown cuts it short",
        f"MULLIGAN_WORKER__SHUTDOWN_GRACE={worker.kill_grace * 2:g}",
    )


def _alerts(settings: Settings) -> Check | None:
    try:
        checked_rules(settings.alerts)
    except ConfigError as error:
        return Check(
            FAIL, "alerts", f"{error}; no worker starts with that", "mulligan alerts rules"
        )
    return None


def _runners(settings: Settings) -> Check | None:
    worker = settings.worker
    if worker.runners <= worker.concurrency:
        return None
    found = f"{worker.runners} runners share {worker.concurrency} jobs at once: some never work"
    return Check(WARN, "settings", found, f"MULLIGAN_WORKER__RUNNERS={worker.concurrency}")


# Messages: whether mail is sent and what is set for it can work, and what webhooks may reach. Nobody is called.

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
        yield Check(
            OK,
            "mail",
            "mail.host is not set: deliveries by e-mail are skipped, nothing else changes",
        )
        return
    found = [check for check in (_sender(mail), _password(mail), _clear(mail)) if check]
    yield from found or [Check(OK, "mail", f"{mail.host}:{mail.port}, {mail.tls}")]


def _sender(mail: MailSection) -> Check | None:
    if not mail.sender:
        advice = "MULLIGAN_MAIL__SENDER='Jobs <jobs@example.com>'"
        return Check(
            WARN,
            "mail",
            "mail.sender is not set: many servers refuse a sender that names this host",
            advice,
        )
    try:
        read_address(mail.sender)
    except ConfigError:
        return Check(
            FAIL,
            "mail",
            "mail.sender is no address",
            "MULLIGAN_MAIL__SENDER='Jobs <jobs@example.com>'",
        )
    return None


def _password(mail: MailSection) -> Check | None:
    try:
        known = bool(password_of(mail))
    except Fail as failed:
        return Check(
            FAIL, "mail", str(failed.message), "MULLIGAN_MAIL__PASSWORD_FILE=/run/secrets/mail"
        )
    if known == bool(mail.username):
        return None
    what = "a username and no password" if mail.username else "a password and no username"
    return Check(
        WARN,
        "mail",
        f"there is {what}: nobody signs in",
        "MULLIGAN_MAIL__USERNAME, MULLIGAN_MAIL__PASSWORD",
    )


def _clear(mail: MailSection) -> Check | None:
    if mail.tls != "none" or mail.host in HERE:
        return None
    return Check(
        WARN,
        "mail",
        f"mails go to {mail.host} unencrypted, and so does the password",
        "MULLIGAN_MAIL__TLS=starttls",
    )


# Who is told of what: which subscriptions are switched off or fail, and whether the log is read.

NAME = "subscriptions"


def subscription_checks(unit: Transaction, _: Settings) -> Checks:
    declared = declared_subscriptions(unit, unit.now())
    rows = [row for row in unit.subscriptions() if not row.declared or row.id in declared]
    troubled = [check for row in rows for check in _of(unit, row)]
    if rows:
        yield from troubled or [Check(OK, NAME, f"{len(rows)} known, all on, none fails")]
        yield from _behind(unit, min(row.after for row in rows))


def _of(unit: Transaction, row: SubscriptionRow) -> Checks:
    if row.state != "on":
        yield Check(
            WARN, NAME, f"{row.id} is off: {row.reason}", f"mulligan notify enable {quote(row.id)}"
        )
    elif row.failing_since is not None:
        since = f"{row.failures} failures in a row since {span(row.failing_since, unit.now())}"
        yield Check(
            WARN,
            NAME,
            f"{row.id}: {since}",
            f"mulligan notify deliveries --subscription {quote(row.id)}",
        )


def _behind(unit: Transaction, since: int) -> Checks:
    """`since`: the event before the first that any of them hears of."""
    reader = unit.reader_at(READER)
    behind = unit.newest_event() - max(since, 0 if reader is None else reader.cursor)
    if behind > STRETCH:
        yield Check(
            WARN,
            NAME,
            f"{behind} events are not read yet",
            "mulligan worker APP: any worker reads them",
        )
