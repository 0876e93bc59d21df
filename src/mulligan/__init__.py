"""Durable Python jobs, built for the moment they fail.

The public names, nothing else. Each is loaded when first asked for: a supervisor, which must start quickly and
stay small, never asks for the app.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mulligan._version import __version__

if TYPE_CHECKING:
    from mulligan.alongside import beside
    from mulligan.app import Mulligan
    from mulligan.core.attempt import Failure
    from mulligan.engine.batches import Batch
    from mulligan.engine.judging import classify
    from mulligan.engine.kind import Kind
    from mulligan.engine.rules import Pack, pack
    from mulligan.engine.runner.context import Context, LeaseLost
    from mulligan.engine.unique import Unique
    from mulligan.errors import Cancel, Fail, Hold, MulliganError, Park, ProcessFailed, Retry, Snooze
    from mulligan.job import Job, State
    from mulligan.notify.apprise import Apprise
    from mulligan.notify.mail import Email
    from mulligan.notify.message import Message
    from mulligan.notify.webhook import Webhook
    from mulligan.policy.backoff import Exponential, Fixed, Table
    from mulligan.policy.redact import redact
    from mulligan.policy.retry import Policy, Then
    from mulligan.policy.rule import Rule

_HOMES = {
    "mulligan.app": ("Mulligan",),
    "mulligan.alongside": ("beside",),
    "mulligan.engine.batches": ("Batch",),
    "mulligan.engine.judging": ("classify",),
    "mulligan.engine.kind": ("Kind",),
    "mulligan.engine.rules": ("Pack", "pack"),
    "mulligan.engine.runner.context": ("Context", "LeaseLost"),
    "mulligan.engine.unique": ("Unique",),
    "mulligan.errors": ("Cancel", "Fail", "Hold", "MulliganError", "Park", "ProcessFailed", "Retry", "Snooze"),
    "mulligan.core.attempt": ("Failure",),
    "mulligan.job": ("Job", "State"),
    "mulligan.notify.apprise": ("Apprise",),
    "mulligan.notify.mail": ("Email",),
    "mulligan.notify.message": ("Message",),
    "mulligan.notify.webhook": ("Webhook",),
    "mulligan.policy.backoff": ("Exponential", "Fixed", "Table"),
    "mulligan.policy.redact": ("redact",),
    "mulligan.policy.retry": ("Policy", "Then"),
    "mulligan.policy.rule": ("Rule",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Apprise",
    "Batch",
    "Cancel",
    "Context",
    "Email",
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
    "beside",
    "classify",
    "pack",
    "redact",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        message = f"module 'mulligan' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
