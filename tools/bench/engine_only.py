"""Run `mulligan worker` without its periodic tasks (notifications, alerts, metrics)."""

from __future__ import annotations

import sys

from mulligan.cli import main
from mulligan.cli import worker as working

if __name__ == "__main__":
    working.periodic_tasks = lambda _: ()
    sys.exit(main(sys.argv[1:]))
