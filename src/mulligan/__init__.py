"""Durable Python jobs, built for the moment they fail."""

from mulligan._version import __version__
from mulligan.app import Kind, Mulligan
from mulligan.engine.runner.context import Context, LeaseLost
from mulligan.engine.unique import Unique
from mulligan.errors import Cancel, Fail, Hold, MulliganError, Park, ProcessFailed, Retry, Snooze
from mulligan.job import Failure, Job, State
from mulligan.policy.backoff import Exponential, Fixed, Table
from mulligan.policy.redact import redact
from mulligan.policy.retry import Policy

__all__ = [
    "Cancel",
    "Context",
    "Exponential",
    "Fail",
    "Failure",
    "Fixed",
    "Hold",
    "Job",
    "Kind",
    "LeaseLost",
    "Mulligan",
    "MulliganError",
    "Park",
    "Policy",
    "ProcessFailed",
    "Retry",
    "Snooze",
    "State",
    "Table",
    "Unique",
    "__version__",
    "redact",
]
