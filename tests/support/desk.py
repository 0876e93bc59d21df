"""What a worker does beside its jobs, whenever a test says so: counting, and looking at the alerts."""

from __future__ import annotations

from mulligan import Mulligan
from mulligan.alerts.chore import AlertChecker
from mulligan.core.event import Event
from mulligan.observability.event_counts import Fold
from support.app_tools import advance


class Desk:
    def __init__(self, app: Mulligan) -> None:
        self.app = app
        self.fold, self.alerts = Fold(), AlertChecker(app.settings.alerts)
        self.look()  # from now on it is counted

    def look(self, seconds: float = 6) -> None:
        advance(self.app, seconds)
        while self.fold.turn(self.app.store):
            pass
        self.alerts.turn(self.app.store)

    def told(self) -> list[tuple[str, str, str]]:
        found = [
            event
            for event in self._events()
            if event.type.startswith("alert.") and event.actor == "alert"
        ]
        return [(event.type, event.data["rule"], event.data.get("key", "")) for event in found]

    def event(self, kind: str, number: int = -1) -> Event:
        return [event for event in self._events() if event.type == kind][number]

    def _events(self) -> list[Event]:
        with self.app.store.read() as unit:
            return list(unit.events_after(0, 100_000))
