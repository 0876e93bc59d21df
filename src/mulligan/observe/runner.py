"""Where the runners of `mulligan worker` begin: the engine's runner, with log lines as the settings want them."""

from __future__ import annotations

import sys

from mulligan.engine.litter import load_quickly

if __name__ == "__main__":
    load_quickly()
    from mulligan.engine.runner.begin import begin
    from mulligan.observe.logs import log_to

    sys.exit(begin(log_to))
