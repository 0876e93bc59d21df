from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan import Exponential, Rule, Table, Then, classify
from mulligan.core.errors import ConfigError
from mulligan.failures.builtin import FAINT, RULES
from mulligan.failures.codes import CODES
from mulligan.failures.matcher import TEXT, keywords, rank_of, words_of
from mulligan.failures.regex import unfit


def rule(**said):
    return Rule("mine", **{"code": "X", "cls": "transient", **said})


@pytest.mark.parametrize(
    ("said", "words"),
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
        ({"message": "("}, "no regular expression"),
        ({"message": ".*"}, "empty text"),
        ({"message": "x " * 300}, "1 to 500 characters"),
        ({"program": "ffmpeg", "cls": "transiant"}, "did you mean 'transient'?"),
        ({"program": "ffmpeg", "cls": "nonsense!"}, "unknown class"),
        ({"http_status": 999}, "between 100 and 599"),
        ({"http_status": "6xx"}, "whole number"),
        ({"errno": "28"}, "whole number"),
        ({"program": ""}, "1 to 200 characters"),
        ({"provider_code": "*"}, "may only end a name"),
        ({"program": "ffmpeg", "code": "not a code"}, "must be a word"),
        ({"program": "ffmpeg", "public": "see {message}"}, "not {message}"),
        ({"program": "ffmpeg", "alarm": "loud"}, "is not one of"),
        ({"program": "ffmpeg", "max_retries": -1}, "at least 0"),
        ({"program": "ffmpeg", "cls": "auth", "max_retries": 3}, "never retried"),
        ({"program": "ffmpeg", "backoff": 30}, "Table(...)"),
        ({"program": "ffmpeg", "then": "big"}, "Then(...)"),
        ({"program": "ffmpeg", "shadow": "yes"}, "true or false"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_id_and_the_reason(said, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        rule(**said)
    assert "rule 'mine'" in str(refused.value)


def test_a_single_word_may_judge_beside_a_structural_condition():
    assert rule(message="killed", program="ffmpeg").message == ("killed",)


def test_a_rule_survives_the_journey_through_plain_data():
    mine = rule(
        http_status=["5xx", 429],
        type=("openai.RateLimitError", "Timeout"),
        message=(r"\bslow down please\b", r"\bcome back tomorrow\b"),
        backoff=Exponential(5, 3, jitter=0.2),
        then=[Then(queue="big", memory_limit=10**9), Then(settings={"model": "small"})],
        max_retries=4,
        wait_for_hint=False,
        alarm="page",
        runbook="https://example.org/slow",
        public="Status {http_status}.",
        shadow=True,
    )
    assert Rule.from_plain(mine.to_plain()) == mine
    assert Rule.from_plain(
        {"id": "t", "code": "X", "cls": "timeout", "errno": 110, "backoff": [1, 2]}
    ).backoff == Table([1, 2])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"id": "a", "code": "X", "cls": "timeout", "progam": "x"},
            "unknown field 'progam'; did you mean 'program'?",
        ),
        ({"id": "a", "cls": "timeout"}, "code must be given"),
        (
            {"id": "a", "code": "X", "cls": "timeout", "errno": 1, "backoff": {"base": -1}},
            "backoff",
        ),
    ],
)
def test_plain_data_that_is_no_rule_is_refused_with_the_rules_id(said, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        Rule.from_plain(said, "mulligan.toml")
    assert "rule 'a' in mulligan.toml" in str(refused.value)


@given(st.text(alphabet="ab( )+*?|{}[]\\.^$1,0", max_size=30))
def test_no_pattern_makes_the_check_itself_fail(pattern):
    assert isinstance(unfit(pattern, alone=True), str)


def test_the_built_in_table_keeps_the_rules_it_asks_of_others():
    """All but the faint ones, which are asked last and only where nothing sounds hopeful."""
    for row in RULES:
        if not row.verdict and row not in FAINT.rules:
            said = {name: value for name, value in row.to_plain().items() if name != "id"}
            Rule(row.id, **said)
    assert not [
        pattern for row in FAINT.rules for pattern in row.message if unfit(pattern, alone=False)
    ]
    ids = [row.id for row in RULES]
    assert len(set(ids)) == len(ids)


def test_every_code_has_a_sentence_and_a_class_and_every_row_a_code():
    assert all(code.public.endswith(".") and len(code.public) > 10 for code in CODES.values())
    assert {row.code for row in RULES} <= CODES.keys()
    assert all(row.cls == CODES[row.code].cls for row in RULES)


def test_few_built_in_patterns_have_to_be_tried_on_every_text():
    texts = [row for row in RULES if rank_of(row) == TEXT and not row.verdict]
    loose = [pattern for row in texts for pattern in row.message if not keywords(pattern)]
    assert len(loose) <= 20, loose


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
def test_a_text_that_matches_holds_one_of_the_patterns_key_words(pattern, text):
    assert re.search(pattern, text)
    found = keywords(pattern)
    assert not found or found & words_of(text)


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
def test_a_pattern_that_may_take_for_ever_is_refused_whatever_way_it_does(pattern):
    assert "for ever" in unfit(pattern, alone=True)


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
def test_a_pattern_whose_repeats_cannot_multiply_is_taken(pattern):
    assert unfit(pattern, alone=True) == ""


def test_a_text_that_a_pattern_can_match_in_many_ways_is_classified_without_backtracking():
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
