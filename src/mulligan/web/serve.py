"""A loopback socket, uvicorn on it, and an end in order."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable

import uvicorn

from mulligan.config import Settings
from mulligan.errors import ConfigError
from mulligan.observe.logs import log_to
from mulligan.web.app import create_app

PORTS = 50  # how far to look for a free one


class CannotServe(Exception):
    """No address to be had."""


def serve(settings: Settings, *, may_move: bool, leave_with_stdin: bool = False) -> None:
    host = loopback(settings.web.host)
    listening = _bind(host, settings.web.port, PORTS if may_move else 1)
    usual = settings.log.level == "INFO"  # of which a server says nothing that anybody misses
    log_to(settings.log.model_copy(update={"level": "WARNING"}) if usual else settings.log)
    config = uvicorn.Config(
        create_app(settings), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=2
    )
    # uvicorn raises the signal it was ended by once more; ended in order is no death by signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if leave_with_stdin:
        threading.Thread(target=_leave_with_stdin, daemon=True).start()
    Server(config, _address(listening)).run(sockets=[listening])


class Server(uvicorn.Server):
    """Tells its address on stdout once it answers there."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.write(f"{self._address}\n")
                sys.stdout.flush()


def loopback(host: str) -> str:
    """There are no keys yet, so the page is for this machine alone."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        if ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:
        pass
    message = (
        f"web.host {host!r} is not a loopback address. The page has no sign-in yet, so it is served to this machine "
        "only: use 127.0.0.1, and to see it from elsewhere: ssh -L 8321:127.0.0.1:8321 HOST"
    )
    raise ConfigError(message)


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
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
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


def _leave_with_stdin() -> None:
    """Whoever started us holds the other end; however they end, we end."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
