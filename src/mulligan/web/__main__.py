"""`python -m mulligan.web`: serves the page; its settings come from the environment and mulligan.toml."""

from __future__ import annotations

import argparse
import sys

from mulligan.config import read_settings
from mulligan.errors import ConfigError
from mulligan.web.serve import CannotServe, serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="mulligan web")
    parser.add_argument("--may-move", action="store_true", help="take the next free port when this one is taken")
    parser.add_argument("--leave-with-stdin", action="store_true", help="end when stdin ends")
    args = parser.parse_args()
    try:
        serve(read_settings(), may_move=args.may_move, leave_with_stdin=args.leave_with_stdin)
    except (ConfigError, CannotServe) as error:
        sys.stderr.write(f"mulligan: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
