"""App for workers: `mulligan worker mulligan.integrations.django.worker:default`.

The attribute is the alias of a backend in TASKS. DJANGO_SETTINGS_MODULE names the settings.
"""

from __future__ import annotations

import os
from typing import Any

import django
from django.apps import apps

from mulligan.core.errors import ConfigError

NO_SETTINGS = (
    "DJANGO_SETTINGS_MODULE is not set. Start the worker with: python manage.py mulligan worker"
)


def __getattr__(alias: str) -> Any:
    if alias.startswith("__"):
        raise AttributeError(alias)
    return load_backend(alias)


def load_backend(alias: str) -> Any:
    """Set Django up, register the tasks of all installed apps, and return the app of a backend."""
    from django.conf import settings  # noqa: PLC0415

    if not settings.configured and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise ConfigError(NO_SETTINGS)
    if not apps.ready:
        django.setup()
    from mulligan.integrations.django import databases, kinds  # noqa: PLC0415 - needs settings

    app = databases.get_app(alias)
    backends = databases.mulligan_backends()
    shared = {name: one for name, one in backends.items() if databases.app_of(one) is app}
    kinds.discover_tasks(app, {alias: shared.pop(alias), **shared})
    return app
