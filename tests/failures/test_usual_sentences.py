"""Where the type of an exception alone decides, its text is not read: the verdict is what reading would give."""

from __future__ import annotations

import re
from random import Random

import pytest

from mulligan.failures import builtin
from mulligan.failures import ranking as judging
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import Facts
from mulligan.failures.ranking import Reading, judge

TYPES = sorted({name for rule in builtin.STRUCTURE.rules for name in rule.type})
WORDS = sorted(
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


def some_facts(rng: Random) -> Facts:
    types = tuple(rng.sample(TYPES, rng.randint(1, 3)))
    if rng.random() < 0.3:
        types = tuple(f"elsewhere.{name.rsplit('.', 1)[-1]}" for name in types)
    text = rng.choice(STARTS) + " ".join(rng.sample(WORDS, rng.randint(0, 3)))
    errno, status = rng.choice([None, None, 5, 111, -2]), rng.choice([None, None, None, 404, 503])
    return Facts(exception_types=types, message=text, errno=errno, http_status=status)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_of_a_type_is_what_reading_would_find(seed):
    rng = Random(seed)
    for _ in range(200):
        facts = some_facts(rng)
        assert judge(facts) == Reading(facts).by_builtin(), facts


def test_most_failures_that_a_type_explains_are_not_read(monkeypatch):
    facts = Facts(exception_types=("builtins.ConnectionError", "builtins.OSError"), message="reset")
    first = judge(facts)
    monkeypatch.setattr(judging, "Reading", None)
    again = judge(facts._replace(message="reset again"))
    assert (again.rule, again.table, again.link.message) == (first.rule, first.table, "reset again")


def test_a_word_that_matters_is_read(monkeypatch):
    facts = Facts(
        exception_types=("builtins.ConnectionError",), message="certificate verify failed"
    )
    assert (
        judge(facts._replace(message="reset")).rule.id
        != judge(facts).rule.id
        == Reading(facts).by_builtin().rule.id
    )


def test_no_more_is_remembered_than_is_good(monkeypatch):
    monkeypatch.setattr(judging, "MOST_USUAL", 3)
    for number in range(10):
        judge(
            Facts(
                exception_types=("builtins.ConnectionError", f"app.Error{number}"), message="reset"
            )
        )
        assert len(judging._known) <= 3


@pytest.mark.parametrize("odd", [{"errno": [1]}, {"http_status": {}}, {"signal": [[]]}])
def test_facts_that_somebody_else_has_stored_may_hold_anything(odd):
    facts = Facts(exception_types=("builtins.ConnectionError",), message="reset")._replace(**odd)
    assert judging._usual(facts) is None


def test_a_failure_is_the_same_whether_it_is_the_first_or_not():
    judging._known.clear()
    facts = Facts(
        exception_types=("builtins.ConnectionError", "builtins.OSError"),
        message="reset",
        frames=("app:f",),
    )
    assert classify_facts(facts) == classify_facts(facts)
