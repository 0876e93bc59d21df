"""Django app: creates Mulligan's tables with `manage.py migrate`, and adds `manage.py mulligan`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate


class MulliganConfig(AppConfig):  # type: ignore[misc]  # Django is not typed
    """App for INSTALLED_APPS. It has no models: Mulligan's tables have their own migrations."""

    name = "mulligan.integrations.django"
    label = "mulligan"
    verbose_name = "Mulligan"

    def ready(self) -> None:
        """Create Mulligan's tables after Django's, also in a test database."""
        post_migrate.connect(create_tables, sender=self, dispatch_uid="mulligan")


def create_tables(using: str, **_: Any) -> None:
    """Bring Mulligan's tables up to date in a database that Django has migrated."""
    from mulligan.integrations.django.databases import (  # noqa: PLC0415 - needs django.tasks
        app_of,
        close_before_drop,
        migrate,
        mulligan_backends,
    )

    for options in mulligan_backends().values():
        if not options.joins or options.database != using:
            continue
        try:
            app = app_of(options)
        except ImproperlyConfigured:  # in memory: an enqueue reports it
            continue
        close_before_drop(app, using)
        migrate(app)
