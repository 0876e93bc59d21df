"""Every requirement of the five specifications has a test or a decision."""

from __future__ import annotations

import importlib.util
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


def test_every_must_has_a_test_or_a_decision_and_every_mark_names_a_requirement() -> None:
    assert seeds.find_problems() == []


@pytest.mark.parametrize("number", seeds.seeds())
def test_the_requirements_of_a_specification_are_numbered_without_a_gap(number: str) -> None:
    seed = seeds.seeds()[number]
    assert [one["id"] for one in seed.rows] == [
        f"{number}-{index:02}" for index in range(1, len(seed.rows) + 1)
    ]
    assert (ROOT / "apps" / seed.application / "__main__.py").exists()


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
