"""Other programs on an SQLite file: python -m storm.sqlite_load FILE SECONDS SEED.

They write only to their own table `crowd`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import time
from pathlib import Path
from random import Random

READERS = 4
WRITERS = 4


def main(file: str, seconds: float, seed: int) -> None:
    deadline = time.monotonic() + seconds
    with contextlib.closing(sqlite3.connect(file, timeout=20)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS crowd (n INTEGER, text TEXT)")
    tasks = [_read] * READERS + [_write] * WRITERS + [_back_up]
    threads = [
        threading.Thread(target=task, args=(file, deadline, Random(seed + i)))
        for i, task in enumerate(tasks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(file: str, deadline: float, rng: Random) -> None:
    with contextlib.closing(sqlite3.connect(file, timeout=20)) as connection:
        while time.monotonic() < deadline:
            connection.execute("SELECT count(*), max(created_at) FROM mulligan_job").fetchone()
            time.sleep(rng.uniform(0, 0.05))


def _write(file: str, deadline: float, rng: Random) -> None:
    with contextlib.closing(sqlite3.connect(file, timeout=20, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        while time.monotonic() < deadline:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "INSERT INTO crowd VALUES (?, ?)", (rng.randrange(10), "x" * rng.randrange(500))
                )
                if rng.random() < 0.2:
                    connection.execute("DELETE FROM crowd")
                connection.execute("COMMIT" if rng.random() < 0.8 else "ROLLBACK")
            time.sleep(rng.uniform(0, 0.1))


def _back_up(file: str, deadline: float, rng: Random) -> None:
    del deadline
    connection = sqlite3.connect(file, timeout=20, isolation_level=None)
    copy = Path(f"{file}.copy-{rng.randrange(10**9)}")
    try:
        with contextlib.closing(connection), contextlib.suppress(sqlite3.OperationalError):
            connection.execute("VACUUM INTO ?", (str(copy),))
    finally:  # an unfinished copy would fill the disk for the rest of the storm
        for left in (copy, Path(f"{copy}-journal")):
            left.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
