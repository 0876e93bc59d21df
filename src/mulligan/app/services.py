"""Services over one database (`app.jobs`, `app.queues`, …), each created on first use.

`Services` is the only list of them: the app, the command line and HTTP use it, and `app.aio` makes
their methods awaitable. A program that needs few services starts faster without the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from mulligan.app.aio import AsyncServices, run_on_thread

if TYPE_CHECKING:
    from mulligan.access.keys import Keys, StatusLinks
    from mulligan.alerts.service import Alerts
    from mulligan.batches.service import Batch, Batches
    from mulligan.config import Settings
    from mulligan.core.errors import DurationOrTime
    from mulligan.core.job import Job, NewJob
    from mulligan.events.service import Events
    from mulligan.failures.service import Failures
    from mulligan.guards.gates import Dependencies, Kinds, Queues
    from mulligan.insight.service import Insight
    from mulligan.jobs.service import Jobs
    from mulligan.manifest.specs import Registry
    from mulligan.notifications.deliveries import Deliveries
    from mulligan.notifications.subscriptions import Subscriptions
    from mulligan.operations.service import Operations
    from mulligan.releases.service import Releases
    from mulligan.retries.service import Policies
    from mulligan.schedules.service import Schedules
    from mulligan.storage.base import Store, Transaction

WEEK = timedelta(days=7)  # the default period of `app.insight`


class Services:
    """One property per service, all on one store and in the name of one actor."""

    settings: Settings
    registry: Registry
    actor: str = "python"

    @property
    @abstractmethod
    def store(self) -> Store: ...

    def join_transaction(self, connection: Any) -> Transaction:
        """Return a transaction of ours inside the caller's transaction."""
        return self.store.join(connection)

    @cached_property
    def jobs(self) -> Jobs:
        from mulligan.jobs.service import Jobs

        return Jobs(lambda: self.store, lambda: self.settings, self.actor, self.registry.handlers)

    @cached_property
    def queues(self) -> Queues:
        from mulligan.guards.gates import Queues

        return Queues(lambda: self.store, self.actor)

    @cached_property
    def batches(self) -> Batches:
        from mulligan.batches.service import Batches

        return Batches(lambda: self.store, self.jobs, self.actor, self.join_transaction)

    @cached_property
    def dependencies(self) -> Dependencies:
        from mulligan.guards.gates import Dependencies

        return Dependencies(lambda: self.store, self.actor)

    @cached_property
    def kinds(self) -> Kinds:
        from mulligan.guards.gates import Kinds

        return Kinds(lambda: self.store, self.actor)

    @cached_property
    def failures(self) -> Failures:
        from mulligan.failures.service import Failures

        return Failures(lambda: self.store, self.actor)

    @cached_property
    def events(self) -> Events:
        from mulligan.events.service import Events

        return Events(lambda: self.store)

    @cached_property
    def keys(self) -> Keys:
        from mulligan.access.keys import Keys

        return Keys(lambda: self.store, self.actor)

    @cached_property
    def alerts(self) -> Alerts:
        from mulligan.alerts.service import Alerts

        return Alerts(lambda: self.store, lambda: self.settings.alerts, self.actor)

    @cached_property
    def operations(self) -> Operations:
        from mulligan.operations.service import Operations

        return Operations(lambda: self.store, self.actor)

    @cached_property
    def releases(self) -> Releases:
        from mulligan.releases.service import Releases

        return Releases(lambda: self.store, self.actor)

    @cached_property
    def policy(self) -> Policies:
        from mulligan.retries.service import Policies

        return Policies(lambda: self.store, lambda: self.settings, self.registry)

    @cached_property
    def schedules(self) -> Schedules:
        from mulligan.schedules.service import Schedules

        return Schedules(lambda: self.store, self.jobs, self.registry.schedules, self.actor)

    @cached_property
    def status(self) -> StatusLinks:
        from mulligan.access.keys import StatusLinks

        return StatusLinks(lambda: self.store, lambda: self.settings)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        from mulligan.notifications.subscriptions import Subscriptions

        return Subscriptions(lambda: self.store, lambda: self.settings, self.actor)

    @cached_property
    def deliveries(self) -> Deliveries:
        from mulligan.notifications.deliveries import Deliveries

        return Deliveries(lambda: self.store, lambda: self.settings, self.actor)


class StoreServices(Services):
    """Services on a store that the command line or the web server has opened."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        settings: Settings | Callable[[], Settings],
        actor: str,
        registry: Registry | None = None,
    ) -> None:
        from mulligan.manifest.specs import Registry

        self._open_store = open_store
        self._settings = settings
        self.actor = actor
        self.registry = registry or Registry()

    @property
    def store(self) -> Store:
        return self._open_store()

    @cached_property
    def settings(self) -> Settings:  # type: ignore[override]
        return self._settings() if callable(self._settings) else self._settings


class AppServices(Services):
    """Base class of the app: its services, and the methods that `app.aio` wraps."""

    @abstractmethod
    def open(self) -> Self: ...

    @abstractmethod
    def batch(self, *args: Any, **options: Any) -> Batch: ...

    @abstractmethod
    def insight(self, *args: Any, **options: Any) -> Insight: ...

    @abstractmethod
    def metrics(self) -> str: ...

    @abstractmethod
    def tell(self, *args: Any, **options: Any) -> Job: ...

    @abstractmethod
    def new_job_by_name(
        self, kind: str, payload: Any, options: Mapping[str, Any]
    ) -> tuple[NewJob, Any]: ...

    @abstractmethod
    async def insert_async(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]: ...


class AsyncApp(AsyncServices):
    """The services of an app as coroutines; each call runs on a thread."""

    def __init__(self, app: AppServices) -> None:
        super().__init__(app)
        self._app = app

    async def batch(self, name: str, *, connection: Any = None, **options: Any) -> Batch:
        """Create a batch like `app.batch`, also in the transaction of an async connection."""
        if connection is None:
            return await run_on_thread(self._app.batch, name, **options)
        from mulligan.storage.async_connections import call_with_connection

        batch = await call_with_connection(
            lambda inner: self._app.batch(name, connection=inner, **options),
            connection,
            self._app.open,
        )
        return replace(batch, _connection=connection)

    async def insight(
        self,
        since: DurationOrTime = WEEK,
        *,
        kind: str | None = None,
        queue: str | None = None,
    ) -> Insight:
        """Return statistics like `app.insight`."""
        return await run_on_thread(self._app.insight, since, kind=kind, queue=queue)

    async def tell(self, **options: Any) -> Job:
        """Answer what a job waits for, like `app.tell`."""
        return await run_on_thread(self._app.tell, **options)

    async def metrics(self) -> str:
        """Return the Prometheus metrics like `app.metrics`."""
        return await run_on_thread(self._app.metrics)

    async def enqueue(
        self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        """Enqueue a job by the name of its kind, like `app.enqueue`."""
        new, connection = await run_on_thread(self._app.new_job_by_name, kind, payload, options)
        jobs = await self._app.insert_async([new], connection)
        return jobs[0]
