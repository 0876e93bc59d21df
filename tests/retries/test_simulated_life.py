"""Simulated retries of a job that always fails in the same way."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Exponential, Policy, Rule, Table
from mulligan.config import RetrySection
from mulligan.retries.policy import resolve_policy
from mulligan.retries.preview import simulate_retries


def fated(failure, **policy):
    return simulate_retries(resolve_policy(RetrySection(), kind=Policy(**policy)), failure)


def waits(found):
    return [one.wait for one in found.attempts[1:]]


def test_simulation_follows_limit_and_backoff():
    found = fated(
        mulligan.classify("connection reset by peer"), max_retries=3, backoff=Table([60, 300, 900])
    )
    assert (waits(found), found.end, found.retried) == ([60, 300, 900], "3 of 3 retries used", True)
    assert [one.at_latest for one in found.attempts] == [0, 60, 360, 1260]


def test_simulation_of_a_failure_that_is_not_retryable():
    found = fated(mulligan.classify(exception_type="KeyError"), max_retries=3)
    assert not found.retried
    assert "not retried: class permanent by rule" in found.end


def test_simulation_applies_the_terms_of_a_rule():
    rule = Rule(
        "slow", http_status=503, code="SLOW", cls="transient", max_retries=1, backoff=Table([7])
    )
    found = fated(
        mulligan.classify(http_status=503, rules=[rule]), max_retries=5, backoff=Table([60])
    )
    assert (waits(found), found.end) == (
        [7],
        "1 of 1 retries for code SLOW used (limit set by rule slow)",
    )


def test_simulation_waits_for_the_server_hint():
    failure = mulligan.classify("429 Too Many Requests, retry after 90 seconds", http_status=429)
    found = fated(failure, max_retries=1, backoff=Exponential(base=1, jitter="full"))
    assert (found.attempts[1].earliest, found.attempts[1].wait, found.attempts[1].latest) == (
        90,
        90,
        99,
    )


@pytest.mark.parametrize(("age", "tries"), [(100, 2), (30, 1)])
def test_simulation_ends_at_max_age(age, tries):
    found = fated(
        mulligan.classify("connection reset by peer"),
        max_retries=9,
        backoff=Table([60]),
        max_age=age,
    )
    end = f"not retried: the next attempt would start more than {age} s after the first (max_age)"
    assert (len(found.attempts), found.end) == (tries, end)


def test_long_simulation_is_cut():
    found = fated(
        mulligan.classify("connection reset by peer"), max_retries=1000, backoff=Table([1])
    )
    assert (len(found.attempts), found.end) == (30, "")
