"""Prefilters of patterns skip only patterns that cannot match."""

from __future__ import annotations

from random import Random

import pytest
from labelled.score import read_rows

from mulligan.failures import builtin
from mulligan.failures.keywords import keyword_sets, required_fragments, required_literal
from mulligan.failures.matcher import _compile_pattern, extract_vocabulary
from mulligan.failures.ranking import mask_identifiers
from mulligan.failures.redact import _ISSUER_PREFIXES, _PREFIXED_SECRET, scrub
from mulligan.failures.regex import ascii_probe
from mulligan.failures.text_facts import CODE_PATTERNS, NUMBER_PATTERNS, TextScan

SHAPES = (
    "HTTP 503",
    "500{",
    "Error(429)",
    "(1205, 'Lock wait')",
    "1213 (40001): Deadlock",
    "503 UNAVAILABLE",
    "550 5.7.1 mailbox unavailable",
    "(554, b'no')",
    "EPIPE",
    "E2BIG",
    "exited with status: -9",
    "exit code=137",
    "rateLimitExceeded: x",
    "a.b.CustomError3: x",
    "std::Oops",
    "Ünïcode 接続",
    "Reason = quotaExceeded",
)
SEPARATORS = (" ", "\n", ": ", "\n\n", ", ", "\u2028", "\t")
# Narrower than its pattern, as ever: `code      = X` in a table of aligned values is not read.
NARROWER = ("ode ?[:=]|eason(?::| ?=)",)
PATTERNS = (*CODE_PATTERNS.patterns, *NUMBER_PATTERNS.patterns)
BOOKS = (builtin.SPECIFIC, builtin.NORMAL, builtin.WEAK, builtin.WEAKEST)


def labelled_texts() -> list[str]:
    return [str(row.get("text", "")) for name in ("tune", "holdout") for row in read_rows(name)]


def generated_texts(seed: int, n: int = 400) -> list[str]:
    rng = Random(seed)
    pieces = (*SHAPES, *rng.sample(labelled_texts(), 60))
    return [
        "".join(rng.choice(pieces) + rng.choice(SEPARATORS) for _ in range(rng.randint(1, 5)))
        for _ in range(n)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_text_that_a_pattern_matches_has_what_the_pattern_needs(seed):
    for text in (*labelled_texts(), *generated_texts(seed)):
        for pattern in PATTERNS:
            is_exact = pattern.needs is not None and pattern.needs.pattern not in NARROWER
            if is_exact and pattern.pattern.search(text):
                has_substring = any(part in text for part in pattern.substrings)
                assert pattern.needs.search(text) or not has_substring, (pattern, text)


@pytest.mark.parametrize("seed", range(3))
def test_no_possible_pattern_is_left_out(seed):
    for text in (*labelled_texts(), *generated_texts(seed)):
        scan = TextScan(text)
        candidates = [*CODE_PATTERNS.candidates(scan), *NUMBER_PATTERNS.candidates(scan)]
        for pattern in PATTERNS:
            if any(part in text for part in pattern.substrings) and pattern.pattern.search(text):
                assert pattern in candidates, (pattern, text)


@pytest.mark.parametrize("seed", range(3))
def test_a_line_read_within_its_text_gives_the_same_facts_as_alone(seed):
    for text in (*labelled_texts(), *generated_texts(seed)):
        scan = TextScan(text.replace("\u2028", " "))
        for line in scan.text.split("\n"):
            assert TextScan(line, scan).read_facts() == TextScan(line).read_facts(), (line, text)


@pytest.mark.parametrize("book", BOOKS)
def test_every_matching_pattern_of_a_text_rule_is_a_candidate(book):
    index = book._build_text_index()
    patterns = {pattern for rule in book.rules for pattern in rule.message}
    for text in labelled_texts():
        for line in mask_identifiers(text).splitlines():
            candidates = {one.pattern for one in index.candidates(line, extract_vocabulary(line))}
            for pattern in patterns - candidates:
                assert not _compile_pattern(pattern).search(line), (pattern, line)


def test_keywords_of_each_part_of_a_pattern_are_required():
    sets = keyword_sets(r"\b(?:upload|download) (?:was )?(?:refused|denied) by peer\b")
    assert frozenset({"upload", "download"}) in sets
    assert frozenset({"refused", "denied"}) in sets
    assert frozenset({"peer"}) in sets


def test_keywords_after_a_repeat_are_required():
    sets = keyword_sets(r"\b(?:file|port) (?:is |was |still )*(?:busy|locked)\b")
    assert frozenset({"busy", "locked"}) in sets
    assert keyword_sets(r"\b(?:un|re)*(?:locked|busy)\b") == []  # `unlocked` is another word


def test_the_longest_literal_is_required():
    assert required_literal(r"\bI/O error\b(?!: couldn't)") == "i/o error"
    assert required_literal(r"\bdeserializ\w+ (?:error|failed)\b") == "deserializ"
    assert not required_literal(r"(?:one|two) ?\d+")


def test_fragments_are_required_where_no_whole_word_is_certain():
    assert keyword_sets(r"\bgeo[- ]?(?:restrict|block)") == []
    fragments = required_fragments(r"\bgeo[- ]?(?:restrict|block)")
    assert fragments == {"restrict", "block"}  # the longer ones contain one of these
    assert required_fragments(r"\d+") == frozenset()


SECRETS = (
    "ghp_0123456789abcdef",
    "github_pat_0123456789abcdef",
    "glsoat-0123456789abcdef",
    "xoxb-0123456789-abcdef",
    "xapp-0123456789abcdef",
    "sk_live_0123456789abcdef",
    "sk-0123456789abcdef",
    "whsec_0123456789abcdef",
    "AIza0123456789abcdefghijklmnopqrstuvwx",
    "ya29.0123456789abcdef",
    "npm_0123456789abcdefghijklmnopqrst",
    "hf_0123456789abcdefghij",
    "SG.0123456789abcdef.0123456789abcdef",
    "AKIA0123456789ABCDEF",
    "pypi-0123456789abcdef0123456789abcdef",
    "dop_v1_0123456789abcdef0123456789abcdef",
    "shpca_0123456789abcdef",
    "sq0csp-0123456789abcdef",
    "key-0123456789abcdef0123456789abcdef",
    "xkeysib-0123456789abcdefghij",
    "gsk_0123456789abcdefghij",
    "r8_0123456789abcdefghij",
    "pplx-0123456789abcdefghij",
    "nvapi-0123456789abcdefghij",
    "xai-0123456789abcdefghij",
    "lin_api_0123456789abcdefghij",
    "ntn_0123456789abcdefghij",
    "dckr_pat_0123456789abcdef",
    "hvb.0123456789abcdef",
    "glsa_0123456789abcdefghij",
    "dapi0123456789abcdef0123456789abcdef",
    "ATATT30123456789abcdefghij",
    "AGE-SECRET-KEY-10123456789abcdefghij",
    "EAAC0123456789abcdefghij",
    "123456:AA0123456789abcdefghijklmnopqrst",
    "eyJ0123456789.0123456789",
    "\u017fk-live-0123456789abcdef",  # a long s matches an s if case is ignored
)


@pytest.mark.parametrize("secret", SECRETS)
def test_every_secret_of_an_issuer_has_a_prefix_that_is_looked_for(secret):
    assert _PREFIXED_SECRET.fullmatch(secret)
    probe = ascii_probe(secret.casefold())
    assert any(prefix in probe for prefix in _ISSUER_PREFIXES)
    assert secret not in scrub(f"the call with {secret} failed")


def test_a_probe_keeps_every_ascii_character_at_its_place():
    assert ascii_probe("naïve 接続 reset") == "na?ve ?? reset"
    assert ascii_probe("reset") == "reset"
