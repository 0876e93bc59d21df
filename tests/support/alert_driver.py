"""Runs the periodic tasks behind alerts when a test asks for it: counting and evaluation."""

from __future__ import annotations

from mulligan import Mulligan
from mulligan.alerts.chore import AlertChecker
from mulligan.core.event import Event
from mulligan.events.queries import EventQueries
from mulligan.observability.event_counts import EventCounter
from support.app_tools import advance


class AlertDriver:
    """Advances the clock, counts events and evaluates alerts."""

    def __init__(self, app: Mulligan) -> None:
        self.app = app
        self.counter = EventCounter()
        self.alerts = AlertChecker(app.settings.alerts)
        self.run()  # counting starts here

    def run(self, seconds: float = 6) -> None:
        advance(self.app, seconds)
        while self.counter.run_once(self.app.store):
            pass
        self.alerts.run_once(self.app.store)

    def reported(self) -> list[tuple[str, str, str]]:
        found = [
            event
            for event in self._events()
            if event.type.startswith("alert.") and event.actor == "alert"
        ]
        return [(event.type, event.data["rule"], event.data.get("key", "")) for event in found]

    def event(self, kind: str, number: int = -1) -> Event:
        return [event for event in self._events() if event.type == kind][number]

    def _events(self) -> list[Event]:
        with self.app.store.read() as tx:
            return list(EventQueries(tx).list_events_after(0, 100_000))
