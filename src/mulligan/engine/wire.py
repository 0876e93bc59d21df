"""Messages between a supervisor and a runner: length-prefixed, over a socketpair.

A runner speaks JSON: it holds user code, and nothing it sends may run or crash the supervisor. A supervisor speaks
marshal, which is several times faster to write and to read: it holds no user code, and both are one interpreter.
"""

from __future__ import annotations

import json
import marshal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

_HEAD = struct.Struct(">I")
_CHUNK = 1 << 16  # more would be memory asked of the kernel for each message
MOST = 1 << 28  # bytes of a message: no result is as large
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def _to_json(message: list[Any]) -> bytes:
    return _encode(message).encode("utf-8", "surrogatepass")


def _from_json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8", "surrogatepass"))


def _from_marshal(body: bytes) -> Any:
    return marshal.loads(body)  # noqa: S302 - a runner hears nobody but its supervisor


class WireClosed(ConnectionError):
    """The other side is gone."""


class Wire:
    """One end. Never blocks: what the socket does not take is kept until `flush` is called again."""

    def __init__(self, sock: socket.socket, says: Callable[[list[Any]], bytes], hears: Callable[[bytes], Any]) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._says = says
        self._hears = hears
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @classmethod
    def of_supervisor(cls, sock: socket.socket) -> Wire:
        return cls(sock, marshal.dumps, _from_json)

    @classmethod
    def of_runner(cls, sock: socket.socket) -> Wire:
        return cls(sock, _to_json, _from_marshal)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        return bool(self._outgoing)

    def send(self, *messages: list[Any]) -> None:
        """All of them at once: the other side wakes up once."""
        for message in messages:
            body = self._says(message)
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
            body = bytes(self._incoming[_HEAD.size : end])
            del self._incoming[:end]
            yield self._hears(body)
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
