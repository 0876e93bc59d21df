"""Payload versions: check the `version=` and `upcast=` of a kind, and upcast stored payloads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mulligan.core.errors import ConfigError, PayloadRefused
from mulligan.core.json import decode
from mulligan.manifest.specs import Handler, KindSpec, Upcast

MAX_VERSION = 1_000_000


def check_versions(kind: str, version: Any, upcast: Any) -> dict[int, Upcast]:
    """Return the upcast functions by version. Refuse those that cannot be complete.

    They must lead to `version` without a gap. The oldest ones may be missing: jobs of these
    versions are gone.
    """
    if type(version) is not int or not 1 <= version <= MAX_VERSION:
        message = f"kind {kind!r}: version must be a whole number from 1 on, not {version!r:.80}"
        raise ConfigError(message)
    if upcast is not None and not isinstance(upcast, Mapping):
        message = (
            f"kind {kind!r}: upcast must map a version to the function that returns the payload "
            f"of the next one, such as {{1: add_currency}}, not {upcast!r:.80}"
        )
        raise ConfigError(message)
    functions = dict(upcast or {})
    for older, function in functions.items():
        _check_upcast(kind, version, older, function)
    for older in range(min(functions, default=version - 1), version):
        if older >= 1 and older not in functions:
            message = (
                f"kind {kind!r}: version={version} needs upcast={{{older}: …}}, a function that "
                f"returns a payload of version {older + 1} from one of version {older}: such jobs "
                "may be queued."
            )
            raise ConfigError(message)
    return functions


def _check_upcast(kind: str, version: int, older: Any, function: Any) -> None:
    if type(older) is not int or not 1 <= older < version:
        message = (
            f"kind {kind!r}: upcast has version {older!r:.80}, but only versions below "
            f"version={version} can be upcast."
        )
        raise ConfigError(message)
    if not callable(function) or inspect.iscoroutinefunction(function):
        message = (
            f"kind {kind!r}: upcast of version {older} must be an ordinary function of the "
            f"payload, not {function!r:.80}"
        )
        raise ConfigError(message)


def decode_payload(handler: Handler, text: str, version: int) -> dict[str, Any]:
    """Return the handler's arguments from a stored payload of any version that it takes."""
    if version == handler.spec.version:
        return handler.arguments.decode(text)
    payload = upcast_payload(handler.spec, handler.upcast, decode(text), version)
    return handler.arguments.convert(payload)


def upcast_payload(
    spec: KindSpec, functions: Mapping[int, Upcast], payload: Any, version: int
) -> dict[str, Any]:
    """Return a payload in the version of its kind. Raises PayloadRefused if that cannot be."""
    if not spec.takes_version(version):
        message = (
            f"{spec.name}: the payload has version {version}; this release takes "
            f"{describe_versions(spec)}"
        )
        raise PayloadRefused(message)
    for older in range(version, spec.version):
        payload = functions[older](payload)
        if not isinstance(payload, dict):
            message = (
                f"{spec.name}: upcast of version {older} must return a dict, not {payload!r:.80}"
            )
            raise PayloadRefused(message)
    return payload  # type: ignore[no-any-return]


def describe_versions(spec: KindSpec) -> str:
    """Return which payload versions a kind takes: `version 3`, or `versions 1 to 3`."""
    if spec.oldest_version == spec.version:
        return f"version {spec.version}"
    return f"versions {spec.oldest_version} to {spec.version}"
