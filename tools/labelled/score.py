"""How often the classifier is wrong, and in which direction: hopeless errors retried, hopeful ones given up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mulligan import Failure, classify

HERE = Path(__file__).parent
GIVEN = (
    "exception_type",
    "http_status",
    "exit_code",
    "signal",
    "errno",
    "provider_code",
    "program",
)
MOST_HOPELESS = 0.05  # of the hopeless may be called retriable
MOST_HOPEFUL = 0.04  # of the retriable may be called hopeless
MOST_TRAPPED = 0.20  # of the traps, either way

Row = Mapping[str, Any]


@dataclass
class Score:
    """Counts of one set of rows."""

    name: str
    hopeless: int = 0
    hopeful: int = 0
    hopeless_wrong: int = 0
    hopeful_wrong: int = 0
    right_class: int = 0
    unknown: int = 0
    mistakes: list[tuple[Row, Failure]] = field(default_factory=list, repr=False)

    @property
    def false_retriable(self) -> float:
        return self.hopeless_wrong / max(1, self.hopeless)

    @property
    def false_permanent(self) -> float:
        return self.hopeful_wrong / max(1, self.hopeful)

    @property
    def rows(self) -> int:
        return self.hopeless + self.hopeful

    def count(self, row: Row, failure: Failure) -> None:
        wrong = failure.retryable != row["retryable"]
        if row["retryable"]:
            self.hopeful += 1
            self.hopeful_wrong += wrong
        else:
            self.hopeless += 1
            self.hopeless_wrong += wrong
        self.right_class += failure.cls == row["cls"]
        self.unknown += failure.cls == "unknown"
        if wrong:
            self.mistakes.append((row, failure))

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows} rows; hopeless called retriable {self.hopeless_wrong} of {self.hopeless} "
            f"({self.false_retriable:.1%}), retriable called hopeless {self.hopeful_wrong} of {self.hopeful} "
            f"({self.false_permanent:.1%}); class right {self.right_class / max(1, self.rows):.0%}, "
            f"unknown {self.unknown}"
        )


def rows_of(name: str) -> Iterator[Row]:
    """`tune`, which rules may be made from, or `aside`, which was put away before the first rule was tuned."""
    with (HERE / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def judged(row: Row) -> Failure:
    return classify(row["text"], **{name: row[name] for name in GIVEN if name in row})


def score(name: str, rows: Iterable[Row]) -> Score:
    counted = Score(name)
    for row in rows:
        counted.count(row, judged(row))
    return counted


def scores() -> list[Score]:
    """Of each set the plain rows, and apart from them the traps: texts that would fool a reader in a hurry."""
    return [
        plain_or_traps(name, traps=traps) for name in ("tune", "aside") for traps in (False, True)
    ]


def plain_or_traps(name: str, *, traps: bool) -> Score:
    rows = [row for row in rows_of(name) if row["trap"] is traps]
    return score(f"{name}, {'traps' if traps else 'plain'}", rows)
