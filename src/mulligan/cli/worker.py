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

import click

from mulligan.alerts.chore import AlertChecker
from mulligan.app.background import leave_with_stdin as leave
from mulligan.cli import options as shared
from mulligan.cli.database import Talk, say
from mulligan.config import Settings
from mulligan.notifications.dispatcher import Dispatch
from mulligan.observability.event_counts import Fold
from mulligan.observability.logs import log_to
from mulligan.storage import Store
from mulligan.worker.supervisor.main import Supervisor, WorkerOptions
from mulligan.worker.supervisor.periodic import PeriodicTask
from mulligan.worker.supervisor.stderr import StderrHandler

# What a worker does beside running jobs: the doors compose it, the engine knows none of it.


def worker_outlets(settings: Settings) -> tuple[PeriodicTask, ...]:
    """Of every worker; each of them finds out by itself whether another worker is at it."""
    return (Dispatch(settings), Fold(), AlertChecker(settings.alerts))


# A supervisor, alone or with companions (the page, the demo's feeder), until it is told to stop.

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
    log_to(settings.log, StderrHandler())
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


def run_worker(store: Store, settings: Settings, options: WorkerOptions) -> int:
    return asyncio.run(supervisor(store, settings, options).run())


def supervisor(store: Store, settings: Settings, options: WorkerOptions) -> Supervisor:
    ours = replace(
        options, outlets=worker_outlets(settings), runner="mulligan.observability.runner"
    )
    return Supervisor(store, settings, ours)


def run_with_page(
    store: Store,
    settings: Settings,
    options: WorkerOptions,
    *,
    may_move: bool,
    others: Sequence[Companion] = (),
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
    page = Companion(
        "mulligan.http", "--leave-with-stdin", *(["--may-move"] if may_move else []), talk=True
    )
    os.environ.clear()
    os.environ.update(
        given
    )  # for the runners: their app may name the same file with another library
    return page


def page_environment(settings: Settings) -> None:
    """Through the environment, not the command line: a URL may hold a password, and every user can read `ps`."""
    os.environ["MULLIGAN_DATABASE_URL"] = settings.database_url
    os.environ["MULLIGAN_SCHEMA_NAME"] = settings.schema_name
    os.environ["MULLIGAN_WEB__HOST"] = settings.web.host
    os.environ["MULLIGAN_WEB__PORT"] = str(settings.web.port)
    os.environ["MULLIGAN_LOG__FORMAT"] = settings.log.format
    os.environ["MULLIGAN_LOG__LEVEL"] = settings.log.level


# `mulligan worker APP`.


@click.command()
@click.argument("app")
@shared.worker_options
def worker(app: str, queues: frozenset[str] | None, **said: Any) -> int:
    """Run the jobs of APP (module:attribute) until SIGTERM or Ctrl-C."""
    pass
    from mulligan.cli.app_facts import settings_for
    from mulligan.cli.database import prepared
    from mulligan.worker.supervisor.main import WorkerOptions

    begin(leave_with_stdin=said.pop("leave_with_stdin"))
    settings = settings_for(app, worker_flags(said))
    listen(settings)
    with prepared(settings) as store:
        return run_worker(store, settings, WorkerOptions(app, queues))


# `mulligan up APP`.


@click.command()
@click.argument("app")
@shared.worker_options
@shared.page_options
def up(app: str, queues: frozenset[str] | None, **said: Any) -> int:
    """Run the jobs of APP (module:attribute) and serve the page; prints its address."""
    pass
    from mulligan.cli.app_facts import settings_for
    from mulligan.cli.database import prepared
    from mulligan.worker.supervisor.main import WorkerOptions

    begin(leave_with_stdin=said.pop("leave_with_stdin"))
    settings = settings_for(app, worker_flags(said))
    listen(settings)
    with prepared(settings) as store:
        return run_with_page(
            store, settings, WorkerOptions(app, queues), may_move=said["port"] is None
        )


# `mulligan web`: the page alone. It is a program of its own (`python -m mulligan.http`); this becomes it.


@click.command()
@click.argument("app", required=False)
@shared.database
@shared.page_options
def web(app: str | None, database: str | None, host: str | None, port: int | None) -> None:
    """Serve the page; prints its address. With APP: on the database that app names."""
    pass
    from mulligan.config import read_settings

    flags = {"database_url": database, "web.host": host, "web.port": port}
    if app is None:
        settings = read_settings(flags)
    else:
        from mulligan.cli.app_facts import settings_for

        settings = settings_for(app, flags)
    page_environment(settings)
    sys.stdout.flush()
    os.execv(
        sys.executable,
        [sys.executable, "-m", "mulligan.http", *(["--may-move"] if port is None else [])],
    )  # noqa: S606 - no shell is wanted
