"""What went wrong, from facts to a Failure. Structure is read before text.

    who ended it → declared by the handler → provider code → exception type through the cause chain → HTTP, gRPC,
    SQLSTATE, errno, exit code, signal → what the text says → unknown

The kind's own rules are asked first, then the app's, then the built-in table. Facts are captured, made safe and
redacted elsewhere; what is judged here is what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from mulligan.core.attempt import RETRYABLE, Cls, Failure
from mulligan.failures.codes import (
    CODES,
    Evidence,
    bad_outcome,
    deadline_passed,
    memory_limit,
    payload_refused,
    process_died,
    result_refused,
    retry_requested,
    timed_out,
    unknown_kind,
    worker_lost,
)
from mulligan.failures.facts import FACTS, Facts, to_plain
from mulligan.failures.fingerprint import fingerprint
from mulligan.failures.matcher import NoText, Rulebook
from mulligan.failures.ranking import RuleMatch, judge
from mulligan.failures.rules import PUBLIC_FIELDS, Rule

__all__ = [
    "Facts",
    "bad_outcome",
    "classify_facts",
    "deadline_passed",
    "memory_limit",
    "payload_refused",
    "process_died",
    "renamed",
    "result_refused",
    "retry_requested",
    "timed_out",
    "unknown_kind",
    "worker_lost",
]


def classify_facts(facts: Facts, books: Sequence[Rulebook] = ()) -> Failure:
    """The one verdict about `facts`; never raises, whatever they hold. `books`: the kind's rules, then the app's."""
    if not books:
        return _classified(facts, ())
    acting = [book.acting for book in books]
    failure = _classified(facts, acting)
    if all(one is other for one, other in zip(acting, books, strict=True)):
        return failure
    return _shadowed(failure, _classified(facts, books), books)


def _classified(facts: Facts, books: Sequence[Rulebook]) -> Failure:
    if facts.ended_by:
        return _failure(facts, judge(facts, books), ours=facts.ended_by)
    return _declared(facts, books) if facts.code else _failure(facts, judge(facts, books))


def _shadowed(failure: Failure, would: Failure, books: Sequence[Rulebook]) -> Failure:
    """What was decided, beside what would have been decided had the rules in shadow been asked."""
    if would.rule not in {rule.id for book in books for rule in book.rules if rule.shadow}:
        return failure
    said = {
        "rule": would.rule,
        "code": would.code,
        "class": str(would.cls),
        "retryable": would.retryable,
    }
    terms = {"terms": dict(would.terms)} if would.terms else {}
    return replace(failure, judged={**failure.judged, "shadow": said | terms})


def renamed(failure: Failure, books: Sequence[Rulebook], uses: Sequence[str] = ()) -> Failure:
    """An end without an exception, such as TIMEOUT, as the rules about such verdicts have it. `uses`: of its job."""
    used = (
        (str(failure.evidence["dependency"]),) if "dependency" in failure.evidence else tuple(uses)
    )
    facts = Facts(
        exit_code=_number(failure, "exit_code"), signal=_number(failure, "signal"), uses=used
    )
    for book in books:
        rules = book.acting.about((failure.code, failure.cls), facts, NoText())
        if rules:
            rule = rules[0]
            return replace(
                failure,
                code=rule.code,
                cls=Cls(rule.cls),
                public=_sentence(rule.public, dict(failure.evidence)) or failure.public,
                rule=rule.id,
                retryable=rule.retryable,
                terms=rule.terms(),
                judged={**failure.judged, "table": book.version},
            )
    return failure


def _number(failure: Failure, name: str) -> int | None:
    value = failure.evidence.get(name)
    return value if isinstance(value, int) else None


def _declared(facts: Facts, books: Sequence[Rulebook]) -> Failure:
    """The handler names the code; what it means is in the tables, else in what it was raised from."""
    known = CODES.get(facts.code)
    below = judge(facts._replace(exception_types=(), message="", stderr=""), books)
    named = _named(facts.code, below.rule, books)
    cls = Cls(named.cls) if named else known.cls if known else Cls(below.rule.cls)
    public = (
        facts.public
        or (named and named.public)
        or (known and known.public)
        or f"The job failed with {facts.code}."
    )
    failure = _failure(facts, below)
    return replace(
        failure,
        code=facts.code,
        cls=cls,
        public=public,
        rule=named.id if named else "handler.declared",
        retryable=cls in RETRYABLE,
        terms=named.terms() if named else {},
        fingerprint=fingerprint(facts, facts.code, cls, below.link),
    )


def _named(code: str, below: Rule, books: Sequence[Rulebook]) -> Rule | None:
    """Of several rules with this code the one that fits what it was raised from, else the first."""
    fitting = [rule for book in books for rule in book.rules if rule.code == code]
    return below if below in fitting else next(iter(fitting), None)


def _failure(facts: Facts, verdict: RuleMatch, *, ours: str = "") -> Failure:
    rule = verdict.rule
    known = CODES.get(ours) if ours else None
    code, cls = (ours, known.cls) if known else (ours or rule.code, Cls(rule.cls))
    evidence = _evidence(facts, verdict.link)
    return Failure(  # by position: by name it costs a quarter more
        code,
        cls,
        facts.public or _sentence(rule.public or CODES["UNKNOWN_ERROR"].public, evidence),
        rule.id,
        cls in RETRYABLE,
        facts.retry_after,
        evidence,
        _private(facts),
        fingerprint(facts, code, cls, verdict.link),
        rule.terms(),
        _judged(verdict),
    )


def _judged(verdict: RuleMatch) -> dict[str, Any]:
    said: dict[str, Any] = {"table": verdict.table} if verdict.table else {}
    if verdict.also:
        said["also"] = list(verdict.also)
    return said


def _sentence(public: str, evidence: Evidence) -> str:
    """The sentence with its holes filled; a hole nobody can fill stays a gap, never a brace."""
    if "{" not in public:
        return public
    for name in PUBLIC_FIELDS:
        public = public.replace(f"{{{name}}}", str(evidence.get(name, "?")))
    return public


_SHOWN = ("exit_code", "signal", "errno", "http_status", "grpc_status", "sqlstate", "program")
_shown_of = attrgetter(*_SHOWN)
_NOTHING_SHOWN = _shown_of(Facts())


def _evidence(facts: Facts, link: Facts) -> Evidence:
    """Numbers and names: fit for an owner's eyes. Types and texts are not."""
    found: Evidence = {}
    for source in (facts,) if link is facts else (link, facts):
        shown = _shown_of(source)
        for name, value in () if shown == _NOTHING_SHOWN else zip(_SHOWN, shown, strict=True):
            if value is not None and value != "":
                found.setdefault(name, value)
        if source.timed_out:
            found.setdefault("timed_out", True)
    return found


_TEXTS = ("message", "detail", "trace", "stderr")
_texts_of = attrgetter(*_TEXTS)


def _private(facts: Facts) -> dict[str, Any]:
    """Texts for people, and under one name what a later table needs to judge again."""
    found: dict[str, Any] = {"exception": facts.exception_types[0]} if facts.exception_types else {}
    found |= {name: text for name, text in zip(_TEXTS, _texts_of(facts), strict=True) if text}
    if facts.exception_types or facts.provider_codes or facts.causes:
        found[FACTS] = to_plain(facts)
    return found
