"""The words without which a pattern cannot match: looking for a word is cheap, trying a pattern is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_OPEN = "\0"  # something that may be a letter: a word beside it may be longer
_WHOLE = re.compile(rf"(?<![a-z{_OPEN}])[a-z]{{2,}}(?![a-z{_OPEN}])")
_WAYS = 400  # through one part of a pattern; more are not followed
# So common that looking for them saves little.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """not is the to in of for has been error failed no be or and an at by on this with was when from your you
        please too out code message request requests exceeded file connection server status type operation limit api
        invalid http unable data rate timeout response access read cannot process could again try host many resource""",
    )
)
_REPEATS = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT})

Words = frozenset[str]


def keywords(pattern: str) -> Words:
    """Words of which every match holds at least one; empty if none can be named."""
    return _needed(_parser.parse(pattern, re.IGNORECASE).data, _OPEN, _OPEN) or frozenset()


def _needed(tree: list[Any], left: str, right: str) -> Words | None:
    """Of the parts between two boundaries, the one whose words are fewest and least common."""
    if len(tree) == 1 and tree[0][0] is sre.BRANCH:
        found = [_needed(branch.data, left, right) for branch in tree[0][1][1]]
        return None if any(words is None for words in found) else frozenset().union(*[words or () for words in found])
    if len(tree) == 1 and tree[0][0] is sre.SUBPATTERN:
        return _needed(tree[0][1][3].data, left, right)
    chosen = [words for part, before, after in _parts(tree, left, right) if (words := _of_part(part, before, after))]
    return min(chosen, key=lambda words: (bool(words & _COMMON), len(words), -min(map(len, words))), default=None)


def _parts(tree: list[Any], left: str, right: str) -> Iterator[tuple[list[Any], str, str]]:
    """The pieces of a sequence between what is certainly no letter, each with what stands beside it."""
    piece: list[Any] = []
    before = left
    for op, value in tree:
        if op is sre.AT or (op is sre.LITERAL and not chr(value).isalpha()) or (op is sre.IN and not _letters(value)):
            if piece:
                yield piece, before, " "
            piece, before = [], " "
        elif op not in {sre.ASSERT, sre.ASSERT_NOT}:
            piece.append((op, value))
    if piece:
        yield piece, before, right


def _of_part(part: list[Any], left: str, right: str) -> Words | None:
    if len(part) == 1 and part[0][0] in {sre.SUBPATTERN, sre.BRANCH}:
        return _needed(part, left, right)
    ways = _ways(part)
    if ways is None:
        return None
    found = [
        sorted(_WHOLE.findall(f"{left}{way}{right}"), key=lambda word: (word in _COMMON, -len(word))) for way in ways
    ]
    return frozenset(words[0] for words in found) if all(found) else None


def _ways(tree: list[Any]) -> list[str] | None:
    """Every text this piece can be, as far as it is certain; None if there are too many."""
    ways = [""]
    for op, value in tree:
        more = _texts(op, value)
        if more is None or len(ways) * len(more) > _WAYS:
            return None
        ways = [way + text for way in ways for text in more]
    return ways


def _texts(op: Any, value: Any) -> list[str] | None:
    if op is sre.LITERAL:
        return [chr(value).lower()]
    if op is sre.SUBPATTERN:
        return _ways(value[3].data)
    if op is sre.BRANCH:
        found = [_ways(branch.data) for branch in value[1]]
        return None if None in found else [way for ways in found for way in ways or ()]
    if op in _REPEATS and value[0] == 0 and value[1] == 1:
        inner = _ways(value[2].data)
        return None if inner is None else ["", *inner]
    if op is sre.IN and all(choice is sre.LITERAL for choice, _ in value):
        return [chr(letter).lower() for _, letter in value]
    if op is sre.AT or (op is sre.IN and not _letters(value)):
        return [" "]
    return [""] if op in {sre.ASSERT, sre.ASSERT_NOT} else [_OPEN]


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
