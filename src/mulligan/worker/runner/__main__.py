"""Where a runner process begins: python -m mulligan.worker.runner APP …, started by a supervisor only."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mulligan.worker.startup import load_quickly


def prepared() -> Callable[[], int]:
    """How to begin, once all that comes before the app is imported."""
    load_quickly()
    from mulligan.worker.runner.start import begin  # noqa: PLC0415 - after that

    return begin


if __name__ == "__main__":
    sys.exit(prepared()())
