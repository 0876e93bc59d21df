"""The words without which a pattern cannot match: looking for a word is cheap, trying a pattern is not."""

from __future__ import annotations

import re
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_WHOLE = re.compile(r"(?<![a-z\0])[a-z]{2,}(?![a-z\0])")  # \0 stands for something that may be a letter
# So common that looking for them saves nothing.
_COMMON = frozenset(
    {"not", "is", "the", "to", "in", "of", "for", "has", "been", "error", "failed", "no", "be", "or", "and"}
)


def keywords(pattern: str) -> frozenset[str]:
    """Words of which every match holds at least one; empty if none can be named."""
    return _needed(_parser.parse(pattern, re.IGNORECASE)) or frozenset()


def _needed(tree: Any) -> frozenset[str] | None:
    """The best word of the sequence itself, else the words of a part that cannot be left out."""
    text, parts = _plain(tree)
    words = sorted(_WHOLE.findall(text), key=lambda word: (word in _COMMON, -len(word)))
    if words and words[0] not in _COMMON:
        return frozenset(words[:1])
    inner = [found for part in parts if (found := _of_part(part))]
    if inner:
        return min(inner, key=len)
    return frozenset(words[:1]) or None


def _plain(tree: Any) -> tuple[str, list[Any]]:
    """The literal text of a sequence, and its parts that must be there."""
    text, parts = [], []
    for op, value in tree:
        if op is sre.LITERAL:
            text.append(chr(value).lower())
        elif op is sre.AT:
            text.append(" ")
        elif op is sre.SUBPATTERN or op is sre.BRANCH:
            parts.append((op, value))
            text.append("\0")
        elif op is sre.IN and not _letters(value):
            text.append(" ")
        elif op in {sre.ASSERT, sre.ASSERT_NOT}:
            continue
        else:
            text.append("\0")
    return "".join(text), parts


def _letters(choices: Any) -> bool:
    """Whether this set of characters may be a letter."""
    for op, value in choices:
        if op is sre.LITERAL and chr(value).isalpha():
            return True
        if op is sre.CATEGORY and value not in {sre.CATEGORY_SPACE, sre.CATEGORY_DIGIT, sre.CATEGORY_NOT_WORD}:
            return True
        if op in {sre.RANGE, sre.NEGATE}:
            return True
    return False


def _of_part(part: Any) -> frozenset[str] | None:
    op, value = part
    if op is sre.SUBPATTERN:
        return _needed(value[3])
    found = [_needed(branch) for branch in value[1]]
    if any(one is None for one in found):
        return None
    return frozenset().union(*[one for one in found if one])
