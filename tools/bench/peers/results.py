"""Read the result files of runs."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple


class Measurement(NamedTuple):
    """One line of a result file."""

    case: str
    contender: str
    round: int
    figures: dict[str, Any] | None
    error: str | None


class Run(NamedTuple):
    """All measurements of a run."""

    about: dict[str, Any]
    measured: list[Measurement]

    def figure(self, case: str, contender: str, name: str) -> float | None:
        """Return the median of the rounds."""
        numbers = self.numbers(case, contender, name)
        return statistics.median(numbers) if numbers else None

    def worst(self, case: str, contender: str, name: str) -> float | None:
        return max(self.numbers(case, contender, name), default=None)

    def numbers(self, case: str, contender: str, name: str) -> list[float]:
        found = [one.figures.get(name) for one in self.of(case, contender) if one.figures]
        return [value for value in found if isinstance(value, (int, float))]

    def text(self, case: str, contender: str, name: str) -> str | None:
        """Return the last value of a textual figure."""
        found = None
        for one in self.of(case, contender):
            if one.figures and name in one.figures:
                found = str(one.figures[name])
        return found

    def of(self, case: str, contender: str) -> list[Measurement]:
        return [one for one in self.measured if (one.case, one.contender) == (case, contender)]

    def cases(self) -> list[str]:
        return list(dict.fromkeys(one.case for one in self.measured))

    def contenders(self, case: str) -> list[str]:
        """Return the contenders of a case in the order of the run."""
        taken = {one.contender for one in self.measured if one.case == case}
        return [name for name in self.about["contenders"] if name in taken]


def read(*paths: Path) -> Run:
    """Read result files as one run. Later files replace the cases of earlier ones."""
    about: dict[str, Any] = {"contenders": {}, "rounds": []}
    measured: list[Measurement] = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        header = lines[0]["run"]
        contenders = {**about["contenders"], **header["contenders"]}
        rounds = [*about["rounds"], header["rounds"]]
        about = {**about, **header, "contenders": contenders, "rounds": rounds}
        new = [Measurement(*(line[name] for name in Measurement._fields)) for line in lines[1:]]
        replaced = {one.case for one in new}
        measured = [one for one in measured if one.case not in replaced] + new
    return Run(about, measured)
