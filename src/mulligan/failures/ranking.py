"""Decide which rule classifies a failure.

Many rules may match one failure. The rank of their conditions decides, then their number, then the
less destructive verdict: a needless retry costs less than a job given up by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mulligan.core.attempt import Cls
from mulligan.failures import builtin
from mulligan.failures.facts import Facts, canonical_grpc_status, normalise_facts
from mulligan.failures.matcher import (
    EmptyText,
    MatchableText,
    Rulebook,
    extract_vocabulary,
    split_identifier,
)
from mulligan.failures.regex import lazy_regex
from mulligan.failures.rules import Rule
from mulligan.failures.text_facts import TextScan

# --- Masking: no rule may match inside a URL, an e-mail address, a path or an id ---

_MIN_ID = 12  # characters
_URL = r"[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>]+"
_MAIL = r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
_PATH = r"(?<![\w/<])(?:~|\.{1,2})?/(?!/)[\w.@+~%=:-]+(?:/[\w.@+~%=:-]*)*|\b[A-Za-z]:\\[^\s\"'<>]+"
_UUID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
_ID = rf"{_UUID}|\b(?=[0-9a-f]*\d)[0-9a-f]{{12,}}\b"
_ANY_IDENTIFIER = lazy_regex(f"{_URL}|{_MAIL}|{_PATH}|{_ID}", re.IGNORECASE)
_URL_PATH_OR_ID = lazy_regex(f"{_URL}|{_PATH}|{_ID}", re.IGNORECASE)
_ID_REGEX = lazy_regex(_ID, re.IGNORECASE)
_MAY_BE_ID = lazy_regex(r"[0-9a-fA-F](?<!\w[0-9a-fA-F])[0-9a-fA-F]{7}(?:-|[0-9a-fA-F]{4})")


def mask_identifiers(text: str) -> str:
    """Replace URLs, e-mail addresses, paths and ids by `<>`.

    Works word by word: most words contain none of these, and checking that is much cheaper than
    trying a pattern.
    """
    if "/" in text or "@" in text or "\\" in text:
        return " ".join([word if word.isalpha() else _mask_word(word) for word in text.split(" ")])
    return _ID_REGEX.sub("<>", text) if _MAY_BE_ID.search(text) else text


def _mask_word(word: str) -> str:
    if "@" in word:
        return _ANY_IDENTIFIER.sub("<>", word)
    if "/" in word or "\\" in word:
        return _URL_PATH_OR_ID.sub("<>", word)
    return _ID_REGEX.sub("<>", word) if len(word) >= _MIN_ID else word


_QUOTED = lazy_regex(r"(?<!\w)'[^'\n]{1,80}'(?!\w)|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}[`']|\\\w+")


def mask_quotes(text: str) -> str:
    """Replace quoted texts by `<>`."""
    return _QUOTED.sub("<>", text)


# --- Deciding ---

MAX_TEXT = 4000  # characters of a text that are read, from its end, which tells most
MAX_LINES = 16
_RARE_SEPARATOR = lazy_regex("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_BYTES_LITERAL = re.compile(r"(?<!\w)b['\"]")  # output of a program, as Python shows bytes

T = TypeVar("T")
Matcher = Callable[[Facts, MatchableText], list[Rule]]


class RuleMatch(NamedTuple):
    """The rule that decided and the exception it matched."""

    link: Facts
    rule: Rule
    disagreeing: tuple[str, ...] = ()  # rules of the same rank with the opposite verdict
    table_version: str = ""
    renamed: str = ""  # rule of the built-in table whose verdict this rule is about

    @property
    def is_known(self) -> bool:
        return self.rule.cls != Cls.UNKNOWN


def find_rule(facts: Facts, books: Sequence[Rulebook] = ()) -> RuleMatch:
    """Return the match of the first book that has one, else that of the built-in table.

    A book may also match the verdict of the built-in table.
    """
    if not books:
        match = _find_by_type_alone(facts)
        if match is not None:
            return match
    finder = RuleFinder(facts)
    for book in books:
        if match := finder.match_custom(book):
            return match
    builtin_match = finder.match_builtin()
    for book in books:
        if match := finder.match_verdict(builtin_match, book):
            return match
    return builtin_match


# --- Fast path: the exception type alone decides ---


class _TypeVerdict(NamedTuple):
    """The verdict about an exception type, valid for texts without any of the keywords."""

    rule: Rule
    disagreeing: tuple[str, ...]
    table_version: str
    keywords: tuple[str, ...]


MAX_CACHED_VERDICTS = 1024
_NOT_CACHED = _TypeVerdict(builtin.UNKNOWN, (), "", ())
# By every fact that a rule may test except the text. None: the text must be read every time.
_type_verdicts: dict[tuple[object, ...], _TypeVerdict | None] = {}
_FIRST_FIELD = Facts._fields.index("http_status")
_AFTER_LAST_FIELD = Facts._fields.index("uses") + 1


def _find_by_type_alone(facts: Facts) -> RuleMatch | None:
    """Return the match if the text does not matter, which is so for most failures."""
    verdict = _type_verdict(facts)
    if verdict is None or any(map(facts.message.lower().__contains__, verdict.keywords)):
        return None
    return RuleMatch(facts, verdict.rule, verdict.disagreeing, verdict.table_version)


def _type_verdict(facts: Facts) -> _TypeVerdict | None:
    if facts.causes or facts.leaves or facts.implied or facts.stderr or facts.provider_codes:
        return None
    key = (facts.exception_types, facts[_FIRST_FIELD:_AFTER_LAST_FIELD])
    try:
        verdict = _type_verdicts.get(key, _NOT_CACHED)
    except TypeError:  # unhashable values in facts that another program has stored
        return None
    if verdict is _NOT_CACHED:
        if len(_type_verdicts) >= MAX_CACHED_VERDICTS:
            _type_verdicts.clear()
        verdict = _type_verdicts[key] = _compute_type_verdict(facts)
    return verdict


def _compute_type_verdict(facts: Facts) -> _TypeVerdict | None:
    structure = builtin.STRUCTURE
    keywords = structure.keywords_for_types(facts.exception_types)
    match = _select(facts, structure.match_type(facts, EmptyText()), structure)
    if keywords is None or match is None or not match.is_known:
        return None
    if normalise_facts(facts) is not facts:
        return None
    return _TypeVerdict(match.rule, match.disagreeing, match.table_version, keywords)


# --- General path ---


class _lazy(Generic[T]):  # noqa: N801 - used as a decorator, like `property`
    """Property that is computed once. `functools.cached_property` locks until Python 3.12."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __get__(self, instance: Any, _: Any = None) -> T:
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value


class _TextLine(NamedTuple):
    """One line of a text."""

    raw: str
    masked: str


class RuleFinder:
    """Find the rule for one failure. Expensive values are computed at first use, once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = normalise_facts(facts)
        self._facts_by_line: dict[str, Facts] = {}
        self.links = [self.facts]  # explicit causes, deepest first
        self.implied: list[Facts] = []
        if facts.causes or facts.implied:
            causes = [normalise_facts(cause) for cause in facts.causes]
            chain = [link for link in (self.facts, *causes) if not link.implied]
            self.links = chain[::-1]
            self.implied = [cause for cause in causes if cause.implied]

    # --- Texts ---

    @_lazy
    def text(self) -> str:
        parts = [self.facts.stderr, *[link.message for link in self.links]]
        ends = [part[-MAX_TEXT:] for part in parts if part]
        text = "\n".join(ends)[-MAX_TEXT:]
        if "\\n" in text and _BYTES_LITERAL.search(text):
            return text.replace("\\n", "\n")
        return text

    @_lazy
    def lowered(self) -> str:
        return self.text.lower()

    @_lazy
    def masked(self) -> str:
        return mask_identifiers(self.text)

    @_lazy
    def vocabulary(self) -> frozenset[str]:
        return extract_vocabulary(self.masked)

    @_lazy
    def lines(self) -> list[_TextLine]:
        """The last lines of the text, the last one first."""
        # Nothing that is masked extends over the end of a line.
        pairs = zip(self.text.splitlines(), self.masked.splitlines(), strict=True)
        non_empty = [_TextLine(line, masked) for line, masked in pairs if line.strip()]
        return non_empty[: -MAX_LINES - 1 : -1]

    @_lazy
    def scan(self) -> TextScan:
        return TextScan(self.text)

    @_lazy
    def text_facts(self) -> Facts:
        """Structure found in the text."""
        return self.scan.read_facts()

    def _facts_of_line(self, line: str) -> Facts:
        """Return the structure found in one line. Wrappers often repeat a line."""
        if line == self.text:
            return self.text_facts
        facts = self._facts_by_line.get(line)
        if facts is None:
            whole = None if self.has_rare_separators else self.scan
            scan = TextScan(line, whole)
            facts = self._facts_by_line[line] = scan.read_facts()
        return facts

    @_lazy
    def has_rare_separators(self) -> bool:
        """True if the text has lines that patterns with `^` and `$` do not know as lines."""
        return _RARE_SEPARATOR.search(self.text) is not None

    @_lazy
    def has_structure(self) -> bool:
        """True if structure was found in the text.

        A number at the start of a line is no HTTP status if it is all there is: FTP has its own
        `425 Cannot open data connection`.
        """
        return self.text_facts != Facts(message=self.text)

    # --- Verdicts ---

    def match_custom(self, book: Rulebook) -> RuleMatch | None:
        """Match a book of the kind or of the app: structure first, then structure in the text."""
        return (
            self._match_structure(book)
            or self._match_link(book, self.text_facts, _structure_matchers(book))
            or _select(self.facts, book.match_text(self.facts, self.masked, self.vocabulary), book)
        )

    def match_verdict(self, match: RuleMatch, book: Rulebook) -> RuleMatch | None:
        """Match the rules of a book about the verdict of the built-in table."""
        link = match.link._replace(uses=self.facts.uses)
        rules = book.match_verdict((match.rule.code, match.rule.cls), link, self)
        if not rules:
            return None
        return RuleMatch(match.link, rules[0], (), book.version, match.rule.id)

    def match_builtin(self) -> RuleMatch:
        """Match the built-in table."""
        match = self._match_structure(builtin.STRUCTURE) or self._match_group()
        if match and match.is_known:
            return match
        text_match = self._match_texts()
        if text_match and (text_match.is_known or match is None):
            return self._require_evidence(text_match)
        return match or self._unknown()

    def _require_evidence(self, match: RuleMatch) -> RuleMatch:
        """Keep a text rule from naming a thing, such as a file, that nothing points to."""
        names = list(_names(self.links))
        words = [split_identifier(name) for name in names]
        programs = [
            f"program {link.program}"
            for link in self.links
            if link.program or link.exit_code is not None
        ]
        evidence = "\n".join([self.text, *names, *words, *programs])
        return match._replace(rule=builtin.require_evidence(match.rule, evidence))

    # --- Structure ---

    def _match_structure(self, book: Rulebook) -> RuleMatch | None:
        """Match by rank through the whole chain, the deepest cause first.

        `except KeyError: fetch()` leaves a KeyError in the context of whatever `fetch` raises. So
        an implied cause may explain why a retry makes sense, but never forbid one.
        """
        match = (
            self._match_provider_codes(book)
            or self._match_links(book, book.match_type)
            or self._match_links(book, book.match_number)
        )
        if match is not None:
            return match
        for link in self.implied:
            implied = self._match_link(book, link, _structure_matchers(book))
            if implied and implied.rule.retryable:
                return implied
        return None

    def _match_provider_codes(self, book: Rulebook) -> RuleMatch | None:
        if not any(link.provider_codes for link in self.links):
            return None
        match = self._match_links(book, book.match_provider_code)
        if match is None and book is builtin.STRUCTURE:
            return self._match_unknown_codes()
        return match

    def _match_links(self, book: Rulebook, matcher: Matcher) -> RuleMatch | None:
        for link in self.links:
            if match := _select(link, matcher(link, self), book):
                return match
        return None

    def _match_link(
        self, book: Rulebook, link: Facts, matchers: Sequence[Matcher]
    ) -> RuleMatch | None:
        for matcher in matchers:
            if match := _select(link, matcher(link, self), book):
                return match
        return None

    def _match_group(self) -> RuleMatch | None:
        """Match the leaves of an exception group. It is retryable if one of them is.

        A job given up by mistake is lost; a needless retry is not.
        """
        matches = [find_rule(leaf) for link in self.links for leaf in link.leaves]
        for match in matches:
            if match.rule.retryable:
                return match
        return matches[0] if matches else None

    # --- Texts and names ---

    def _match_texts(self) -> RuleMatch | None:
        """Match texts, from phrases that cannot occur by chance to weak signs."""
        fallback = builtin.FALLBACK
        fallback_matchers = (fallback.match_provider_code, fallback.match_type)
        return (
            self._match_codes_in_text()
            or self._match_last_matching_line(builtin.SPECIFIC)
            or self._match_facts_of_last_line()
            or self._match_names(self.links, retryable_only=True)
            or self._match_lines()
            or self._match_names(self.links)
            or self._match_weak_signs()
            or self._match_structure(fallback)
            or self._match_link(fallback, self.text_facts, fallback_matchers)
            or self._match_weakest_signs()
        )

    def _match_codes_in_text(self) -> RuleMatch | None:
        structure = builtin.STRUCTURE
        if not structure.knows_code(self.scan.provider_codes):
            return None
        return self._match_link(structure, self.text_facts, (structure.match_provider_code,))

    def _match_facts_of_last_line(self) -> RuleMatch | None:
        """Match the structure found in the last line."""
        structure = builtin.STRUCTURE
        if not self.lines:
            return None
        facts = self._facts_of_line(self.lines[0].raw)
        match = self._match_link(structure, facts, (structure.match_type, structure.match_number))
        return match if match and match.is_known else None

    def _match_unknown_codes(self) -> RuleMatch | None:
        """Match provider codes without a rule as texts: `UNABLE_TO_LOCK_ROW` is a sentence.

        Only retryable verdicts count.
        """
        for link in self.links:
            for code in link.provider_codes:
                if _is_sentence(code):
                    match = self._match_name(builtin.NORMAL, code)
                    if match and match.rule.retryable:
                        return match
        return None

    def _match_names(
        self, links: Iterable[Facts], *, retryable_only: bool = False
    ) -> RuleMatch | None:
        """Match the names of codes and types without a rule as texts."""
        for name in _names(links):
            match = self._match_name(builtin.NORMAL, name)
            if match and (match.rule.retryable or not retryable_only):
                return match
        return None

    def _match_weak_signs(self) -> RuleMatch | None:
        """Match weak phrases in the lines, then in names. A name alone never allows a retry."""
        match = self._match_last_matching_line(builtin.WEAK)
        if match and match.rule.retryable:
            return match
        for name in _names((*self.links, self.text_facts)):
            name_match = self._match_name(builtin.WEAK, name)
            if name_match and not name_match.rule.retryable:
                return name_match
        return match

    def _match_lines(self) -> RuleMatch | None:
        """Match the last line with a known verdict: its structure, else its words."""
        structure = builtin.STRUCTURE
        matchers = (structure.match_type, structure.match_number)
        for line in self.lines:
            facts = self._facts_of_line(line.raw)
            may_be_misread = facts.http_status is not None or self.has_rare_separators
            if may_be_misread and not self.has_structure:
                facts = Facts()
            match = (
                self._match_link(structure, facts, matchers)
                or self._match_reason(line)
                or self._match_names([facts])
            )
            if match and match.is_known:
                return match
        return None

    def _match_reason(self, line: _TextLine) -> RuleMatch | None:
        """Match the words of a line.

        If rules disagree, the reason at its end decides: `connection failed: wrong password`.
        """
        match = self._match_line(builtin.NORMAL, line.masked)
        if match is None or not match.disagreeing:
            return match
        reason = _reason_of(line.masked)
        if not reason:
            return match
        return self._match_line(builtin.NORMAL, reason) or match

    def _match_weakest_signs(self) -> RuleMatch | None:
        """Match the weakest phrases, unless the text hints at something that may pass.

        Quoted texts are masked: they are names of things.
        """
        lines = [line.masked for line in self.lines]
        for link in (*self.links, self.text_facts):
            names = (*link.provider_codes[:1], *link.exception_types[:1])
            lines += [split_identifier(name) for name in names]
        lines = [mask_quotes(line) for line in lines]
        if any(builtin.TRANSIENT_SIGN.search(line) for line in lines[1:]):
            return None
        if lines and builtin.TRANSIENT_SIGN.search(lines[0]):
            reason = _reason_of(lines[0])
            if not reason or builtin.TRANSIENT_SIGN.search(reason):
                return None
            lines = [reason]
        for line in lines:
            if match := self._match_line(builtin.WEAKEST, line):
                return match
        return None

    def _match_last_matching_line(self, book: Rulebook) -> RuleMatch | None:
        if not book.may_match_text(self.masked, self.vocabulary):
            return None
        for line in self.lines:
            if match := self._match_line(book, line.masked):
                return match
        return None

    def _match_line(self, book: Rulebook, line: str) -> RuleMatch | None:
        vocabulary = self.vocabulary if line == self.masked else extract_vocabulary(line)
        return _select(self.facts, book.match_text(self.facts, line, vocabulary), book)

    def _match_name(self, book: Rulebook, name: str) -> RuleMatch | None:
        return _select(self.facts, book.match_name(self.facts, name), book)

    def _unknown(self) -> RuleMatch:
        for link in self.links:
            if link.exit_code is not None or link.signal is not None:
                return RuleMatch(link, builtin.PROCESS_FAILED)
        return RuleMatch(self.facts, builtin.UNKNOWN)


def _structure_matchers(book: Rulebook) -> tuple[Matcher, ...]:
    return (book.match_provider_code, book.match_type, book.match_number)


def _names(links: Iterable[Facts]) -> Iterator[str]:
    for link in links:
        yield from link.provider_codes
        yield from link.exception_types


def _reason_of(line: str) -> str:
    """Return what follows the last colon: `no route` in `connection failed: no route`."""
    _, colon, reason = line.rpartition(": ")
    return reason if colon else ""


def _is_sentence(code: str) -> bool:
    """True if a code is long enough to be read as a text, and is no gRPC status."""
    return len(code) > 8 and not canonical_grpc_status(code)


def _select(link: Facts, rules: Sequence[Rule], book: Rulebook) -> RuleMatch | None:
    """Return a match with the least destructive of rules that match equally well."""
    if not rules:
        return None
    if len(rules) == 1:
        return RuleMatch(link, rules[0], (), book.version)
    # A rule of class unknown disagrees with none.
    known = [rule for rule in rules if rule.cls != Cls.UNKNOWN] or rules
    selected = next((rule for rule in known if rule.retryable), known[0])
    disagreeing = tuple(rule.id for rule in known if rule.retryable != selected.retryable)
    return RuleMatch(link, selected, disagreeing, book.version)
