"""Entry point of a runner process: python -m mulligan.worker.runner APP …

Only a supervisor starts it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from mulligan.worker.startup import reduce_gc


def prepare() -> Callable[[], int]:
    """Import everything but the app, and return the function that runs the runner."""
    reduce_gc()
    from mulligan.worker.runner.start import run_runner  # noqa: PLC0415 - after `reduce_gc`

    return run_runner


if __name__ == "__main__":
    sys.exit(prepare()())
