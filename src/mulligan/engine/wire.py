"""Messages between a supervisor and a runner: length-prefixed JSON over a socketpair.

JSON, not pickle or marshal: a runner holds user code, and nothing it sends may run or crash the supervisor.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

_HEAD = struct.Struct(">I")
_CHUNK = 1 << 16  # more would be memory asked of the kernel for each message
MOST = 1 << 28  # bytes of a message: no result is as large
_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class WireClosed(ConnectionError):
    """The other side is gone."""


class Wire:
    """One end. Never blocks: what the socket does not take is kept until `flush` is called again."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        return bool(self._outgoing)

    def send(self, message: list[Any]) -> None:
        body = _dump(message).encode("utf-8", "surrogatepass")
        self._outgoing += _HEAD.pack(len(body))
        self._outgoing += body
        self.flush()

    def flush(self) -> bool:
        """True when nothing is left to send."""
        while self._outgoing:
            try:
                sent = self.sock.send(self._outgoing)
            except BlockingIOError:
                return False
            except OSError as error:
                raise WireClosed(str(error)) from error
            del self._outgoing[:sent]
        return True

    def receive(self) -> Iterator[list[Any]]:
        """All whole messages that have arrived; raises WireClosed after the last one when the other side is gone."""
        closed = self._fill()
        while len(self._incoming) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._incoming)
            if length > MOST:
                message = f"a message of {length:,} bytes"
                raise ValueError(message)
            end = _HEAD.size + length
            if len(self._incoming) < end:
                break
            body = self._incoming[_HEAD.size : end].decode("utf-8", "surrogatepass")
            del self._incoming[:end]
            yield json.loads(body)
        if closed:
            message = "the other side closed the connection"
            raise WireClosed(message)

    def _fill(self) -> bool:
        while True:
            try:
                chunk = self.sock.recv(_CHUNK)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not chunk:
                return True
            self._incoming += chunk
            if len(chunk) < _CHUNK:
                return False

    def close(self) -> None:
        self.sock.close()
