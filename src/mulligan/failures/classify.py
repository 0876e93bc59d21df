"""Classify facts into a Failure. Structure is read before text:

    ended by Mulligan → declared by the handler → provider code → exception type along the cause
    chain → HTTP, gRPC, SQLSTATE, errno, exit code, signal → text → unknown

The rules of the kind are tried first, then those of the app, then the built-in table. Facts were
bounded and redacted when they were captured, so that only what is stored is classified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from mulligan.core.attempt import RENAMED, RETRYABLE, Cls, Failure, is_system_rule
from mulligan.failures.codes import CODES, Evidence
from mulligan.failures.facts import FACTS_KEY, Facts, encode_facts
from mulligan.failures.fingerprint import compute_fingerprint
from mulligan.failures.matcher import Rulebook, fill_sentence
from mulligan.failures.ranking import RuleMatch, find_rule
from mulligan.failures.rules import Rule


def classify_facts(facts: Facts, books: Sequence[Rulebook] = ()) -> Failure:
    """Return the failure that `facts` describe. Never raises, whatever they contain.

    `books` holds the rules of the kind, then those of the app.
    """
    if not books:
        return _classify(facts, ())
    active = [book.active for book in books]
    failure = _classify(facts, active)
    if all(one is other for one, other in zip(active, books, strict=True)):
        return failure
    return _add_shadow(failure, _classify(facts, books), books)


def _classify(facts: Facts, books: Sequence[Rulebook]) -> Failure:
    if facts.ended_by:
        return _failure(facts, find_rule(facts, books), ended_by=facts.ended_by)
    if facts.code:
        return _declared_failure(facts, books)
    return _failure(facts, find_rule(facts, books))


def _add_shadow(failure: Failure, shadow: Failure, books: Sequence[Rulebook]) -> Failure:
    """Record next to a failure what a rule in shadow mode would have decided."""
    shadow_rules: set[str] = set()
    for book in books:
        shadow_rules.update(rule.id for rule in book.rules if rule.shadow)
    if shadow.rule not in shadow_rules:
        return failure
    verdict: dict[str, Any] = {
        "rule": shadow.rule,
        "code": shadow.code,
        "class": str(shadow.cls),
        "retryable": shadow.retryable,
    }
    if shadow.terms:
        verdict["terms"] = dict(shadow.terms)
    return replace(failure, judged={**failure.judged, "shadow": verdict})


def _declared_failure(facts: Facts, books: Sequence[Rulebook]) -> Failure:
    """Return the failure whose code the handler declared.

    The rules or the registry say what the code means. A code that neither knows has the class of
    the exception that the handler raised it from.
    """
    cause = find_rule(facts._replace(exception_types=(), message="", stderr=""), books)
    rule = _rule_with_code(facts.code, cause.rule, books)
    code = CODES.get(facts.code)
    rule_id = "handler.declared"
    terms: Mapping[str, Any] = {}
    if rule is not None:
        rule_id = rule.id
        terms = rule.terms
        cls = Cls(rule.cls)
    elif code is not None:
        cls = code.cls
    else:
        cls = Cls(cause.rule.cls)
    public = facts.public
    if not public and rule is not None:
        public = rule.public
    if not public and code is not None:
        public = code.public
    return replace(
        _failure(facts, cause),
        code=facts.code,
        cls=cls,
        public=public or f"The job failed with {facts.code}.",
        rule=rule_id,
        retryable=cls in RETRYABLE,
        terms=terms,
        fingerprint=compute_fingerprint(facts, facts.code, cls, cause.link),
    )


def _rule_with_code(code: str, matching: Rule, books: Sequence[Rulebook]) -> Rule | None:
    """Return the rule that assigns `code`: `matching` if it does, else the first."""
    rules: list[Rule] = []
    for book in books:
        rules += [rule for rule in book.rules if rule.code == code]
    if matching in rules:
        return matching
    return rules[0] if rules else None


def _failure(facts: Facts, match: RuleMatch, *, ended_by: str = "") -> Failure:
    rule = match.rule
    code = ended_by or rule.code
    if ended_by in CODES:
        cls = CODES[ended_by].cls
    else:
        cls = Cls(rule.cls)
    evidence = _evidence(facts, match.link)
    sentence = rule.public or CODES["UNKNOWN_ERROR"].public
    return Failure(  # positional: keyword arguments take 25 % longer
        code,
        cls,
        facts.public or fill_sentence(sentence, evidence),
        rule.id,
        cls in RETRYABLE,
        facts.retry_after,
        evidence,
        _private_part(facts),
        compute_fingerprint(facts, code, cls, match.link),
        rule.terms,
        _provenance(match),
    )


def _provenance(match: RuleMatch) -> dict[str, Any]:
    """Return the version of the table that decided, and the rules that disagreed."""
    provenance: dict[str, Any] = {}
    if match.table_version:
        provenance["table"] = match.table_version
    if match.disagreeing:
        provenance["also"] = list(match.disagreeing)
    if is_system_rule(match.renamed):
        provenance[RENAMED] = match.renamed
    return provenance


_EVIDENCE = ("exit_code", "signal", "errno", "http_status", "grpc_status", "sqlstate", "program")
_get_evidence = attrgetter(*_EVIDENCE)
_NO_EVIDENCE = _get_evidence(Facts())


def _evidence(facts: Facts, link: Facts) -> Evidence:
    """Return the numbers and names that an owner may see. Types and texts stay private."""
    evidence: Evidence = {}
    sources = [facts]
    if link is not facts:
        sources = [link, facts]
    for source in sources:
        values = _get_evidence(source)
        if values != _NO_EVIDENCE:
            for name, value in zip(_EVIDENCE, values, strict=True):
                if value is not None and value != "":
                    evidence.setdefault(name, value)
        if source.timed_out:
            evidence.setdefault("timed_out", True)
    if facts.retry_after is not None:
        evidence["retry_after"] = facts.retry_after
    return evidence


_TEXTS = ("message", "detail", "trace", "stderr")
_get_texts = attrgetter(*_TEXTS)


def _private_part(facts: Facts) -> dict[str, Any]:
    """Return the texts for operators, and the facts for classifying the failure again later."""
    private: dict[str, Any] = {}
    if facts.exception_types:
        private["exception"] = facts.exception_types[0]
    for name, text in zip(_TEXTS, _get_texts(facts), strict=True):
        if text:
            private[name] = text
    if facts.exception_types or facts.provider_codes or facts.causes:
        private[FACTS_KEY] = encode_facts(facts)
    return private
