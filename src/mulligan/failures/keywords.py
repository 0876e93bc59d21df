"""Find the words that every match of a pattern contains.

Searching a text for a word is much cheaper than trying a pattern, so rules are indexed by the words
that their patterns need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from mulligan.failures.rules import split_names

_ANY_CHARACTER = "\0"  # may be a letter, so a word next to it may be longer
_WHOLE_WORD = re.compile(rf"(?<![a-z{_ANY_CHARACTER}])[a-z]{{2,}}(?![a-z{_ANY_CHARACTER}])")
_FRAGMENT = re.compile("[a-z]{3,}")
_MAX_EXPANSIONS = 400  # texts that one part of a pattern is expanded to
# So common that searching for them saves little.
_STOPWORDS = frozenset(
    split_names("""
    not is the to in of for has been error failed no be or and an at by on this with was when
    from your you please too out code message request requests exceeded file connection server
    status type operation limit api invalid http unable data rate timeout response access read
    cannot process could again try host many resource
    """)
)
_REPEATS = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT})
_ZERO_WIDTH = frozenset({sre.AT, sre.ASSERT, sre.ASSERT_NOT})
_NON_LETTERS = frozenset({sre.CATEGORY_SPACE, sre.CATEGORY_DIGIT, sre.CATEGORY_NOT_WORD})

Keywords = frozenset[str]


def required_keywords(pattern: str) -> Keywords:
    """Return words of which every match contains at least one; empty if none are certain."""
    return next(iter(keyword_sets(pattern)), frozenset())


def keyword_sets(pattern: str) -> list[Keywords]:
    """Return the keywords of each part of a pattern, the fewest and least common ones first.

    Every match contains at least one word of each set.
    """
    return _sorted_sets(pattern, _WHOLE_WORD)


def required_fragments(pattern: str) -> Keywords:
    """Return parts of words of which every match contains one; empty if none are certain."""
    fragments = next(iter(_sorted_sets(pattern, _FRAGMENT)), frozenset())
    shortest: set[str] = set()  # a fragment within another one finds the other one too
    for fragment in sorted(fragments, key=len):
        if not any(other in fragment for other in shortest):
            shortest.add(fragment)
    return frozenset(shortest)


def required_literal(pattern: str) -> str:
    """Return the longest text that every match contains, in lower case; "" if none is certain."""
    literals = [""]
    for op, value in _parse(pattern):
        if op is sre.LITERAL and chr(value).isascii():
            literals[-1] += chr(value).lower()
        elif op not in _ZERO_WIDTH:
            literals.append("")
    return max(literals, key=len)


def _sorted_sets(pattern: str, word: re.Pattern[str]) -> list[Keywords]:
    sequence = _Sequence(_parse(pattern), _ANY_CHARACTER, _ANY_CHARACTER)
    return sorted(_keyword_sets(sequence, word), key=_keyword_cost)


@lru_cache(maxsize=1)  # everything that is required is computed for one pattern after the other
def _parse(pattern: str) -> list[Any]:
    return list(_parser.parse(pattern, re.IGNORECASE).data)


class _Sequence(NamedTuple):
    """Consecutive items of a parsed pattern, with the characters next to them."""

    items: list[Any]  # (operation, value), as `re` parses them
    before: str
    after: str


def _keyword_sets(sequence: _Sequence, word: re.Pattern[str]) -> list[Keywords]:
    """Return the keywords of each part of a sequence that has any."""
    if len(sequence.items) == 1:
        op, value = sequence.items[0]
        if op is sre.BRANCH:
            _, branches = value
            keywords = _branch_keywords(sequence, branches, word)
            return [keywords] if keywords else []
        if op is sre.SUBPATTERN:
            group = sequence._replace(items=value[3].data)
            return _keyword_sets(group, word)
    sets = []
    for part in _split_at_boundaries(sequence):
        keywords = _part_keywords(part, word)
        if keywords:
            sets.append(keywords)
    return sets


def _best_keywords(sequence: _Sequence, word: re.Pattern[str]) -> Keywords | None:
    """Return the keywords of the best part of a sequence."""
    return min(_keyword_sets(sequence, word), key=_keyword_cost, default=None)


def _keyword_cost(keywords: Keywords) -> tuple[bool, int, int]:
    shortest = min(map(len, keywords))
    return bool(keywords & _STOPWORDS), len(keywords), -shortest


def _branch_keywords(
    sequence: _Sequence, branches: Iterable[Any], word: re.Pattern[str]
) -> Keywords | None:
    """Return the keywords of all branches together, or None if one branch has none."""
    union: set[str] = set()
    for branch in branches:
        keywords = _best_keywords(sequence._replace(items=branch.data), word)
        if keywords is None:
            return None
        union |= keywords
    return frozenset(union)


def _split_at_boundaries(sequence: _Sequence) -> Iterator[_Sequence]:
    """Split a sequence where there is certainly no letter."""
    part: list[Any] = []
    before = sequence.before
    for op, value in sequence.items:
        if _is_boundary(op, value):
            if part:
                yield _Sequence(part, before, " ")
            part = []
            before = " "
        elif op not in {sre.ASSERT, sre.ASSERT_NOT}:
            part.append((op, value))
    if part:
        yield _Sequence(part, before, sequence.after)


def _is_boundary(op: Any, value: Any) -> bool:
    if op is sre.LITERAL:
        return not chr(value).isalpha()
    if op is sre.IN:
        return not _may_be_letter(value)
    return op is sre.AT


def _part_keywords(part: _Sequence, word: re.Pattern[str]) -> Keywords | None:
    """Return one keyword for each text that the part can match, or None if one has none."""
    if len(part.items) == 1:
        op, _ = part.items[0]
        if op in {sre.SUBPATTERN, sre.BRANCH}:
            return _best_keywords(part, word)
    texts = _expand(part.items)
    if texts is None:
        return None
    keywords: set[str] = set()
    for text in texts:
        candidates = word.findall(f"{part.before}{text}{part.after}")
        if not candidates:
            return None
        keywords.add(min(candidates, key=_word_cost))
    return frozenset(keywords)


def _word_cost(word: str) -> tuple[bool, int]:
    return word in _STOPWORDS, -len(word)


def _expand(tree: list[Any]) -> list[str] | None:
    """Return every text that this part can match, or None if there are too many."""
    texts = [""]
    for op, value in tree:
        endings = _expand_item(op, value)
        if endings is None:
            return None
        if len(texts) * len(endings) > _MAX_EXPANSIONS:
            texts = sorted({_shorten(text) for text in texts})
        if len(texts) * len(endings) > _MAX_EXPANSIONS:
            return None
        texts = [text + ending for text in texts for ending in endings]
    return texts


def _shorten(text: str) -> str:
    """Return what the text after this one must know: whether a letter is next to it."""
    return f"{_ANY_CHARACTER}{text[-1]}" if text else ""


def _expand_item(op: Any, value: Any) -> list[str] | None:
    if op is sre.LITERAL:
        return [chr(value).lower()]
    if op is sre.SUBPATTERN:
        return _expand(value[3].data)
    if op is sre.BRANCH:
        return _expand_branches(value[1])
    if op in _REPEATS:
        return _expand_repeat(*value)
    if op is sre.IN and all(choice is sre.LITERAL for choice, _ in value):
        return [chr(letter).lower() for _, letter in value]
    if _is_boundary(op, value):
        return [" "]
    if op in {sre.ASSERT, sre.ASSERT_NOT}:
        return [""]
    return [_ANY_CHARACTER]


def _expand_repeat(least: int, most: int, body: Any) -> list[str] | None:
    """Return the texts of the last pass, with any characters for the passes before it."""
    texts = _expand(body.data)
    if texts is None:
        return None
    if most > 1 and any(text != " " for text in texts):
        texts = [_ANY_CHARACTER + text for text in texts]
    return texts if least else ["", *texts]


def _expand_branches(branches: Iterable[Any]) -> list[str] | None:
    texts: list[str] = []
    for branch in branches:
        expanded = _expand(branch.data)
        if expanded is None:
            return None
        texts += expanded
    return texts


def _may_be_letter(choices: Any) -> bool:
    """True if a set of characters may match a letter."""
    for op, value in choices:
        if op is sre.LITERAL and chr(value).isalpha():
            return True
        if op is sre.CATEGORY and value not in _NON_LETTERS:
            return True
        if op in {sre.RANGE, sre.NEGATE}:
            return True
    return False
