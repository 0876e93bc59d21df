"""`mulligan worker`, `mulligan up`, `mulligan web`: run a supervisor, the dashboard, or both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, Any

import click

from mulligan.alerts.chore import AlertChecker
from mulligan.app.background import stop_at_end_of_stdin
from mulligan.cli import options as shared
from mulligan.cli.app_facts import load_app_facts, load_app_settings
from mulligan.cli.database import Notices, open_or_create, print_notice
from mulligan.config import Settings, read_settings
from mulligan.core.extras import check_extra
from mulligan.core.settings import PASSED_SETTINGS
from mulligan.notifications.dispatcher import Dispatcher
from mulligan.observability import logs
from mulligan.observability.event_counts import EventCounter
from mulligan.storage import Store
from mulligan.worker.supervisor.chores import PeriodicTask
from mulligan.worker.supervisor.main import Supervisor, WorkerOptions
from mulligan.worker.supervisor.runner_process import StderrHandler

WEB_MODULE = "mulligan.http.app"
CLOSE_TIMEOUT = 5.0  # seconds until a companion process is killed

# Settings that options of the command line stand for
SETTING_NAMES = {
    "database": "database_url",
    "concurrency": "worker.concurrency",
    "runners": "worker.runners",
    "max_jobs_per_runner": "worker.max_jobs_per_runner",
    "max_memory_per_runner": "worker.max_memory_per_runner",
    "log_level": "log.level",
    "log_format": "log.format",
    "host": "web.host",
    "port": "web.port",
}

# --- mulligan worker ---


@click.command("worker")
@click.argument("app")
@click.option("--reload", is_flag=True, help="Restart when a source file changes: to develop.")
@click.option(
    "--canary",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Run at most this share of each kind (0.05) until the release is judged.",
)
@shared.worker_options
def worker(
    app: str,
    queues: frozenset[str] | None,
    canary: float | None,
    *,
    leave_with_stdin: bool,
    reload: bool,
    **options: Any,
) -> int:
    """Run the jobs of APP (module:attribute) until SIGTERM or Ctrl-C."""
    prepare_process(leave_with_stdin=leave_with_stdin)
    flags = settings_from_options(options)
    if reload and canary is not None:
        message = "--canary is for deployed workers; remove it or --reload"
        raise click.UsageError(message)
    if reload:
        from mulligan.cli.reload import Reloader

        return Reloader(partial(load_app_facts, app, flags), worker_command(app, queues)).run()
    settings = passed_settings() or load_app_settings(app, flags)
    configure_logging(settings)
    with open_or_create(settings) as store:
        return run_worker(store, settings, WorkerOptions(app, queues, canary))


# --- mulligan up ---


@click.command("up")
@click.argument("app")
@shared.worker_options
@shared.web_options
def up(app: str, queues: frozenset[str] | None, *, leave_with_stdin: bool, **options: Any) -> int:
    """Run the jobs of APP (module:attribute) and serve the dashboard. Prints its address."""
    check_extra("web", "the dashboard")
    prepare_process(leave_with_stdin=leave_with_stdin)
    settings = load_app_settings(app, settings_from_options(options))
    configure_logging(settings)
    may_move = options["port"] is None
    with open_or_create(settings) as store:
        return run_with_web(store, settings, WorkerOptions(app, queues), may_move=may_move)


# --- mulligan web ---


@click.command("web")
@click.argument("app", required=False)
@shared.database_option
@shared.web_options
def web(app: str | None, **options: Any) -> None:
    """Serve the dashboard and the HTTP API. Prints the address.

    With APP: on the database of that app.
    """
    check_extra("web", "the dashboard")
    flags = settings_from_options(options)
    settings = read_settings(flags) if app is None else load_app_settings(app, flags)
    os.environ[PASSED_SETTINGS] = settings.to_json()
    sys.stdout.flush()
    arguments = [sys.executable, "-m", WEB_MODULE]
    if options["port"] is None:
        arguments.append("--may-move")
    os.execv(sys.executable, arguments)  # noqa: S606 - no shell is wanted


# --- Preparation ---


def worker_command(app: str, queues: frozenset[str] | None) -> list[str]:
    """Return the arguments of a worker that gets its settings from this process."""
    command = ["worker", app]
    if queues is not None:
        command += ["--queues", ",".join(sorted(queues))]
    return command


def passed_settings() -> Settings | None:
    """Return the settings that the process passed which started this one; None if it did not."""
    passed = os.environ.pop(PASSED_SETTINGS, "")
    return Settings.from_json(passed) if passed else None


def prepare_process(*, leave_with_stdin: bool = False) -> None:
    """Exit cleanly on a SIGTERM that arrives before the supervisor handles signals."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if leave_with_stdin:
        stop_at_end_of_stdin()


def configure_logging(settings: Settings) -> None:
    """Send logs, and in format json also notices, to stderr in the configured format."""
    logs.configure_logging(settings.log, StderrHandler())
    if settings.log.format == "json":
        Notices.log = logging.getLogger("mulligan.cli").info


def settings_from_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return command-line options as settings by dotted name."""
    return {SETTING_NAMES[name]: value for name, value in options.items()}


# --- Supervisor ---


def periodic_tasks(settings: Settings) -> tuple[PeriodicTask, ...]:
    """Return the tasks of every worker besides jobs. Each takes a lease, so one worker runs it."""
    return (Dispatcher(settings), EventCounter(), AlertChecker(settings.alerts))


def build_supervisor(store: Store, settings: Settings, options: WorkerOptions) -> Supervisor:
    """Build a supervisor with notifications, event counts, alerts and metrics."""
    with_tasks = replace(
        options,
        periodic_tasks=periodic_tasks(settings),
        runner_module="mulligan.observability.runner",
    )
    return Supervisor(store, settings, with_tasks)


def run_worker(store: Store, settings: Settings, options: WorkerOptions) -> int:
    """Run a supervisor until it is stopped. Return the exit code."""
    return asyncio.run(build_supervisor(store, settings, options).run())


# --- Supervisor with companion processes ---


class CompanionProcess:
    """A child process that ends with this one: its stdin closes when this process ends."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        read_stdout: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.closing = False
        stdout = subprocess.PIPE if read_stdout else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=stdout,
            start_new_session=True,  # Ctrl-C goes to the supervisor only, which closes companions
        )

    def first_line(self) -> str:
        """Wait for the first line of its stdout."""
        stdout: IO[bytes] | None = self.process.stdout
        return "" if stdout is None else stdout.readline().decode().strip()

    def close(self) -> None:
        """Terminate the process; kill it if it does not exit in time."""
        self.closing = True
        self.process.terminate()
        try:
            self.process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def print_address(address: str) -> None:
    """Print the address of the dashboard, and how to stop."""
    print(address, flush=True)
    print_notice("Press Ctrl-C to stop after running jobs, twice to stop at once.")


def run_with_web(
    store: Store,
    settings: Settings,
    options: WorkerOptions,
    *,
    may_move: bool,
    others: Sequence[CompanionProcess] = (),
    announce: Callable[[str], None] = print_address,
) -> int:
    """Run a supervisor and the web process until one of them ends. Return the exit code.

    `announce` gets the address of the dashboard as soon as it answers.
    """
    web_process = start_web(settings, may_move=may_move)
    supervisor = build_supervisor(store, settings, options)
    try:
        return asyncio.run(_run_together(supervisor, web_process, announce))
    finally:
        for companion in (web_process, *others):
            companion.close()


async def _run_together(
    supervisor: Supervisor, web_process: CompanionProcess, announce: Callable[[str], None]
) -> int:
    watch = asyncio.create_task(_watch_web(web_process, announce))
    try:
        code = await supervisor.run()
    finally:
        web_process.close()
    web_failed = await watch
    return 1 if web_failed else code


async def _watch_web(web_process: CompanionProcess, announce: Callable[[str], None]) -> bool:
    """Announce the address of the web process. If it ends by itself, stop and return True."""
    address = await asyncio.to_thread(web_process.first_line)
    if address:
        announce(address)
    await asyncio.to_thread(web_process.process.wait)
    if web_process.closing:
        return False
    print_notice("The web process ended; stopping the worker.")
    os.kill(os.getpid(), signal.SIGTERM)
    return True


def start_web(settings: Settings, *, may_move: bool) -> CompanionProcess:
    """Start the web process. `may_move`: it may use another port if its port is taken."""
    arguments = ["--leave-with-stdin"]
    if may_move:
        arguments.append("--may-move")
    # By environment: a URL may hold a password, and `ps` shows command lines.
    passed = {PASSED_SETTINGS: settings.to_json()}
    return CompanionProcess(WEB_MODULE, *arguments, read_stdout=True, env=passed)
