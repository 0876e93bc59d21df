"""Awaitable counterpart of an app and its services: `app.aio`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mulligan.app.async_services import AsyncServices
from mulligan.app.services import AppServices
from mulligan.batches.service import Batch
from mulligan.core.errors import DurationOrTime
from mulligan.core.job import Job
from mulligan.insight.service import DEFAULT_PERIOD, Insight


class AsyncApp(AsyncServices):
    """The services of an app as coroutines; each call runs on a thread."""

    def __init__(self, app: AppServices) -> None:
        super().__init__(app)
        self._app = app

    async def batch(self, name: str, *, connection: Any = None, **options: Any) -> Batch:
        """Create a batch like `app.batch`, also in the transaction of an AsyncSession."""
        if getattr(connection, "run_sync", None) is None:
            return await asyncio.to_thread(self._app.batch, name, connection=connection, **options)
        await asyncio.to_thread(self._app.open)
        batch: Batch = await connection.run_sync(
            lambda inner: self._app.batch(name, connection=inner, **options)
        )
        return replace(batch, _connection=connection)

    async def insight(
        self,
        since: DurationOrTime = DEFAULT_PERIOD,
        *,
        kind: str | None = None,
        queue: str | None = None,
    ) -> Insight:
        """Return statistics like `app.insight`."""
        return await asyncio.to_thread(self._app.insight, since, kind=kind, queue=queue)

    async def metrics(self) -> str:
        """Return the Prometheus metrics like `app.metrics`."""
        return await asyncio.to_thread(self._app.metrics)

    async def enqueue(
        self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        """Enqueue a job by the name of its kind, like `app.enqueue`."""
        new, connection = await asyncio.to_thread(self._app.new_job_by_name, kind, payload, options)
        jobs = await self._app.insert_async([new], connection)
        return jobs[0]
