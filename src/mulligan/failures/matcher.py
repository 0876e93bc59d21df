"""Match many rules against the facts of one exception.

Every rule is indexed by its most specific condition, and every pattern by the words it needs, so
that a failure is compared only with the few rules that can match it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from operator import attrgetter
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from threading import Lock
from typing import Any, NamedTuple, Protocol

from mulligan.failures.facts import Facts, base_program_name
from mulligan.failures.regex import contains_any
from mulligan.failures.rules import NUMBER_CONDITIONS, Rule, split_names

# --- Keywords: searching for a word is much cheaper than trying a pattern ---

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
    return frozenset(
        fragment
        for fragment in fragments
        if not any(other in fragment for other in fragments if other != fragment)
    )


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
    sets = _sets(_parse(pattern), _ANY_CHARACTER, _ANY_CHARACTER, word)
    return sorted(sets, key=_keyword_cost)


@lru_cache(maxsize=1)  # everything that is required is computed for one pattern after the other
def _parse(pattern: str) -> list[Any]:
    return list(_parser.parse(pattern, re.IGNORECASE).data)


def _sets(tree: list[Any], left: str, right: str, word: re.Pattern[str]) -> list[Keywords]:
    """Return the keywords of each part of a sequence that has any.

    `left` and `right` are the characters next to the sequence.
    """
    if len(tree) == 1 and tree[0][0] is sre.BRANCH:
        keywords = _branch_keywords(tree[0][1][1], left, right, word)
        return [keywords] if keywords else []
    if len(tree) == 1 and tree[0][0] is sre.SUBPATTERN:
        return _sets(tree[0][1][3].data, left, right, word)
    parts = _split_at_boundaries(tree, left, right)
    return [keywords for part in parts if (keywords := _part_keywords(*part, word))]


def _keywords(tree: list[Any], left: str, right: str, word: re.Pattern[str]) -> Keywords | None:
    """Return the keywords of the best part of a sequence."""
    return min(_sets(tree, left, right, word), key=_keyword_cost, default=None)


def _keyword_cost(keywords: Keywords) -> tuple[bool, int, int]:
    return bool(keywords & _STOPWORDS), len(keywords), -min(map(len, keywords))


def _branch_keywords(
    branches: Iterable[Any], left: str, right: str, word: re.Pattern[str]
) -> Keywords | None:
    """Return the keywords of all branches together, or None if one branch has none."""
    union: set[str] = set()
    for branch in branches:
        keywords = _keywords(branch.data, left, right, word)
        if keywords is None:
            return None
        union |= keywords
    return frozenset(union)


def _split_at_boundaries(
    tree: list[Any], left: str, right: str
) -> Iterator[tuple[list[Any], str, str]]:
    """Split a sequence where there is certainly no letter. Yield (part, before, after)."""
    part: list[Any] = []
    before = left
    for op, value in tree:
        if _is_boundary(op, value):
            if part:
                yield part, before, " "
            part = []
            before = " "
        elif op not in {sre.ASSERT, sre.ASSERT_NOT}:
            part.append((op, value))
    if part:
        yield part, before, right


def _is_boundary(op: Any, value: Any) -> bool:
    if op is sre.LITERAL:
        return not chr(value).isalpha()
    return op is sre.AT or (op is sre.IN and not _may_be_letter(value))


def _part_keywords(
    part: list[Any], left: str, right: str, word: re.Pattern[str]
) -> Keywords | None:
    if len(part) == 1 and part[0][0] in {sre.SUBPATTERN, sre.BRANCH}:
        return _keywords(part, left, right, word)
    texts = _expand(part)
    if texts is None:
        return None
    keywords: set[str] = set()
    for text in texts:
        candidates = word.findall(f"{left}{text}{right}")
        if not candidates:
            return None
        keywords.add(min(candidates, key=lambda word: (word in _STOPWORDS, -len(word))))
    return frozenset(keywords)


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
    if op is sre.AT or (op is sre.IN and not _may_be_letter(value)):
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


# --- Indexed rules ---

_NUMBER_FIELDS = ("sqlstate", "grpc_status", "errno", "http_status", "exit_code", "signal")
_INDEX_FIELDS = ("provider_code", "type", *_NUMBER_FIELDS)
_get_numbers = attrgetter(*_NUMBER_FIELDS)
_NO_NUMBERS = _get_numbers(Facts())
# Condition of a rule → field of Facts.
_NAME_FIELDS = {
    "provider_code": "provider_codes",
    "sqlstate": "sqlstate",
    "grpc_status": "grpc_status",
    "program": "program",
    "dependency": "uses",
}
_WORD = re.compile(r"[a-z]{2,}")
MAX_CACHED_TYPES = 4096


class MatchableText(Protocol):
    """A text that patterns are matched against."""

    @property
    def lowered(self) -> str:
        """The unmasked text in lower case."""

    @property
    def masked(self) -> str:
        """The text without URLs, paths and ids."""

    @property
    def vocabulary(self) -> frozenset[str]:
        """The words of the masked text, in lower case."""


class EmptyText:
    """A MatchableText that no pattern matches."""

    lowered = ""
    masked = ""
    vocabulary: frozenset[str] = frozenset()


class IndexedRule:
    """A rule with everything that matching needs computed once."""

    __slots__ = (
        "_keywords",
        "_names",
        "_numbers",
        "_packages",
        "_patterns",
        "_types",
        "condition_count",
        "has_other_conditions",
        "index_field",
        "position",
        "rule",
    )

    def __init__(self, rule: Rule, position: int) -> None:
        self.rule = rule
        self.position = position
        self.condition_count = rule.condition_count
        self.index_field = next((name for name in _INDEX_FIELDS if getattr(rule, name)), "")
        # Conditions besides the indexed one and the text.
        self.has_other_conditions = self.condition_count > bool(self.index_field) + bool(
            rule.message
        )
        self._packages = _packages_by_class(rule.type)
        self._types = frozenset(map(class_name, rule.type))
        self._names = [
            (field, *_split_prefixes(_condition_names(rule, name)))
            for name, field in _NAME_FIELDS.items()
            if getattr(rule, name)
        ]
        self._numbers = [
            (name, frozenset(getattr(rule, name)))
            for name in NUMBER_CONDITIONS
            if getattr(rule, name)
        ]
        self._patterns: list[tuple[re.Pattern[str], Keywords]] | None = None
        # A text without any of these matches no pattern; empty: every pattern must be tried.
        self._keywords: Keywords = frozenset()

    def matches_text(self, text: MatchableText) -> bool:
        """True if one of the patterns matches. Most are excluded by their keywords."""
        patterns = self._patterns or self._compile()
        # Search the raw text first: masking it and splitting it into words costs more.
        if self._keywords and not contains_any(self._keywords, text.lowered):
            return False
        vocabulary = text.vocabulary
        if self._keywords and self._keywords.isdisjoint(vocabulary):
            return False
        for pattern, keywords in patterns:
            may_match = not keywords or not keywords.isdisjoint(vocabulary)
            if may_match and pattern.search(text.masked):
                return True
        return False

    def _compile(self) -> list[tuple[re.Pattern[str], Keywords]]:
        patterns = [
            (_compile_pattern(pattern), required_keywords(pattern)) for pattern in self.rule.message
        ]
        if all(keywords for _, keywords in patterns):
            self._keywords = frozenset().union(*[keywords for _, keywords in patterns])
        self._patterns = patterns
        return patterns

    @property
    def keywords(self) -> Keywords:
        """Words of which a matching text contains at least one; empty if none are certain."""
        if self._patterns is None:
            self._compile()
        return self._keywords

    def matches_facts(self, link: Facts) -> bool:
        """True if every condition except the text holds.

        Types are compared by class name only: the package was checked in the index.
        """
        for name, numbers in self._numbers:
            if getattr(link, name) not in numbers:
                return False
        for field, names, prefixes in self._names:
            value = getattr(link, field)
            values = (value,) if isinstance(value, str) else value
            if not any(_matches_name(one.lower(), names, prefixes) for one in values):
                return False
        if not self._types:
            return True
        return not self._types.isdisjoint([class_name(name) for name in link.exception_types])

    def package_distance(self, name: str) -> int | None:
        """Compare the package of a type with the rule's.

        Return 0 if it is the same package, 1 if the rule or the type has none, None if they
        differ. Only top-level packages count: `openai.X` is `openai._exceptions.X`.
        """
        packages = self._packages.get(class_name(name))
        if packages is None:
            return None
        package = name.split(".", 1)[0] if "." in name else ""
        if package and package in packages:
            return 0
        return 1 if "" in packages or not package else None


def _packages_by_class(types: Iterable[str]) -> dict[str, frozenset[str]]:
    packages: dict[str, set[str]] = defaultdict(set)
    for name in types:
        packages[class_name(name)].add(name.split(".", 1)[0] if "." in name else "")
    return {name: frozenset(found) for name, found in packages.items()}


class _TextPattern(NamedTuple):
    """A pattern of a text rule."""

    rule: IndexedRule
    pattern: str
    literal: str = ""  # every match contains it, whatever the case
    other_keywords: Sequence[Keywords] = ()  # and a word of each, besides the indexed one


class _TextIndex:
    """Patterns of text rules by their keywords."""

    def __init__(self, rules: Iterable[IndexedRule]) -> None:
        self._by_keyword: dict[str, list[_TextPattern]] = defaultdict(list)
        self._by_fragments: list[tuple[Keywords, _TextPattern]] = []  # empty: always tried
        self._non_latin: list[_TextPattern] = []
        for rule in rules:
            for pattern in rule.rule.message or [""]:
                self._add(rule, pattern)

    def _add(self, rule: IndexedRule, pattern: str) -> None:
        sets = keyword_sets(pattern)
        if sets:
            entry = _TextPattern(rule, pattern, required_literal(pattern), sets[1:])
            for keyword in sets[0]:
                self._by_keyword[keyword].append(entry)
        elif _is_non_latin(pattern):
            self._non_latin.append(_TextPattern(rule, pattern))
        else:
            entry = _TextPattern(rule, pattern)
            self._by_fragments.append((required_fragments(pattern), entry))

    def candidates(self, text: str, vocabulary: frozenset[str]) -> list[_TextPattern]:
        """Return the patterns that may match a text with this vocabulary."""
        found = [
            candidate
            for keyword in vocabulary & self._by_keyword.keys()
            for candidate in self._by_keyword[keyword]
        ]
        if not text.isascii():
            # A letter may match one that `lower` leaves as it is, so the words prove nothing.
            return [*found, *[candidate for _, candidate in self._by_fragments], *self._non_latin]
        if not found and not self._by_fragments:
            return found
        lowered = text.lower()
        found = [
            candidate
            for candidate in found
            if candidate.literal in lowered and _has_all(candidate.other_keywords, vocabulary)
        ]
        for fragments, candidate in self._by_fragments:
            if not fragments or contains_any(fragments, lowered):
                found.append(candidate)
        return found


def _has_all(sets: Sequence[Keywords], vocabulary: frozenset[str]) -> bool:
    """True if the vocabulary has a word of each set."""
    for keywords in sets:  # noqa: SIM110 - a generator costs more than the comparison
        if keywords.isdisjoint(vocabulary):
            return False
    return True


class _RuleIndex:
    """Rules by their most specific condition."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.exact: dict[tuple[str, str | int], list[IndexedRule]] = defaultdict(list)
        # Rules with a trailing `*`, by field and first letter.
        self.prefixes: dict[tuple[str, str], list[tuple[str, IndexedRule]]] = defaultdict(list)
        self.texts: list[IndexedRule] = []
        self.verdicts: list[IndexedRule] = []  # rules about verdicts of the built-in table
        for position, rule in enumerate(rules):
            self._add(IndexedRule(rule, position))

    def _add(self, rule: IndexedRule) -> None:
        field = rule.index_field
        if rule.rule.verdict:
            self.verdicts.append(rule)
            return
        if not field:
            self.texts.append(rule)
            return
        for value in getattr(rule.rule, field):
            if isinstance(value, str) and value.endswith("*"):
                self.prefixes[field, value[0].lower()].append((value[:-1].lower(), rule))
            else:
                self.exact[field, _index_key(field, value)].append(rule)


_INDEX_LOCK = Lock()


class Rulebook:
    """An ordered table of rules. `version` identifies exactly these rules.

    The index is built at the first use: most processes start long before their first failure.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, get_version: Callable[[], str] | None = None
    ) -> None:
        self.rules = tuple(rules)
        self._get_version = get_version
        self._index: _RuleIndex | None = None
        self._text_index: _TextIndex | None = None
        # Rules about a type, with their package distance, by the name of the type.
        self._by_type: dict[str, list[tuple[int, IndexedRule]]] = {}
        self._by_name: dict[str, list[IndexedRule]] = {}  # text rules whose pattern matches a name

    @cached_property
    def version(self) -> str:
        if self._get_version is not None:
            return self._get_version()
        text = json.dumps([rule.to_dict() for rule in self.rules], sort_keys=True, default=str)
        return blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()

    @cached_property
    def active(self) -> Rulebook:
        """The rulebook without rules in shadow mode, which only record what they would do."""
        active = [rule for rule in self.rules if not rule.shadow]
        return self if len(active) == len(self.rules) else Rulebook(active)

    def _build_index(self) -> _RuleIndex:
        """Build the index in one thread; others wait, since half a table would misclassify."""
        with _INDEX_LOCK:
            if self._index is None:
                self._index = _RuleIndex(self.rules)
            return self._index

    def _build_text_index(self) -> _TextIndex:
        """Build the index of patterns in one thread; others wait."""
        rules = (self._index or self._build_index()).texts
        with _INDEX_LOCK:
            if self._text_index is None:
                self._text_index = _TextIndex(rules)
            return self._text_index

    # --- Each method returns the best rules of its rank; several if they match equally well ---

    def match_provider_code(self, link: Facts, text: MatchableText) -> list[Rule]:
        """Match by the provider codes, the most specific first."""
        index = self._index or self._build_index()
        for code in link.provider_codes:
            name = code.lower()
            candidates = self._lookup("provider_code", name)
            found = [rule for rule in candidates if rule_matches(rule, link, text)]
            if found:
                # A rule with more conditions beats one with fewer; then an exact name beats a `*`.
                best = _most_conditions(found)
                exact = {rule.rule.id for rule in index.exact.get(("provider_code", name), ())}
                return [rule for rule in best if rule.id in exact] or best
        return []

    def match_type(self, link: Facts, text: MatchableText) -> list[Rule]:
        """Match by the class of the exception, then by its bases."""
        for name in link.exception_types:
            candidates = self._by_type.get(name)
            if candidates is None:
                candidates = self._add_type(name)
            found = [pair for pair in candidates if rule_matches(pair[1], link, text)]
            if len(found) == 1:
                return [found[0][1].rule]
            if found:
                return _nearest_package(found)
        return []

    def keywords_for_types(self, types: Iterable[str]) -> tuple[str, ...] | None:
        """Return words of which a text needs one to affect rules about these types.

        None if that is not certain: every text must be read.
        """
        keywords: set[str] = set()
        for name in types:
            for _, rule in self._add_type(name):
                if rule.rule.message:
                    if not rule.keywords:
                        return None
                    keywords |= rule.keywords
        return tuple(keywords)

    def _add_type(self, name: str) -> list[tuple[int, IndexedRule]]:
        """Look up the rules about a type, in its package or in any, and cache them."""
        index = self._index or self._build_index()
        found: list[tuple[int, IndexedRule]] = []
        for rule in index.exact.get(("type", class_name(name)), ()):
            distance = rule.package_distance(name)
            if distance is not None:
                found.append((distance, rule))
        if len(self._by_type) >= MAX_CACHED_TYPES:
            self._by_type.clear()
        self._by_type[name] = found
        return found

    def match_number(self, link: Facts, text: MatchableText) -> list[Rule]:
        """Match by SQLSTATE, gRPC status, errno, HTTP status, exit code and signal."""
        found: list[IndexedRule] = []
        numbers = _get_numbers(link)
        if numbers == _NO_NUMBERS:
            return []
        for name, value in zip(_NUMBER_FIELDS, numbers, strict=True):
            if value is not None and value != "":
                key = value.lower() if isinstance(value, str) else value
                candidates = self._lookup(name, key)
                found += [rule for rule in candidates if rule_matches(rule, link, text)]
        return _most_conditions(found)

    def knows_code(self, codes: Iterable[str]) -> bool:
        """True if there is a rule about one of these provider codes."""
        return any(self._lookup("provider_code", code.lower()) for code in codes)

    def may_match_text(self, text: str, vocabulary: frozenset[str]) -> bool:
        """False if no pattern can match the text or a line of it."""
        index = self._text_index or self._build_text_index()
        return bool(index.candidates(text, vocabulary))

    def match_text(self, link: Facts, text: str, vocabulary: frozenset[str]) -> list[Rule]:
        """Match rules without a structural condition.

        `text` is masked; `vocabulary` is what `extract_vocabulary` returns for it.
        """
        found = self._search_patterns(text, vocabulary)
        return _most_conditions([rule for rule in found if rule.matches_facts(link)])

    def match_name(self, link: Facts, name: str) -> list[Rule]:
        """Match the words of a type's or code's name. Names recur, so what they match is cached."""
        found = self._by_name.get(name)
        if found is None:
            text = split_identifier(name)
            found = self._search_patterns(text, extract_vocabulary(text))
            if len(self._by_name) >= MAX_CACHED_TYPES:
                self._by_name.clear()
            self._by_name[name] = found
        return _most_conditions([rule for rule in found if rule.matches_facts(link)])

    def _search_patterns(self, text: str, vocabulary: frozenset[str]) -> list[IndexedRule]:
        index = self._text_index or self._build_text_index()
        return [
            rule
            for rule, pattern, *_ in index.candidates(text, vocabulary)
            if _compile_pattern(pattern).search(text) is not None
        ]

    def match_verdict(
        self, verdict: Collection[str], link: Facts, text: MatchableText
    ) -> list[Rule]:
        """Match rules about one of these codes and classes, in the order of the table."""
        index = self._index or self._build_index()
        found: list[Rule] = []
        for rule in index.verdicts:
            is_about = not set(rule.rule.verdict).isdisjoint(verdict)
            if is_about and rule.matches_facts(link) and rule_matches(rule, link, text):
                found.append(rule.rule)
        return found

    def _lookup(self, field: str, value: str | int) -> list[IndexedRule]:
        index = self._index or self._build_index()
        found = index.exact.get((field, value), [])
        if isinstance(value, str):
            prefixes = index.prefixes.get((field, value[:1]))
            if prefixes:
                return found + [rule for prefix, rule in prefixes if value.startswith(prefix)]
        return found


def _most_conditions(found: list[IndexedRule]) -> list[Rule]:
    """Return the rules with the most conditions, each once, in the order of the table."""
    if len(found) < 2:
        return [rule.rule for rule in found]
    most = max(rule.condition_count for rule in found)
    best = {rule.position: rule.rule for rule in found if rule.condition_count == most}
    return [best[position] for position in sorted(best)]


def _nearest_package(found: list[tuple[int, IndexedRule]]) -> list[Rule]:
    """Return the rules with the most conditions, and of these the ones about the package."""
    most = max(rule.condition_count for _, rule in found)
    best = [(distance, rule) for distance, rule in found if rule.condition_count == most]
    nearest = min(distance for distance, _ in best)
    return [rule.rule for distance, rule in best if distance == nearest]


def extract_vocabulary(text: str) -> frozenset[str]:
    """Return the words of a text, in lower case."""
    return frozenset(_WORD.findall(text.lower()))


def _is_non_latin(pattern: str) -> bool:
    return not re.search("[a-zA-Z]", re.sub(r"\\.", "", pattern))


def _index_key(name: str, value: str | int) -> str | int:
    if name == "type":
        return class_name(str(value))
    return value.lower() if isinstance(value, str) else value


_NAME_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_:-]+")


def split_identifier(name: str) -> str:
    """Split a name into words: `ContentNotFoundError` becomes `Content Not Found Error`."""
    return _NAME_BOUNDARY.sub(" ", name.rsplit(".", 1)[-1])


def class_name(dotted: str) -> str:
    """Return the last part of a dotted name."""
    return dotted.rsplit(".", 1)[-1]


def rule_matches(rule: IndexedRule, link: Facts, text: MatchableText) -> bool:
    """True if every condition holds, apart from the one that the rule was found by."""
    if rule.has_other_conditions and not rule.matches_facts(link):
        return False
    return not rule.rule.message or rule.matches_text(text)


def _condition_names(rule: Rule, name: str) -> Iterable[str]:
    return map(base_program_name, rule.program) if name == "program" else getattr(rule, name)


def _matches_name(name: str, names: frozenset[str], prefixes: tuple[str, ...]) -> bool:
    return name in names or name.startswith(prefixes)


def _split_prefixes(names: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Split names into exact ones and those with a trailing `*`, all in lower case."""
    lowered = [name.lower() for name in names]
    exact = frozenset(name for name in lowered if not name.endswith("*"))
    prefixes = tuple(name[:-1] for name in lowered if name.endswith("*"))
    return exact, prefixes


@lru_cache(maxsize=4096)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


EMPTY_RULEBOOK = Rulebook()
