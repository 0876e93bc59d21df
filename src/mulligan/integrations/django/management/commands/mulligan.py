"""`manage.py mulligan …`: the command line of Mulligan on the database of a backend in TASKS.

The command replaces this process: a supervisor must not load Django, which its runners do.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from mulligan.core.errors import MulliganError
from mulligan.core.settings import DEFAULT_SCHEMA
from mulligan.integrations.django.databases import DEFAULT_BACKEND, get_app, mulligan_backends
from mulligan.storage import use_apsw

APP_COMMANDS = ("worker", "up")
URL_VARIABLE = "MULLIGAN_DATABASE_URL"
SCHEMA_VARIABLE = "MULLIGAN_SCHEMA_NAME"
NO_BACKEND = (
    "no backend of Mulligan in TASKS. Add: "
    'TASKS = {"default": {"BACKEND": "mulligan.integrations.django.MulliganBackend"}}'
)


class Command(BaseCommand):  # type: ignore[misc]  # Django is not typed
    """Runs any command of Mulligan: worker, jobs, failures, doctor, …"""

    help = "Run a command of Mulligan, for example: manage.py mulligan worker"
    requires_system_checks: Sequence[str] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything behind our options as the command line of Mulligan."""
        parser.add_argument(
            "--backend", help="alias in TASKS; default: 'default', or the only one of Mulligan"
        )
        parser.add_argument("arguments", nargs=REMAINDER, help="as for the program mulligan")

    def run_from_argv(self, argv: list[str]) -> None:
        """Let Mulligan print its own help: `manage.py mulligan jobs --help`."""
        if not argv[2:] or argv[2].startswith("-"):
            super().run_from_argv(argv)
            return
        try:
            self.handle(arguments=argv[2:], backend=None)
        except CommandError as error:
            self.stderr.write(f"{error}")
            sys.exit(error.returncode)

    def handle(self, *_: Any, **options: Any) -> None:
        """Replace this process."""
        arguments = list(options["arguments"])
        try:
            backend = options["backend"] or _default_backend()
            settings = get_app(backend).settings
        except (ImproperlyConfigured, MulliganError) as error:
            raise CommandError(str(error), returncode=2) from error
        environ = {**os.environ, "PYTHONPATH": _python_path()}
        if arguments[:1] and arguments[0] in APP_COMMANDS:
            arguments.insert(1, f"mulligan.integrations.django.worker:{backend}")
            environ.pop(URL_VARIABLE, None)  # DATABASES decides
        else:
            environ[URL_VARIABLE] = use_apsw(settings.database_url)
            if settings.schema_name != DEFAULT_SCHEMA:
                environ[SCHEMA_VARIABLE] = settings.schema_name
        sys.stdout.flush()
        command = [sys.executable, "-m", "mulligan", *arguments]
        os.execve(sys.executable, command, environ)  # noqa: S606 - no shell is wanted


def _default_backend() -> str:
    backends = mulligan_backends()
    if not backends:
        raise ImproperlyConfigured(NO_BACKEND)
    if DEFAULT_BACKEND in backends:
        return DEFAULT_BACKEND
    if len(backends) > 1:
        names = ", ".join(backends)
        message = f"TASKS has several backends of Mulligan. Add --backend with one of {names}."
        raise ImproperlyConfigured(message)
    return next(iter(backends))


def _python_path() -> str:
    """Return the import path with the folder of manage.py, which its processes need too."""
    folder = str(Path(sys.path[0] or ".").absolute())
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return os.pathsep.join([folder, *(one for one in others if one != folder)])
