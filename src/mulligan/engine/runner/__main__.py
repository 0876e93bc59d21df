"""Where a runner process begins: python -m mulligan.engine.runner APP …, started by a supervisor only."""

from __future__ import annotations

import sys

from mulligan.engine.litter import load_quickly

if __name__ == "__main__":
    load_quickly()
    from mulligan.engine.runner.begin import begin

    sys.exit(begin())
