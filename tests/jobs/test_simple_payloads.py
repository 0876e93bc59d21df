"""Payloads of simple values skip pydantic, and handlers get the values that it would give."""

from __future__ import annotations

import json
import math

import pytest

from mulligan.core.errors import PayloadRefused
from mulligan.manifest.arguments import Arguments
from mulligan.worker.runner.context import Context


def handler(
    number: int, text: str, share: float, flag: bool | None, either: int | str = 0
) -> None: ...


WHOLE = {"number": 1, "text": "a", "share": 0.5, "flag": True, "either": "b"}
OTHERS = [
    {},
    {"text": "größe"},
    {"text": "\ud800"},
    {"number": 2**70},
    {"number": True},
    {"number": "7"},
    {"number": 7.0},
    {"number": 7.5},
    {"share": 1},
    {"share": math.inf},
    {"flag": None},
    {"flag": 1},
    {"flag": "yes"},
    {"either": True},
    {"either": 1.5},
    {"text": None},
    {"more": 1},
]


def decoded(arguments: Arguments, text: str) -> object:
    try:
        values = arguments.decode(text)
    except PayloadRefused as refused:
        return str(refused)
    return {name: (type(value), value) for name, value in values.items()}


@pytest.mark.parametrize("without", [(), ("either",), ("number",)])
@pytest.mark.parametrize("changes", OTHERS, ids=repr)
def test_simple_values_equal_what_pydantic_would_return(monkeypatch, changes, without):
    arguments = Arguments(handler, Context)
    text = json.dumps(
        {name: value for name, value in (WHOLE | changes).items() if name not in without}
    )
    found = decoded(arguments, text)
    monkeypatch.setattr(Arguments, "_copy_if_exact", lambda *_: None)
    assert decoded(arguments, text) == found


def test_simple_values_skip_pydantic(monkeypatch):
    arguments = Arguments(handler, Context)
    monkeypatch.setattr(Arguments, "_validate_model", None)
    assert arguments.decode(json.dumps(WHOLE)) == WHOLE
