"""Which regular expressions may judge a failure.

An error text may be written by an attacker, and a word in it proves little. So a pattern may not explode
(backreferences, repeats inside repeats), and may not be a bare number or a bare noun.
"""

from __future__ import annotations

import re
import warnings
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from mulligan.policy.effort import steps_of

LONGEST = 500
SLOW = 150_000_000  # steps: at worst a second or two for a text of full length
_RARE = 13  # letters: a word so long is not said by chance; other scripts have no spaces between words
_FEW = 16  # a repeat of at most this many times is not unbounded
_WORD = re.compile(r"[^\W\d_]{2,}")
_SPECIAL = re.compile(r"[A-Z]{2}|[a-z][A-Z]|_|\w/\w")  # ENOSPC, SlowDown, insufficient_quota, I/O


def unfit(pattern: Any, *, alone: bool) -> str:
    """Why this pattern is refused; empty if it may be used. `alone`: the rule has no other condition."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= LONGEST:
        return f"must be a pattern of 1 to {LONGEST} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a pattern that Python warns of may mean something else tomorrow
            tree = _parser.parse(pattern, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return f"is no regular expression: {error}"
    return _explosive(tree) or _long(tree) or _matches_nothing(pattern) or _bare(tree, alone=alone)


def _long(tree: Any) -> str:
    if steps_of(tree.data) <= SLOW:
        return ""
    return (
        "can match in so many ways that it may take for ever; bound its repeats, as in .{0,80}, and begin with a word"
    )


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
    return "matches an empty text, so it would match every failure" if re.search(pattern, "") else ""


def _bare(tree: Any, *, alone: bool) -> str:
    """Every branch must say something that is not said by chance."""
    for spoken in _spoken(tree):
        words = _WORD.findall(spoken)
        if not words:
            return "is a bare number or sign; a number in an error text may mean anything"
        if alone and len(words) < 2 and words[0].isascii() and len(words[0]) < _RARE and not _SPECIAL.search(spoken):
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
