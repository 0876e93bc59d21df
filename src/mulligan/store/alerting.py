"""Verbs of the alerts: how each rule stands, and what was counted, summed over a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.job import SECOND, Micros

MINUTE = 60 * SECOND


class AlertRow(NamedTuple):
    rule: str
    key: str
    state: str
    since: Micros
    seen_at: Micros
    value: float
    evidence: str  # JSON
    acted: str  # JSON; empty: nothing was done that still holds
    until: Micros | None
    actor: str
    reason: str


class Alerting(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def alerts(self) -> list[AlertRow]: ...

    @abstractmethod
    def write_alert(self, row: AlertRow) -> None:
        """As it stands now, whatever it was. Only for who holds the reader of the alerts, or a person."""

    @abstractmethod
    def forget_alerts(self, before: Micros) -> int:
        """Delete those that were over before then, and silences that had ended."""

    @abstractmethod
    def stat_sums(self, names: Sequence[str], since: Micros) -> list[tuple[str, str, int, float]]:
        """What was counted from the minute of `since` on: name, labels, n, total."""


class SqlAlerting(Alerting):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any: ...

    def alerts(self) -> list[AlertRow]:
        return [AlertRow._make(row) for row in self.rows("alerts")]

    def write_alert(self, row: AlertRow) -> None:
        self.rows("write_alert", **row._asdict())

    def forget_alerts(self, before: Micros) -> int:
        return len(self.rows("forget_alerts", before=before))

    def stat_sums(self, names: Sequence[str], since: Micros) -> list[tuple[str, str, int, float]]:
        found = self.rows("stat_sums", names=self.ids(names), since=max(1, since // MINUTE))
        return [(name, labels, int(n), float(total)) for name, labels, n, total in found]
