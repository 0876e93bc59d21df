"""Durable Python jobs, built for what happens after they fail.

This module holds only the public names. Each is imported on first use: the supervisor must start
quickly and stay small, and it never uses the app.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mulligan._version import __version__

if TYPE_CHECKING:
    from mulligan.app.background import background_worker
    from mulligan.app.kind import Kind
    from mulligan.app.mulligan import Mulligan
    from mulligan.batches.service import Batch
    from mulligan.core.attempt import Failure
    from mulligan.core.errors import (
        Cancel,
        ChildFailed,
        Fail,
        Hold,
        LeaseLost,
        MulliganError,
        Park,
        ProcessFailed,
        Retry,
        Snooze,
    )
    from mulligan.core.event import Event
    from mulligan.core.job import Job, State, Unique
    from mulligan.failures.capture import classify
    from mulligan.failures.redact import redact
    from mulligan.failures.rule_sources import Pack, pack
    from mulligan.failures.rules import Rule
    from mulligan.notifications.apprise import Apprise
    from mulligan.notifications.email import Email
    from mulligan.notifications.message import Message
    from mulligan.notifications.webhook import Webhook
    from mulligan.retries.backoff import Exponential, Fixed, Table
    from mulligan.retries.policy import Policy, Then
    from mulligan.worker.runner.context import Context

_NAMES_BY_MODULE = {
    "mulligan.app.mulligan": ("Mulligan",),
    "mulligan.app.background": ("background_worker",),
    "mulligan.batches.service": ("Batch",),
    "mulligan.failures.capture": ("classify",),
    "mulligan.app.kind": ("Kind",),
    "mulligan.failures.rule_sources": ("Pack", "pack"),
    "mulligan.worker.runner.context": ("Context",),
    "mulligan.core.errors": (
        "Cancel",
        "ChildFailed",
        "Fail",
        "Hold",
        "LeaseLost",
        "MulliganError",
        "Park",
        "ProcessFailed",
        "Retry",
        "Snooze",
    ),
    "mulligan.core.attempt": ("Failure",),
    "mulligan.core.event": ("Event",),
    "mulligan.core.job": ("Job", "State", "Unique"),
    "mulligan.notifications.apprise": ("Apprise",),
    "mulligan.notifications.email": ("Email",),
    "mulligan.notifications.message": ("Message",),
    "mulligan.notifications.webhook": ("Webhook",),
    "mulligan.retries.backoff": ("Exponential", "Fixed", "Table"),
    "mulligan.failures.redact": ("redact",),
    "mulligan.retries.policy": ("Policy", "Then"),
    "mulligan.failures.rules": ("Rule",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "Apprise",
    "Batch",
    "Cancel",
    "ChildFailed",
    "Context",
    "Email",
    "Event",
    "Exponential",
    "Fail",
    "Failure",
    "Fixed",
    "Hold",
    "Job",
    "Kind",
    "LeaseLost",
    "Message",
    "Mulligan",
    "MulliganError",
    "Pack",
    "Park",
    "Policy",
    "ProcessFailed",
    "Retry",
    "Rule",
    "Snooze",
    "State",
    "Table",
    "Then",
    "Unique",
    "Webhook",
    "__version__",
    "background_worker",
    "classify",
    "pack",
    "redact",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        message = f"module 'mulligan' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
