"""The fast path for exceptions whose type alone decides gives the verdict of the general path."""

from __future__ import annotations

import re
from random import Random

import pytest

from mulligan.failures import builtin, ranking
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import Facts
from mulligan.failures.ranking import RuleFinder, find_rule

TYPES = sorted({name for rule in builtin.STRUCTURE.rules for name in rule.type})
VOCABULARY = sorted(
    {
        word
        for rule in builtin.STRUCTURE.rules
        for pattern in rule.message
        for word in re.findall(r"[A-Za-z_]{2,}", pattern)
    }
)
STARTS = (
    "",
    "request 7 of 9 ",
    "b'x\\\\n'",
    "/srv/data/authentication failed ",
    "AUTHENTICATION FAILED ",
)


def random_facts(rng: Random) -> Facts:
    types = tuple(rng.sample(TYPES, rng.randint(1, 3)))
    if rng.random() < 0.3:
        types = tuple(f"elsewhere.{name.rsplit('.', 1)[-1]}" for name in types)
    text = rng.choice(STARTS) + " ".join(rng.sample(VOCABULARY, rng.randint(0, 3)))
    errno, status = rng.choice([None, None, 5, 111, -2]), rng.choice([None, None, None, 404, 503])
    return Facts(exception_types=types, message=text, errno=errno, http_status=status)


@pytest.mark.parametrize("seed", range(20))
def test_the_verdict_by_type_equals_the_verdict_by_text(seed):
    rng = Random(seed)
    for _ in range(200):
        facts = random_facts(rng)
        assert find_rule(facts) == RuleFinder(facts).match_builtin(), facts


def test_the_text_is_not_read_if_the_type_decides(monkeypatch):
    facts = Facts(exception_types=("builtins.ConnectionError", "builtins.OSError"), message="reset")
    first = find_rule(facts)
    monkeypatch.setattr(ranking, "RuleFinder", None)
    again = find_rule(facts._replace(message="reset again"))
    assert (again.rule, again.table_version, again.link.message) == (
        first.rule,
        first.table_version,
        "reset again",
    )


def test_a_decisive_keyword_is_read(monkeypatch):
    facts = Facts(
        exception_types=("builtins.ConnectionError",), message="certificate verify failed"
    )
    assert (
        find_rule(facts._replace(message="reset")).rule.id
        != find_rule(facts).rule.id
        == RuleFinder(facts).match_builtin().rule.id
    )


def test_the_cache_of_verdicts_is_bounded(monkeypatch):
    monkeypatch.setattr(ranking, "MAX_CACHED_VERDICTS", 3)
    for number in range(10):
        find_rule(
            Facts(
                exception_types=("builtins.ConnectionError", f"app.Error{number}"), message="reset"
            )
        )
        assert len(ranking._type_verdicts) <= 3


@pytest.mark.parametrize("odd", [{"errno": [1]}, {"http_status": {}}, {"signal": [[]]}])
def test_stored_facts_with_unhashable_values_are_not_cached(odd):
    facts = Facts(exception_types=("builtins.ConnectionError",), message="reset")._replace(**odd)
    assert ranking._find_by_type_alone(facts) is None


def test_the_first_and_the_second_failure_of_a_type_are_equal():
    ranking._type_verdicts.clear()
    facts = Facts(
        exception_types=("builtins.ConnectionError", "builtins.OSError"),
        message="reset",
        frames=("app:f",),
    )
    assert classify_facts(facts) == classify_facts(facts)
