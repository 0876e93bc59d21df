"""Shared state of the API routes: the app, database threads, rate limits and the event hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mulligan.access.keys import Key
from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.http.api.event_hub import EventHub
from mulligan.http.middleware import KeyRateLimits
from mulligan.http.services import DatabaseThreads, StoreOpener, WebServices
from mulligan.storage import Store

T = TypeVar("T")

KEY_USE_INTERVAL = 60.0  # seconds between two records of the same key's use
SLOW_QUERY_TIMEOUT = 60.0  # seconds


class ManifestApp(Mulligan):
    """An app without handlers: what it knows comes from the manifests stored in its database."""

    def __init__(self, settings: Settings, opener: StoreOpener) -> None:
        self._opener = opener
        super().__init__(settings=settings)

    @property
    def store(self) -> Store:
        return self._opener()


class ApiContext:
    """State that all routes of one API share."""

    def __init__(self, app: Mulligan) -> None:
        self.app = app
        self.settings = app.settings
        self.hub = EventHub(self.store, app.settings.web)
        self._threads = DatabaseThreads("mulligan-api")
        self._slow_thread = DatabaseThreads("mulligan-api-long", 1)
        self.rates = KeyRateLimits(app.settings.web)
        self._key_used_at: dict[str, float] = {}  # key id → monotonic time
        self.show_database_errors = False

    def store(self) -> Store:
        return self.app.store

    async def run(self, call: Callable[[], T]) -> T:
        """Run a short database call on a thread."""
        return await self._threads.run(call)

    async def run_slow(self, call: Callable[[], T]) -> T:
        """Run a call that reads much. Such calls run one at a time and do not delay short ones."""
        return await self._slow_thread.run(call, SLOW_QUERY_TIMEOUT)

    def record_key_use(self, key: Key) -> None:
        """Record that a key was used, at most once a minute, without delaying the request."""
        now = time.monotonic()
        if now - self._key_used_at.get(key.id, -KEY_USE_INTERVAL) >= KEY_USE_INTERVAL:
            self._key_used_at[key.id] = now
            self._threads.run_detached(lambda: self.app.keys.used(key))

    def close(self) -> None:
        self.hub.close()
        self._threads.close()
        self._slow_thread.close()

    def services_for(self, actor: str) -> WebServices:
        """Return the services of the app, acting in the name of `actor`."""
        return WebServices(self.store, self.settings, actor, self.app.registry)
