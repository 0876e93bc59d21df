"""`app.aio`: all of an app, awaitable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mulligan.engine.alerts import AsyncAlerts
from mulligan.engine.audit import AsyncEvents
from mulligan.engine.batches import AsyncBatches, Batch
from mulligan.engine.calendar import AsyncSchedules
from mulligan.engine.dependencies import AsyncDependencies
from mulligan.engine.failures import AsyncFailures
from mulligan.engine.held import AsyncKinds
from mulligan.engine.insight import SINCE, Insight
from mulligan.engine.jobs import AsyncJobs
from mulligan.engine.keys import AsyncKeys
from mulligan.engine.operations import AsyncOperations
from mulligan.engine.policies import AsyncPolicies
from mulligan.engine.queues import AsyncQueues
from mulligan.engine.status import AsyncStatus
from mulligan.errors import Moment
from mulligan.job import Job
from mulligan.notify.deliveries import AsyncDeliveries
from mulligan.notify.subscriptions import AsyncSubscriptions
from mulligan.nouns import Nouns


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
        self.status = AsyncStatus(app.status)
        self.subscriptions = AsyncSubscriptions(app.subscriptions)
        self.deliveries = AsyncDeliveries(app.deliveries)

    async def batch(self, name: str, *, connection: Any = None, **said: Any) -> Batch:
        """As `app.batch`; in an AsyncSession's or AsyncConnection's transaction too."""
        if getattr(connection, "run_sync", None) is None:
            return await asyncio.to_thread(self._app.batch, name, connection=connection, **said)
        await asyncio.to_thread(self._app.open)
        begun: Batch = await connection.run_sync(lambda inner: self._app.batch(name, connection=inner, **said))
        return replace(begun, _connection=connection)

    async def insight(self, since: Moment = SINCE, *, kind: str | None = None, queue: str | None = None) -> Insight:
        return await asyncio.to_thread(self._app.insight, since, kind=kind, queue=queue)

    async def metrics(self) -> str:
        return await asyncio.to_thread(self._app.metrics)

    async def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Job:
        new, connection = await asyncio.to_thread(self._app._named, kind, payload, options)  # noqa: SLF001 - its other half
        return (await self._app.insert_async([new], connection))[0]
