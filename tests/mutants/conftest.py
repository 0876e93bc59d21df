"""Print a table at the end: which invariant detected which defect."""

from __future__ import annotations

import pytest

TABLE: list[tuple[str, str, str, str, float]] = []


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if not TABLE:
        return
    terminalreporter.section("mutants")
    row = "{:<32} {:<10} {:<44} {:>8}"
    terminalreporter.line(row.format("mutant", "store", "caught by", "seconds"))
    for mutant, store, _, caught, seconds in TABLE:
        terminalreporter.line(row.format(mutant, store, caught, f"{seconds:.1f}"))


@pytest.fixture
def table():
    return TABLE
