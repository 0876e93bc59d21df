"""Everything an app offers for looking and repairing, over one store, in the name of one visitor."""

from __future__ import annotations

from mulligan.config import Settings
from mulligan.engine.alerts import Alerts
from mulligan.engine.audit import Events
from mulligan.engine.batches import Batches
from mulligan.engine.calendar import Schedules
from mulligan.engine.dependencies import Dependencies
from mulligan.engine.failures import Failures
from mulligan.engine.held import Kinds
from mulligan.engine.jobs import Jobs
from mulligan.engine.operations import Operations
from mulligan.engine.policies import Policies
from mulligan.engine.queues import Queues
from mulligan.engine.sessions import Visitor
from mulligan.notify.deliveries import Deliveries
from mulligan.notify.subscriptions import Subscriptions
from mulligan.store import Store


class Desk:
    def __init__(self, store: Store, settings: Settings, visitor: Visitor) -> None:
        actor = visitor.actor
        self.store = store
        self.settings = settings
        self.visitor = visitor
        self.owner = visitor.owner
        self.private = visitor.private  # may words in quotes find what only the private half says?
        self.jobs = Jobs(lambda: store, settings, actor=actor)
        self.failures = Failures(lambda: store, actor)
        self.operations = Operations(lambda: store, actor)
        self.batches = Batches(lambda: store, self.jobs, actor)
        self.queues = Queues(lambda: store, actor)
        self.dependencies = Dependencies(lambda: store, actor)
        self.kinds = Kinds(lambda: store, actor)
        self.schedules = Schedules(lambda: store, self.jobs, {}, actor)
        self.events = Events(lambda: store)
        self.alerts = Alerts(lambda: store, lambda: settings.alerts, actor)
        self.subscriptions = Subscriptions(lambda: store, lambda: settings, actor)
        self.deliveries = Deliveries(lambda: store, lambda: settings, actor)
        self.policies = Policies(lambda: store, lambda: settings)
