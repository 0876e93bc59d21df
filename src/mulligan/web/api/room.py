"""What all routes work with: an app, its database asked on threads, and the hub of streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from mulligan.app import Mulligan
from mulligan.config import Settings
from mulligan.engine.batches import Batches
from mulligan.engine.dependencies import Dependencies
from mulligan.engine.failures import Failures
from mulligan.engine.jobs import Jobs
from mulligan.engine.keys import Key, Keys
from mulligan.engine.operations import Operations
from mulligan.engine.queues import Queues
from mulligan.notify.deliveries import Deliveries
from mulligan.notify.subscriptions import Subscriptions
from mulligan.store import Store
from mulligan.web.api.hub import Hub
from mulligan.web.asking import Opening, Threads

T = TypeVar("T")

EVERY = 60.0  # seconds


class Served(Mulligan):
    """An app without handlers, on a database that somebody else makes: what it knows is in the manifests there."""

    def __init__(self, settings: Settings, opening: Opening) -> None:
        self._opening = opening
        super().__init__(settings=settings)

    @property
    def store(self) -> Store:
        return self._opening()


class Room:
    def __init__(self, app: Mulligan) -> None:
        self.app = app
        self.settings = app.settings
        self.hub = Hub(self.store, app.settings.web)
        self._threads = Threads("mulligan-api")
        self._used: dict[str, float] = {}

    def store(self) -> Store:
        return self.app.store

    async def ask(self, call: Callable[[], T]) -> T:
        return await self._threads.ask(call)

    def remember(self, key: Key) -> None:
        """That it was used, once a minute, beside the request: who asks does not wait for that."""
        now = time.monotonic()
        if now - self._used.get(key.id, -EVERY) >= EVERY:
            self._used[key.id] = now
            self._threads.aside(lambda: self.app.keys.used(key))

    def close(self) -> None:
        self.hub.close()
        self._threads.close()


class Desk:
    """The same nouns as `app.jobs` and its kind, in the name of one caller."""

    def __init__(self, room: Room, actor: str) -> None:
        self.room = room
        self._store, self._actor = room.store, actor

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self._store, self.room.settings, self._actor, self.room.app.registry.handlers)

    @cached_property
    def failures(self) -> Failures:
        return Failures(self._store, self._actor)

    @cached_property
    def queues(self) -> Queues:
        return Queues(self._store, self._actor)

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies(self._store, self._actor)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self._store, self._actor)

    @cached_property
    def batches(self) -> Batches:
        return Batches(self._store, self.jobs, actor=self._actor)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self._store, lambda: self.room.settings, self._actor)

    @cached_property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._store, lambda: self.room.settings, self._actor)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self._store, self._actor)
