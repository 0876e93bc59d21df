"""`mulligan demo`: jobs that succeed, fail and recover, on a database of their own."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import NoReturn

import click

from mulligan.cli import options as shared

# `mulligan demo NAME`: one of the applications in apps/, started as its own README says.

PACKAGE = Path(__file__).parent.parent
PLACES = (PACKAGE / "apps", PACKAGE.parent.parent / "apps")  # installed; in the repository
NEEDED = ("PIL", "imageio_ffmpeg", "multipart", "numpy", "sqlalchemy")  # some of the extra `apps`


def run_application(
    name: str, database: str | None, host: str | None, port: int | None
) -> NoReturn:
    """In our place: signals and the terminal are the application's."""
    folder = _folder_of(name)
    if any(importlib.util.find_spec(module) is None for module in NEEDED):
        message = "the applications need a few more packages: pip install 'mulligan[apps]'"
        raise click.ClickException(message)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    said = {"--database": database, "--host": host, "--port": port}
    flags = [
        str(word) for flag, value in said.items() if value is not None for word in (flag, value)
    ]
    os.execve(  # noqa: S606 - no shell
        sys.executable, [sys.executable, "-m", name, *flags], {**os.environ, "PYTHONPATH": path}
    )


def applications() -> dict[str, Path]:
    """By name, where it lies."""
    return {
        main.parent.name: place
        for place in reversed(PLACES)
        for main in sorted(place.glob("[!_.]*/__main__.py"))
    }


def _folder_of(name: str) -> Path:
    known = applications()
    if name not in known:
        message = f"there is no application {name!r}; there are: {', '.join(known) or 'none in this installation'}"
        raise click.UsageError(message)
    return known[name]


# Where the demo's webhooks go: a receiver on this machine that has its bad moments.

REFUSES = 3  # one of so many


class Receiver:
    """`/hook` refuses one message of three, for the first time it comes; `/moved` is gone for good."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"


def _handler() -> type[BaseHTTPRequestHandler]:
    numbers = count()

    class ReceiverHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(
                410 if self.path == "/moved" else 503 if next(numbers) % REFUSES == 0 else 204
            )
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    return ReceiverHandler


# `mulligan demo`: jobs that succeed, fail and recover, on a database of their own.

APP = "mulligan.cli.demo_jobs:app"


@click.command()
@click.argument("name", required=False)
@click.option(
    "--seconds", type=int, default=600, show_default=True, help="How long new jobs keep coming."
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    default="WARNING",
    show_default=True,
)
@shared.database
@shared.page_options
def demo(
    name: str | None,
    seconds: int,
    log_level: str,
    database: str | None,
    host: str | None,
    port: int | None,
) -> int:
    """Run jobs that succeed, fail and recover, and serve the page; prints its address.

    NAME is one of the applications (watermark): a whole one, with its pages, its workers and the world it needs.

    Everything is in a temporary directory that goes with the demo, unless --database names a place.
    """
    if name is not None:
        pass

        run_application(name, database, host, port)
    if database is not None:
        return _run(database, seconds, log_level, host, port)
    with tempfile.TemporaryDirectory(prefix="mulligan-demo-", ignore_cleanup_errors=True) as folder:
        return _run(f"sqlite:///{Path(folder) / 'demo.db'}", seconds, log_level, host, port)


def _run(database: str, seconds: int, log_level: str, host: str | None, port: int | None) -> int:
    from mulligan.cli import worker as working
    from mulligan.cli.database import say, settings_with
    from mulligan.failures.redact import without_secrets
    from mulligan.storage import open_store
    from mulligan.storage.url import shown_url, sqlite_file
    from mulligan.worker.supervisor.main import WorkerOptions

    working.begin()
    os.environ["MULLIGAN_DATABASE_URL"] = database  # for the runners and the feeder
    os.environ["MULLIGAN_NOTIFY__ALLOW_PRIVATE"] = (
        "127.0.0.0/8"  # the demo's own receiver of webhooks
    )
    os.environ["DEMO_BEGAN"] = str(int(time.time()))
    flags = {
        "worker.concurrency": 12,
        "worker.runners": 2,
        "worker.shutdown_grace": 3,
        "worker.sweep": 1,
    }
    settings = settings_with(
        database, flags | {"web.host": host, "web.port": port, "log.level": log_level}
    )
    working.listen(settings)
    store = open_store(settings.database_url, schema=settings.schema_name)
    store.prepare()
    say(f"database: {sqlite_file(database) or without_secrets(shown_url(database))}")
    say(
        f"try in another terminal: mulligan jobs list state:dead --database {without_secrets(shown_url(database))}"
    )
    feeder = working.Companion("mulligan.cli.demo_feeder", str(seconds))
    options = WorkerOptions(APP)
    try:
        return working.run_with_page(
            store, settings, options, may_move=port is None, others=[feeder]
        )
    finally:
        store.close()
