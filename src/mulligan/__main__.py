"""Run the command-line program: `python -m mulligan` is the same as `mulligan`."""

import sys

from mulligan.cli import main

if __name__ == "__main__":
    sys.exit(main())
