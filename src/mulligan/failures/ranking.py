"""Which rule decides. One failure may fit many: rank says which speaks, and of equals the less destructive one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mulligan.core.attempt import Cls
from mulligan.failures import builtin
from mulligan.failures.facts import Facts, grpc_name, normal
from mulligan.failures.matcher import NoText, Rulebook, Text, any_in, words_of
from mulligan.failures.regex import late
from mulligan.failures.rules import Rule
from mulligan.failures.text_facts import spelled, told

# Texts made comparable: addresses, paths and ids are replaced, so that no rule can match inside them.

_LONG = 12  # digits of an id
_ADDRESS = r"[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>]+"
_MAIL = r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
_PATH = r"(?<![\w/<])(?:~|\.{1,2})?/(?!/)[\w.@+~%=:-]+(?:/[\w.@+~%=:-]*)*|\b[A-Za-z]:\\[^\s\"'<>]+"
_NUMBER = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b"
_ANY = late(f"{_ADDRESS}|{_MAIL}|{_PATH}|{_NUMBER}", re.IGNORECASE)
_NO_MAIL = late(f"{_ADDRESS}|{_PATH}|{_NUMBER}", re.IGNORECASE)
_ID = late(_NUMBER, re.IGNORECASE)


def masked(text: str) -> str:
    """Word by word: most words hold nothing to hide, and looking is much cheaper than trying a pattern."""
    if "/" in text or "@" in text or "\\" in text:
        return " ".join([_hidden(word) for word in text.split(" ")])
    return " ".join(
        [_ID.sub("<>", word) if len(word) >= _LONG else word for word in text.split(" ")]
    )


def _hidden(word: str) -> str:
    """By the pattern that has no more than this word could hold."""
    if "@" in word:
        return _ANY.sub("<>", word)
    if "/" in word or "\\" in word:
        return _NO_MAIL.sub("<>", word)
    return _ID.sub("<>", word) if len(word) >= _LONG else word


_QUOTED = late(r"(?<!\w)'[^'\n]{1,80}'(?!\w)|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}[`']|\\\w+")


def unquoted(text: str) -> str:
    return _QUOTED.sub("<>", text)


# Which rule decides. One failure may fit many: rank says which speaks, and of equals the less destructive one.

READ = 4000  # characters of a text that are asked about; its end says most
LINES = 16
_BYTES = re.compile(r"(?<!\w)b['\"]")  # what a program wrote, shown as Python shows bytes

T = TypeVar("T")
Ask = Callable[[Facts, Text], list[Rule]]


class RuleMatch(NamedTuple):
    """The rule that decides, the link it decided on, and rules of the same rank that said the opposite."""

    link: Facts
    rule: Rule
    also: tuple[str, ...] = ()
    table: str = ""

    @property
    def known(self) -> bool:
        return self.rule.cls != Cls.UNKNOWN


def judge(facts: Facts, books: Sequence[Rulebook] = ()) -> RuleMatch:
    """The verdict of the first book that has one; the built-in table has the last word."""
    if not books and (usual := _usual(facts)):
        return usual
    reading = Reading(facts)
    for book in books:
        if verdict := reading.by(book):
            return verdict
    found = reading.by_builtin()
    for book in books:
        if verdict := reading.about(found, book):
            return verdict
    return found


class _Usual(NamedTuple):
    """What the type of an exception alone decides, unless its text holds one of these words."""

    rule: Rule
    also: tuple[str, ...]
    table: str
    words: tuple[str, ...]


MOST_USUAL = 1024
_UNUSUAL = _Usual(builtin.UNKNOWN, (), "", ())  # nobody has looked yet
_known: dict[tuple[object, ...], _Usual | None] = {}  # by all that rules may ask for but the text
_FROM, _TO = Facts._fields.index("http_status"), Facts._fields.index("uses") + 1


def _usual(facts: Facts) -> RuleMatch | None:
    """Thousands fail alike but for their words, and few words matter; None: it has to be read."""
    found = _by_type_alone(facts)
    if found is None or any_in(found.words, facts.message.lower()):
        return None
    return RuleMatch(facts, found.rule, found.also, found.table)


def usual_words(facts: Facts) -> tuple[str, ...] | None:
    """The words that would matter, and none of them is there; None: one is, or it is read in any case."""
    found = _by_type_alone(facts)
    return None if found is None or any_in(found.words, facts.message.lower()) else found.words


def _by_type_alone(facts: Facts) -> _Usual | None:
    if facts.causes or facts.leaves or facts.implied or facts.stderr or facts.provider_codes:
        return None
    key = (facts.exception_types, facts[_FROM:_TO])
    try:
        found = _known.get(key, _UNUSUAL)
    except TypeError:  # of an attempt that somebody else has stored
        return None
    if found is _UNUSUAL:
        if len(_known) >= MOST_USUAL:
            _known.clear()
        found = _known[key] = _learned(facts)
    return found


def _learned(facts: Facts) -> _Usual | None:
    """None: such a failure is read each time."""
    words = builtin.STRUCTURE.words_about(facts.exception_types)
    verdict = _best(facts, builtin.STRUCTURE.by_type(facts, NoText()), builtin.STRUCTURE)
    if words is None or verdict is None or not verdict.known or normal(facts) is not facts:
        return None
    return _Usual(verdict.rule, verdict.also, verdict.table, words)


class _once(Generic[T]):  # noqa: N801 - reads as `property` does
    """Worked out when first asked for. `functools.cached_property` takes a lock for it until Python 3.12."""

    def __init__(self, work: Callable[[Any], T]) -> None:
        self.work = work

    def __get__(self, held: Any, _: Any = None) -> T:
        value = held.__dict__[self.work.__name__] = self.work(held)
        return value


class Reading:
    """One failure being read: what costs time is done when it is asked for, and once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts = normal(facts)
        if not facts.causes and not facts.implied:
            self.links, self.implied = [facts], []
            return
        below = [normal(link) for link in facts.causes]
        self.links = [link for link in (facts, *below) if not link.implied][::-1]  # deepest first
        self.implied = [link for link in below if link.implied]

    # -- texts ------------------------------------------------------------------------------------
    @_once
    def text(self) -> str:
        texts = [self.facts.stderr, *[link.message for link in self.links]]
        text = "\n".join([text[-READ:] for text in texts if text])[-READ:]
        return text.replace("\\n", "\n") if "\\n" in text and _BYTES.search(text) else text

    @_once
    def lowered(self) -> str:
        return self.text.lower()

    @_once
    def masked(self) -> str:
        return masked(self.text)

    @_once
    def words(self) -> frozenset[str]:
        return words_of(self.masked)

    @_once
    def lines(self) -> list[tuple[str, str, frozenset[str]]]:
        """The last lines, last first: as they are, masked, and their words."""
        lines = [line for line in self.text.splitlines() if line.strip()][: -LINES - 1 : -1]
        return [(line, shown, words_of(shown)) for line in lines if (shown := masked(line))]

    @_once
    def told(self) -> Facts:
        return told(self.text)

    # -- verdicts ---------------------------------------------------------------------------------
    def by(self, book: Rulebook) -> RuleMatch | None:
        """What a book of rules of their own says: structure first, then what texts say."""
        said = self.by_structure(book) or self.by_told(
            book, self.told, (book.by_code, book.by_type, book.by_number)
        )
        return said or _best(self.facts, book.by_words(self.facts, self.masked, self.words), book)

    def about(self, found: RuleMatch, book: Rulebook) -> RuleMatch | None:
        """What a book says to the verdict of the built-in table, of the link that it was found on."""
        link = found.link._replace(uses=self.facts.uses)
        return _best(
            found.link, book.about((found.rule.code, found.rule.cls), link, self)[:1], book
        )

    def by_builtin(self) -> RuleMatch:
        found = self.by_structure(builtin.STRUCTURE) or self.by_group()
        if found and found.known:
            return found
        said = self.by_texts()
        return said if said and (said.known or found is None) else found or self._unknown()

    def by_structure(self, book: Rulebook) -> RuleMatch | None:
        """By rank through the whole chain, deepest link first.

        `except KeyError: fetch()` leaves a KeyError in the context of whatever fetch raises. So an implied link may
        explain why a retry makes sense, but never forbid one.
        """
        found = (
            self._by_code(book) or self._by(book, book.by_type) or self._by(book, book.by_number)
        )
        if found is not None:
            return found
        for link in self.implied:
            hopeful = self.by_told(book, link, (book.by_code, book.by_type, book.by_number))
            if hopeful and hopeful.rule.retryable:
                return hopeful
        return None

    def _by_code(self, book: Rulebook) -> RuleMatch | None:
        if not any(link.provider_codes for link in self.links):
            return None
        found = self._by(book, book.by_code)
        return self.by_codes() if found is None and book is builtin.STRUCTURE else found

    def _by(self, book: Rulebook, ask: Ask) -> RuleMatch | None:
        for link in self.links:
            if verdict := _best(link, ask(link, self), book):
                return verdict
        return None

    def by_group(self) -> RuleMatch | None:
        """A group is as hopeful as its most hopeful leaf: a job wrongly given up is lost, a wrong retry is not."""
        verdicts = [judge(leaf) for link in self.links for leaf in link.leaves]
        return next(
            (verdict for verdict in verdicts if verdict.rule.retryable),
            verdicts[0] if verdicts else None,
        )

    def by_told(self, book: Rulebook, link: Facts, asks: Sequence[Ask]) -> RuleMatch | None:
        """Structure that only a text tells of."""
        for ask in asks:
            if verdict := _best(link, ask(link, self), book):
                return verdict
        return None

    # -- what texts and names say -------------------------------------------------------------------
    def by_texts(self) -> RuleMatch | None:
        """From what is hard to say by chance to what is faint."""
        last = builtin.LAST
        return (
            self.by_told(builtin.STRUCTURE, self.told, (builtin.STRUCTURE.by_code,))
            or self._last_line(builtin.SPECIFIC)
            or self.by_last_words()
            or self.by_names(self.links, hopeful=True)
            or self.by_lines()
            or self.by_names(self.links)
            or self.by_weak_signs()
            or self.by_structure(last)
            or self.by_told(last, self.told, (last.by_code, last.by_type))
            or self.by_faint_signs()
        )

    def by_last_words(self) -> RuleMatch | None:
        """The structure that the last line tells of."""
        structure = builtin.STRUCTURE
        if not self.lines:
            return None
        found = self.by_told(
            structure, told(self.lines[0][0]), (structure.by_type, structure.by_number)
        )
        return found if found and found.known else None

    def by_codes(self) -> RuleMatch | None:
        """Codes of providers that nobody has written a rule for: `UNABLE_TO_LOCK_ROW` is a sentence too."""
        lines = [
            spelled(code) for link in self.links for code in link.provider_codes if _telling(code)
        ]
        found = (self._say(builtin.NORMAL, line) for line in lines)
        return next((said for said in found if said and said.rule.retryable), None)

    def by_names(self, links: Iterable[Facts], *, hopeful: bool = False) -> RuleMatch | None:
        """Types and codes nobody has written a rule for: their names say what they are. Hope is looked for first."""
        for name in [
            name for link in links for name in (*link.provider_codes, *link.exception_types)
        ]:
            said = self._say(builtin.NORMAL, spelled(name))
            if said and (said.rule.retryable or not hopeful):
                return said
        return None

    def by_weak_signs(self) -> RuleMatch | None:
        """The last line that says something weakly, else a name that does; names alone never give hope."""
        said = self._last_line(builtin.WEAK)
        if said and said.rule.retryable:
            return said
        names = [
            name
            for link in (*self.links, self.told)
            for name in (*link.provider_codes, *link.exception_types)
        ]
        found = (self._say(builtin.WEAK, spelled(name)) for name in names)
        return next((one for one in found if one and not one.rule.retryable), said)

    def by_lines(self) -> RuleMatch | None:
        """The last line that says something: the structure it tells of, else its words."""
        structure = builtin.STRUCTURE
        tells = self.told != Facts(message=self.told.message)
        for raw, line, words in self.lines:
            link = told(raw) if tells else Facts()
            found = tells and self.by_told(
                structure, link, (structure.by_type, structure.by_number)
            )
            found = found or self._reason(line, words)
            found = found if found or not tells else self.by_names([link])
            if found and found.known:
                return found
        return None

    def _reason(self, line: str, words: frozenset[str]) -> RuleMatch | None:
        """What a line says; where it says both, the reason at its end counts: `connection failed: wrong password`."""
        said = self._say(builtin.NORMAL, line, words)
        if said is None or not said.also:
            return said
        end = _end(line)
        return (self._say(builtin.NORMAL, end) if end else None) or said

    def by_faint_signs(self) -> RuleMatch | None:
        """Asked last, and not where anything sounds hopeful. What is quoted is somebody's name for something."""
        names = [
            spelled(name)
            for link in (*self.links, self.told)
            for name in (*link.provider_codes[:1], *link.exception_types[:1])
        ]
        lines = [unquoted(line) for line in (*(line for _, line, _ in self.lines), *names)]
        if any(builtin.HOPE.search(line) for line in lines[1:]):
            return None
        if lines and builtin.HOPE.search(lines[0]):
            lines = [
                end for line in lines[:1] if (end := _end(line)) and not builtin.HOPE.search(end)
            ]
        return next((found for line in lines if (found := self._say(builtin.FAINT, line))), None)

    def _last_line(self, book: Rulebook) -> RuleMatch | None:
        return next(
            (found for _, line, words in self.lines if (found := self._say(book, line, words))),
            None,
        )

    def _say(
        self, book: Rulebook, line: str, words: frozenset[str] | None = None
    ) -> RuleMatch | None:
        return _best(
            self.facts,
            book.by_words(self.facts, line, words_of(line) if words is None else words),
            book,
        )

    def _unknown(self) -> RuleMatch:
        process = next(
            (link for link in self.links if link.exit_code is not None or link.signal is not None),
            None,
        )
        return (
            RuleMatch(self.facts, builtin.UNKNOWN)
            if process is None
            else RuleMatch(process, builtin.PROCESS_FAILED)
        )


def _end(line: str) -> str:
    """The last reason of a line that gives one: `connection failed: unknown driver`."""
    _, colon, end = line.rpartition(": ")
    return end if colon else ""


def _telling(code: str) -> bool:
    """Long enough to be a sentence, and not a name that has its own rules."""
    return len(code) > 8 and not grpc_name(code)


def _best(link: Facts, equals: Sequence[Rule], book: Rulebook) -> RuleMatch | None:
    """Of rules that fit equally well the less destructive; those that disagree with it are named."""
    if not equals:
        return None
    if len(equals) == 1:
        return RuleMatch(link, equals[0], (), book.version)
    known = [
        rule for rule in equals if rule.cls != Cls.UNKNOWN
    ] or equals  # "unknown" contradicts nobody
    rule = next((rule for rule in known if rule.retryable), known[0])
    also = tuple(other.id for other in known if other.retryable != rule.retryable)
    return RuleMatch(link, rule, also, book.version)
