"""Checks of settings: secrets, contradictions, mail and webhooks, subscriptions."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path
from shlex import quote

from mulligan.alerts.chore import load_rules
from mulligan.alerts.queries import AlertQueries
from mulligan.alerts.rules import FIRING
from mulligan.config import SECRET_SETTINGS, MailSection, Settings
from mulligan.core.errors import ConfigError, Fail
from mulligan.core.event import EventType
from mulligan.core.format import format_duration, format_elapsed, mask_password
from mulligan.doctor.environment import FAIL, OK, WARN, Check, Checks
from mulligan.events.queries import EventQueries
from mulligan.manifest.declared import load_declared_subscriptions
from mulligan.notifications.dispatcher import MAX_SCAN, READER
from mulligan.notifications.email import parse_address, read_password
from mulligan.notifications.queries import NotificationQueries, SubscriptionRow
from mulligan.notifications.subscriptions import find_obstacles, load_subscriptions
from mulligan.storage.base import Transaction

# --- Secrets ---

URLS = ("database_url", "listen_url")


def secret_checks(settings: Settings) -> Checks:
    values = dict(settings.values())
    held = [name for name in SECRET_SETTINGS if values[name]]
    held += [name for name in URLS if mask_password(values[name]) != values[name]]
    found = [*_flag_checks(settings, held), *_file_checks(settings, held)]
    yield from found or [
        Check(OK, "secrets", "no secret is in a readable file or on the command line")
    ]


def _flag_checks(settings: Settings, held: list[str]) -> Checks:
    for name in held:
        if settings.origin_of(name) == "flag":
            found = (
                f"the password in {name} is on the command line, where every user of this host can "
                "read it"
            )
            yield Check(
                WARN, "secrets", found, f"set MULLIGAN_{name.upper()} instead, or use ~/.pgpass"
            )


def _file_checks(settings: Settings, held: list[str]) -> Checks:
    """Check the settings file, if it contains a secret, and the mail password file."""
    places = {settings.origin_of(name): name for name in held}
    if settings.mail.password_file:
        places[settings.mail.password_file] = "mail.password_file"
    for place, name in places.items():
        file = Path(place)
        if file.is_file() and file.stat().st_mode & 0o077:
            mode = file.stat().st_mode & 0o777
            found = f"other users can read {file} (mode {mode:o}), which contains {name}"
            yield Check(WARN, "secrets", found, f"chmod 600 {file}")


# --- Contradictions ---

MIN_RENEWALS = 3  # renewals per lease
SYSTEMD_STOP_SECONDS = 90.0  # default TimeoutStopSec of systemd


def settings_checks(settings: Settings) -> Checks:
    yield lease_check(settings)
    rules = (_sweep, _grace, _kill, _runners, _alerts)
    problems = [check for rule in rules if (check := rule(settings))]
    yield from problems
    if not problems:
        yield Check(OK, "settings", "no contradictions")


def lease_check(settings: Settings) -> Check:
    worker = settings.worker
    found = f"lease {format_duration(worker.lease)}, heartbeat {format_duration(worker.heartbeat)}"
    if worker.lease / worker.heartbeat < MIN_RENEWALS:
        advice = f"MULLIGAN_WORKER__HEARTBEAT={worker.lease / MIN_RENEWALS:g}"
        return Check(WARN, "lease", f"{found}: one slow renewal loses every running job", advice)
    return Check(OK, "lease", found)


def _sweep(settings: Settings) -> Check | None:
    worker = settings.worker
    if worker.sweep <= worker.lease:
        return None
    found = (
        f"sweep {format_duration(worker.sweep)} is longer than lease "
        f"{format_duration(worker.lease)}: lost jobs wait for the sweep"
    )
    return Check(WARN, "settings", found, f"MULLIGAN_WORKER__SWEEP={min(5.0, worker.lease):g}")


def _grace(settings: Settings) -> Check | None:
    grace = settings.worker.shutdown_grace
    if grace < SYSTEMD_STOP_SECONDS:
        return None
    found = (
        f"shutdown_grace {format_duration(grace)}: by default systemd kills after "
        f"{format_duration(SYSTEMD_STOP_SECONDS)}, Kubernetes after 30 s"
    )
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
    found = (
        f"kill_grace {format_duration(worker.kill_grace)} is longer than shutdown_grace "
        f"{format_duration(worker.shutdown_grace)}"
    )
    return Check(
        WARN,
        "settings",
        f"{found}: a shutdown cuts it short",
        f"MULLIGAN_WORKER__SHUTDOWN_GRACE={worker.kill_grace * 2:g}",
    )


def _alerts(settings: Settings) -> Check | None:
    try:
        load_rules(settings.alerts)
    except ConfigError as error:
        return Check(FAIL, "alerts", f"{error}; no worker can start", "mulligan alerts rules")
    return None


def _runners(settings: Settings) -> Check | None:
    worker = settings.worker
    if worker.runners <= worker.concurrency:
        return None
    found = f"{worker.runners} runners for {worker.concurrency} concurrent jobs: some stay idle"
    return Check(WARN, "settings", found, f"MULLIGAN_WORKER__RUNNERS={worker.concurrency}")


# --- Mail and webhooks (no server is contacted) ---

METADATA = ip_address("169.254.169.254")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def notification_checks(settings: Settings) -> Checks:
    yield from mail_checks(settings)
    wide = [name for name in settings.notify.allow_private if METADATA in ip_network(name)]
    if wide:
        found = f"webhooks may reach {', '.join(wide)}, including the cloud's metadata service"
        yield Check(
            WARN, "webhooks", found, "list only the networks you need in notify.allow_private"
        )


def mail_checks(settings: Settings) -> Checks:
    mail = settings.mail
    if not mail.host:
        yield Check(
            OK,
            "mail",
            "mail.host is not set: no mail is sent",
        )
        return
    found = [check for check in (_sender(mail), _password(mail), _encryption(mail)) if check]
    yield from found or [Check(OK, "mail", f"{mail.host}:{mail.port}, {mail.tls}")]


def _sender(mail: MailSection) -> Check | None:
    if not mail.sender:
        advice = "MULLIGAN_MAIL__SENDER='Jobs <jobs@example.com>'"
        return Check(
            WARN,
            "mail",
            "mail.sender is not set: many servers refuse this host's default sender",
            advice,
        )
    try:
        parse_address(mail.sender)
    except ConfigError:
        return Check(
            FAIL,
            "mail",
            "mail.sender is not a valid address",
            "MULLIGAN_MAIL__SENDER='Jobs <jobs@example.com>'",
        )
    return None


def _password(mail: MailSection) -> Check | None:
    try:
        has_password = bool(read_password(mail))
    except Fail as failed:
        return Check(
            FAIL, "mail", str(failed.message), "MULLIGAN_MAIL__PASSWORD_FILE=/run/secrets/mail"
        )
    if has_password == bool(mail.username):
        return None
    found = "a username but no password" if mail.username else "a password but no username"
    return Check(
        WARN,
        "mail",
        f"{found} is set: the worker does not log in",
        "MULLIGAN_MAIL__USERNAME, MULLIGAN_MAIL__PASSWORD",
    )


def _encryption(mail: MailSection) -> Check | None:
    if mail.tls != "none" or mail.host in LOCAL_HOSTS:
        return None
    return Check(
        WARN,
        "mail",
        f"mail and password are sent to {mail.host} unencrypted",
        "MULLIGAN_MAIL__TLS=starttls",
    )


# --- Subscriptions ---

NAME = "subscriptions"
OBSTACLE_ADVICE = {"email": "MULLIGAN_MAIL__HOST=smtp.example.com"}


def subscription_checks(tx: Transaction, settings: Settings) -> Checks:
    declared = load_declared_subscriptions(tx, tx.now())
    rows = [
        row
        for row in NotificationQueries(tx).list_subscriptions()
        if not row.declared or row.id in declared
    ]
    obstacles = [
        Check(WARN, NAME, f"{matcher.id}: {obstacle}", OBSTACLE_ADVICE.get(matcher.channel, ""))
        for matcher, obstacle in find_obstacles(load_subscriptions(tx, tx.now()), settings)
    ]
    problems = [check for row in rows for check in _subscription_checks(tx, row)] + obstacles
    if rows:
        yield from problems or [Check(OK, NAME, f"{len(rows)} known, all on, none failing")]
        yield from _behind(tx, min(row.after for row in rows))


def unsent_alerts(tx: Transaction, _: Settings) -> Checks:
    """Warn if alerts fire and no subscription sends them to anybody."""
    if EventType.ALERT_FIRED in load_subscriptions(tx, tx.now()).types:
        return
    firing = sorted({row.rule for row in AlertQueries(tx).list_alerts() if row.state == FIRING})
    if firing:
        yield Check(
            WARN,
            "alerts",
            f"{', '.join(firing)}: firing, but no subscription sends alerts to anybody",
            'mulligan notify add "alert.*" --email ADDRESS',
        )


def _subscription_checks(tx: Transaction, row: SubscriptionRow) -> Checks:
    if row.state != "on":
        yield Check(
            WARN, NAME, f"{row.id} is off: {row.reason}", f"mulligan notify enable {quote(row.id)}"
        )
    elif row.failing_since is not None:
        elapsed = format_elapsed(row.failing_since, tx.now())
        since = f"{row.failures} failures in a row for {elapsed}"
        yield Check(
            WARN,
            NAME,
            f"{row.id}: {since}",
            f"mulligan notify deliveries --subscription {quote(row.id)}",
        )


def _behind(tx: Transaction, since: int) -> Checks:
    """Warn if the dispatcher is far behind. `since`: the id before the first relevant event."""
    reader = EventQueries(tx).get_reader(READER)
    cursor = since
    if reader is not None:
        cursor = max(since, reader.cursor)
    behind = EventQueries(tx).newest_event() - cursor
    if behind > MAX_SCAN:
        yield Check(
            WARN,
            NAME,
            f"{behind:,} events are not processed yet",
            "start a worker: mulligan worker APP",
        )
