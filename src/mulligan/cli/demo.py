"""`mulligan demo`: sample jobs with the dashboard, or one of the applications in apps/."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import NoReturn

import click

import mulligan.apps
from mulligan.cli import options as shared
from mulligan.core.extras import check_extra

APP = "mulligan.cli.demo_jobs:app"
FEEDER_MODULE = "mulligan.cli.demo_feeder"
WORKER_SETTINGS = {
    "worker.concurrency": 12,
    "worker.runners": 2,
    "worker.shutdown_grace": 3,
    "worker.sweep": 1,
}


@click.command("demo")
@click.argument("name", required=False)
@click.option(
    "--seconds",
    type=int,
    default=600,
    show_default=True,
    help="How long new jobs are enqueued.",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    help="Log to the terminal. Default: nothing, because the sample jobs fail on purpose.",
)
@shared.database_option
@shared.web_options
def demo(
    name: str | None,
    seconds: int,
    log_level: str | None,
    database: str | None,
    host: str | None,
    port: int | None,
) -> int:
    """Run jobs that succeed, fail and recover, and serve the dashboard. Prints its address.

    NAME starts one of the example applications instead (watermark), with its pages and workers.

    All data is in a temporary directory that is deleted at the end, unless --database is given.
    """
    if name is not None:
        run_application(name, database, host, port)
    check_extra("web", "the demo")
    web_settings = {"web.host": host, "web.port": port, "log.level": log_level or "ERROR"}
    if log_level is None:
        logging.getLogger("mulligan").setLevel(logging.CRITICAL)
    if database is not None:
        return _run(database, seconds, web_settings)
    with tempfile.TemporaryDirectory(prefix="mulligan-demo-", ignore_cleanup_errors=True) as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        _seed_history(url)
        return _run(url, seconds, web_settings)


def _seed_history(database: str) -> None:
    """Fill the demo's own database with a day of jobs. Moves its clock, so never another one."""
    from mulligan.cli.database import print_notice

    print_notice("Preparing a day of sample jobs (some seconds) …")
    environment = {**os.environ, "MULLIGAN_DATABASE_URL": database}
    command = [sys.executable, "-m", FEEDER_MODULE, "history"]
    subprocess.run(command, env=environment, check=True)


def _run(database: str, seconds: int, web_settings: dict[str, str | int | None]) -> int:
    from mulligan.cli import worker
    from mulligan.cli.database import command_line, load_settings, print_notice
    from mulligan.core.format import format_duration, mask_password
    from mulligan.failures.redact import remove_secrets
    from mulligan.storage import open_store, sqlite_path
    from mulligan.worker.supervisor.main import WorkerOptions

    worker.prepare_process()
    _export_environment(database)
    settings = load_settings(database, {**WORKER_SETTINGS, **web_settings})
    worker.configure_logging(settings)
    store = open_store(settings.database_url, schema=settings.schema_name)
    store.prepare()
    name = sqlite_path(database) or remove_secrets(mask_password(database))
    command = command_line("status", database=database)

    def announce(address: str) -> None:
        print(address, flush=True)
        print_notice(
            _draw_box(
                f"Dashboard  {address}",
                f"Database   {name}",
                f"Try        {command}",
                f"Everything you see is sample data: jobs that succeed, fail and recover for "
                f"{format_duration(seconds)}.",
                "Press Ctrl-C to stop.",
            )
        )

    feeder = worker.CompanionProcess(FEEDER_MODULE, str(seconds))
    may_move = web_settings["web.port"] is None
    try:
        return worker.run_with_web(
            store,
            settings,
            WorkerOptions(APP),
            may_move=may_move,
            others=[feeder],
            announce=announce,
        )
    finally:
        store.close()


def _draw_box(*lines: str) -> str:
    width = max(map(len, lines))
    edge = "─" * (width + 2)
    inner = [f"│ {line:<{width}} │" for line in lines]
    return "\n".join([f"╭{edge}╮", *inner, f"╰{edge}╯"])


def _export_environment(database: str) -> None:
    """Set what runners and feeder need: the database, the start time, and access to `Receiver`."""
    os.environ["MULLIGAN_DATABASE_URL"] = database
    os.environ["MULLIGAN_NOTIFY__ALLOW_PRIVATE"] = "127.0.0.0/8"
    os.environ["DEMO_BEGAN"] = str(int(time.time()))


# --- mulligan demo NAME: an application of apps/ ---


def run_application(
    name: str, database: str | None, host: str | None, port: int | None
) -> NoReturn:
    """Replace this process by the application, so that it gets signals and the terminal."""
    _check_application_name(name)
    check_extra("apps", "an application")
    arguments = [sys.executable, "-m", f"mulligan.apps.{name}"]
    for flag, value in (("--database", database), ("--host", host), ("--port", port)):
        if value is not None:
            arguments += [flag, str(value)]
    os.execv(sys.executable, arguments)  # noqa: S606 - no shell is wanted


def applications() -> list[str]:
    """Return the names of the applications."""
    folders = [Path(folder) for folder in mulligan.apps.__path__]
    mains = [main for folder in folders for main in folder.glob("[!_.]*/__main__.py")]
    return sorted(main.parent.name for main in mains)


def _check_application_name(name: str) -> None:
    known = applications()
    if name not in known:
        available = ", ".join(known) or "none in this installation"
        message = f"unknown application {name!r}. Available: {available}"
        raise click.UsageError(message)


# --- Receiver of the demo's webhooks ---

REFUSED_EVERY = 3  # messages


class Receiver:
    """A local webhook receiver. /hook refuses every third message, /moved is gone for good."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _build_handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"


def _build_handler() -> type[BaseHTTPRequestHandler]:
    numbers = count()

    def status_for(path: str) -> int:
        if path == "/moved":
            return 410
        return 503 if next(numbers) % REFUSED_EVERY == 0 else 204

    class ReceiverHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(status_for(self.path))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing: the demo's terminal is for its jobs."""

    return ReceiverHandler
