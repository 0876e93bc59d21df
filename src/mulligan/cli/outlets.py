"""What a worker does beside running jobs: the doors compose it, the engine knows none of it."""

from __future__ import annotations

from mulligan.config import Settings
from mulligan.engine.alerting import Alerting
from mulligan.engine.outlets import Outlet
from mulligan.notify.dispatch import Dispatch
from mulligan.observe.fold import Fold


def worker_outlets(settings: Settings) -> tuple[Outlet, ...]:
    """Of every worker; each of them finds out by itself whether another worker is at it."""
    return (Dispatch(settings), Fold(), Alerting(settings.alerts))
