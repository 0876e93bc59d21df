"""A supervisor, alone or with companions (the page, the demo's feeder), until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from mulligan.alongside import leave_with_stdin as leave
from mulligan.cli.database import Talk, say
from mulligan.cli.outlets import worker_outlets
from mulligan.config import Settings
from mulligan.engine.supervisor.main import Options, Supervisor
from mulligan.engine.supervisor.relay import RelayHandler
from mulligan.observe.logs import log_to
from mulligan.store import Store

STOP_WITHIN = 5.0  # seconds a companion gets to leave


class Companion:
    """A process that lives as long as we do: its stdin ends when we end, however we end."""

    def __init__(self, module: str, *arguments: str, talk: bool = False) -> None:
        self.closing = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if talk else subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the supervisor; it takes its companions along at the end
        )

    def first_line(self) -> str:
        stdout: IO[bytes] | None = self.process.stdout
        return "" if stdout is None else stdout.readline().decode().strip()

    def close(self) -> None:
        self.closing = True
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def begin(*, leave_with_stdin: bool = False) -> None:
    """A SIGTERM that comes before the supervisor listens must find the way out tidied too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if leave_with_stdin:
        leave()


def listen(settings: Settings) -> None:
    """From here on whatever is said goes to stderr in the form that was asked for."""
    log_to(settings.log, RelayHandler())
    if settings.log.format == "json":
        Talk.lines = logging.getLogger("mulligan.cli").info


SETTINGS = {
    "database": "database_url",
    "concurrency": "worker.concurrency",
    "runners": "worker.runners",
    "log_level": "log.level",
    "log_format": "log.format",
    "host": "web.host",
    "port": "web.port",
}


def worker_flags(said: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that options of the command line stand for."""
    return {SETTINGS[name]: value for name, value in said.items()}


def run_worker(store: Store, settings: Settings, options: Options) -> int:
    return asyncio.run(supervisor(store, settings, options).run())


def supervisor(store: Store, settings: Settings, options: Options) -> Supervisor:
    ours = replace(options, outlets=worker_outlets(settings), runner="mulligan.observe.runner")
    return Supervisor(store, settings, ours)


def run_with_page(
    store: Store, settings: Settings, options: Options, *, may_move: bool, others: Sequence[Companion] = ()
) -> int:
    """The page's process beside the supervisor's; they end together."""
    page = start_page(settings, may_move=may_move)
    try:
        return asyncio.run(_together(supervisor(store, settings, options), page))
    finally:
        for companion in (page, *others):
            companion.close()


async def _together(worker: Supervisor, page: Companion) -> int:
    watch = asyncio.create_task(_watch(page))
    try:
        code = await worker.run()
    finally:
        page.close()
    return 1 if await watch else code


async def _watch(page: Companion) -> bool:
    """Tell its address once it answers; if it falls (True), let the supervisor drain and end too."""
    address = await asyncio.to_thread(page.first_line)
    if address:
        print(address, flush=True)
        say("Ctrl-C ends it: running jobs get time to finish; once more ends it now.")
    await asyncio.to_thread(page.process.wait)
    if page.closing:
        return False
    say("the page ended; ending the worker with it")
    os.kill(os.getpid(), signal.SIGTERM)
    return True


def start_page(settings: Settings, *, may_move: bool) -> Companion:
    given = dict(os.environ)
    page_environment(settings)
    page = Companion("mulligan.web", "--leave-with-stdin", *(["--may-move"] if may_move else []), talk=True)
    os.environ.clear()
    os.environ.update(given)  # for the runners: their app may name the same file with another library
    return page


def page_environment(settings: Settings) -> None:
    """Through the environment, not the command line: a URL may hold a password, and every user can read `ps`."""
    os.environ["MULLIGAN_DATABASE_URL"] = settings.database_url
    os.environ["MULLIGAN_SCHEMA_NAME"] = settings.schema_name
    os.environ["MULLIGAN_WEB__HOST"] = settings.web.host
    os.environ["MULLIGAN_WEB__PORT"] = str(settings.web.port)
    os.environ["MULLIGAN_LOG__FORMAT"] = settings.log.format
    os.environ["MULLIGAN_LOG__LEVEL"] = settings.log.level
