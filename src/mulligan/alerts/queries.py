"""Statements about the stored states of alert rules."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.core.durations import Micros
from mulligan.storage.base import Queries


class AlertRow(NamedTuple):
    """State of an alert rule for one key."""

    rule: str
    key: str
    state: str
    since: Micros
    evaluated_at: Micros
    value: float
    evidence: str  # JSON
    acted: str  # JSON of the action in force, or ""
    until: Micros | None
    actor: str
    reason: str


class AlertQueries(Queries):
    """Statements about alerts, in a transaction."""

    def list_alerts(self) -> list[AlertRow]:
        """List the states of all alert rules."""
        return self.list_rows(AlertRow, "list_alerts")

    def write_alert(self, row: AlertRow) -> None:
        """Store the state of an alert.

        Only the worker that has locked the alerts' reader, or a person, may do so.
        """
        self.tx.rows("write_alert", **row._asdict())

    def delete_old_alerts(self, before: Micros) -> int:
        """Delete alerts that were resolved before a time, and silences that had ended."""
        return len(self.tx.rows("delete_old_alerts", before=before))
