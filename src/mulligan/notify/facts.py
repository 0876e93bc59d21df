"""What is known of an incident at one step, for those who put it into words."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.event import EventType
from mulligan.job import Micros


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """What is told of an incident. `of` is the event type that was folded; an incident is by cause or by batch."""

    id: str
    first_at: Micros
    last_at: Micros
    count: int
    owner: str = ""
    of: str = EventType.JOB_DIED
    group: str = ""  # the fingerprint
    batch_id: str = ""
    batch_name: str = ""
    kind: str = ""
    queue: str = ""
    code: str = ""
    cls: str = ""
    message: str = ""  # the public sentence of the cause
    job_id: str = ""  # an example
    why: str = ""  # of one that is over: `quiet`, `resolved`, `recovered`
