"""Run the web server: `python -m mulligan.http`."""

import sys

from mulligan.http.serve import main

if __name__ == "__main__":
    sys.exit(main())
