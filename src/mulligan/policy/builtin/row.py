"""How the built-in table is written: an id, a code of the registry, and what must hold."""

from __future__ import annotations

from typing import Any

from mulligan.policy.codes import CODES
from mulligan.policy.rule import Rule, unchecked


def row(name: str, code: str, **conditions: Any) -> Rule:
    known = CODES[code]
    return unchecked(name, code=code, cls=known.cls, public=known.public, **conditions)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
