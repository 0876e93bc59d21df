"""`module:attribute` → the app, the way a shell user means it: the current folder can be imported from."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from mulligan.errors import ConfigError


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
