"""Print the results of a run in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.peers.bars import judge_all
from bench.peers.results import Measurement, Run
from rich.console import Console
from rich.table import Table


def line(measured: Measurement) -> str:
    what = f"{measured.case:<28} {measured.contender:<24}"
    if measured.error:
        return f"{what} [red]{measured.error[:160]}[/]"
    return what + "  ".join(
        f"{name} {number(value)}" for name, value in (measured.figures or {}).items()
    )


def number(value: Any) -> str:
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
    found = [
        name for one in run.measured if one.case == case and one.figures for name in one.figures
    ]
    return [
        name
        for name in dict.fromkeys(found)
        if name not in ("n", "seconds") or case.startswith("crash")
    ]


def _cells(run: Run, case: str, contender: str, names: list[str]) -> Iterator[str]:
    for name in names:
        middle = run.figure(case, contender, name)
        yield number(middle) if middle is not None else run.text(case, contender, name) or ""


def _bars(run: Run) -> Table:
    table = Table(title="the bars", title_justify="left")
    for number, word in enumerate(("", "store", "bar", "measured", "")):
        table.add_column(word, justify="right" if number == 3 else "left")
    for verdict in judge_all(run):
        if verdict.met is None:
            continue
        result = "[green]met[/]" if verdict.met else "[red]not met[/]"
        table.add_row(verdict.what, verdict.store, verdict.bar, verdict.text, result)
    return table
