"""`mulligan demo NAME`: one of the applications in apps/, started as its own README says."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

PACKAGE = Path(__file__).parent.parent
PLACES = (PACKAGE / "apps", PACKAGE.parent.parent / "apps")  # installed; in the repository
NEEDED = ("PIL", "imageio_ffmpeg", "multipart", "numpy", "sqlalchemy")  # some of the extra `apps`


def run_application(name: str, database: str | None, host: str | None, port: int | None) -> NoReturn:
    """In our place: signals and the terminal are the application's."""
    folder = _folder_of(name)
    if any(importlib.util.find_spec(module) is None for module in NEEDED):
        message = "the applications need a few more packages: pip install 'mulligan[apps]'"
        raise click.ClickException(message)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    said = {"--database": database, "--host": host, "--port": port}
    flags = [str(word) for flag, value in said.items() if value is not None for word in (flag, value)]
    os.execve(  # noqa: S606 - no shell
        sys.executable, [sys.executable, "-m", name, *flags], {**os.environ, "PYTHONPATH": path}
    )


def applications() -> dict[str, Path]:
    """By name, where it lies."""
    return {main.parent.name: place for place in reversed(PLACES) for main in sorted(place.glob("[!_.]*/__main__.py"))}


def _folder_of(name: str) -> Path:
    known = applications()
    if name not in known:
        message = f"there is no application {name!r}; there are: {', '.join(known) or 'none in this installation'}"
        raise click.UsageError(message)
    return known[name]
