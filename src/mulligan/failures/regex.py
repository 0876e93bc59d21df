r"""Regular expressions: compile them at first use, estimate their cost, validate those of rules.

The cost is estimated from the structure of a pattern. A search tries the pattern at every position
of a text, and there every way to match it until one succeeds. The ways multiply: `.*.*` has as many
as a text has pairs of positions, and `(a|ab)+` has exponentially many. What follows a repeat
reduces them: `\d+ ` can match in one way only, because a digit is not a space.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, cast

# --- Searching ---


class _LazyRegex:
    """A pattern that is compiled at first use: a process needs few of some two hundred."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        """Compile the pattern and store its methods, so that this is called only once."""
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


def lazy_regex(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled when it is first used."""
    return cast("re.Pattern[str]", _LazyRegex(text, flags))


def ascii_probe(text: str) -> str:
    """Replace every character that is not ASCII by `?`.

    Many searches for ASCII substrings are several times faster in the result.
    """
    return text.encode("ascii", "replace").decode("ascii")


# --- Cost of a pattern ---

ASSUMED_TEXT_LENGTH = 1000
MAX_COST = 10**12  # stands for anything larger
REPEATS = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT})
_ASSERTS = frozenset({sre.ASSERT, sre.ASSERT_NOT})

# Characters are ASCII codes, upper case folded to lower case, and three codes for the rest.
_ASCII = 128
_OTHER_LETTER = 128
_OTHER_SPACE = 129
_OTHER_SIGN = 130
_NON_ASCII = frozenset({_OTHER_LETTER, _OTHER_SPACE, _OTHER_SIGN})
_ALL = frozenset(range(131))
_DIGITS = frozenset({*range(48, 58), _OTHER_LETTER})
_SPACES = frozenset({*range(9, 14), *range(28, 33), _OTHER_SPACE})
_WORD_CHARACTERS = frozenset({*_DIGITS, *range(97, 123), 95, _OTHER_LETTER})
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: _ALL - (_DIGITS - {_OTHER_LETTER}),
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: _ALL - _SPACES,
    sre.CATEGORY_WORD: _WORD_CHARACTERS,
    sre.CATEGORY_NOT_WORD: _ALL - _WORD_CHARACTERS,
}

Chars = frozenset[int]
Tree = Sequence[Any]


class MatchCost(NamedTuple):
    """In how many ways a part matches at one position, and how many steps trying them takes."""

    ways: int
    steps: int


def search_steps(tree: Tree) -> int:
    """Return the steps of a search through a whole text, from every possible start."""
    needed = list(tree)
    # An optional repeat at the end cannot fail, so it is tried only once.
    while needed and _is_optional_repeat(*needed[-1]):
        needed.pop()
    starts = ASSUMED_TEXT_LENGTH // max(1, len(_literal_prefix(needed)))
    return min(starts * match_cost(needed).steps, MAX_COST)


def _is_optional_repeat(op: Any, value: Any) -> bool:
    if op not in REPEATS:
        return False
    low, _, _ = value
    return bool(low == 0)


def match_cost(tree: Tree, following: Chars = frozenset()) -> MatchCost:
    """Return the cost of a sequence. `following`: characters that may follow it."""
    ways = 1
    steps = 0
    for position, (op, value) in enumerate(tree):
        cost = _item_cost(op, value, tree[position + 1 :], following)
        steps = min(steps + ways * cost.steps, MAX_COST)
        ways = min(ways * cost.ways, MAX_COST)
    return MatchCost(ways, max(steps, ways))


def _item_cost(op: Any, value: Any, rest: Tree, following: Chars) -> MatchCost:
    """Return the cost of one item of a sequence. `rest`: the items after it."""
    if op in REPEATS:
        return _repeat_cost(op, value, rest, following)
    if op is sre.SUBPATTERN:
        *_, group = value
        return match_cost(group.data, _first_chars(rest, following))
    if op is sre.BRANCH:
        _, branches = value
        trees = [branch.data for branch in branches]
        return _branch_cost(trees, _first_chars(rest, following))
    # Atomic groups and assertions are left at their first match and never entered again.
    if op is sre.ATOMIC_GROUP:
        return MatchCost(1, match_cost(value.data).steps)
    if op in _ASSERTS:
        _, asserted = value
        return MatchCost(1, match_cost(asserted.data).steps)
    return MatchCost(1, 1)


def _repeat_cost(op: Any, value: Any, rest: Tree, following: Chars) -> MatchCost:
    """Return the cost of a repeat.

    It matches in as many ways as it has lengths, and in one way only if no character that may
    follow it can be part of it.
    """
    low, high, body = value
    high = min(high, ASSUMED_TEXT_LENGTH)
    first = _first_chars(body.data, frozenset())
    after = _chars_after_repeat(rest, following, first)
    once = match_cost(body.data, first | after)
    steps = min(max(high, 1) * once.steps, MAX_COST)
    if once.ways > 1:
        ways = _bounded_power(once.ways, high)
    elif first.isdisjoint(after):
        ways = 1
    else:
        ways = max(1, (high - low + 1) // max(1, len(_literal_prefix(rest))))
    steps = max(ways, steps)
    if op is sre.POSSESSIVE_REPEAT:
        return MatchCost(1, steps)
    return MatchCost(ways, steps)


def _chars_after_repeat(rest: Tree, following: Chars, part: Chars) -> Chars:
    r"""Return the characters that may follow a repeat of `part`.

    If `\b` follows a repeat of word characters, the next character is not one of them.
    """
    chars = _first_chars(rest, following)
    if rest and rest[0] == (sre.AT, sre.AT_BOUNDARY) and part <= _WORD_CHARACTERS:
        return chars - _WORD_CHARACTERS
    return chars


def _bounded_power(base: int, exponent: int) -> int:
    result = 1
    for _ in range(exponent):
        result *= base
        if result >= MAX_COST:
            return MAX_COST
    return result


def _branch_cost(branches: list[Tree], following: Chars) -> MatchCost:
    """Return the cost of alternatives.

    Of those with different first letters only one can match; the others fail at once.
    """
    costs = [match_cost(branch, following) for branch in branches]
    prefixes = [_literal_prefix(branch) for branch in branches]
    ways = 1
    steps = 1
    for prefix in prefixes:
        competing_ways = 0
        competing_steps = 0
        for cost, other in zip(costs, prefixes, strict=True):
            if prefix.startswith(other) or other.startswith(prefix):
                competing_ways += cost.ways
                competing_steps += cost.steps
        ways = max(ways, competing_ways)
        steps = max(steps, competing_steps)
    return MatchCost(min(ways, MAX_COST), min(steps + len(branches), MAX_COST))


def _literal_prefix(tree: Tree) -> str:
    """Return the letters that every match begins with."""
    prefix = ""
    for op, value in tree:
        if op is sre.LITERAL:
            prefix += chr(value).lower()
        elif op is not sre.AT:
            break
    return prefix


def _first_chars(tree: Tree, following: Chars) -> Chars:
    """Return the characters that a sequence, or what follows it, may begin with."""
    chars: Chars = frozenset()
    for op, value in tree:
        chars |= _first_chars_of_item(op, value)
        if not _item_may_be_empty(op, value):
            return chars
    return chars | following


def _first_chars_of_item(op: Any, value: Any) -> Chars:
    """Return the characters that an item may begin with."""
    if op is sre.AT or op in _ASSERTS:
        return frozenset()
    inner = _inner_trees(op, value)
    if inner:
        chars = [_first_chars(tree.data, frozenset()) for tree in inner]
        return frozenset().union(*chars)
    return _chars_of(op, value)


def _item_may_be_empty(op: Any, value: Any) -> bool:
    """True if an item may match an empty text."""
    if op is sre.AT or op in _ASSERTS or _is_optional_repeat(op, value):
        return True
    return any(_may_be_empty(tree.data) for tree in _inner_trees(op, value))


def _may_be_empty(tree: Tree) -> bool:
    return all(_item_may_be_empty(op, value) for op, value in tree)


def _chars_of(op: Any, value: Any) -> Chars:
    """Return the characters that an item of length one matches."""
    if op is sre.LITERAL:
        return frozenset([_fold(value)])
    if op is sre.IN and value[0][0] is sre.NEGATE:
        excluded = [_excluded_chars(kind, choice) for kind, choice in value[1:]]
        return _ALL - frozenset().union(*excluded)
    if op is sre.IN:
        return frozenset().union(*[_chars_of_choice(kind, choice) for kind, choice in value])
    return _ALL


def _excluded_chars(kind: Any, choice: Any) -> Chars:
    """Return the characters that `[^…]` excludes.

    Excluding one non-ASCII letter, or the digits, does not exclude the other non-ASCII characters.
    """
    chars = _chars_of_choice(kind, choice)
    if kind is sre.CATEGORY and choice is not sre.CATEGORY_DIGIT:
        return chars
    return chars - _NON_ASCII


def _chars_of_choice(kind: Any, choice: Any) -> Chars:
    if kind is sre.LITERAL:
        return frozenset([_fold(choice)])
    if kind is sre.RANGE:
        low, high = choice
        chars = frozenset(_fold(code) for code in range(low, min(high + 1, _ASCII)))
        return chars | _NON_ASCII if high >= _ASCII else chars
    return _CATEGORIES.get(choice, _ALL)


def _fold(code: int) -> int:
    letter = chr(code)
    if code < _ASCII:
        return ord(letter.lower())
    if letter.isalnum():
        return _OTHER_LETTER
    return _OTHER_SPACE if letter.isspace() else _OTHER_SIGN


# --- Validation of the patterns of rules ---

MAX_PATTERN = 500
MAX_STEPS = 150_000_000  # at worst a second or two for a text of full length
# A word of so many letters does not occur by chance. Other scripts have no spaces between words.
_MIN_RARE_WORD = 13
MAX_TEXTS = 64  # ways through a pattern that are looked at
_MAX_SMALL_REPEAT = 16  # a repeat of at most so many times counts as bounded
_WORD = re.compile(r"[^\W\d_]{2,}")
_CODE_LIKE = re.compile(r"[A-Z]{2}|[a-z][A-Z]|_|\w/\w")  # ENOSPC, SlowDown, a_b, I/O


def find_pattern_fault(pattern: Any, *, only_condition: bool) -> str:
    """Return why a rule may not use this pattern, or "" if it may.

    `only_condition`: the rule has no other condition.
    """
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        return f"must be a pattern of 1 to {MAX_PATTERN} characters"
    try:
        with warnings.catch_warnings():
            # A pattern that Python warns about may mean something else in a later version.
            warnings.simplefilter("error")
            tree = _parser.parse(pattern, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return f"is not a valid regular expression: {error}"
    return (
        _find_nested_repeat(tree)
        or _find_slow_search(tree)
        or _find_empty_match(pattern)
        or _find_unspecific_text(tree, only_condition=only_condition)
    )


def _find_slow_search(tree: Any) -> str:
    if search_steps(tree.data) <= MAX_STEPS:
        return ""
    return (
        "can match in so many ways that a search may take forever."
        " Bound its repeats, as in .{0,80}, and begin with a word."
    )


def _find_nested_repeat(tree: Any) -> str:
    for op, value in tree:
        if op in {sre.GROUPREF, sre.GROUPREF_EXISTS}:
            return "refers back to a group, so a search may take forever"
        if op in REPEATS:
            _, high, body = value
            if high > _MAX_SMALL_REPEAT and _contains_repeat(body):
                return "has a repeat inside a repeat, so a search may take forever"
        for inner in _inner_trees(op, value):
            fault = _find_nested_repeat(inner)
            if fault:
                return fault
    return ""


def _contains_repeat(tree: Any) -> bool:
    for op, value in tree:
        if op in REPEATS and value[1] > 1:
            return True
        if any(_contains_repeat(inner) for inner in _inner_trees(op, value)):
            return True
    return False


def _inner_trees(op: Any, value: Any) -> list[Any]:
    """Return the sequences inside an item: one, several for alternatives, or none."""
    if op in REPEATS or op is sre.SUBPATTERN or op in _ASSERTS:
        *_, inner = value
        return [inner]
    if op is sre.BRANCH:
        _, branches = value
        return list(branches)
    if op is sre.ATOMIC_GROUP:
        return [value]
    return []


def _find_empty_match(pattern: str) -> str:
    if re.search(pattern, ""):
        return "matches an empty text, so it would match every failure"
    return ""


def _find_unspecific_text(tree: Any, *, only_condition: bool) -> str:
    """Refuse a pattern with a branch that may match by chance."""
    for text in _literal_texts(tree):
        found = _WORD.findall(text)
        if not found:
            return "is a bare number or sign. A number in an error text may mean anything."
        if only_condition and len(found) == 1 and _is_common_word(found[0], text):
            return (
                f"is the bare word {found[0]!r}."
                " Use more of the sentence, or add a condition such as program."
            )
    return ""


def _is_common_word(word: str, text: str) -> bool:
    return word.isascii() and len(word) < _MIN_RARE_WORD and not _CODE_LIKE.search(text)


def _literal_texts(tree: Any) -> list[str]:
    """Return the literal text of every way through a pattern, with a space for each gap."""
    texts = [""]
    for op, value in tree:
        longer = []
        for text in texts[:MAX_TEXTS]:
            for part in _literal_parts(op, value):
                longer.append(text + part)
        texts = longer
    return texts


def _literal_parts(op: Any, value: Any) -> list[str]:
    if op is sre.LITERAL:
        return [chr(value)]
    if op is sre.AT or op in _ASSERTS:
        return [""]
    texts: list[str] = []
    for inner in _inner_trees(op, value):
        texts += _literal_texts(inner)
    if _is_optional_repeat(op, value) and "".join(texts).strip():
        return ["", *texts]
    return texts or [" "]
