"""What the checker finds: which invariant is broken, by which job, and what each history says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.event import Event
from mulligan.job import AttemptRow
from mulligan.policy.phrase import moment
from mulligan.verify.invariants import ALL

KEPT = 50  # of each invariant; all are counted


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    what: str
    subject: str = ""  # a job, a batch, a schedule, a subscription
    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)  # history → lines
    story: str = ""

    @property
    def sentence(self) -> str:
        return ALL[self.invariant].sentence

    def to_plain(self) -> dict[str, Any]:
        return {
            "invariant": self.invariant,
            "sentence": self.sentence,
            "what": self.what,
            "subject": self.subject,
            "evidence": {name: list(lines) for name, lines in self.evidence.items()},
            "story": self.story,
        }


@dataclass
class Findings:
    """Gathers them; so many that nobody would read them are only counted."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: list[Violation] = field(default_factory=list)

    def add(self, invariant: str, what: str, subject: str = "", **evidence: Sequence[str]) -> None:
        self.counts[invariant] += 1
        if self.counts[invariant] <= KEPT:
            told = {name: tuple(lines) for name, lines in evidence.items() if lines}
            self.kept.append(Violation(invariant, what, subject, told))


def event_line(event: Event) -> str:
    fence = f" attempt {event.attempt} token {event.token}" if event.token is not None else ""
    actor = f" by {event.actor}" if event.actor else ""
    worker = f" on {event.data['worker']}" if "worker" in event.data else ""
    return f"#{event.id} {moment(event.at)} {event.type}{fence}{worker}{actor}"


def attempt_line(row: AttemptRow) -> str:
    by = "" if row.settled_by == row.worker else f", settled by {row.settled_by}"
    return (
        f"attempt {row.attempt} token {row.token} of generation {row.generation} on {row.worker}{by}: "
        f"{row.ended} → {row.verb}, {moment(row.started_at)} to {moment(row.ended_at)}"
    )


def witness_line(line: Mapping[str, Any]) -> str:
    return f"token {line['token']} {line['what']} pid {line['pid']} at {line['ns']} ns"


def call_line(line: Mapping[str, Any]) -> str:
    error = f" ({line['error']})" if line.get("error") else ""
    return f"{line['client']} {line['what']} {line['begin_ns']}–{line['end_ns'] or '…'} ns: told {line['told']}{error}"
