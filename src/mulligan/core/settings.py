"""Values of settings as files, the environment and flags set them, not yet validated.

`mulligan.config` validates them. A command that needs only the database URL starts faster without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.core.errors import ConfigError

ENV_PREFIX = "MULLIGAN_"
DEFAULT_FILE = "mulligan.toml"
DEFAULT_URL = "sqlite:///mulligan.db"
DEFAULT_SCHEMA = "mulligan"
# Variables of the environment that other parts of Mulligan read. They are no settings.
PASSED_SETTINGS = "MULLIGAN_PASSED_SETTINGS"  # all settings, for a process that this one starts
OTHER_VARIABLES = ("MULLIGAN_ATTEMPT", "MULLIGAN_CONFIG", "MULLIGAN_TEST_", PASSED_SETTINGS)

Layer = tuple[str, Mapping[str, Any]]  # origin, nested values


class ConnectionSettings(NamedTuple):
    """How to reach the database, if only its URL is set. `Settings` has fields of these names."""

    database_url: str = DEFAULT_URL
    url_origin: str = "default"
    schema_name: str = DEFAULT_SCHEMA
    listen_url: str = ""
    notify_callers: bool = True

    def origin_of(self, name: str) -> str:
        """Return where the value of a setting came from."""
        return self.url_origin if name == "database_url" else "default"


def read_connection_settings(database: str | None) -> ConnectionSettings | None:
    """Return how to reach the database, or None if other settings are set and must be validated."""
    set_values: dict[str, tuple[Any, str]] = {}
    for origin, values in outside_layers({"database_url": database}, None, None, "flag"):
        for name, value in flatten(values):
            set_values[name] = (value, origin_of_layer(origin, name))
    if set_values.keys() - {"database_url"}:
        return None
    url, origin = set_values.get("database_url", (DEFAULT_URL, "default"))
    return ConnectionSettings(url, origin) if isinstance(url, str) else None


# --- Layers ---


def outside_layers(
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None,
    file: Path | None,
    flag_origin: str,
) -> list[Layer]:
    """Return what is set outside the code: file, environment, flags. Later layers win."""
    environ = os.environ if environ is None else environ
    set_flags = {name: value for name, value in flags.items() if value is not None}
    return [
        _read_file(file or _find_file(environ)),
        _read_environment(environ),
        (flag_origin, set_flags),
    ]


def origin_of_layer(origin: str, name: str) -> str:
    """Return the origin of a value of a layer, with the variable if it is the environment."""
    return f"{origin} {variable_name(name)}" if origin == "environment" else origin


def _find_file(environ: Mapping[str, str]) -> Path:
    """Return the file to read. Only the default file may be missing."""
    path = environ.get("MULLIGAN_CONFIG", "")
    if path and not Path(path).exists():
        message = f"{path}: no such file (from environment MULLIGAN_CONFIG)"
        raise ConfigError(message)
    return Path(path or DEFAULT_FILE)


def _read_file(path: Path) -> Layer:
    if not path.exists():
        return (str(path), {})
    import tomllib  # noqa: PLC0415 - often there is no file

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: not valid TOML: {error}"
        raise ConfigError(message) from error
    return (str(path), values)


def _read_environment(environ: Mapping[str, str]) -> Layer:
    found = {}
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX) and not variable.startswith(OTHER_VARIABLES):
            name = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            found[name] = value
    return ("environment", nest(found))


# --- Names ---


def variable_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper().replace(".", "__")


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of nested values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with dotted names as nested values."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        put_value(nested, name, value)
    return nested


def put_value(nested: dict[str, Any], name: str, value: Any) -> None:
    """Set the value of a dotted name in nested values."""
    *sections, last = name.split(".")
    for section in sections:
        inner: Any = nested.setdefault(section, {})
        if not isinstance(inner, dict):
            message = f"{name}: {section} is a value, not a section"
            raise ConfigError(message)
        nested = inner
    nested[last] = value
