"""Extras: optional packages, and the sentence for a user who lacks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from mulligan.core.errors import ConfigError

MODULES: Mapping[str, Sequence[str]] = {
    "web": ("fastapi", "httpx2", "jinja2", "prometheus_client", "standardwebhooks", "uvicorn"),
    "postgres": ("psycopg",),
    "apprise": ("apprise",),
    "sentry": ("sentry_sdk",),
    "apps": ("PIL", "imageio_ffmpeg", "multipart", "numpy", "sqlalchemy"),
}


def find_missing(extra: str) -> str:
    """Return the command that installs an extra; empty if it is installed."""
    if all(find_spec(module) is not None for module in MODULES[extra]):
        return ""
    return f"pip install 'mulligan[{extra}]'"


def check_extra(extra: str, purpose: str) -> None:
    """Raise ConfigError with the command to run if an extra is not installed."""
    command = find_missing(extra)
    if command:
        raise ConfigError(f"{purpose} needs more packages. Install them: {command}")
