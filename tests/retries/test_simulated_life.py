"""What becomes of a job that keeps failing of the same: the rules that decide, asked again and again."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Exponential, Policy, Rule, Table
from mulligan.retries.policy import RetrySettings, layer
from mulligan.retries.preview import simulate_life


def fated(failure, **policy):
    return simulate_life(layer(RetrySettings(), kind=Policy(**policy)), failure)


def waits(found):
    return [one.wait for one in found.tries[1:]]


def test_it_is_tried_as_often_and_as_far_apart_as_the_policy_says():
    found = fated(
        mulligan.classify("connection reset by peer"), max_retries=3, backoff=Table([60, 300, 900])
    )
    assert (waits(found), found.end, found.retried) == ([60, 300, 900], "3 of 3 retries used", True)
    assert [one.at_latest for one in found.tries] == [0, 60, 360, 1260]


def test_what_does_not_go_away_by_itself_is_not_tried_again():
    found = fated(mulligan.classify(exception_type="KeyError"), max_retries=3)
    assert not found.retried
    assert "not retried: class permanent by rule" in found.end


def test_a_rule_with_terms_of_its_own_has_the_last_word():
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


def test_no_try_comes_before_the_moment_the_other_side_asked_for():
    failure = mulligan.classify("429 Too Many Requests, retry after 90 seconds", http_status=429)
    found = fated(failure, max_retries=1, backoff=Exponential(base=1, jitter="full"))
    assert (found.tries[1].earliest, found.tries[1].wait, found.tries[1].latest) == (90, 90, 99)


@pytest.mark.parametrize(("age", "tries"), [(100, 2), (30, 1)])
def test_it_ends_with_its_age(age, tries):
    found = fated(
        mulligan.classify("connection reset by peer"),
        max_retries=9,
        backoff=Table([60]),
        max_age=age,
    )
    end = f"not retried: the next attempt would start more than {age} s after the first (max_age)"
    assert (len(found.tries), found.end) == (tries, end)


def test_a_calendar_nobody_would_read_to_its_end_is_cut():
    found = fated(
        mulligan.classify("connection reset by peer"), max_retries=1000, backoff=Table([1])
    )
    assert (len(found.tries), found.end) == (30, "")
