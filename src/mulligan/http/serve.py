"""Start the web server: bind a socket, run uvicorn on it, shut down cleanly.

`python -m mulligan.http` runs `main`; its settings come from the environment and mulligan.toml.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import ipaddress
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode

import uvicorn

from mulligan.access.keys import Keys, Sessions
from mulligan.app.background import stop_at_end_of_stdin
from mulligan.config import Settings, read_settings
from mulligan.core.errors import ConfigError, SchemaError, StoreUnavailable
from mulligan.http.app import create_app
from mulligan.http.middleware import SlowClientProtocol, is_loopback_host, raise_file_limit
from mulligan.http.services import StoreOpener
from mulligan.observability.logs import configure_logging

PORTS_TO_TRY = 50
# Repeat the stop signal: uvicorn ignores signals until it has started.
STOP_SIGNAL_INTERVAL = 0.5  # seconds


class CannotServe(Exception):
    """The server cannot listen on the configured address."""


def serve(settings: Settings, *, may_move: bool, leave_with_stdin: bool = False) -> None:
    """Serve the dashboard and the API until a signal, or until stdin ends.

    `may_move` allows the next free port if the configured one is taken.
    """
    host = check_bind_address(settings)
    listener = _bind(host, settings.web.port, PORTS_TO_TRY if may_move else 1)
    _configure_logs(settings)
    app = create_app(settings)
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
        serve(read_settings(), may_move=args.may_move, leave_with_stdin=args.leave_with_stdin)
    except (ConfigError, CannotServe) as error:
        sys.stderr.write(f"mulligan: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
