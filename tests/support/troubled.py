"""A worker with injected faults: `python -m support.troubled APP`.

A fault is active while a file with its name exists in the current directory.
"""

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
from mulligan.worker.supervisor import runner_process, runners
from mulligan.worker.supervisor.fork_server import ForkServer
from mulligan.worker.supervisor.main import Supervisor, WorkerOptions
from mulligan.worker.supervisor.runner_process import StderrHandler

NO_FORK = "no-fork"  # processes cannot be started
DATABASE_DOWN = "database-down"  # the database does not answer
LOST_ANSWERS = "lost-answers"  # the database commits, but the answer is lost
SLOW_WRITES = "slow-writes"  # write transactions wait
SLOW_CLEANUP = "slow-cleanup"  # the clean-up after a dead runner waits
SHORT_TIMEOUTS = "short-timeouts"  # read at start: 0.2 s instead of 10 or 60 s

PROGRAM = ("-m", "support.troubled")


class Faults:
    """The faults in a folder, set by the test and read by the worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, name: str) -> None:
        (self._folder / name).touch()

    def end(self, name: str) -> None:
        (self._folder / name).unlink()

    def is_active(self, name: str) -> bool:
        return (self._folder / name).exists()

    def was_noticed(self, name: str) -> bool:
        """Return True if the worker has waited for the end of this fault."""
        return self.is_active(f"{name}.noticed")

    def wait_until_over(self, name: str) -> None:
        if self.is_active(name):
            self.begin(f"{name}.noticed")
        while self.is_active(name):
            time.sleep(0.01)


class FaultyStore:
    """A real store with faults."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def dedicated(self) -> FaultyStore:
        return FaultyStore(self._store.dedicated(), self._faults)

    def begin(self) -> AbstractContextManager[Any]:
        return self._write(self._store.begin())

    def single_statement(self) -> AbstractContextManager[Any]:
        return self._write(self._store.single_statement())

    @contextmanager
    def read(self) -> Iterator[Any]:
        self._check_answers()
        with self._store.read() as tx:
            yield tx

    @contextmanager
    def _write(self, transaction: AbstractContextManager[Any]) -> Iterator[Any]:
        self._check_answers()
        self._faults.wait_until_over(SLOW_WRITES)
        with transaction as tx:
            yield tx
        if self._faults.is_active(LOST_ANSWERS):
            raise StoreUnavailable("the connection broke before the answer arrived")

    def _check_answers(self) -> None:
        if self._faults.is_active(DATABASE_DOWN):
            raise StoreUnavailable("no answer")


class FaultyPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A Popen that fails like a machine that can start no more processes."""

    faults = Faults(Path())

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if self.faults.is_active(NO_FORK):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().__init__(*arguments, **options)


def main() -> int:
    form = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level="INFO", format=form, handlers=[StderrHandler()])
    faults = FaultyPopen.faults = Faults(Path.cwd())
    subprocess.Popen = FaultyPopen  # type: ignore[misc]
    fork_runner = ForkServer.fork_runner

    def fork_or_fail(server: ForkServer, *arguments: Any) -> Any:
        return None if faults.is_active(NO_FORK) else fork_runner(server, *arguments)

    ForkServer.fork_runner = fork_or_fail  # type: ignore[method-assign]
    clean = runners.clean_up

    def clean_slowly(*arguments: Any) -> None:
        faults.wait_until_over(SLOW_CLEANUP)
        clean(*arguments)

    runners.clean_up = clean_slowly
    if faults.is_active(SHORT_TIMEOUTS):
        runner_process.EXIT_LIMIT_NS = 200_000_000
        runners.QUEUE_LIMIT_NS = 200_000_000
    settings = read_settings()
    with closing(open_store(settings.database_url)) as store:
        store.prepare()
        faulty_store: Any = FaultyStore(store, faults)
        return asyncio.run(Supervisor(faulty_store, settings, WorkerOptions(app=sys.argv[1])).run())


if __name__ == "__main__":
    sys.exit(main())
