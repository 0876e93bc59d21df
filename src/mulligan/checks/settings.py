"""Settings that are legal one by one and fight each other."""

from __future__ import annotations

from mulligan.checks.finding import FAIL, OK, WARN, Check, Checks
from mulligan.config import Settings
from mulligan.engine.alerting import checked_rules
from mulligan.errors import ConfigError
from mulligan.policy.phrase import duration

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
    found = (
        f"sweep {duration(worker.sweep)} is longer than lease {duration(worker.lease)}: lost jobs wait for the sweep"
    )
    return Check(WARN, "settings", found, f"MULLIGAN_WORKER__SWEEP={min(5.0, worker.lease):g}")


def _grace(settings: Settings) -> Check | None:
    grace = settings.worker.shutdown_grace
    if grace < SYSTEMD:
        return None
    found = (
        f"shutdown_grace {duration(grace)}: systemd kills after {duration(SYSTEMD)}, Kubernetes after 30 s, unless told"
    )
    return Check(
        WARN, "settings", found, f"TimeoutStopSec={grace + 10:g}, terminationGracePeriodSeconds: {grace + 10:g}"
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
        return Check(FAIL, "alerts", f"{error}; no worker starts with that", "mulligan alerts rules")
    return None


def _runners(settings: Settings) -> Check | None:
    worker = settings.worker
    if worker.runners <= worker.concurrency:
        return None
    found = f"{worker.runners} runners share {worker.concurrency} jobs at once: some never work"
    return Check(WARN, "settings", found, f"MULLIGAN_WORKER__RUNNERS={worker.concurrency}")
