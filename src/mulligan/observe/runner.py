"""Where the runners of `mulligan worker` begin: the engine's runner, with log lines as the settings want them."""

from __future__ import annotations

import sys

from mulligan.engine.runner.__main__ import main
from mulligan.observe.logs import log_to

if __name__ == "__main__":
    sys.exit(main(log_to))
