"""What a connection is told by NOTIFY, with as little between the socket and who waits as there can be: an idle worker
starts its next job by it, and its caches are cold by then. The driver's own generator looks ten times a second whether
somebody wants to interrupt it, and costs more than the news.
"""

from __future__ import annotations

import select
from typing import Any

import psycopg


class Ear:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._told: list[str] = []
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)
        connection.add_notify_handler(lambda note: self._told.append(note.payload))  # what comes with an answer

    def hear(self, seconds: float) -> list[str]:
        """What it was told since it was last asked; waits for it."""
        if self._connection.closed:  # and its descriptor may be somebody else's by now
            message = "the connection that listens is closed"
            raise psycopg.OperationalError(message)
        self._take_in()  # what was read with an answer lies in the driver: the socket does not tell of it
        if not self._told and self._socket.poll(seconds * 1000):
            self._connection.pgconn.consume_input()
            self._take_in()
        told, self._told = self._told, []
        return told

    def _take_in(self) -> None:
        while (note := self._connection.pgconn.notifies()) is not None:
            self._told.append(note.extra.decode(errors="replace"))
