"""A TCP proxy on loopback that delays every byte, or swallows what listening connections carry."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65_536


class ProxiedSocket:
    """One proxied connection, with a thread for each direction."""

    def __init__(self, network: Network, client: socket.socket, *, muted: bool) -> None:
        self._network = network
        self._client = client
        self._server = socket.create_connection(network.server)
        self.listens = False
        self.muted = muted
        for source, target in ((client, self._server), (self._server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self.listens = self.listens or (source is self._client and b"LISTEN" in data)
                if self._network.swallows(self):
                    continue
                time.sleep(self._network.delay)
                target.sendall(data)
        if not self._network.swallows(self):
            self.close()

    def close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Network:
    """The way to a server, as its clients see it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self.delay = 0.0  # seconds in each direction
        self.mute_listeners = False  # keep listening connections open and forward nothing
        self.mute_new = False  # the same for connections that are opened from now on
        self._accepted: list[ProxiedSocket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@{host}"))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                connection = ProxiedSocket(self, client, muted=self.mute_new)
                self._accepted.append(connection)

    def swallows(self, connection: ProxiedSocket) -> bool:
        return connection.muted or (self.mute_listeners and connection.listens)

    def mute_existing(self) -> None:
        """Forward nothing more on the connections that exist; new ones work."""
        for connection in self._accepted:
            connection.muted = True

    @property
    def listening(self) -> int:
        """How many connections have sent LISTEN."""
        return sum(connection.listens for connection in self._accepted)

    def close(self) -> None:
        self._listener.close()
        for connection in self._accepted:
            connection.close()


@contextmanager
def network_to(url: str) -> Iterator[Network]:
    """Yield a proxy in front of the server of this URL."""
    network = Network(url)
    try:
        yield network
    finally:
        network.close()
