"""A worker as `mulligan worker` makes it, but nothing works beside the engine."""

from __future__ import annotations

import sys

from mulligan.cli import main
from mulligan.cli import worker as working

if __name__ == "__main__":
    working.worker_outlets = lambda _: ()
    sys.exit(main(sys.argv[1:]))
