"""Build exceptions like those of libraries, without the libraries."""

from __future__ import annotations

import json
from types import SimpleNamespace

from mulligan.failures.capture import capture

NOW = 1_700_000_000.0


def make_exception(name, *args, base=Exception, **attributes):
    """Build an exception of a class with this dotted name and these attributes."""
    module, _, last = name.rpartition(".")
    exc = type(last, (base,), {"__module__": module})(*args)
    vars(exc).update(attributes)
    return exc


def capture_raised(exc):
    """Raise an exception and return its facts."""
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001
        return capture(caught, NOW)


def make_response(status, body=None, headers=None):
    """Build a response whose body was read, as requests and httpx store it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return SimpleNamespace(status_code=status, headers=headers or {}, _content=content)
