"""How long a client may take: for the head of a request, for its body, and to take what it asked for.

A server that waits for ever can be stopped by a few hundred clients that send a byte now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 15.0  # seconds from its first byte, or from connecting
BODY = 60.0  # seconds from the end of its head
TAKEN = 60.0  # seconds in which nothing of an answer is taken
FILES = 65_536  # descriptors that are enough for any number of clients


class Patient(H11Protocol):
    """A request that does not end in time, and an answer that nobody takes, end the connection."""

    _due: asyncio.TimerHandle | None = None
    _body = False  # is it the body that is waited for?
    _taken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(HEAD)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if not self._body:
                self._wait(BODY)
            self._body = True
        elif state is h11.IDLE and not self._body:
            if self._due is None:
                self._wait(HEAD)
        else:
            self._stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken = self.loop.call_later(TAKEN, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taken is not None:
            self._taken.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._taken is not None:
            self._taken.cancel()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop()
        self._due = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self) -> None:
        self._body = False
        if self._due is not None:
            self._due.cancel()
            self._due = None


def room_for_clients() -> None:
    """As many descriptors as this user may have: the usual 1,024 are fewer than the streams of one server."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    if least != resource.RLIM_INFINITY and least < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
