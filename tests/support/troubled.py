"""A worker in trouble: `python -m support.troubled APP`. What goes wrong is named by files in its folder."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from mulligan.config import read_settings
from mulligan.core.errors import StoreUnavailable
from mulligan.storage import Store, open_store
from mulligan.worker.supervisor import runner_process as obituary
from mulligan.worker.supervisor import runners as fleet
from mulligan.worker.supervisor.fork_server import ForkServer
from mulligan.worker.supervisor.main import Supervisor, WorkerOptions
from mulligan.worker.supervisor.stderr import StderrHandler

NO_FORK = "no-fork"  # no process can be started
AWAY = "away"  # the database does not answer
LOST_ANSWERS = "lost-answers"  # the database does what it is told, but nobody hears so
SLOW_WRITES = "slow-writes"  # who wants to write waits
SLOW_BURIALS = "slow-burials"  # what is left of a dead runner is not gone yet
HASTE = "haste"  # from its start on: it waits a fifth of a second where others wait ten or sixty seconds

PROGRAM = ("-m", "support.troubled")


class Troubles:
    """The same folder, seen by the test that makes trouble and by the worker that has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, name: str) -> None:
        (self._folder / name).touch()

    def end(self, name: str) -> None:
        (self._folder / name).unlink()

    def there(self, name: str) -> bool:
        return (self._folder / name).exists()

    def felt(self, name: str) -> bool:
        """Has anybody had to wait for its end?"""
        return self.there(f"{name}.felt")

    def wait_out(self, name: str) -> None:
        if self.there(name):
            self.begin(f"{name}.felt")
        while self.there(name):
            time.sleep(0.01)


class TroubledStore:
    """A real store behind a bad line."""

    def __init__(self, store: Store, troubles: Troubles) -> None:
        self._store = store
        self._troubles = troubles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apart(self) -> TroubledStore:
        return TroubledStore(self._store.apart(), self._troubles)

    def begin(self) -> AbstractContextManager[Any]:
        return self._written(self._store.begin())

    def once(self) -> AbstractContextManager[Any]:
        return self._written(self._store.once())

    @contextmanager
    def read(self) -> Iterator[Any]:
        self._answers()
        with self._store.read() as unit:
            yield unit

    @contextmanager
    def _written(self, transaction: AbstractContextManager[Any]) -> Iterator[Any]:
        self._answers()
        self._troubles.wait_out(SLOW_WRITES)
        with transaction as unit:
            yield unit
        if self._troubles.there(LOST_ANSWERS):
            raise StoreUnavailable("the line broke before the answer came")

    def _answers(self) -> None:
        if self._troubles.there(AWAY):
            raise StoreUnavailable("nobody answers")


class TroubledPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A machine that has no room for another process."""

    troubles = Troubles(Path())

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if self.troubles.there(NO_FORK):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().__init__(*arguments, **options)


def main() -> int:
    form = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level="INFO", format=form, handlers=[StderrHandler()])
    troubles = TroubledPopen.troubles = Troubles(Path.cwd())
    subprocess.Popen = TroubledPopen  # type: ignore[misc]
    forked = ForkServer.runner

    def not_forked(nursery: ForkServer, *arguments: Any) -> Any:
        return None if troubles.there(NO_FORK) else forked(nursery, *arguments)

    ForkServer.runner = not_forked  # type: ignore[method-assign]
    clean = fleet.clean

    def clean_slowly(*arguments: Any) -> None:
        troubles.wait_out(SLOW_BURIALS)
        clean(*arguments)

    fleet.clean = clean_slowly
    if troubles.there(HASTE):
        obituary.LEAVE_NS = fleet.QUEUE_PATIENCE_NS = 200_000_000
    settings = read_settings()
    with closing(open_store(settings.database_url)) as store:
        store.prepare()
        troubled: Any = TroubledStore(store, troubles)
        return asyncio.run(Supervisor(troubled, settings, WorkerOptions(app=sys.argv[1])).run())


if __name__ == "__main__":
    sys.exit(main())
