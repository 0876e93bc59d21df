"""Many rules, asked at once: which of them fit one link of a failure.

Each rule is filed under its most telling condition, so a failure meets only the few rules that could fit it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from mulligan.policy.facts import Facts
from mulligan.policy.keywords import keywords
from mulligan.policy.rule import Rule

PROVIDER, TYPE, NUMBER, TEXT = 4, 3, 2, 1  # structure before text
_FILED = ("provider_code", "type", "sqlstate", "grpc_status", "errno", "http_status", "exit_code", "signal")
_TOKEN = re.compile(r"[a-z]{2,}")


class Match(NamedTuple):
    """A rule that fits, how telling its best condition is, and how much it asks for."""

    rule: Rule
    rank: int
    weight: int


def rank_of(rule: Rule) -> int:
    if rule.provider_code:
        return PROVIDER
    if rule.type:
        return TYPE
    return NUMBER if any(getattr(rule, name) for name in _FILED) else TEXT


class Rulebook:
    """An ordered table of rules. `version` names exactly these rules: the same table, the same name."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._filed: dict[tuple[str, str | int], list[Match]] = defaultdict(list)
        self._prefixes: dict[str, list[tuple[str, Match]]] = defaultdict(list)
        self._unfiled: list[Match] = []  # rules of texts: filed when the first text is asked about
        self._texts: dict[str, list[tuple[Match, str]]] = defaultdict(list)
        self._loose: list[tuple[Match, str]] = []
        self._verdicts: list[Match] = []  # rules about what the built-in table says
        for rule in self.rules:
            self._file(Match(rule, rank_of(rule), rule.conditions))

    @cached_property
    def acting(self) -> Rulebook:
        """Without the rules in shadow, which only say what they would have done."""
        acting = [rule for rule in self.rules if not rule.shadow]
        return self if len(acting) == len(self.rules) else Rulebook(acting)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def _file(self, match: Match) -> None:
        if match.rule.verdict:
            self._verdicts.append(match)
            return
        name = next((name for name in _FILED if getattr(match.rule, name)), "")
        for value in getattr(match.rule, name) if name else ():
            if isinstance(value, str) and value.endswith("*"):
                self._prefixes[name].append((value[:-1].lower(), match))
            else:
                self._filed[name, _key(name, value)].append(match)
        if not name:
            self._unfiled.append(match)

    @cached_property
    def version(self) -> str:
        text = json.dumps([rule.to_plain() for rule in self.rules], sort_keys=True, default=str)
        return blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()

    def _file_text(self, match: Match) -> None:
        for pattern in match.rule.message or [""]:
            words = keywords(pattern)
            for word in words:
                self._texts[word].append((match, pattern))
            if not words:
                self._loose.append((match, pattern))

    def structural(self, facts: Facts, text: Callable[[], str]) -> list[Match]:
        """Rules with a structural condition that fit this link; `text` is what their `message` is tried on."""
        found = [match for match in self._filed_under(facts) if fits(match.rule, facts, text)]
        return found if len(found) < 2 else _distinct(found)

    def _filed_under(self, facts: Facts) -> Iterator[Match]:
        filed = self._filed
        for name, value in _values(facts):
            yield from filed.get((name, value), ())
            for prefix, match in self._prefixes.get(name, ()):
                if str(value).startswith(prefix):
                    yield match

    def textual(self, facts: Facts, text: str, words: frozenset[str]) -> list[Match]:
        """Rules without a structural condition that fit; `words` are the words of `text`, from `words_of`."""
        while self._unfiled:
            self._file_text(self._unfiled.pop())
        found = [pair for word in words & self._texts.keys() for pair in self._texts[word]]
        return _distinct([m for m, pattern in (*found, *self._loose) if _says(pattern, text) and _fits(m.rule, facts)])

    def about(self, verdict: Collection[str], facts: Facts, text: Callable[[], str]) -> list[Match]:
        """Rules about one of these codes and classes that fit."""
        named = [match for match in self._verdicts if not set(match.rule.verdict).isdisjoint(verdict)]
        return [match for match in named if fits(match.rule, facts, text)]


def words_of(text: str) -> frozenset[str]:
    return frozenset(_TOKEN.findall(text.lower()))


def _distinct(found: list[Match]) -> list[Match]:
    return list({match.rule.id: match for match in found}.values())


def _key(name: str, value: str | int) -> str | int:
    if name == "type":
        return last_word(str(value))
    return value.lower() if isinstance(value, str) else value


def last_word(dotted: str) -> str:
    return dotted.rsplit(".", 1)[-1]


def _values(facts: Facts) -> Iterator[tuple[str, str | int]]:
    """What this link could be filed under."""
    for code in facts.provider_codes:
        yield "provider_code", code.lower()
    for name in facts.exception_types:
        yield "type", last_word(name)
    if facts.sqlstate:
        yield "sqlstate", facts.sqlstate.lower()
    if facts.grpc_status:
        yield "grpc_status", facts.grpc_status.lower()
    for name in ("errno", "http_status", "exit_code", "signal"):
        number = getattr(facts, name)
        if number is not None:
            yield name, number


def fits(rule: Rule, facts: Facts, text: Callable[[], str]) -> bool:
    """Whether every condition of the rule holds."""
    return _fits(rule, facts) and (not rule.message or any(_says(pattern, text()) for pattern in rule.message))


def _fits(rule: Rule, facts: Facts) -> bool:
    if rule.type and not any(_same_type(wanted, name) for wanted in rule.type for name in facts.exception_types):
        return False
    return _names_fit(rule, facts) and _numbers_fit(rule, facts)


def _same_type(wanted: str, name: str) -> bool:
    """By the last word and, where both say one, the package: `openai.X` is `openai._exceptions.X`."""
    if last_word(wanted) != last_word(name):
        return False
    return "." not in wanted or "." not in name or wanted.split(".", 1)[0] == name.split(".", 1)[0]


def _names_fit(rule: Rule, facts: Facts) -> bool:
    pairs = (
        (rule.provider_code, facts.provider_codes),
        (rule.sqlstate, (facts.sqlstate,)),
        (rule.grpc_status, (facts.grpc_status,)),
        (rule.program, (facts.program,)),
        (rule.dependency, facts.uses),
    )
    return all(not wanted or any(same_name(one, other) for one in wanted for other in had) for wanted, had in pairs)


def same_name(wanted: str, had: str) -> bool:
    wanted, had = wanted.lower(), had.lower()
    return had.startswith(wanted[:-1]) and bool(had) if wanted.endswith("*") else had == wanted


def _numbers_fit(rule: Rule, facts: Facts) -> bool:
    pairs: tuple[tuple[Any, int | None], ...] = (
        (rule.errno, facts.errno),
        (rule.http_status, facts.http_status),
        (rule.exit_code, facts.exit_code),
        (rule.signal, facts.signal),
    )
    return all(not wanted or had in wanted for wanted, had in pairs)


def _says(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


EMPTY = Rulebook()
Books = Mapping[str, Rulebook]
