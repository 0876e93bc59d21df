"""A run in the terminal."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.peers.bars import judged
from bench.peers.run import Measured


class Run(NamedTuple):
    about: dict[str, Any]
    measured: list[Measured]

    def figure(self, case: str, contender: str, name: str) -> float | None:
        """The median of the rounds."""
        found = [one.figures.get(name) for one in self.of(case, contender) if one.figures]
        numbers = [value for value in found if isinstance(value, (int, float))]
        return statistics.median(numbers) if numbers else None

    def worst(self, case: str, contender: str, name: str) -> float | None:
        found = [one.figures.get(name) for one in self.of(case, contender) if one.figures]
        numbers = [value for value in found if isinstance(value, (int, float))]
        return max(numbers) if numbers else None

    def of(self, case: str, contender: str) -> list[Measured]:
        return [one for one in self.measured if (one.case, one.contender) == (case, contender)]

    def cases(self) -> list[str]:
        return list(dict.fromkeys(one.case for one in self.measured))

    def contenders(self, case: str) -> list[str]:
        """In the order in which they are always told."""
        taken = {one.contender for one in self.measured if one.case == case}
        return [name for name in self.about["contenders"] if name in taken]


def read(*paths: Path) -> Run:
    """One run; of several files the later ones replace cases of the earlier ones."""
    about: dict[str, Any] = {}
    measured: list[Measured] = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        about = about | lines[0]["run"]
        new = [Measured(*(line[name] for name in Measured._fields)) for line in lines[1:]]
        replaced = {one.case for one in new}
        measured = [one for one in measured if one.case not in replaced] + new
    return Run(about, measured)


def line(measured: Measured) -> str:
    what = f"{measured.case:<28} {measured.contender:<24}"
    if measured.error:
        return f"{what} [red]{measured.error[:160]}[/]"
    return what + "  ".join(f"{name} {_number(value)}" for name, value in (measured.figures or {}).items())


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}".rstrip("0").rstrip(".")


def show(console: Console, run: Run) -> None:
    for case in run.cases():
        console.print(_table(run, case))
    console.print(_bars(run))


def _table(run: Run, case: str) -> Table:
    table = Table(title=case, title_justify="left")
    names = _names(run, case)
    for number, word in enumerate(("", *names)):
        table.add_column(word, justify="right" if number else "left")
    for contender in run.contenders(case):
        table.add_row(contender, *_cells(run, case, contender, names))
    return table


def _names(run: Run, case: str) -> list[str]:
    found = [name for one in run.measured if one.case == case and one.figures for name in one.figures]
    return [name for name in dict.fromkeys(found) if name not in ("n", "seconds") or case.startswith("crash")]


def _cells(run: Run, case: str, contender: str, names: list[str]) -> Iterator[str]:
    for name in names:
        middle = run.figure(case, contender, name)
        if middle is not None:
            yield _number(middle)
            continue
        words = [str(one.figures[name]) for one in run.of(case, contender) if one.figures and name in one.figures]
        yield words[-1] if words else ""


def _bars(run: Run) -> Table:
    table = Table(title="the bars", title_justify="left")
    for number, word in enumerate(("", "store", "bar", "measured", "")):
        table.add_column(word, justify="right" if number == 3 else "left")
    for verdict in judged(run):
        told = {True: "[green]met[/]", False: "[red]not met[/]", None: "not measured"}[verdict.met]
        table.add_row(verdict.what, verdict.store, verdict.bar, verdict.said, told)
    return table
