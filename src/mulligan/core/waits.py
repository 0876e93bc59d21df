"""Types of waits: for a time, for an answer, or for child jobs, without a slot."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros

NEVER: Micros = 221_845_392_000 * SECOND  # in the year 9000: due only when something wakes the job


class WaitKind(StrEnum):
    """Kinds of waits. Also the kind of the row in the table `step`."""

    SLEEP = "sleep"
    ANSWER = "wait"
    CALL = "call"  # of child jobs


class RequestedWait(NamedTuple):
    """A wait that an attempt requests. The outcome has its time."""

    kind: str
    name: str  # of its step
    number: int  # of its step
    detail: str = "{}"  # JSON, for the row of its step


class WaitingFor(NamedTuple):
    """Content of the column `waits` of a waiting job."""

    kind: str
    name: str
    until: Micros | None  # None: without a limit
    batch: str = ""  # of the child jobs

    def to_json(self) -> str:
        """Return the column `waits`."""
        fields = {"for": self.kind, "name": self.name, "until": self.until}
        if self.batch:
            fields["batch"] = self.batch
        return json.dumps(fields)


def read_waits(text: str) -> WaitingFor:
    """Read the column `waits`."""
    fields: dict[str, Any] = json.loads(text)
    return WaitingFor(fields["for"], fields["name"], fields["until"], fields.get("batch", ""))
