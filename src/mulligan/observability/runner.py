"""Where the runners of `mulligan worker` begin: the engine's runner, with log lines as the settings want them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from mulligan.worker.startup import load_quickly


def prepared() -> Callable[[], int]:
    """How to begin, once all that comes before the app is imported."""
    load_quickly()
    from mulligan.observability.logs import log_to  # noqa: PLC0415 - the same
    from mulligan.worker.runner.start import begin  # noqa: PLC0415 - after that

    return partial(begin, log_to)


if __name__ == "__main__":
    sys.exit(prepared()())
