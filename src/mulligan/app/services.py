"""What an app offers beside enqueueing: one noun each, imported and made at its first use.

A runner and a program that enqueues need few of them, and start in less time without the others.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from mulligan.access.keys import AsyncKeys
from mulligan.access.status_links import AsyncStatusLinks
from mulligan.alerts.service import AsyncAlerts
from mulligan.batches.service import AsyncBatches, Batch
from mulligan.core.errors import Moment
from mulligan.core.job import Job
from mulligan.events.service import AsyncEvents
from mulligan.failures.service import AsyncFailures
from mulligan.guards.dependencies import AsyncDependencies
from mulligan.guards.gates import AsyncKinds, AsyncQueues
from mulligan.insight.service import SINCE, Insight
from mulligan.jobs.service import AsyncJobs
from mulligan.notifications.deliveries import AsyncDeliveries
from mulligan.notifications.subscriptions import AsyncSubscriptions
from mulligan.operations.service import AsyncOperations
from mulligan.retries.service import AsyncPolicies
from mulligan.schedules.service import AsyncSchedules

if TYPE_CHECKING:
    from mulligan.access.keys import Keys
    from mulligan.access.status_links import StatusLinks
    from mulligan.alerts.service import Alerts
    from mulligan.batches.service import Batch, Batches
    from mulligan.config import Settings
    from mulligan.core.job import Job, NewJob
    from mulligan.events.service import Events
    from mulligan.failures.service import Failures
    from mulligan.guards.dependencies import Dependencies
    from mulligan.guards.gates import Kinds, Queues
    from mulligan.insight.service import Insight
    from mulligan.jobs.service import Jobs
    from mulligan.manifest.specs import Registry
    from mulligan.notifications.deliveries import Deliveries
    from mulligan.notifications.subscriptions import Subscriptions
    from mulligan.operations.service import Operations
    from mulligan.retries.service import Policies
    from mulligan.schedules.service import Schedules
    from mulligan.storage.base import Store, Transaction


class Nouns:
    settings: Settings
    registry: Registry

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def _joined(self, connection: Any) -> Transaction: ...

    # `app.aio` wraps the following methods of the app.
    @abstractmethod
    def open(self) -> Self: ...

    @abstractmethod
    def batch(self, *args: Any, **options: Any) -> Batch: ...

    @abstractmethod
    def insight(self, *args: Any, **options: Any) -> Insight: ...

    @abstractmethod
    def metrics(self) -> str: ...

    @abstractmethod
    def _named(self, kind: str, payload: Any, options: Mapping[str, Any]) -> tuple[NewJob, Any]: ...

    @abstractmethod
    async def insert_async(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]: ...

    @cached_property
    def jobs(self) -> Jobs:
        from mulligan.jobs.service import Jobs

        return Jobs(lambda: self.store, self.settings, handlers=self.registry.handlers)

    @cached_property
    def queues(self) -> Queues:
        from mulligan.guards.gates import Queues

        return Queues(lambda: self.store)

    @cached_property
    def batches(self) -> Batches:
        from mulligan.batches.service import Batches

        return Batches(lambda: self.store, self.jobs, join=self._joined)

    @cached_property
    def dependencies(self) -> Dependencies:
        from mulligan.guards.dependencies import Dependencies

        return Dependencies(lambda: self.store)

    @cached_property
    def kinds(self) -> Kinds:
        from mulligan.guards.gates import Kinds

        return Kinds(lambda: self.store)

    @cached_property
    def failures(self) -> Failures:
        from mulligan.failures.service import Failures

        return Failures(lambda: self.store)

    @cached_property
    def events(self) -> Events:
        from mulligan.events.service import Events

        return Events(lambda: self.store)

    @cached_property
    def keys(self) -> Keys:
        from mulligan.access.keys import Keys

        return Keys(lambda: self.store)

    @cached_property
    def alerts(self) -> Alerts:
        from mulligan.alerts.service import Alerts

        return Alerts(lambda: self.store, lambda: self.settings.alerts)

    @cached_property
    def operations(self) -> Operations:
        from mulligan.operations.service import Operations

        return Operations(lambda: self.store)

    @cached_property
    def policy(self) -> Policies:
        from mulligan.retries.service import Policies

        return Policies(lambda: self.store, lambda: self.settings, self.registry)

    @cached_property
    def schedules(self) -> Schedules:
        from mulligan.schedules.service import Schedules

        return Schedules(lambda: self.store, self.jobs, self.registry.schedules)

    @cached_property
    def status(self) -> StatusLinks:
        from mulligan.access.status_links import StatusLinks

        return StatusLinks(lambda: self.store, lambda: self.settings)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        from mulligan.notifications.subscriptions import Subscriptions

        return Subscriptions(lambda: self.store, lambda: self.settings)

    @cached_property
    def deliveries(self) -> Deliveries:
        from mulligan.notifications.deliveries import Deliveries

        return Deliveries(lambda: self.store, lambda: self.settings)


# `app.aio`: all of an app, awaitable.


class Aio:
    """All of it, awaitable."""

    def __init__(self, app: Nouns) -> None:
        self._app = app
        self.jobs = AsyncJobs(app.jobs)
        self.batches = AsyncBatches(app.batches)
        self.queues = AsyncQueues(app.queues)
        self.dependencies = AsyncDependencies(app.dependencies)
        self.kinds = AsyncKinds(app.kinds)
        self.failures = AsyncFailures(app.failures)
        self.events = AsyncEvents(app.events)
        self.alerts = AsyncAlerts(app.alerts)
        self.keys = AsyncKeys(app.keys)
        self.operations = AsyncOperations(app.operations)
        self.policy = AsyncPolicies(app.policy)
        self.schedules = AsyncSchedules(app.schedules)
        self.status = AsyncStatusLinks(app.status)
        self.subscriptions = AsyncSubscriptions(app.subscriptions)
        self.deliveries = AsyncDeliveries(app.deliveries)

    async def batch(self, name: str, *, connection: Any = None, **said: Any) -> Batch:
        """As `app.batch`; in an AsyncSession's or AsyncConnection's transaction too."""
        if getattr(connection, "run_sync", None) is None:
            return await asyncio.to_thread(self._app.batch, name, connection=connection, **said)
        await asyncio.to_thread(self._app.open)
        begun: Batch = await connection.run_sync(
            lambda inner: self._app.batch(name, connection=inner, **said)
        )
        return replace(begun, _connection=connection)

    async def insight(
        self, since: Moment = SINCE, *, kind: str | None = None, queue: str | None = None
    ) -> Insight:
        return await asyncio.to_thread(self._app.insight, since, kind=kind, queue=queue)

    async def metrics(self) -> str:
        return await asyncio.to_thread(self._app.metrics)

    async def enqueue(
        self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        new, connection = await asyncio.to_thread(self._app._named, kind, payload, options)  # noqa: SLF001 - its other half
        return (await self._app.insert_async([new], connection))[0]
