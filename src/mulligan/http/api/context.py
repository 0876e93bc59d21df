"""What all routes work with: an app, its database asked on threads, and the hub of streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mulligan.access.keys import Key
from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.http.api.event_hub import Hub
from mulligan.http.middleware import Rates
from mulligan.http.services import Opening, Threads, WebServices
from mulligan.storage import Store

T = TypeVar("T")

EVERY = 60.0  # seconds
LONG = 60.0  # seconds for what reads much


class Served(Mulligan):
    """An app without handlers, on a database that somebody else makes: what it knows is in the manifests there."""

    def __init__(self, settings: Settings, opening: Opening) -> None:
        self._opening = opening
        super().__init__(settings=settings)

    @property
    def store(self) -> Store:
        return self._opening()


class ApiContext:
    def __init__(self, app: Mulligan) -> None:
        self.app = app
        self.settings = app.settings
        self.hub = Hub(self.store, app.settings.web)
        self._threads = Threads("mulligan-api")
        self._long = Threads("mulligan-api-long", 1)
        self.rates = Rates(app.settings.web)
        self._used: dict[str, float] = {}
        self.candid = False  # may whoever asks know why the database does not answer?

    def store(self) -> Store:
        return self.app.store

    async def ask(self, call: Callable[[], T]) -> T:
        return await self._threads.ask(call)

    async def ask_long(self, call: Callable[[], T]) -> T:
        """What reads much: one after the other, and never in the way of the rest."""
        return await self._long.ask(call, LONG)

    def remember(self, key: Key) -> None:
        """That it was used, once a minute, beside the request: who asks does not wait for that."""
        now = time.monotonic()
        if now - self._used.get(key.id, -EVERY) >= EVERY:
            self._used[key.id] = now
            self._threads.aside(lambda: self.app.keys.used(key))

    def close(self) -> None:
        self.hub.close()
        self._threads.close()
        self._long.close()

    def desk(self, actor: str) -> WebServices:
        """The nouns of the app, in the name of one caller."""
        return WebServices(self.store, self.settings, actor, self.app.registry)
