"""A socket, uvicorn on it, and an end in order."""

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
from mulligan.app.background import leave_with_stdin as leave
from mulligan.config import Settings, read_settings
from mulligan.core.errors import ConfigError, SchemaError, StoreUnavailable
from mulligan.http.app import create_app
from mulligan.http.middleware import SlowClientMiddleware, is_local, room_for_clients
from mulligan.http.services import Opening
from mulligan.observability.logs import log_to

PORTS = 50  # how far to look for a free one


LEAVE_EVERY = 0.5  # seconds; a server that is still starting does not hear the first signal


class CannotServe(Exception):
    """No address to be had."""


def serve(settings: Settings, *, may_move: bool, leave_with_stdin: bool = False) -> None:
    host = allowed(settings)
    listening = _bind(host, settings.web.port, PORTS if may_move else 1)
    usual = settings.log.level == "INFO"  # of which a server says nothing that anybody misses
    log_to(settings.log.model_copy(update={"level": "WARNING"}) if usual else settings.log)
    app = create_app(settings)
    room_for_clients()
    config = server_config(app)
    # uvicorn raises the signal it was ended by once more; ended in order is no death by signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if leave_with_stdin:
        leave(again=LEAVE_EVERY)
    Server(config, _address(listening) + _way_in(settings), app.state.room.hub.close).run(
        sockets=[listening]
    )


def server_config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=SlowClientMiddleware,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )


class Server(uvicorn.Server):
    """Tells its address on stdout once it answers there, and ends its streams when it stops."""

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


def allowed(settings: Settings) -> str:
    """This machine alone, unless somebody has a key to come in with from elsewhere."""
    host = "127.0.0.1" if settings.web.host == "localhost" else settings.web.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        message = f"web.host {host!r} is not a loopback address, nor any other; use 127.0.0.1, or 0.0.0.0 for all"
        raise ConfigError(message) from None
    if not address.is_loopback and not _has_keys(settings):
        message = (
            f"web.host {host!r} is not a loopback address, and there is no key yet: everybody could ask, and nobody be "
            "answered. Make one first: mulligan keys create --scope '*' --role admin; or use 127.0.0.1"
        )
        raise ConfigError(message)
    return host


def _way_in(settings: Settings) -> str:
    """On this machine: what signs in whoever started us, once. Elsewhere people have keys."""
    if not is_local(settings.web.host):
        return ""
    opening = Opening(settings)
    try:
        return f"sign-in?{urlencode({'link': Sessions(opening).link()})}"
    except (StoreUnavailable, SchemaError):
        return ""  # there is nothing to see yet, and the page will say so
    finally:
        opening.close()


def _has_keys(settings: Settings) -> bool:
    opening = Opening(settings)
    try:
        return any(key.state == "valid" for key in Keys(opening).list())
    except (StoreUnavailable, SchemaError) as error:
        message = f"web.host {settings.web.host!r} is not a loopback address, and whether there is a key: {error}"
        raise ConfigError(message) from error
    finally:
        opening.close()


def _bind(host: str, port: int, ports: int) -> socket.socket:
    for candidate in _candidates(port, ports):
        try:
            listening = _listen(host, candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                message = f"cannot serve on {host} port {candidate}: {error.strerror}"
                raise CannotServe(message) from error
            continue
        if candidate != port:
            sys.stderr.write(f"port {port} is taken; using {candidate}\n")
        return listening
    message = f"port {port} of {host} is taken; choose another: --port 8400"
    raise CannotServe(message)


def _candidates(port: int, ports: int) -> Iterable[int]:
    return (port,) if port == 0 else range(port, min(port + ports, 65_536))


def _listen(host: str, port: int) -> socket.socket:
    # Said by its name: asyncio sends at once only where it knows that it is TCP; elsewhere an answer may wait 40 ms.
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


# `python -m mulligan.http`: serves the page; its settings come from the environment and mulligan.toml.


def main() -> int:
    parser = argparse.ArgumentParser(prog="mulligan web")
    parser.add_argument(
        "--may-move", action="store_true", help="take the next free port when this one is taken"
    )
    parser.add_argument("--leave-with-stdin", action="store_true", help="end when stdin ends")
    args = parser.parse_args()
    try:
        serve(read_settings(), may_move=args.may_move, leave_with_stdin=args.leave_with_stdin)
    except (ConfigError, CannotServe) as error:
        sys.stderr.write(f"mulligan: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
