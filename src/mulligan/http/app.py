"""The web server: routes of the dashboard, the API under /api/v1, error pages, and serving.

Run it with `python -m mulligan.http.app`, as `mulligan web` does.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from mulligan.access.keys import Keys, Sessions
from mulligan.app.background import stop_at_end_of_stdin
from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings, read_settings
from mulligan.core.errors import ConfigError, NotFound, Refused, SchemaError, StoreUnavailable
from mulligan.core.settings import PASSED_SETTINGS
from mulligan.failures.redact import remove_secrets
from mulligan.http.api import create_api
from mulligan.http.api.auth import ApiContext
from mulligan.http.api.responses import Problem
from mulligan.http.dashboard.actions import ActionScreens
from mulligan.http.dashboard.dependencies import DependencyScreens
from mulligan.http.dashboard.failures import FailureScreens
from mulligan.http.dashboard.history import HistoryScreens
from mulligan.http.dashboard.insight import DoctorScreen, InsightScreens
from mulligan.http.dashboard.jobs import BatchScreens, JobScreens
from mulligan.http.dashboard.notifications import NotificationScreens
from mulligan.http.dashboard.overview import OverviewScreen
from mulligan.http.dashboard.policies import PolicyScreens
from mulligan.http.dashboard.queues import QueueScreens
from mulligan.http.dashboard.releases import ReleaseScreens
from mulligan.http.dashboard.renderer import (
    LiveStream,
    Renderer,
    VisitorRunner,
    build_menu,
    routes_of,
    specificity,
)
from mulligan.http.dashboard.retry import EditScreens
from mulligan.http.dashboard.sessions import NotAllowed, NotSignedIn
from mulligan.http.dashboard.sign_in import SignInScreens, redirect_to_sign_in
from mulligan.http.dashboard.status import StatusScreens
from mulligan.http.middleware import (
    API_PREFIX,
    SecurityMiddleware,
    SlowClientProtocol,
    is_loopback_host,
    path_below_root,
    raise_file_limit,
)
from mulligan.http.services import DatabaseUnavailable, StoreOpener, describe_outage
from mulligan.observability.logs import configure_logging

# API routes that are also served at the root, where load balancers and scrapers expect them.
ROOT_ALIASES = ("/livez", "/readyz", "/startupz", "/metrics", "/openapi.json")
STATIC = Path(__file__).parent / "dashboard" / "static"
SCREENS: tuple[type, ...] = (
    OverviewScreen,
    SignInScreens,
    JobScreens,
    EditScreens,
    FailureScreens,
    BatchScreens,
    QueueScreens,
    DependencyScreens,
    HistoryScreens,
    ActionScreens,
    StatusScreens,
    NotificationScreens,
    InsightScreens,
    ReleaseScreens,
    PolicyScreens,
    DoctorScreen,
)
MENU = build_menu(SCREENS)


def create_app(served: Settings | Mulligan | StoreOpener) -> FastAPI:
    """Build the dashboard and the API of a database (settings) or of an app to mount elsewhere."""
    if isinstance(served, Settings):
        served = StoreOpener(served, follow_apps=True)
    is_own_server = isinstance(served, StoreOpener)
    opener = served if isinstance(served, StoreOpener) else StoreOpener(served.settings)
    settings = opener.settings
    runner = VisitorRunner(opener)
    api = create_api(served)
    context: ApiContext = api.state.context

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        runner.close()
        context.close()
        opener.close()

    app = FastAPI(
        title="Mulligan", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan
    )
    app.state.context = context
    # Our own server on loopback: only people on this machine can reach it.
    is_local_server = is_own_server and is_loopback_host(settings.web.host)
    context.show_database_errors = is_local_server and not settings.web.public_url
    public_host = urlsplit(settings.web.public_url).netloc
    app.add_middleware(SecurityMiddleware, any_host=not is_local_server, public_host=public_host)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.mount(API_PREFIX, api)
    for path in ROOT_ALIASES:
        alias: Any = ApiAlias(api, path)
        app.add_route(path, alias, methods=["GET", "HEAD"])
    _add_screens(app, Renderer(runner, settings, MENU), context)
    return app


class ApiAlias:
    """Serves a route of the API under another path."""

    def __init__(self, api: FastAPI, path: str) -> None:
        self._api = api
        self._path = path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        root = scope.get("root_path", "") + API_PREFIX
        await self._api({**scope, "path": root + self._path, "root_path": root}, receive, send)


def _add_screens(app: FastAPI, renderer: Renderer, context: ApiContext) -> None:
    live = LiveStream(renderer, context.hub)
    app.add_api_route("/live", live.listen, methods=["GET"], response_model=None)
    handlers = []
    for screens in SCREENS:
        instance = screens(renderer)
        for route in routes_of(screens):
            handlers.append((route, getattr(instance, route.handler)))
    for route, handler in sorted(handlers, key=lambda pair: specificity(pair[0])):
        methods = list(route.methods)
        app.add_api_route(route.path, handler, methods=methods, response_model=None)
    _add_error_pages(app, ErrorPages(renderer))


def _add_error_pages(app: FastAPI, pages: ErrorPages) -> None:
    app.add_exception_handler(DatabaseUnavailable, pages.database_unavailable)
    app.add_exception_handler(NotSignedIn, pages.not_signed_in)
    app.add_exception_handler(NotAllowed, pages.not_allowed)
    app.add_exception_handler(NotFound, pages.not_found)
    app.add_exception_handler(Refused, pages.refused)
    app.add_exception_handler(HTTPException, pages.http_error)


class ErrorPages:
    """Dashboard pages for requests that fail."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    async def database_unavailable(self, request: Request, error: Exception) -> Response:
        """Answer 503, never 500: a database outage is temporary."""
        context: ApiContext = request.app.state.context
        detail = describe_outage(error, show_detail=context.show_database_errors)
        advice = "This page reloads by itself. Running jobs continue; nothing is lost."
        return self._message(request, 503, "The database does not answer", detail, advice)

    async def not_signed_in(self, request: Request, _: Exception) -> Response:
        if request.method in {"GET", "HEAD"}:
            return redirect_to_sign_in(request)
        advice = "Nothing was changed. Sign in and try again."
        return self._message(request, 403, "You are not signed in", "", advice)

    async def not_allowed(self, request: Request, error: Exception) -> Response:
        return self._message(request, 403, "Not allowed", str(error), "Nothing was changed.")

    async def not_found(self, request: Request, error: Exception) -> Response:
        advice = "It may have been removed by retention."
        return self._message(request, 404, "Not found", str(error), advice)

    async def refused(self, request: Request, error: Exception) -> Response:
        title = "Invalid request"
        advice = ""
        if "filter" in request.query_params:
            title = "This filter is not understood"
            advice = "Example of a filter: state:dead kind:render queue:mail"
        return self._message(request, 400, title, str(error), advice)

    async def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        # A path with a line break matches no mount, so API clients can end up here.
        if path_below_root(request.scope).startswith(API_PREFIX):
            return Problem(status, "NOT_FOUND", "no such API route").response()
        title = "This request is not possible here"
        advice = "Go back and use the buttons of the page."
        if status == 404:
            title = "No such page"
            advice = "Check the address. To find a job, paste its id into the search box."
        return self._message(request, status, title, "", advice)

    def _message(
        self, request: Request, status: int, title: str, detail: str, advice: str
    ) -> Response:
        values = {
            "title": title,
            "detail": remove_secrets(detail),
            "advice": advice,
            "filter": request.query_params.get("filter", ""),
        }
        return self._renderer.page(request, "message.html", "", status, **values)


# --- Serving ---

PORTS_TO_TRY = 50
# Repeat the stop signal: uvicorn ignores signals until it has started.
STOP_SIGNAL_INTERVAL = 0.5  # seconds


class CannotServe(Exception):
    """The server cannot listen on the configured address."""


def serve(settings: Settings, *, may_move: bool, leave_with_stdin: bool = False) -> None:
    """Serve the dashboard and the API until a signal, or until stdin ends.

    `may_move` allows the next free port if the configured one is taken.
    """
    opener = StoreOpener(settings, follow_apps=True)
    with contextlib.suppress(StoreUnavailable, SchemaError):  # the page itself will report it
        opener()
    settings = opener.settings
    host = check_bind_address(settings)
    ports_to_try = PORTS_TO_TRY if may_move else 1
    listener = _bind(host, settings.web.port, ports_to_try)
    _configure_logs(settings)
    app = create_app(opener)
    raise_file_limit()
    # After a clean shutdown uvicorn raises the signal that stopped it again. Ignore it, so that
    # the exit status is 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if leave_with_stdin:
        stop_at_end_of_stdin(repeat=STOP_SIGNAL_INTERVAL)
    address = _url(listener) + _sign_in_path(settings)
    server = Server(server_config(app), address, app.state.context.hub.close)
    server.run(sockets=[listener])


def _configure_logs(settings: Settings) -> None:
    """Log warnings only, unless another level than the default is set."""
    log = settings.log
    if log.level == "INFO":
        log = log.model_copy(update={"level": "WARNING"})
    configure_logging(log)


def server_config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=SlowClientProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )


class Server(uvicorn.Server):
    """Prints its address on stdout once it accepts requests, and ends its streams on shutdown."""

    def __init__(
        self, config: uvicorn.Config, address: str, end_streams: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._address = address
        self._end_streams = end_streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.write(f"{self._address}\n")
                sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def check_bind_address(settings: Settings) -> str:
    """Return the address to bind. Refuse a public address as long as no valid key exists."""
    host = "127.0.0.1" if settings.web.host == "localhost" else settings.web.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        message = (
            f"web.host {host!r} is not a loopback address or any other IP address. "
            "Use 127.0.0.1, or 0.0.0.0 for all interfaces."
        )
        raise ConfigError(message) from None
    if not address.is_loopback and not _has_valid_key(settings):
        message = (
            f"web.host {host!r} is not a loopback address, and no key exists yet, so nobody could "
            "sign in. Create a key first: mulligan keys create --scope '*' --role admin. "
            "Or use 127.0.0.1."
        )
        raise ConfigError(message)
    return host


def _sign_in_path(settings: Settings) -> str:
    """Return the path of a one-time sign-in link on a loopback server, else an empty string."""
    if not is_loopback_host(settings.web.host):
        return ""
    opener = StoreOpener(settings)
    try:
        return f"sign-in?{urlencode({'link': Sessions(opener).create_link()})}"
    except (StoreUnavailable, SchemaError):
        return ""  # the page itself reports that there is no database
    finally:
        opener.close()


def _has_valid_key(settings: Settings) -> bool:
    opener = StoreOpener(settings)
    try:
        return any(key.state == "valid" for key in Keys(opener).list())
    except (StoreUnavailable, SchemaError) as error:
        message = (
            f"web.host {settings.web.host!r} is not a loopback address, which needs a key, "
            f"and the keys cannot be read: {error}"
        )
        raise ConfigError(message) from error
    finally:
        opener.close()


def _bind(host: str, port: int, ports: int) -> socket.socket:
    for candidate in _candidate_ports(port, ports):
        try:
            listener = _listen(host, candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                message = f"cannot serve on {host} port {candidate}: {error.strerror}"
                raise CannotServe(message) from error
            continue
        if candidate != port:
            sys.stderr.write(f"port {port} is in use; using {candidate}\n")
        return listener
    message = f"port {port} of {host} is in use. Choose another one, for example --port 8400."
    raise CannotServe(message)


def _candidate_ports(port: int, ports: int) -> Iterable[int]:
    if port == 0:
        return (port,)
    return range(port, min(port + ports, 65_536))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio sets TCP_NODELAY only if it is IPPROTO_TCP. Without it a response
    # can wait 40 ms for the client's delayed ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}/"


def _read_settings() -> Settings:
    """Return the settings that the command line has passed on, or read them."""
    passed = os.environ.pop(PASSED_SETTINGS, "")
    return Settings.from_json(passed) if passed else read_settings()


def main() -> int:
    parser = argparse.ArgumentParser(prog="mulligan web")
    parser.add_argument(
        "--may-move",
        action="store_true",
        help="use the next free port if the configured one is in use",
    )
    parser.add_argument("--leave-with-stdin", action="store_true", help="stop when stdin is closed")
    args = parser.parse_args()
    try:
        serve(_read_settings(), may_move=args.may_move, leave_with_stdin=args.leave_with_stdin)
    except (ConfigError, CannotServe) as error:
        sys.stderr.write(f"mulligan: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
