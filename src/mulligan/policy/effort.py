r"""How long a regular expression may take at worst, told from its shape.

A search tries a pattern at each place of a text, and there every way to match it until one succeeds. Ways multiply:
`.*` twice in a row has as many as a text has pairs of places, `(a|ab)+` has more than can be tried. What stands behind
a repeat makes up for it: of `\d+ ` only one length can match, because a digit is no space.
"""

from __future__ import annotations

from collections.abc import Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from typing import Any, NamedTuple

TEXT = 1000  # characters of a text, for this reckoning
MOST = 10**12  # as good as for ever
REPEATS = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT})
_ASSERTS = frozenset({sre.ASSERT, sre.ASSERT_NOT})
_ASCII = 128
_LETTER, _SPACE, _SIGN = _OTHERS = (128, 129, 130)  # stand for all that is not ASCII
_ALL = frozenset(range(131))
_DIGITS = frozenset({*range(48, 58), _LETTER})
_SPACES = frozenset({*range(9, 14), *range(28, 33), _SPACE})
_WORD = frozenset({*_DIGITS, *range(97, 123), 95, _LETTER})
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: _ALL - (_DIGITS - {_LETTER}),
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: _ALL - _SPACES,
    sre.CATEGORY_WORD: _WORD,
    sre.CATEGORY_NOT_WORD: _ALL - _WORD,
}

Chars = frozenset[int]  # small letters stand for both
Tree = Sequence[Any]


class Effort(NamedTuple):
    """In how many ways a piece can match at one place, and how many steps it takes to try them all."""

    ways: int
    steps: int


def steps_of(tree: Tree) -> int:
    """Of a search through a whole text: at every place where a match could begin."""
    needed = list(tree)
    while needed and needed[-1][0] in REPEATS and needed[-1][1][0] == 0:  # cannot fail, so it is tried once
        needed.pop()
    return min(TEXT // max(1, len(_begin(needed))) * effort(needed).steps, MOST)


def effort(tree: Tree, follow: Chars = frozenset()) -> Effort:
    """Of a sequence; `follow`: the characters that may come behind it, none at the end."""
    ways, steps = 1, 0
    for place, (op, value) in enumerate(tree):
        one = _effort(op, value, tree[place + 1 :], follow)
        steps = min(steps + ways * one.steps, MOST)
        ways = min(ways * one.ways, MOST)
    return Effort(ways, max(steps, ways))


def _effort(op: Any, value: Any, rest: Tree, follow: Chars) -> Effort:
    if op in REPEATS:
        return _repeat(op, value, rest, follow)
    if op is sre.SUBPATTERN:
        return effort(value[3].data, _first(rest, follow))
    if op is sre.BRANCH:
        return _branch([branch.data for branch in value[1]], _first(rest, follow))
    if op is sre.ATOMIC_GROUP or op in _ASSERTS:  # left as soon as it matches, and never entered again
        inner = value if op is sre.ATOMIC_GROUP else value[1]
        return Effort(1, effort(inner.data).steps)
    return Effort(1, 1)


def _repeat(op: Any, value: Any, rest: Tree, follow: Chars) -> Effort:
    """As many ways as it has lengths; one, if what may come behind it cannot be part of it."""
    low, high, inner = value[0], min(value[1], TEXT), value[2].data
    first = _first(inner, frozenset())
    behind = _behind(rest, follow, first)
    once = effort(inner, first | behind)
    steps = min(max(high, 1) * once.steps, MOST)
    if once.ways > 1:
        ways = _power(once.ways, high)
    else:
        ways = 1 if first.isdisjoint(behind) else max(1, (high - low + 1) // max(1, len(_begin(rest))))
    return Effort(1 if op is sre.POSSESSIVE_REPEAT else ways, max(ways, steps))


def _behind(rest: Tree, follow: Chars, part: Chars) -> Chars:
    r"""The characters that may come behind a repeat of `part`; after a word, `\b` allows none of a word."""
    found = _first(rest, follow)
    if rest and rest[0] == (sre.AT, sre.AT_BOUNDARY) and part <= _WORD:
        return found - _WORD
    return found


def _power(ways: int, times: int) -> int:
    found = 1
    for _ in range(times):
        found *= ways
        if found >= MOST:
            return MOST
    return found


def _branch(branches: list[Tree], follow: Chars) -> Effort:
    """Of branches that begin differently only one can match; the others fail at their first character."""
    efforts = [effort(branch, follow) for branch in branches]
    begins = [_begin(branch) for branch in branches]
    ways = steps = 1
    for one in begins:
        alike = [
            found
            for found, other in zip(efforts, begins, strict=True)
            if one.startswith(other) or other.startswith(one)
        ]
        ways = max(ways, sum(found.ways for found in alike))
        steps = max(steps, sum(found.steps for found in alike))
    return Effort(min(ways, MOST), min(steps + len(branches), MOST))


def _begin(tree: Tree) -> str:
    """The letters with which every match begins, as far as they are certain."""
    found = ""
    for op, value in tree:
        if op is sre.LITERAL:
            found += chr(value).lower()
        elif op is not sre.AT:
            break
    return found


def _first(tree: Tree, follow: Chars) -> Chars:
    """The characters with which this, or what follows it, may begin."""
    found: Chars = frozenset()
    for op, value in tree:
        chars, may_be_empty = _firsts(op, value)
        found |= chars
        if not may_be_empty:
            return found
    return found | follow


def _firsts(op: Any, value: Any) -> tuple[Chars, bool]:
    """The first characters of one piece, and whether it may be empty."""
    if op is sre.AT or op in _ASSERTS:
        return frozenset(), True
    if op in REPEATS:
        return _first(value[2].data, frozenset()), value[0] == 0 or _empty(value[2].data)
    if op is sre.SUBPATTERN:
        return _first(value[3].data, frozenset()), _empty(value[3].data)
    if op is sre.ATOMIC_GROUP:
        return _first(value.data, frozenset()), _empty(value.data)
    if op is sre.BRANCH:
        branches = [branch.data for branch in value[1]]
        return frozenset().union(*[_first(one, frozenset()) for one in branches]), any(map(_empty, branches))
    return _chars(op, value), False


def _empty(tree: Tree) -> bool:
    return all(_firsts(op, value)[1] for op, value in tree)


def _chars(op: Any, value: Any) -> Chars:
    """Of a piece that is one character."""
    if op is sre.LITERAL:
        return frozenset([_small(value)])
    if op is sre.IN and value[0][0] is sre.NEGATE:
        return _ALL - frozenset().union(*[_left_out(kind, choice) for kind, choice in value[1:]])
    if op is sre.IN:
        return frozenset().union(*[_choice(kind, choice) for kind, choice in value])
    return _ALL


def _left_out(kind: Any, choice: Any) -> Chars:
    """By `[^…]`. One letter that is not ASCII leaves all others of its kind in, and so do digits."""
    whole = kind is sre.CATEGORY and choice is not sre.CATEGORY_DIGIT
    return _choice(kind, choice) - (frozenset() if whole else frozenset(_OTHERS))


def _choice(kind: Any, choice: Any) -> Chars:
    if kind is sre.LITERAL:
        return frozenset([_small(choice)])
    if kind is sre.RANGE:
        small = frozenset(_small(one) for one in range(choice[0], min(choice[1] + 1, _ASCII)))
        return small | set(_OTHERS) if choice[1] >= _ASCII else small
    return _CATEGORIES.get(choice, _ALL)


def _small(code: int) -> int:
    letter = chr(code)
    if code < _ASCII:
        return ord(letter.lower())
    return _LETTER if letter.isalnum() else _SPACE if letter.isspace() else _SIGN
