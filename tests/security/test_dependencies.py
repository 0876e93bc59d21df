"""Dependencies are pinned and licensed, and no debug server is enabled."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import mulligan
from mulligan.config import read_settings
from mulligan.http.app import create_app

ROOT = Path(__file__).parents[2]
SOURCE = Path(mulligan.__file__).parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.security("S54")
def test_all_dependencies_are_pinned_and_have_an_allowed_licence():
    audit = load("audit")
    assert len(audit.installed_licences()) > 30
    assert audit.find_problems() == []


@pytest.mark.security("S54")
def test_there_is_no_debug_server():
    app = create_app(read_settings({}, environ={}))
    assert not app.debug
    switched = re.compile(r"debug=True|reload=True|set_trace\(|breakpoint\(|PYTHONINSPECT")
    found = [file.name for file in SOURCE.rglob("*.py") if switched.search(file.read_text())]
    assert found == []


def test_every_security_check_has_a_test_or_a_reason():
    assert load("generate_security").find_problems() == []


def test_a_security_check_without_a_test_is_reported(monkeypatch):
    page = load("generate_security")
    row = {"id": "S99", "text": "It is safe"}
    monkeypatch.setattr(page, "chapters", lambda: [{"title": "x", "checks": [row]}])
    monkeypatch.setattr(page, "proofs", lambda: {"S98": [page.Proof("tests/test_x.py", "test_x")]})
    assert page.find_problems() == [
        "S98 is proved by test_x, but checks.toml has no such check",
        "S99: neither a test nor a reason",
    ]
    row |= {"otherwise": "it is not", "why": "nobody needs it"}
    monkeypatch.setattr(page, "proofs", dict)
    assert page.find_problems() == []
