"""Call a hook before and after every commit, so that a test can crash there.

The engine has no code for this: the transactions of the stores are wrapped. A point is named after
the function that opened the transaction, so new transactions get their points automatically.

`python -m storm.commit_points worker APP` runs a worker that crashes when a
file orders it to.
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
Hook = Callable[[str, str], None]
SKIPPED_MODULES = ("mulligan.storage", "contextlib", "storm.commit_points")
LOST = "commit point reached: connection lost"


def install(hook: Hook) -> None:
    """Call `hook(point, side)` around each commit of this process. It may raise or never return."""
    for store in (SqliteStore, PostgresStore):
        for name in ("begin", "single_statement", "transaction"):
            setattr(store, name, _wrap_begin(getattr(store, name), hook))


def _wrap_begin(begin: Callable[..., Any], hook: Hook) -> Any:
    @contextmanager
    def begin_with_hooks(self: Any) -> Iterator[Any]:
        point = caller(sys._getframe(1))  # noqa: SLF001 - no public name
        with begin(self) as tx:
            yield tx
            hook(point, BEFORE)
        hook(point, AFTER)

    return begin_with_hooks


def caller(frame: FrameType | None) -> str:
    """Return the function that opened this transaction, as module.function."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(SKIPPED_MODULES):
            return f"{module.removeprefix('mulligan.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"


def crash(action: str) -> None:
    """Kill this process, or act as if the connection were lost."""
    if action == EXIT:
        os.kill(os.getpid(), signal.SIGKILL)
    raise StoreUnavailable(LOST)


class CrashOnOrder:
    """Crash at the n-th commit after a file ordered it: "exit before 3"."""

    def __init__(self, file: Path, log: Path) -> None:
        self._file = file
        self._log = log
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
            crash(action)

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
    install(CrashOnOrder(folder / f"point-{os.environ['STORM_NAME']}", folder / "points.jsonl"))
    sys.argv[0] = "mulligan"
    sys.exit(main())
