"""What an app offers beside enqueueing: one noun each, imported and made at its first use.

A runner and a program that enqueues need few of them, and start in less time without the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mulligan.config import Settings
    from mulligan.engine.alerts import Alerts
    from mulligan.engine.audit import Events
    from mulligan.engine.batches import Batch, Batches
    from mulligan.engine.calendar import Schedules
    from mulligan.engine.dependencies import Dependencies
    from mulligan.engine.failures import Failures
    from mulligan.engine.held import Kinds
    from mulligan.engine.insight import Insight
    from mulligan.engine.jobs import Jobs
    from mulligan.engine.keys import Keys
    from mulligan.engine.kinds import Registry
    from mulligan.engine.operations import Operations
    from mulligan.engine.policies import Policies
    from mulligan.engine.queues import Queues
    from mulligan.engine.status import Status
    from mulligan.job import Job, NewJob
    from mulligan.notify.deliveries import Deliveries
    from mulligan.notify.subscriptions import Subscriptions
    from mulligan.store.base import Store, Unit


class Nouns:
    settings: Settings
    registry: Registry

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def _joined(self, connection: Any) -> Unit: ...

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
        from mulligan.engine.jobs import Jobs

        return Jobs(lambda: self.store, self.settings, handlers=self.registry.handlers)

    @cached_property
    def queues(self) -> Queues:
        from mulligan.engine.queues import Queues

        return Queues(lambda: self.store)

    @cached_property
    def batches(self) -> Batches:
        from mulligan.engine.batches import Batches

        return Batches(lambda: self.store, self.jobs, join=self._joined)

    @cached_property
    def dependencies(self) -> Dependencies:
        from mulligan.engine.dependencies import Dependencies

        return Dependencies(lambda: self.store)

    @cached_property
    def kinds(self) -> Kinds:
        from mulligan.engine.held import Kinds

        return Kinds(lambda: self.store)

    @cached_property
    def failures(self) -> Failures:
        from mulligan.engine.failures import Failures

        return Failures(lambda: self.store)

    @cached_property
    def events(self) -> Events:
        from mulligan.engine.audit import Events

        return Events(lambda: self.store)

    @cached_property
    def keys(self) -> Keys:
        from mulligan.engine.keys import Keys

        return Keys(lambda: self.store)

    @cached_property
    def alerts(self) -> Alerts:
        from mulligan.engine.alerts import Alerts

        return Alerts(lambda: self.store, lambda: self.settings.alerts)

    @cached_property
    def operations(self) -> Operations:
        from mulligan.engine.operations import Operations

        return Operations(lambda: self.store)

    @cached_property
    def policy(self) -> Policies:
        from mulligan.engine.policies import Policies

        return Policies(lambda: self.store, lambda: self.settings, self.registry)

    @cached_property
    def schedules(self) -> Schedules:
        from mulligan.engine.calendar import Schedules

        return Schedules(lambda: self.store, self.jobs, self.registry.schedules)

    @cached_property
    def status(self) -> Status:
        from mulligan.engine.status import Status

        return Status(lambda: self.store, lambda: self.settings)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        from mulligan.notify.subscriptions import Subscriptions

        return Subscriptions(lambda: self.store, lambda: self.settings)

    @cached_property
    def deliveries(self) -> Deliveries:
        from mulligan.notify.deliveries import Deliveries

        return Deliveries(lambda: self.store, lambda: self.settings)
