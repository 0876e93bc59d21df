"""Generated pages are up to date."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from doc_pages import ROOT, blocks, name_of

from mulligan.core import lifecycle


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load()


@pytest.mark.timeout(300)  # reads every source file and every test
def test_generated_pages_are_up_to_date() -> None:
    generated = generate.generated_files()
    stale = [
        name_of(page)
        for page, text in generated.items()
        if page.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python docs/generate.py"
    assert {ROOT / name for name in (*generate.PAGES_WITH_PARTS, *generate.PAGES)} == set(generated)


def test_the_state_diagram_matches_the_table_of_moves() -> None:
    shown = [
        block.text for block in blocks(ROOT / "ARCHITECTURE.md") if block.language == "mermaid"
    ]
    assert shown == [f"{lifecycle.diagram()}\n"]


def test_every_generated_part_is_marked_in_a_page() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in generate.PAGES_WITH_PARTS)
    assert [
        name
        for name in generate.PARTS
        if f"<!-- {name}: printed by docs/generate.py -->" not in text
    ] == []
