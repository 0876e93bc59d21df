"""Count how often the classifier is wrong: permanent errors called retryable, and the reverse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mulligan import Failure, Rule, classify

HERE = Path(__file__).parent
FACT_FIELDS = (
    "exception_type",
    "http_status",
    "exit_code",
    "signal",
    "errno",
    "provider_code",
    "program",
)
MAX_FALSE_RETRYABLE = 0.05  # share of permanent errors that may be called retryable
MAX_FALSE_PERMANENT = 0.04  # share of retryable errors that may be called permanent
MAX_TRAP_ERRORS = 0.20  # share of the traps, in either direction

# What the public sentence of a code says exists. A row lists in `things` what its error is about.
THINGS = {
    "BAD_FILE": "file",
    "NOT_FOUND": "file",
    "BAD_TRANSFER": "file",
    "IO_ERROR": "file",
    "DISK_FULL": "disk",
    "MEMORY": "memory",
    "TOO_MANY_FILES": "file",
    "DEVICE_BUSY": "device",
    "MISCONFIGURED": "configuration",
    "PROGRAM_MISSING": "program",
    "PROGRAM_CRASHED": "program",
    "PROCESS_FAILED": "program",
    "PROCESS_KILLED": "program",
    "CERTIFICATE": "certificate",
    "AUTH": "credentials",
    "ACCESS_DENIED": "service",
    "HTTP_5XX": "service",
    "HTTP_4XX": "service",
    "HTTP_IMPOSSIBLE": "service",
    "RATE_LIMITED": "service",
    "SERVICE_FULL": "service",
    "REFUSED_CONTENT": "service",
    "QUOTA": "quota",
    "CONNECTION": "network",
    "UNAVAILABLE_CONTENT": "content",
    "DATA_REFUSED": "database",
    "DATABASE_UNAVAILABLE": "database",
    "DATABASE_CONFLICT": "database",
    "DATABASE_BROKEN": "database",
    "DATABASE_SCHEMA": "database",
    "BAD_ADDRESS": "mail",
    "MAIL_REFUSED": "mail",
    "MAIL_DEFERRED": "mail",
    "STOPPED": "stop request",
}

Row = Mapping[str, Any]


@dataclass
class Score:
    """Counts of one set of rows."""

    name: str
    permanent: int = 0
    retryable: int = 0
    permanent_wrong: int = 0
    retryable_wrong: int = 0
    right_class: int = 0
    unknown: int = 0
    mistakes: list[tuple[Row, Failure]] = field(default_factory=list, repr=False)

    @property
    def false_retryable(self) -> float:
        return self.permanent_wrong / max(1, self.permanent)

    @property
    def false_permanent(self) -> float:
        return self.retryable_wrong / max(1, self.retryable)

    @property
    def rows(self) -> int:
        return self.permanent + self.retryable

    def count(self, row: Row, failure: Failure) -> None:
        """Count one row and what the classifier made of it."""
        wrong = failure.retryable != row["retryable"]
        if row["retryable"]:
            self.retryable += 1
            self.retryable_wrong += wrong
        else:
            self.permanent += 1
            self.permanent_wrong += wrong
        self.right_class += failure.cls == row["cls"]
        self.unknown += failure.cls == "unknown"
        if wrong:
            self.mistakes.append((row, failure))

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows} rows;"
            f" permanent called retryable {self.permanent_wrong} of {self.permanent}"
            f" ({self.false_retryable:.1%}),"
            f" retryable called permanent {self.retryable_wrong} of {self.retryable}"
            f" ({self.false_permanent:.1%});"
            f" class right {self.right_class / max(1, self.rows):.0%}, unknown {self.unknown}"
        )


def read_rows(name: str) -> Iterator[Row]:
    """Read a set: `tune` for making rules, `holdout` for measuring, `everyday` for sentences."""
    with (HERE / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def classify_row(row: Row, rules: Sequence[Rule] = ()) -> Failure:
    """Classify the error of a row, with the rules of a pack or with the built-in ones alone."""
    facts = {name: row[name] for name in FACT_FIELDS if name in row}
    return classify(row["text"], **facts, rules=rules)


def find_false_thing(row: Row, failure: Failure) -> str:
    """Return the thing that the public sentence names although the error is not about it."""
    thing = THINGS.get(failure.code, "")
    return "" if thing in row.get("things", ()) else thing


def score_rows(name: str, rows: Iterable[Row], rules: Sequence[Rule] = ()) -> Score:
    """Score the classifier on these rows."""
    score = Score(name)
    for row in rows:
        score.count(row, classify_row(row, rules))
    return score


def score_set(name: str, *, traps: bool) -> Score:
    """Score the traps of a set (texts that mislead a hasty reader), or its other rows."""
    rows = [row for row in read_rows(name) if row["trap"] is traps]
    return score_rows(f"{name}, {'traps' if traps else 'ordinary'}", rows)


def score_all() -> list[Score]:
    """Score all sets, traps separately."""
    scores = [
        score_set(name, traps=traps) for name in ("tune", "holdout") for traps in (False, True)
    ]
    return [*scores, score_set("everyday", traps=False)]
