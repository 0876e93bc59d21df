"""Enqueue jobs until standard input is closed, then print how many: a web process under load."""

from __future__ import annotations

import select
import sys
from itertools import count

from mulligan.core.errors import StoreUnavailable
from support.rolling_app import alone, child, parent

PAUSE = 0.2  # seconds between two rounds


def main() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    jobs = 0
    for n in count():
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            break
        kinds = (child, parent, alone) if n % 10 == 0 else (child, parent)
        for kind in kinds:
            try:
                kind.enqueue(n=n)
            except StoreUnavailable:  # a web process would answer 503
                continue
            jobs += 1
    sys.stdout.write(f"{jobs}\n")


if __name__ == "__main__":
    main()
