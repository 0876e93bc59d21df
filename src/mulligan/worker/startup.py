"""When to look for garbage that holds itself in a circle.

Python looks each time 700 more containers were made than dropped, and a job makes some dozens that live until its
ending is written: up to a fifth of the time of short jobs went there. Here it looks more rarely, never at what was
loaded once, and at once after whatever took long. While an app is loaded, hardly anything made is dropped: a tenth of
that time went there.
"""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path
from typing import Any

from mulligan.core.errors import ConfigError

# `module:attribute` → the app, the way a shell user means it: the current folder can be imported from.


def load_app(spec: str) -> Any:
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        message = f"APP must be module:attribute, for example jobs:app, not {spec!r}"
        raise ConfigError(message)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = importlib.import_module(module_name)
    app = module
    for part in attribute.split("."):
        try:
            app = getattr(app, part)
        except AttributeError:
            message = f"module {module_name!r} has no {attribute!r}"
            raise ConfigError(message) from None
    if not hasattr(app, "registry"):
        message = f"{spec} is a {type(app).__name__}, not a Mulligan app"
        raise ConfigError(message)
    return app


# When to look for garbage that holds itself in a circle.

LOADING = 100_000, 20, 20
OFTEN = 10_000, 20, 20
PYTHONS_OWN = {(700, 10, 10), (2000, 10, 0), (2000, 10, 10)}  # of 3.11, 3.14, 3.13 and 3.12
LONG = 0.1  # seconds: a look costs nothing beside it
MIDDLE = 1  # generation: what it has left, not what lives since long


def load_quickly() -> None:
    """Before the imports that take time; `settle_down` ends it."""
    _look(LOADING)


def settle_down() -> None:
    """All is loaded."""
    gc.freeze()
    _look(OFTEN)


def _look(often: tuple[int, int, int]) -> None:
    """Whoever has chosen how often to look knows why."""
    if gc.get_threshold() in {*PYTHONS_OWN, LOADING}:
        gc.set_threshold(*often)


def clear_after(seconds: float) -> None:
    """A job that took so long has ended: what it held, it should not hold until many others have come."""
    if seconds >= LONG:
        gc.collect(MIDDLE)
