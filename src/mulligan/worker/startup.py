"""Start-up of worker processes: load the app, and tune garbage collection.

With Python's default thresholds, garbage collection takes up to a fifth of the time of short jobs:
each job creates dozens of containers that live until its ending is written. Here it runs less
often, never on objects of the loaded app, and once after every long job. While the app is being
loaded hardly any object is dropped, so it runs rarely then too.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from pathlib import Path
from typing import Any

from mulligan.core.errors import ConfigError


def load_app(spec: str) -> Any:
    """Import the app from `module:attribute`. The current folder is on the import path."""
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
            message = f"module {module_name!r} has no attribute {attribute!r}{_name_apps(module)}"
            raise ConfigError(message) from None
    if not hasattr(app, "registry"):
        message = f"{spec} is a {type(app).__name__}, not a Mulligan app"
        raise ConfigError(message)
    return app


def _name_apps(module: Any) -> str:
    """Return "; did you mean jobs:app?" with the apps of a module; empty if it has none."""
    apps = [name for name, value in vars(module).items() if hasattr(type(value), "run_inline")]
    specs = [f"{module.__name__}:{name}" for name in apps]
    return f"; did you mean {' or '.join(specs)}?" if specs else ""


# --- Garbage collection ---

LOADING_THRESHOLDS = 100_000, 20, 20
RUNNING_THRESHOLDS = 10_000, 20, 20
DEFAULT_THRESHOLDS = {(700, 10, 10), (2000, 10, 0), (2000, 10, 10)}  # 3.11, 3.14, 3.12 and 3.13
LONG_JOB = 0.1  # seconds from which a collection costs little in comparison
YOUNG_GENERATIONS = 1


def reduce_gc() -> None:
    """Collect rarely during slow imports, until `finish_loading`."""
    _set_thresholds(LOADING_THRESHOLDS)


def finish_loading() -> None:
    """Exclude everything that is loaded from collections, and use the thresholds for jobs."""
    freeze_loaded()
    _set_thresholds(RUNNING_THRESHOLDS)


def freeze_loaded() -> None:
    """Exclude everything that is loaded from collections. Return freed memory to the system."""
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _set_thresholds(thresholds: tuple[int, int, int]) -> None:
    """Set the thresholds, unless the user has chosen other ones than the default."""
    if gc.get_threshold() in {*DEFAULT_THRESHOLDS, LOADING_THRESHOLDS}:
        gc.set_threshold(*thresholds)


def collect_after(seconds: float) -> None:
    """Collect after a long job, so that what it leaves is not held until many others have run."""
    if seconds >= LONG_JOB:
        gc.collect(YOUNG_GENERATIONS)
