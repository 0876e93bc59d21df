"""Many rules, asked at once: which of them fit one link of a failure.

Each rule is filed under its most telling condition, so a failure meets only the few rules that could fit it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property, lru_cache
from hashlib import blake2b
from operator import attrgetter
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from threading import Lock
from typing import Any, Protocol

from mulligan.failures.facts import Facts, plain_name
from mulligan.failures.rules import NUMBERS, Rule

# The words without which a pattern cannot match: looking for a word is cheap, trying a pattern is not.

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
        return (
            None
            if any(words is None for words in found)
            else frozenset().union(*[words or () for words in found])
        )
    if len(tree) == 1 and tree[0][0] is sre.SUBPATTERN:
        return _needed(tree[0][1][3].data, left, right)
    chosen = [
        words
        for part, before, after in _parts(tree, left, right)
        if (words := _of_part(part, before, after))
    ]
    return min(
        chosen,
        key=lambda words: (bool(words & _COMMON), len(words), -min(map(len, words))),
        default=None,
    )


def _parts(tree: list[Any], left: str, right: str) -> Iterator[tuple[list[Any], str, str]]:
    """The pieces of a sequence between what is certainly no letter, each with what stands beside it."""
    piece: list[Any] = []
    before = left
    for op, value in tree:
        if (
            op is sre.AT
            or (op is sre.LITERAL and not chr(value).isalpha())
            or (op is sre.IN and not _letters(value))
        ):
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
        sorted(
            _WHOLE.findall(f"{left}{way}{right}"), key=lambda word: (word in _COMMON, -len(word))
        )
        for way in ways
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
        if op is sre.CATEGORY and value not in {
            sre.CATEGORY_SPACE,
            sre.CATEGORY_DIGIT,
            sre.CATEGORY_NOT_WORD,
        }:
            return True
        if op in {sre.RANGE, sre.NEGATE}:
            return True
    return False


# Many rules, asked at once: which of them fit one link of a failure.

PROVIDER, TYPE, NUMBER, TEXT = 4, 3, 2, 1  # structure before text
_NUMBERS = ("sqlstate", "grpc_status", "errno", "http_status", "exit_code", "signal")
_FILED = ("provider_code", "type", *_NUMBERS)
_numbers_of = attrgetter(*_NUMBERS)
_NAMES = {
    "provider_code": "provider_codes",
    "sqlstate": "sqlstate",
    "grpc_status": "grpc_status",
    "program": "program",
    "dependency": "uses",
}
_TOKEN = re.compile(r"[a-z]{2,}")
MOST_TYPES = 4096


class Text(Protocol):
    """A text that rules ask about: without addresses, paths and ids; its words; and, in small letters, as it was."""

    @property
    def lowered(self) -> str: ...
    @property
    def masked(self) -> str: ...
    @property
    def words(self) -> frozenset[str]: ...


class NoText:
    lowered = ""
    masked = ""
    words: frozenset[str] = frozenset()


def rank_of(rule: Rule) -> int:
    if rule.provider_code:
        return PROVIDER
    if rule.type:
        return TYPE
    return NUMBER if any(getattr(rule, name) for name in _FILED) else TEXT


class Entry:
    """A rule with what is asked of it again and again worked out once."""

    __slots__ = (
        "_names",
        "_needed",
        "_numbers",
        "_patterns",
        "_types",
        "filed",
        "more",
        "order",
        "packages",
        "rule",
        "weight",
    )

    def __init__(self, rule: Rule, order: int) -> None:
        self.rule = rule
        self.order = order
        self.weight = rule.conditions
        self.filed = next((name for name in _FILED if getattr(rule, name)), "")
        self.more = self.weight > bool(self.filed) + bool(
            rule.message
        )  # than what it is found by and its text
        self.packages = _packages(rule.type)
        self._types = frozenset(map(last_word, rule.type))
        self._names = [
            (fact, *_folded(_named(rule, name)))
            for name, fact in _NAMES.items()
            if getattr(rule, name)
        ]
        self._numbers = [
            (name, frozenset(getattr(rule, name))) for name in NUMBERS if getattr(rule, name)
        ]
        self._patterns: list[tuple[re.Pattern[str], frozenset[str]]] | None = None
        self._needed: frozenset[str] = (
            frozenset()
        )  # one of these words, or no pattern matches; empty: ask them all

    def says(self, text: Text) -> bool:
        """Whether one of its patterns matches; most are ruled out by the words they need."""
        patterns = self._patterns or self._compile()
        if self._needed and not any_in(
            self._needed, text.lowered
        ):  # cheaper than to mask it and to find its words
            return False
        words = text.words
        if self._needed and self._needed.isdisjoint(words):
            return False
        for pattern, needed in patterns:
            if (not needed or not needed.isdisjoint(words)) and pattern.search(text.masked):
                return True
        return False

    def _compile(self) -> list[tuple[re.Pattern[str], frozenset[str]]]:
        patterns = [(_compiled(pattern), keywords(pattern)) for pattern in self.rule.message]
        if all(needed for _, needed in patterns):
            self._needed = frozenset().union(*[needed for _, needed in patterns])
        self._patterns = patterns
        return patterns

    @property
    def words(self) -> frozenset[str]:
        """Without one of these in a text it says nothing to it; empty: nobody can tell."""
        if self._patterns is None:
            self._compile()
        return self._needed

    def fits(self, link: Facts) -> bool:
        """Whether every condition but its text holds.

        The package of a type was asked where the rule was found; here its name is enough.
        """
        for name, numbers in self._numbers:
            if getattr(link, name) not in numbers:
                return False
        for name, whole, begun in self._names:
            had = getattr(link, name)
            if not any(
                _same(one.lower(), whole, begun)
                for one in ((had,) if isinstance(had, str) else had)
            ):
                return False
        return not self._types or not self._types.isdisjoint(
            [last_word(name) for name in link.exception_types]
        )

    def knows(self, name: str) -> int | None:
        """0: the very package of this type, 1: any package, None: another one. `openai.X` is `openai._exceptions.X`."""
        packages = self.packages.get(last_word(name))
        if packages is None:
            return None
        package = name.split(".", 1)[0] if "." in name else ""
        if package and package in packages:
            return 0
        return 1 if "" in packages or not package else None


def any_in(words: Iterable[str], text: str) -> bool:
    for word in words:  # noqa: SIM110 - a generator costs more than the search
        if word in text:
            return True
    return False


def _packages(types: Iterable[str]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name in types:
        found[last_word(name)].add(name.split(".", 1)[0] if "." in name else "")
    return {name: frozenset(packages) for name, packages in found.items()}


class _Texts:
    """The patterns of rules about texts, by the words they need."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.by_word: dict[str, list[tuple[Entry, str]]] = defaultdict(list)
        self.loose: list[tuple[Entry, str]] = []
        self.foreign: list[
            tuple[Entry, str]
        ] = []  # in other scripts: asked only where a text has some
        for entry in entries:
            for pattern in entry.rule.message or [""]:
                words = keywords(pattern)
                for word in words:
                    self.by_word[word].append((entry, pattern))
                if not words:
                    (self.foreign if _foreign(pattern) else self.loose).append((entry, pattern))

    def about(self, text: str, words: frozenset[str]) -> list[tuple[Entry, str]]:
        """Those that may match this text, whose words these are."""
        found = [pair for word in words & self.by_word.keys() for pair in self.by_word[word]]
        return [*found, *self.loose] if text.isascii() else [*found, *self.loose, *self.foreign]


class _Files:
    """Rules, each under its most telling condition."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.exact: dict[tuple[str, str | int], list[Entry]] = defaultdict(list)
        self.prefixes: dict[tuple[str, str], list[tuple[str, Entry]]] = defaultdict(
            list
        )  # by their first letter
        self.texts: list[Entry] = []
        self.verdicts: list[Entry] = []  # rules about what the built-in table says
        for order, rule in enumerate(rules):
            self._file(Entry(rule, order))

    def _file(self, entry: Entry) -> None:
        if entry.rule.verdict:
            self.verdicts.append(entry)
        elif not entry.filed:
            self.texts.append(entry)
        for value in (
            getattr(entry.rule, entry.filed) if entry.filed and not entry.rule.verdict else ()
        ):
            if isinstance(value, str) and value.endswith("*"):
                self.prefixes[entry.filed, value[0].lower()].append((value[:-1].lower(), entry))
            else:
                self.exact[entry.filed, _key(entry.filed, value)].append(entry)


_FILING = Lock()


class Rulebook:
    """An ordered table of rules. `version` names exactly these rules: the same table, the same name.

    They are filed when it is first asked: most processes begin long before their first failure.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, part_of: Callable[[], str] | None = None
    ) -> None:
        self.rules = tuple(rules)
        self._part_of = part_of
        self._filed: _Files | None = None
        self._texts: _Texts | None = None  # made of them when the first text is asked about
        self._near: dict[
            str, list[tuple[int, Entry]]
        ] = {}  # by the name of a type, once it was asked for

    @cached_property
    def version(self) -> str:
        if self._part_of is not None:
            return self._part_of()
        text = json.dumps([rule.to_plain() for rule in self.rules], sort_keys=True, default=str)
        return blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()

    @cached_property
    def acting(self) -> Rulebook:
        """Without the rules in shadow, which only say what they would have done."""
        acting = [rule for rule in self.rules if not rule.shadow]
        return self if len(acting) == len(self.rules) else Rulebook(acting)

    def _file(self) -> _Files:
        """Once, whichever thread comes first; the others wait, for half a table would judge wrongly."""
        with _FILING:
            if self._filed is None:
                self._filed = _Files(self.rules)
            return self._filed

    def _file_texts(self) -> _Texts:
        """The same."""
        entries = (self._filed or self._file()).texts
        with _FILING:
            if self._texts is None:
                self._texts = _Texts(entries)
            return self._texts

    # -- asked, by rank: the equals that fit best ---------------------------------------------------
    def by_code(self, link: Facts, text: Text) -> list[Rule]:
        """By the provider's codes, the most telling first."""
        filed = self._filed or self._file()
        for code in link.provider_codes:
            name = code.lower()
            found = [
                entry for entry in self._under("provider_code", name) if fits(entry, link, text)
            ]
            if found:  # a `*` gives way to a name, but not to one that asks for less
                best = _weightiest(found)
                exact = {entry.rule.id for entry in filed.exact.get(("provider_code", name), ())}
                return [rule for rule in best if rule.id in exact] or best
        return []

    def by_type(self, link: Facts, text: Text) -> list[Rule]:
        """By the exception's class, then its bases."""
        for name in link.exception_types:
            near = self._near.get(name)
            found = [
                pair
                for pair in (self._nearby(name) if near is None else near)
                if fits(pair[1], link, text)
            ]
            if len(found) == 1:
                return [found[0][1].rule]
            if found:
                most = max(entry.weight for _, entry in found)
                weighty = [(how, entry) for how, entry in found if entry.weight == most]
                nearest = min(how for how, _ in weighty)
                return [entry.rule for how, entry in weighty if how == nearest]
        return []

    def words_about(self, types: Iterable[str]) -> tuple[str, ...] | None:
        """Where none of these is in a text, no rule about these types asks for it; None: nobody can tell."""
        texts = [
            entry.words for name in types for _, entry in self._nearby(name) if entry.rule.message
        ]
        return tuple(frozenset().union(*texts)) if all(texts) else None

    def _nearby(self, name: str) -> list[tuple[int, Entry]]:
        """Rules about this type, of whatever package or of its own, and which."""
        filed = self._filed or self._file()
        known = [
            (entry.knows(name), entry) for entry in filed.exact.get(("type", last_word(name)), ())
        ]
        if len(self._near) >= MOST_TYPES:
            self._near.clear()
        self._near[name] = near = [(how, entry) for how, entry in known if how is not None]
        return near

    def by_number(self, link: Facts, text: Text) -> list[Rule]:
        found: list[Entry] = []
        for name, value in zip(_NUMBERS, _numbers_of(link), strict=True):
            if value is not None and value != "":
                key = value.lower() if isinstance(value, str) else value
                found += [entry for entry in self._under(name, key) if fits(entry, link, text)]
        return _weightiest(found)

    def by_words(self, link: Facts, text: str, words: frozenset[str]) -> list[Rule]:
        """Rules without a structural condition; `words` are the words of `text`, from `words_of`."""
        texts = self._texts or self._file_texts()
        found = [entry for entry, pattern in texts.about(text, words) if _says(pattern, text)]
        return _weightiest([entry for entry in found if entry.fits(link)])

    def about(self, verdict: Collection[str], link: Facts, text: Text) -> list[Rule]:
        """Rules about one of these codes and classes."""
        verdicts = (self._filed or self._file()).verdicts
        named = [entry for entry in verdicts if not set(entry.rule.verdict).isdisjoint(verdict)]
        return [entry.rule for entry in named if entry.fits(link) and fits(entry, link, text)]

    def _under(self, name: str, value: str | int) -> list[Entry]:
        filed = self._filed or self._file()
        found = filed.exact.get((name, value), [])
        if isinstance(value, str) and (prefixes := filed.prefixes.get((name, value[:1]))):
            return found + [entry for prefix, entry in prefixes if value.startswith(prefix)]
        return found


def _weightiest(found: list[Entry]) -> list[Rule]:
    """Those that ask for most, each once, in the order of the table."""
    if len(found) < 2:
        return [entry.rule for entry in found]
    most = max(entry.weight for entry in found)
    equals = {entry.order: entry.rule for entry in found if entry.weight == most}
    return [equals[order] for order in sorted(equals)]


def words_of(text: str) -> frozenset[str]:
    return frozenset(_TOKEN.findall(text.lower()))


def _foreign(pattern: str) -> bool:
    return not re.search("[a-zA-Z]", re.sub(r"\\.", "", pattern))


def _key(name: str, value: str | int) -> str | int:
    if name == "type":
        return last_word(str(value))
    return value.lower() if isinstance(value, str) else value


def last_word(dotted: str) -> str:
    return dotted.rsplit(".", 1)[-1]


def fits(entry: Entry, link: Facts, text: Text) -> bool:
    """Whether every condition of the rule holds, beyond the one it was found by."""
    return (not entry.more or entry.fits(link)) and (not entry.rule.message or entry.says(text))


def _named(rule: Rule, name: str) -> Iterable[str]:
    return map(plain_name, rule.program) if name == "program" else getattr(rule, name)


def _same(had: str, whole: frozenset[str], begun: tuple[str, ...]) -> bool:
    return had in whole or had.startswith(begun)


def _folded(names: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Whole names, and beginnings of names."""
    lowered = [name.lower() for name in names]
    return (
        frozenset(name for name in lowered if not name.endswith("*")),
        tuple(name[:-1] for name in lowered if name.endswith("*")),
    )


def _says(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


EMPTY = Rulebook()
