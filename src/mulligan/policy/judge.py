"""Which rule decides. One failure may fit many: rank says which speaks, and of equals the less destructive one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from mulligan.job import Cls
from mulligan.policy import builtin
from mulligan.policy.facts import Facts
from mulligan.policy.masking import masked, unquoted
from mulligan.policy.normal import grpc_name, normal
from mulligan.policy.rule import Rule
from mulligan.policy.rulebook import NUMBER, PROVIDER, TYPE, Match, Rulebook, last_word, same_name, words_of
from mulligan.policy.told import spelled, told

READ = 4000  # characters of a text that are asked about; its end says most
LINES = 40


class Verdict(NamedTuple):
    """The rule that decides, the link it decided on, and rules of the same rank that said the opposite."""

    link: Facts
    rule: Rule
    also: tuple[str, ...] = ()
    table: str = ""


def judge(facts: Facts, books: Sequence[Rulebook] = ()) -> Verdict:
    """The verdict of the first book that has one; the built-in table has the last word."""
    reading = Reading(facts)
    for book in books:
        if verdict := reading.by(book):
            return verdict
    found = reading.by_builtin()
    for book in books:
        if verdict := reading.about(found, book):
            return verdict
    return found


class Reading:
    """One failure being read: what costs time is done when it is asked for, and once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts = normal(facts)
        below = [normal(link) for link in facts.causes]
        self.links = [link for link in (facts, *below) if not link.implied][::-1]  # deepest first
        self.implied = [link for link in below if link.implied]

    # -- texts ------------------------------------------------------------------------------------
    @cached_property
    def text(self) -> str:
        texts = [self.facts.stderr, *(link.message for link in self.links)]
        return "\n".join([text[-READ:] for text in texts if text])[-READ:]

    @cached_property
    def masked(self) -> str:
        return masked(self.text)

    @cached_property
    def lines(self) -> list[tuple[str, str]]:
        """The last lines, last first, as they are and masked."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return [(line, masked(line)) for line in lines[: -LINES - 1 : -1]]

    @cached_property
    def told(self) -> Facts:
        return told(self.text)

    # -- verdicts ---------------------------------------------------------------------------------
    def by(self, book: Rulebook) -> Verdict | None:
        """What a book of rules of their own says: structure first, then what texts say."""
        return self.by_structure(book) or self.by_told(book, self.told) or self.by_text(book)

    def about(self, found: Verdict, book: Rulebook) -> Verdict | None:
        """What a book says to the verdict of the built-in table."""
        return _best(found.link, book.about((found.rule.code, found.rule.cls), self.facts, self._masked), book)

    def by_builtin(self) -> Verdict:
        found = self.by_structure(builtin.STRUCTURE) or self.by_group()
        if found and found.rule.cls != Cls.UNKNOWN:
            return found
        said = self.by_words()
        return said if said and (found is None or said.rule.cls != Cls.UNKNOWN) else found or self._unknown()

    def by_words(self) -> Verdict | None:
        """What texts and names say, from what is hard to say by chance to what is faint."""
        return (
            self.by_told(builtin.STRUCTURE, self.told, (PROVIDER,))
            or self.by_names(self.links)
            or self.by_specific_lines()
            or self.by_lines()
            or self.by_weak_lines()
            or self.by_structure(builtin.LAST)
            or self.by_told(builtin.LAST, self.told)
            or self.by_faint_lines()
        )

    def by_structure(self, book: Rulebook) -> Verdict | None:
        """By rank through the whole chain, deepest link first.

        `except KeyError: fetch()` leaves a KeyError in the context of whatever fetch raises. So an implied link may
        explain why a retry makes sense, but never forbid one.
        """
        found = [(link, matches) for link in self.links if (matches := book.structural(link, self._masked))]
        for rank in (PROVIDER, TYPE, NUMBER):
            for link, matches in found:
                if verdict := _best(link, [match for match in matches if match.rank == rank], book):
                    return verdict
            if rank == PROVIDER and book is builtin.STRUCTURE and (named := self.by_codes()):
                return named
        hopeful = (_best(link, book.structural(link, self._masked), book) for link in self.implied)
        return next((verdict for verdict in hopeful if verdict and verdict.rule.retryable), None)

    def by_group(self) -> Verdict | None:
        """A group is as hopeful as its most hopeful leaf: a job wrongly given up is lost, a wrong retry is not."""
        verdicts = [judge(leaf) for link in self.links for leaf in link.leaves]
        return next((verdict for verdict in verdicts if verdict.rule.retryable), verdicts[0] if verdicts else None)

    def by_told(self, book: Rulebook, link: Facts, ranks: tuple[int, ...] = (PROVIDER, TYPE, NUMBER)) -> Verdict | None:
        """Structure that only a text tells of."""
        matches = book.structural(link, self._masked)
        for rank in ranks:
            if verdict := _best(link, [match for match in matches if match.rank == rank], book):
                return verdict
        return None

    def by_text(self, book: Rulebook) -> Verdict | None:
        return _best(self.facts, book.textual(self.facts, self.masked, words_of(self.masked)), book)

    def by_codes(self) -> Verdict | None:
        """Codes of providers that nobody has written a rule for: `UNABLE_TO_LOCK_ROW` is a sentence too."""
        lines = [spelled(code) for link in self.links for code in link.provider_codes if _telling(code)]
        return next((said for line in lines if (said := self._say(builtin.NORMAL, line))), None)

    def by_names(self, links: Iterable[Facts]) -> Verdict | None:
        """Types and codes nobody has written a rule for: their names are sentences too."""
        for name in [name for link in links for name in (*link.provider_codes, *link.exception_types)]:
            verdict = self._say(builtin.NORMAL, line := spelled(name)) or self._say(builtin.WEAK, line)
            if verdict and (verdict.table == builtin.NORMAL.version or not verdict.rule.retryable):
                return verdict
        return None

    def by_specific_lines(self) -> Verdict | None:
        return next((found for _, line in self.lines if (found := self._say(builtin.SPECIFIC, line))), None)

    def by_lines(self) -> Verdict | None:
        """The last line that says something; on it, what is most specific."""
        for raw, line in self.lines:
            link = told(raw)
            found = self.by_told(builtin.STRUCTURE, link, (TYPE, NUMBER)) or self.by_names([link])
            found = found or self._say(builtin.NORMAL, line)
            if found and found.rule.cls != Cls.UNKNOWN:
                return found
        return None

    def by_weak_lines(self) -> Verdict | None:
        return next((found for _, line in self.lines if (found := self._say(builtin.WEAK, line))), None)

    def by_faint_lines(self) -> Verdict | None:
        """Asked last, and not where anything sounds hopeful. What is quoted is somebody's name for something."""
        names = [spelled(name) for link in (*self.links, self.told) for name in link.exception_types[:1]]
        lines = [unquoted(line) for line in (*(line for _, line in self.lines), *names)]
        if any(builtin.HOPE.search(line) for line in lines):
            return None
        return next((found for line in lines if (found := self._say(builtin.FAINT, line))), None)

    def _say(self, book: Rulebook, line: str) -> Verdict | None:
        return _best(self.facts, book.textual(self.facts, line, words_of(line)), book)

    def _masked(self) -> str:
        return self.masked

    def _unknown(self) -> Verdict:
        process = next((link for link in self.links if link.exit_code is not None or link.signal is not None), None)
        if process is not None:
            return Verdict(process, builtin.PROCESS_FAILED)
        return Verdict(self.facts, builtin.UNKNOWN)


def _telling(code: str) -> bool:
    """Long enough to be a sentence, and not a name that has its own rules."""
    return len(code) > 8 and not grpc_name(code)


def _best(link: Facts, matches: Sequence[Match], book: Rulebook) -> Verdict | None:
    """The nearest type, then whoever asks for most, then the less destructive; the others are named."""
    if not matches:
        return None
    told = [match for match in matches if match.rule.cls != Cls.UNKNOWN] or matches  # "unknown" contradicts nobody
    first = min(_order(link, match) for match in told)
    equals = [match.rule for match in told if _order(link, match) == first]
    rule = next((rule for rule in equals if rule.retryable), equals[0])
    also = tuple(other.id for other in equals if other.retryable != rule.retryable)
    return Verdict(link, rule, also, book.version)


def _order(link: Facts, match: Match) -> tuple[int, int, int]:
    depth = {TYPE: _depth, PROVIDER: _place}.get(match.rank)
    return (depth(link, match.rule) if depth else 0, -match.weight, 0 if _exact(link, match.rule) else 1)


def _exact(link: Facts, rule: Rule) -> bool:
    """Whether the rule names the very package of the type: `tarfile.ReadError` is not `ReadError` of a client."""
    return any(
        "." in wanted and wanted.split(".", 1)[0] == name.split(".", 1)[0] and last_word(wanted) == last_word(name)
        for wanted in rule.type
        for name in link.exception_types
    )


def _place(link: Facts, rule: Rule) -> int:
    """Which of the provider's codes it is; the most telling one stands first."""
    codes = enumerate(link.provider_codes)
    return next((place for place, code in codes if any(same_name(wanted, code) for wanted in rule.provider_code)), 99)


def _depth(link: Facts, rule: Rule) -> int:
    """How far up the exception's bases the rule's type stands."""
    wanted = {last_word(name) for name in rule.type}
    return next((depth for depth, name in enumerate(link.exception_types) if last_word(name) in wanted), 99)
