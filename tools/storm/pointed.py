"""Named points around every commit: a store whose transactions ask before and after whether this is the moment.

Nothing of it is in the engine. A point is (who opened the transaction, before or after its commit); who is found by
looking at the caller, so that a new transaction has its points without anybody naming them.

`python -m storm.pointed worker APP` is a worker with these points, for storms: a file tells when to fall.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mulligan.core.errors import StoreUnavailable
from mulligan.doctor.verify import records
from mulligan.storage.postgres import PostgresStore
from mulligan.storage.sqlite import SqliteStore

BEFORE, AFTER = "before", "after"
EXIT, LOSE = "exit", "lose"
Judge = Callable[[str, str], None]
PASSED_OVER = ("mulligan.storage", "contextlib", "storm.pointed")
LOST = "a point was reached: the connection is gone"


def install(judge: Judge) -> None:
    """For the life of this process: `judge(point, side)` is called around each commit; it may raise or never return."""
    for store, names in (
        (SqliteStore, ("begin", "transaction")),
        (PostgresStore, ("begin", "once", "transaction")),
    ):
        for name in names:
            setattr(store, name, _watched(getattr(store, name), judge))


def _watched(begin: Callable[..., Any], judge: Judge) -> Any:
    @contextmanager
    def watched(self: Any) -> Iterator[Any]:
        point = caller(sys._getframe(1))  # noqa: SLF001 - it has no other name
        with begin(self) as unit:
            yield unit
            judge(point, BEFORE)
        judge(point, AFTER)

    return watched


def caller(frame: FrameType | None) -> str:
    """Who opened this transaction, as module.function."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(PASSED_OVER):
            name = module.removeprefix("mulligan.").removeprefix("engine.")
            return f"{name}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"


def fall(action: str) -> None:
    if action == EXIT:
        os.kill(os.getpid(), signal.SIGKILL)
    raise StoreUnavailable(LOST)


class Armed:
    """Falls at the n-th commit after a file has been put down that says so: "exit before 3"."""

    def __init__(self, file: Path, log: Path) -> None:
        self._file, self._log = file, log
        self._order: tuple[str, str, int] | None = None

    def __call__(self, point: str, side: str) -> None:
        if self._order is None:
            self._order = self._read()
        if self._order is None or side != self._order[1]:
            return
        action, _, left = self._order
        self._order = (action, side, left - 1)
        if left <= 1:
            self._order = None
            records.append(self._log, {"point": point, "side": side, "action": action})
            fall(action)

    def _read(self) -> tuple[str, str, int] | None:
        try:
            action, side, count = self._file.read_text().split()
            self._file.unlink()
        except (OSError, ValueError):
            return None
        return action, side, int(count)


if __name__ == "__main__":
    from mulligan.cli import main

    folder = Path(os.environ["STORM_FOLDER"])
    install(Armed(folder / f"point-{os.environ['STORM_NAME']}", folder / "points.jsonl"))
    sys.argv[0] = "mulligan"
    sys.exit(main())
