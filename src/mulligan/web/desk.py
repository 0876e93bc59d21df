"""Everything an app offers for looking and repairing, over one database, in the name of one caller."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from mulligan.config import Settings
from mulligan.engine.alerts import Alerts
from mulligan.engine.audit import Events
from mulligan.engine.batches import Batches
from mulligan.engine.calendar import Schedules
from mulligan.engine.dependencies import Dependencies
from mulligan.engine.failures import Failures
from mulligan.engine.held import Kinds
from mulligan.engine.jobs import Jobs
from mulligan.engine.keys import Keys
from mulligan.engine.kinds import Registry
from mulligan.engine.operations import Operations
from mulligan.engine.policies import Policies
from mulligan.engine.queues import Queues
from mulligan.engine.sessions import Visitor
from mulligan.engine.status import Status
from mulligan.notify.deliveries import Deliveries
from mulligan.notify.subscriptions import Subscriptions
from mulligan.store import Store


class Desk:
    def __init__(
        self,
        opening: Callable[[], Store],
        settings: Settings,
        actor: str,
        registry: Registry | None = None,
    ) -> None:
        self._opening, self._actor, self._registry = opening, actor, registry or Registry()
        self.settings = settings

    @property
    def store(self) -> Store:
        return self._opening()

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self._opening, self.settings, self._actor, self._registry.handlers)

    @cached_property
    def failures(self) -> Failures:
        return Failures(self._opening, self._actor)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self._opening, self._actor)

    @cached_property
    def batches(self) -> Batches:
        return Batches(self._opening, self.jobs, self._actor)

    @cached_property
    def queues(self) -> Queues:
        return Queues(self._opening, self._actor)

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies(self._opening, self._actor)

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds(self._opening, self._actor)

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules(self._opening, self.jobs, self._registry.schedules, self._actor)

    @cached_property
    def events(self) -> Events:
        return Events(self._opening)

    @cached_property
    def alerts(self) -> Alerts:
        return Alerts(self._opening, lambda: self.settings.alerts, self._actor)

    @cached_property
    def policies(self) -> Policies:
        return Policies(self._opening, lambda: self.settings, self._registry)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self._opening, lambda: self.settings, self._actor)

    @cached_property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._opening, lambda: self.settings, self._actor)

    @cached_property
    def status(self) -> Status:
        return Status(self._opening, lambda: self.settings)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self._opening, self._actor)


class Visited(Desk):
    """The desk of one visitor of the pages."""

    def __init__(self, store: Store, settings: Settings, visitor: Visitor) -> None:
        super().__init__(lambda: store, settings, visitor.actor)
        self.visitor = visitor
        self.owner = visitor.owner
        self.private = visitor.private  # may words in quotes find what only the private half says?
