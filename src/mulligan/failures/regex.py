r"""How long a regular expression may take at worst, told from its shape.

A search tries a pattern at each place of a text, and there every way to match it until one succeeds. Ways multiply:
`.*` twice in a row has as many as a text has pairs of places, `(a|ab)+` has more than can be tried. What stands behind
a repeat makes up for it: of `\d+ ` only one length can match, because a digit is no space.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, cast

# Patterns that are compiled when they are first tried: of some two hundred a process needs few, and many need none.


class _Late:
    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        """Once for each method; from then on it is found without asking."""
        compiled = re.compile(self._text, self._flags)
        for method in (
            "search",
            "match",
            "fullmatch",
            "finditer",
            "findall",
            "sub",
            "split",
            "pattern",
            "flags",
        ):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def late(text: str, flags: int = 0) -> re.Pattern[str]:
    return cast("re.Pattern[str]", _Late(text, flags))


# r"""How long a regular expression may take at worst, told from its shape.

TEXT = 1000  # characters of a text, for this reckoning
MOST = 10**12  # as good as for ever
REPEATS = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT})
_ASSERTS = frozenset({sre.ASSERT, sre.ASSERT_NOT})
_ASCII = 128
_LETTER, _SPACE, _SIGN = _OTHERS = (128, 129, 130)  # stand for all that is not ASCII
_ALL = frozenset(range(131))
_DIGITS = frozenset({*range(48, 58), _LETTER})
_SPACES = frozenset({*range(9, 14), *range(28, 33), _SPACE})
_WORD_CHARACTERS = frozenset({*_DIGITS, *range(97, 123), 95, _LETTER})
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: _ALL - (_DIGITS - {_LETTER}),
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: _ALL - _SPACES,
    sre.CATEGORY_WORD: _WORD_CHARACTERS,
    sre.CATEGORY_NOT_WORD: _ALL - _WORD_CHARACTERS,
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
    while (
        needed and needed[-1][0] in REPEATS and needed[-1][1][0] == 0
    ):  # cannot fail, so it is tried once
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
    if (
        op is sre.ATOMIC_GROUP or op in _ASSERTS
    ):  # left as soon as it matches, and never entered again
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
        ways = (
            1 if first.isdisjoint(behind) else max(1, (high - low + 1) // max(1, len(_begin(rest))))
        )
    return Effort(1 if op is sre.POSSESSIVE_REPEAT else ways, max(ways, steps))


def _behind(rest: Tree, follow: Chars, part: Chars) -> Chars:
    r"""The characters that may come behind a repeat of `part`; after a word, `\b` allows none of a word."""
    found = _first(rest, follow)
    if rest and rest[0] == (sre.AT, sre.AT_BOUNDARY) and part <= _WORD_CHARACTERS:
        return found - _WORD_CHARACTERS
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
        return frozenset().union(*[_first(one, frozenset()) for one in branches]), any(
            map(_empty, branches)
        )
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


# Which regular expressions may judge a failure.

LONGEST = 500
SLOW = 150_000_000  # steps: at worst a second or two for a text of full length
_RARE = (
    13  # letters: a word so long is not said by chance; other scripts have no spaces between words
)
_FEW = 16  # a repeat of at most this many times is not unbounded
_WORD = re.compile(r"[^\W\d_]{2,}")
_SPECIAL = re.compile(r"[A-Z]{2}|[a-z][A-Z]|_|\w/\w")  # ENOSPC, SlowDown, insufficient_quota, I/O


def unfit(pattern: Any, *, alone: bool) -> str:
    """Why this pattern is refused; empty if it may be used. `alone`: the rule has no other condition."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= LONGEST:
        return f"must be a pattern of 1 to {LONGEST} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error"
            )  # a pattern that Python warns of may mean something else tomorrow
            tree = _parser.parse(pattern, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return f"is no regular expression: {error}"
    return _explosive(tree) or _long(tree) or _matches_nothing(pattern) or _bare(tree, alone=alone)


def _long(tree: Any) -> str:
    if steps_of(tree.data) <= SLOW:
        return ""
    return "can match in so many ways that it may take for ever; bound its repeats, as in .{0,80}, and begin with a word"


def _explosive(tree: Any) -> str:
    for op, value in tree:
        if op in {sre.GROUPREF, sre.GROUPREF_EXISTS}:
            return "refers back to a group, which can take for ever"
        if _repeats(op, value) and _repeating(value[2]):
            return "has a repeat inside a repeat, which can take for ever"
        for inner in _inside(op, value):
            if why := _explosive(inner):
                return why
    return ""


def _repeats(op: Any, value: Any) -> bool:
    """Without end, as far as time goes."""
    return op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT} and value[1] > _FEW


def _repeating(tree: Any) -> bool:
    """Whether something in there repeats, or offers a choice that a repeat would multiply."""
    for op, value in tree:
        if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT} and value[1] > 1:
            return True
        if any(_repeating(inner) for inner in _inside(op, value)):
            return True
    return False


def _inside(op: Any, value: Any) -> list[Any]:
    if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
        return [value[2]]
    if op is sre.SUBPATTERN:
        return [value[3]]
    if op is sre.BRANCH:
        return list(value[1])
    if op in {sre.ASSERT, sre.ASSERT_NOT}:
        return [value[1]]
    return [value] if op is sre.ATOMIC_GROUP else []


def _matches_nothing(pattern: str) -> str:
    return (
        "matches an empty text, so it would match every failure" if re.search(pattern, "") else ""
    )


def _bare(tree: Any, *, alone: bool) -> str:
    """Every branch must say something that is not said by chance."""
    for spoken in _spoken(tree):
        words = _WORD.findall(spoken)
        if not words:
            return "is a bare number or sign; a number in an error text may mean anything"
        if (
            alone
            and len(words) < 2
            and words[0].isascii()
            and len(words[0]) < _RARE
            and not _SPECIAL.search(spoken)
        ):
            return f"is the bare word {words[0]!r}; say more of the sentence, or add a condition such as program"
    return ""


def _spoken(tree: Any) -> list[str]:
    """The literal text of each way through the pattern; a gap is a space."""
    ways = [""]
    for op, value in tree:
        ways = [way + part for way in ways[:64] for part in _parts(op, value)]
    return ways


def _parts(op: Any, value: Any) -> list[str]:
    if op is sre.LITERAL:
        return [chr(value)]
    if op is sre.SUBPATTERN:
        return _spoken(value[3])
    if op is sre.BRANCH:
        return [way for branch in value[1] for way in _spoken(branch)]
    if op is sre.ATOMIC_GROUP:
        return _spoken(value)
    if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
        ways = _spoken(value[2])
        return ways if value[0] or not "".join(ways).strip() else ["", *ways]
    return [""] if op in {sre.AT, sre.ASSERT, sre.ASSERT_NOT} else [" "]
