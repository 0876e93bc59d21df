"""Tools to test your jobs: a fresh database per test, a movable clock, forced outcomes.

`drain` runs jobs inline, in the test's process, with the same code as a worker: claims and fences,
payload validation, classification, policies, backoffs and counters, unique keys, checkpoints,
deadlines of waiting jobs, holds, events and history.

Inline mode has no time or memory limits (a handler that hangs, hangs the test), does not survive a
handler that kills its process, ignores `isolate=True`, and runs one job at a time. Test those with
a real worker: `worker(app, "jobs:app")`.

Names are loaded when they are first used: pytest imports this package in every project that has
Mulligan installed, because the plugin lives here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.testing.asserts import (
        assert_enqueued,
        assert_state,
        assert_will_retry,
        refute_enqueued,
    )
    from mulligan.testing.inline import (
        Drained,
        Force,
        Helper,
        Returns,
        StillBusy,
        advance,
        drain,
        drain_async,
        force,
        now,
    )
    from mulligan.testing.unit_context import UnitContext, context
    from mulligan.testing.workers import RealWorker, environ, temporary, worker

_NAMES_BY_MODULE = {
    "mulligan.testing.asserts": (
        "assert_enqueued",
        "assert_state",
        "assert_will_retry",
        "refute_enqueued",
    ),
    "mulligan.testing.unit_context": ("UnitContext", "context"),
    "mulligan.testing.inline": (
        "Drained",
        "Force",
        "Helper",
        "Returns",
        "StillBusy",
        "advance",
        "drain",
        "drain_async",
        "force",
        "now",
    ),
    "mulligan.testing.workers": ("RealWorker", "environ", "temporary", "worker"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "Drained",
    "Force",
    "Helper",
    "RealWorker",
    "Returns",
    "StillBusy",
    "UnitContext",
    "advance",
    "assert_enqueued",
    "assert_state",
    "assert_will_retry",
    "context",
    "drain",
    "drain_async",
    "environ",
    "force",
    "now",
    "refute_enqueued",
    "temporary",
    "worker",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
