"""Patterns that are compiled when they are first tried: of some two hundred a process needs few, and many need none."""

from __future__ import annotations

import re
from typing import Any, cast


class _Late:
    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        """Once for each method; from then on it is found without asking."""
        compiled = re.compile(self._text, self._flags)
        for method in ("search", "match", "fullmatch", "finditer", "findall", "sub", "split", "pattern", "flags"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def late(text: str, flags: int = 0) -> re.Pattern[str]:
    return cast("re.Pattern[str]", _Late(text, flags))
