"""Django: a backend for `TASKS`, an app for INSTALLED_APPS, `manage.py mulligan` and the dashboard.

    INSTALLED_APPS += ["mulligan.integrations.django"]
    TASKS = {"default": {"BACKEND": "mulligan.integrations.django.MulliganBackend"}}

Names are imported on first use: Django imports this package before its apps are ready.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.integrations.django.backend import MulliganBackend
    from mulligan.integrations.django.databases import get_app
    from mulligan.integrations.django.errors import AttemptFailed
    from mulligan.integrations.django.options import MulliganTask, configure

_HOMES = {
    "AttemptFailed": "errors",
    "MulliganBackend": "backend",
    "MulliganTask": "options",
    "configure": "options",
    "get_app": "databases",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


__all__ = ["AttemptFailed", "MulliganBackend", "MulliganTask", "configure", "get_app"]
