"""Rules: validation, conditions, and the patterns of the built-in table."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan import Exponential, Rule, Table, Then, classify
from mulligan.core.errors import ConfigError
from mulligan.failures.builtin import RULES, WEAKEST
from mulligan.failures.codes import CODES
from mulligan.failures.keywords import required_keywords
from mulligan.failures.matcher import IndexedRule, extract_vocabulary
from mulligan.failures.regex import find_pattern_fault


def rule(**fields):
    return Rule("mine", **{"code": "X", "cls": "transient", **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no condition"),
        ({"message": "404"}, "bare number"),
        ({"message": r"\b50[23]\b"}, "bare number"),
        ({"message": "memory"}, "bare word 'memory'"),
        ({"message": r"\btimeout\b|\bmoov atom not found\b"}, "bare word 'timeout'"),
        ({"message": r"(?:gateway )?timeout"}, "bare word 'timeout'"),
        ({"message": r"(\w+\s?)+ not found"}, "repeat inside a repeat"),
        ({"message": r"(?:a|b+)*c not found"}, "repeat inside a repeat"),
        ({"message": r"(job) \1 failed"}, "refers back"),
        ({"message": "("}, "not a valid regular expression"),
        ({"message": ".*"}, "empty text"),
        ({"message": "x " * 300}, "1 to 500 characters"),
        ({"program": "ffmpeg", "cls": "transiant"}, "did you mean 'transient'?"),
        ({"program": "ffmpeg", "cls": "nonsense!"}, "unknown class"),
        ({"http_status": 999}, "between 100 and 599"),
        ({"http_status": "6xx"}, "whole number"),
        ({"errno": "28"}, "whole number"),
        ({"program": ""}, "1 to 200 characters"),
        ({"provider_code": "*"}, "only at the end of a name"),
        ({"program": "ffmpeg", "code": "not a code"}, "invalid code 'not a code'"),
        ({"program": "ffmpeg", "public": "see {message}"}, "public contains {message}"),
        ({"program": "ffmpeg", "max_retries": -1}, "at least 0"),
        ({"program": "ffmpeg", "cls": "auth", "max_retries": 3}, "never retried"),
        ({"program": "ffmpeg", "backoff": 30}, "Table(...)"),
        ({"program": "ffmpeg", "then": "big"}, "Then(...)"),
        ({"program": "ffmpeg", "shadow": "yes"}, "true or false"),
        (
            {"message": "slow down", "alarm": "loud"},
            "unknown alarm 'loud'. Use one of page, notify, none.",
        ),
    ],
)
def test_an_invalid_rule_is_refused_with_its_id_and_the_reason(fields, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)) as refused:
        rule(**fields)
    assert "rule 'mine'" in str(refused.value)


def test_a_single_word_is_allowed_with_a_structural_condition():
    assert rule(message="killed", program="ffmpeg").message == ("killed",)


def test_a_rule_survives_conversion_to_a_dict_and_back():
    mine = rule(
        http_status=["5xx", 429],
        type=("openai.RateLimitError", "Timeout"),
        message=(r"\bslow down please\b", r"\bcome back tomorrow\b"),
        backoff=Exponential(5, 3, jitter=0.2),
        then=[Then(queue="big", memory_limit=10**9), Then(settings={"model": "small"})],
        max_retries=4,
        wait_for_hint=False,
        runbook="https://example.org/slow",
        alarm="page",
        public="Status {http_status}.",
        shadow=True,
    )
    assert Rule.from_dict(mine.to_dict()) == mine
    assert Rule.from_dict(
        {"id": "t", "code": "X", "cls": "timeout", "errno": 110, "backoff": [1, 2]}
    ).backoff == Table([1, 2])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"id": "a", "code": "X", "cls": "timeout", "progam": "x"},
            "unknown field 'progam'; did you mean 'program'?",
        ),
        ({"id": "a", "cls": "timeout"}, "missing code"),
        (
            {"id": "a", "code": "X", "cls": "timeout", "errno": 1, "backoff": {"base": -1}},
            "backoff",
        ),
    ],
)
def test_an_invalid_dict_is_refused_with_the_id_of_the_rule(fields, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)) as refused:
        Rule.from_dict(fields, "mulligan.toml")
    assert "rule 'a' in mulligan.toml" in str(refused.value)


@given(st.text(alphabet="ab( )+*?|{}[]\\.^$1,0", max_size=30))
def test_any_pattern_can_be_checked(pattern):
    assert isinstance(find_pattern_fault(pattern, only_condition=True), str)


def test_the_built_in_rules_are_valid():
    """All except the weakest ones, which are tried last."""
    for row in RULES:
        if not row.verdict and row not in WEAKEST.rules:
            fields = {name: value for name, value in row.to_dict().items() if name != "id"}
            Rule(row.id, **fields)
    assert not [
        pattern
        for row in WEAKEST.rules
        for pattern in row.message
        if find_pattern_fault(pattern, only_condition=False)
    ]
    ids = [row.id for row in RULES]
    assert len(set(ids)) == len(ids)


def test_every_code_has_a_sentence_and_every_built_in_rule_a_known_code():
    assert all(code.public.endswith(".") and len(code.public) > 10 for code in CODES.values())
    assert {row.code for row in RULES} <= CODES.keys()
    assert all(row.cls == CODES[row.code].cls for row in RULES)


def test_few_built_in_patterns_have_no_keywords():
    texts = [row for row in RULES if not IndexedRule(row, 0).index_field and not row.verdict]
    without_keywords = [
        pattern for row in texts for pattern in row.message if not required_keywords(pattern)
    ]
    assert len(without_keywords) <= 20, without_keywords


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\bmoov atom not found\b", "x: moov atom not found"),
        (r"\b(?:connection|link) (?:was )?reset\b", "the link was reset"),
        (r"\btimed?[- ]out\b", "it timed out"),
        (r"\bno (?:free )?slots\b", "no slots"),
        (r"(?:first word|second thing)", "a second thing"),
    ],
)
def test_a_matching_text_contains_a_keyword_of_the_pattern(pattern, text):
    assert re.search(pattern, text)
    found = required_keywords(pattern)
    assert not found or found & extract_vocabulary(text)


@pytest.mark.security("S22")
@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+ no good",
        r"(?:a|ab|b)+ no good",
        r"(?:a|a)+ no good",
        r"(?:a?){16} no good",
        r"(?:\w{1,16}){1,16} no good",
        r"a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a? no good",
        r"\w+\w+\w+ no good",
        r"(?:[^a]|a)*no good",
        r"(.*a){20} no good",
        r"error.*code.*failed.*no good",
        r"(?:is |is no |no )*no good",
    ],
)
def test_a_pattern_that_may_take_forever_is_refused(pattern):
    assert "forever" in find_pattern_fault(pattern, only_condition=True)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\berror.*code.*no good\b",
        r".*connection refused.*",
        r"\bport \d+(?:\.\d+)? (?:was |is )?not open after \d+ ?(?:ms|s|seconds)\b",
        r"\w+\s+\w+: \[[^\]]*\] no good",
        r"\bquota\b.{0,60}\bexceeded\b.{0,60}\bby \w+",
        r"^(?:Error|Exception|Err)\w*: no (?:more )?(?:good|luck)s?$",
    ],
)
def test_a_pattern_whose_repeats_cannot_multiply_is_accepted(pattern):
    assert find_pattern_fault(pattern, only_condition=True) == ""


def test_a_text_that_matches_in_many_ways_is_classified_without_backtracking():
    """With twenty repeats the match once took seconds; with 300 it would not end within any test."""
    classify("video " + "is no longer " * 300 + "fine")


HOSTILE = [
    "a" * 200_000,
    "connection " * 20_000,
    "1 " * 100_000,
    "\n" * 100_000,
    "http://" + "a/" * 50_000,
    "E" * 100_000,
    "4.1.1 " * 20_000,
]
HOSTILE_IDS = [repr(text[:8]) for text in HOSTILE]


@pytest.mark.security("S22")
@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
def test_a_hostile_text_is_classified_within_the_time_limit_of_a_test(text):
    """A pattern that takes quadratic time would need minutes."""
    classify(text)


@pytest.mark.timing
@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
def test_a_hostile_text_is_classified_within_a_second(text):
    begun = time.perf_counter()
    classify(text)
    assert time.perf_counter() - begun < 1.0
