"""Entry point of the runners of `mulligan worker`: a runner with logging as configured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from mulligan.worker.startup import reduce_gc


def prepare() -> Callable[[], int]:
    """Import everything a runner needs before its app, and return the function that runs it."""
    reduce_gc()
    from mulligan.observability.logs import configure_logging  # noqa: PLC0415 - after reduce_gc()
    from mulligan.worker.runner.start import run_runner  # noqa: PLC0415 - after reduce_gc()

    return partial(run_runner, configure_logging)


if __name__ == "__main__":
    sys.exit(prepare()())
