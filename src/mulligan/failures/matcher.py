"""Match many rules against the facts of one exception.

Every rule is indexed by its most specific condition, and every pattern by the words it needs, so
that a failure is compared only with the few rules that can match it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from operator import attrgetter
from threading import Lock
from typing import NamedTuple, Protocol

from mulligan.core.attempt import RENAMED, Cls, Failure
from mulligan.failures.codes import Evidence
from mulligan.failures.facts import Facts, base_program_name
from mulligan.failures.keywords import (
    Keywords,
    keyword_sets,
    required_fragments,
    required_keywords,
    required_literal,
)
from mulligan.failures.rules import NUMBER_CONDITIONS, PUBLIC_FIELDS, Rule

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
        checked_elsewhere = bool(self.index_field) + bool(rule.message)
        self.has_other_conditions = self.condition_count > checked_elsewhere
        self._packages = _packages_by_class(rule.type)
        self._types = frozenset(map(class_name, rule.type))
        self._names: list[tuple[str, frozenset[str], tuple[str, ...]]] = []
        for name, field in _NAME_FIELDS.items():
            if getattr(rule, name):
                exact, prefixes = _split_prefixes(_condition_names(rule, name))
                self._names.append((field, exact, prefixes))
        self._numbers: list[tuple[str, frozenset[int]]] = []
        for name in NUMBER_CONDITIONS:
            if getattr(rule, name):
                self._numbers.append((name, frozenset(getattr(rule, name))))
        self._patterns: list[tuple[re.Pattern[str], Keywords]] | None = None
        # A text without any of these matches no pattern; empty: every pattern must be tried.
        self._keywords: Keywords = frozenset()

    def matches_text(self, text: MatchableText) -> bool:
        """True if one of the patterns matches. Most are excluded by their keywords."""
        patterns = self._patterns or self._compile()
        # Search the raw text first: masking it and splitting it into words costs more.
        if self._keywords and not any(map(text.lowered.__contains__, self._keywords)):
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
        patterns = []
        all_keywords = []
        for pattern in self.rule.message:
            keywords = required_keywords(pattern)
            all_keywords.append(keywords)
            patterns.append((_compile_pattern(pattern), keywords))
        if all(all_keywords):
            self._keywords = frozenset().union(*all_keywords)
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
        package = _top_level_package(name)
        if package and package in packages:
            return 0
        if not package or "" in packages:
            return 1
        return None


def _packages_by_class(types: Iterable[str]) -> dict[str, frozenset[str]]:
    packages: dict[str, set[str]] = defaultdict(set)
    for name in types:
        packages[class_name(name)].add(_top_level_package(name))
    return {name: frozenset(found) for name, found in packages.items()}


def _top_level_package(dotted: str) -> str:
    """Return the first part of a dotted name, or "" if it has one part only."""
    package, dot, _ = dotted.partition(".")
    return package if dot else ""


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
            indexed, *others = sets
            entry = _TextPattern(rule, pattern, required_literal(pattern), others)
            for keyword in indexed:
                self._by_keyword[keyword].append(entry)
        elif _is_non_latin(pattern):
            self._non_latin.append(_TextPattern(rule, pattern))
        else:
            entry = _TextPattern(rule, pattern)
            self._by_fragments.append((required_fragments(pattern), entry))

    def candidates(self, text: str, vocabulary: frozenset[str]) -> list[_TextPattern]:
        """Return the patterns that may match a text with this vocabulary."""
        by_keyword: list[_TextPattern] = []
        for keyword in vocabulary & self._by_keyword.keys():
            by_keyword += self._by_keyword[keyword]
        if not text.isascii():
            # A letter may match one that `lower` leaves as it is, so the words prove nothing.
            by_fragments = [candidate for _, candidate in self._by_fragments]
            return [*by_keyword, *by_fragments, *self._non_latin]
        if not by_keyword and not self._by_fragments:
            return []
        lowered = text.lower()
        found = []
        for candidate in by_keyword:
            if candidate.literal in lowered and _has_all(candidate.other_keywords, vocabulary):
                found.append(candidate)
        for fragments, candidate in self._by_fragments:
            if not fragments or any(map(lowered.__contains__, fragments)):
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
        found = []
        for candidate in index.candidates(text, vocabulary):
            if _compile_pattern(candidate.pattern).search(text) is not None:
                found.append(candidate.rule)
        return found

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


# --- Ends without an exception; here, because a supervisor must not load the built-in table ---


def apply_verdict_rules(
    failure: Failure, books: Sequence[Rulebook], uses: Sequence[str] = ()
) -> Failure:
    """Apply rules with a `verdict` condition to a failure without exception, such as TIMEOUT.

    `uses` lists the dependencies of the job.
    """
    dependency = failure.evidence.get("dependency")
    if dependency is not None:
        uses = (str(dependency),)
    facts = Facts(
        exit_code=_get_int(failure, "exit_code"),
        signal=_get_int(failure, "signal"),
        uses=tuple(uses),
    )
    for book in books:
        rules = book.active.match_verdict((failure.code, failure.cls), facts, EmptyText())
        if rules:
            rule = rules[0]
            return replace(
                failure,
                code=rule.code,
                cls=Cls(rule.cls),
                public=fill_sentence(rule.public, dict(failure.evidence)) or failure.public,
                rule=rule.id,
                retryable=rule.retryable,
                terms=rule.terms,
                judged={**failure.judged, "table": book.version, RENAMED: failure.origin},
            )
    return failure


def _get_int(failure: Failure, name: str) -> int | None:
    value = failure.evidence.get(name)
    return value if isinstance(value, int) else None


def fill_sentence(public: str, evidence: Evidence) -> str:
    """Fill the placeholders of a public sentence; one without a value becomes a question mark."""
    if "{" not in public:
        return public
    for name in PUBLIC_FIELDS:
        public = public.replace(f"{{{name}}}", str(evidence.get(name, "?")))
    return public
