"""Services of an app (`app.jobs`, `app.queues`, …), each imported and created on first use.

A runner or a program that only enqueues needs few of them and starts faster without the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

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


class AppServices:
    """Base class of the app: one property per service."""

    settings: Settings
    registry: Registry

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def join_transaction(self, connection: Any) -> Transaction: ...

    # `app.aio` wraps the following methods.
    @abstractmethod
    def open(self) -> Self: ...

    @abstractmethod
    def batch(self, *args: Any, **options: Any) -> Batch: ...

    @abstractmethod
    def insight(self, *args: Any, **options: Any) -> Insight: ...

    @abstractmethod
    def metrics(self) -> str: ...

    @abstractmethod
    def new_job_by_name(
        self, kind: str, payload: Any, options: Mapping[str, Any]
    ) -> tuple[NewJob, Any]: ...

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

        return Batches(lambda: self.store, self.jobs, join=self.join_transaction)

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
