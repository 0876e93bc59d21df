"""Exceptions as libraries make them, without the libraries."""

from __future__ import annotations

import json
from types import SimpleNamespace

from mulligan.failures.capture import capture

NOW = 1_700_000_000.0


def make(name, *args, base=Exception, **attributes):
    """An exception of a class with this dotted name; what is a class attribute in the field may be one here too."""
    module, _, last = name.rpartition(".")
    exc = type(last, (base,), {"__module__": module})(*args)
    vars(exc).update(attributes)
    return exc


def facts(exc):
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001
        return capture(caught, NOW)


def reply(status, body=None, headers=None):
    """A response that was read, as requests and httpx keep it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return SimpleNamespace(status_code=status, headers=headers or {}, _content=content)
