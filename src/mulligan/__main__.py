"""`python -m mulligan` is the same program as `mulligan`."""

import sys

from mulligan.cli import main

if __name__ == "__main__":
    sys.exit(main())
