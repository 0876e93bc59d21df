"""The applications in apps/ use only public names and stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT, name_of

pytestmark = pytest.mark.processes

PUBLIC = {
    "mulligan",
    "mulligan.core.errors",
    "mulligan.http.api",
}  # names that the docs import outside of tests
FOR_TESTS = {"mulligan.testing"}
NOT_COUNTED = {"tests", "demo", "rules.py"}  # tests, demo, rule pack
NOT_COUNTED |= {"web.py", "views.py", "live.py"}  # pages
NOT_COUNTED |= {
    "world.py",
    "mailbox.py",
    "examples.py",
}  # simulated services and demo data
MAX_LINES = 600  # non-blank lines

applications = sorted(main.parent for main in ROOT.glob("apps/*/__main__.py"))
sources = sorted(path for folder in applications for path in folder.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", sources, ids=name_of)
def test_an_application_imports_public_names_only(path: Path) -> None:
    allowed = PUBLIC | (FOR_TESTS if "tests" in path.parts else set())
    ours = {
        name
        for name in imported(path)
        if name.split(".")[0] == "mulligan" and not name.startswith("mulligan.apps")
    }
    assert ours <= allowed, f"{name_of(path)} imports {sorted(ours - allowed)}"


@pytest.mark.parametrize("folder", applications, ids=name_of)
def test_an_application_is_small(folder: Path) -> None:
    counted = [
        path
        for path in folder.rglob("*.py")
        if not NOT_COUNTED & set(path.relative_to(folder).parts)
    ]
    lines = [
        line
        for path in counted
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    assert len(lines) <= MAX_LINES
