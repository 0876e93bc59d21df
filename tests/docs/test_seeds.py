"""Every requirement of the five specifications has a test or a decision."""

from __future__ import annotations

import importlib.util
import io
import tokenize
from pathlib import Path
from types import ModuleType

import pytest
from doc_pages import ROOT


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_seeds", ROOT / "docs" / "generate_seeds.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


seeds = load()
PAGES = {"web.py", "views.py", "live.py"}
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def lines_of_code(file: Path) -> int:
    """Count the lines that hold code: no blank lines, no comments, no docstrings."""
    lines: set[int] = set()
    statement_begins = True
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type not in {*NOT_CODE, tokenize.ENDMARKER}:
            if not (statement_begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            statement_begins = False
        elif token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
            statement_begins = True
    return len(lines)


def test_every_must_has_a_test_or_a_decision_and_every_mark_names_a_requirement() -> None:
    assert seeds.find_problems() == []


@pytest.mark.parametrize("number", seeds.seeds())
def test_the_requirements_of_a_specification_are_numbered_without_a_gap(number: str) -> None:
    seed = seeds.seeds()[number]
    assert [one["id"] for one in seed.rows] == [
        f"{number}-{index:02}" for index in range(1, len(seed.rows) + 1)
    ]
    assert (ROOT / "apps" / seed.application / "__main__.py").exists()


@pytest.mark.parametrize("number", seeds.seeds())
def test_an_application_without_pages_and_demo_has_at_most_600_lines_of_code(number: str) -> None:
    folder = ROOT / "apps" / seeds.seeds()[number].application
    own = [
        file
        for file in folder.rglob("*.py")
        if file.name not in PAGES and not {"tests", "demo"} & set(file.relative_to(folder).parts)
    ]
    assert len(own) >= 5
    assert sum(map(lines_of_code, own)) <= 600


def test_a_requirement_that_shares_a_test_without_naming_its_assertion_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "LIMIT = 3  # 009-01\n"
        "def check(): ...  # 009-02\n"
        "def other(): ...  # 009-04\n"
        "@pytest.mark.seed('009-01', '009-02', '009-03', '009-04')\n"
        "def test_x():\n    assert check(LIMIT)  # 009-03\n"
    )
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    assert list(seeds.unnamed_assertions()) == [
        "009-04 shares test_x; add the comment # 009-04 to its assertion"
    ]


def test_a_must_without_a_test_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"id": "009-01", "kind": "must", "text": "It works", "where": "everywhere"}
    monkeypatch.setattr(
        seeds, "seeds", lambda: {"009": seeds.Seed("nine", complete=True, rows=[row])}
    )
    monkeypatch.setattr(
        seeds, "proofs", lambda: {"009-02": [seeds.Proof("tests/test_x.py", "test_x")]}
    )
    assert seeds.find_problems() == [
        "009-02 is proved by test_x, but no file of docs/seeds has it",
        "009-01 is a must with neither a test nor a decision",
    ]
    row |= {"otherwise": "it does not", "why": "it is not needed"}
    monkeypatch.setattr(seeds, "proofs", dict)
    assert seeds.find_problems() == []


def test_a_name_that_its_file_does_not_have_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apps" / "nine").mkdir(parents=True)
    (tmp_path / "apps" / "nine" / "jobs.py").write_text("def render(): ...\n")
    row = {"id": "009-01", "where": "jobs.py: render; jobs.py: renders, twice; gone.py: x"}
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    monkeypatch.setattr(
        seeds, "seeds", lambda: {"009": seeds.Seed("nine", complete=True, rows=[row])}
    )
    assert list(seeds.missing_code()) == [
        "009-01: jobs.py has no renders",
        "009-01: gone.py has no x",
    ]
