"""Previews: the calendar of attempts, and why a class is retried or not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.config import ClassRetrySection, RetrySection
from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.retries.backoff import (
    Exponential,
    Fixed,
    Table,
)
from mulligan.retries.policy import Policy, Then, resolve_policy
from mulligan.retries.preview import MAX_PLANNED_ATTEMPTS, plan_attempts, preview_class
from retries.test_backoff import backoffs


def preview(policy=None, cls="transient", **system):
    effective = resolve_policy(RetrySection(**system), None, policy)
    return preview_class(effective, Cls(cls), lambda scope, names: f"{scope} {names[0]}")


@given(backoffs, st.integers(0, 100), st.integers())
def test_drawn_delay_is_within_bounds(backoff, n, seed):
    low, high = backoff.bounds(n)
    assert low <= backoff.nominal(n) <= high or backoff.nominal(n) == pytest.approx(high)
    drawn = backoff.delay(n, Random(seed))
    assert low * (1 - 1e-9) <= drawn <= high * (1 + 1e-9)


def test_calendar_lists_the_time_of_each_attempt():
    attempts = plan_attempts(Exponential(5, 3, 900, 0.2), 3)
    assert [(found.attempt, found.wait) for found in attempts] == [(1, 0), (2, 5), (3, 15), (4, 45)]
    last = attempts[-1]
    assert (last.earliest, last.latest) == (36, 54)
    assert (last.at_earliest, last.at, last.at_latest) == (52, 65, 78)


def test_long_calendar_is_cut_and_says_so():
    result = preview(Policy(max_retries=10**6, backoff=Fixed(1)))
    assert (len(result.calendar), result.more) == (MAX_PLANNED_ATTEMPTS, True)
    assert not preview(Policy(max_retries=5)).more


def test_calendar_ends_at_max_age():
    result = preview(Policy(max_retries=9, backoff=Table([60, 300, 900]), max_age=400))
    assert [found.at for found in result.calendar] == [0, 60, 360]


@pytest.mark.parametrize("cls", [cls for cls in Cls if cls not in RETRYABLE])
def test_class_that_is_not_retryable_is_not_retried(cls):
    result = preview(Policy(max_retries=9), cls)
    assert (result.retried, result.limit, len(result.calendar)) == (False, 0, 1)


@pytest.mark.parametrize(
    ("policy", "system", "why"),
    [
        (None, {"enabled": False}, "retries are switched off (retry.enabled)"),
        (None, {"only": ("timeout",)}, "only timeout may be retried (retry.only)"),
        (None, {"max_retries": 0}, "retry.max_retries allows no retries"),
        (Policy(max_retries=0), {}, "the kind allows no retries"),
        (Policy(classes={"unknown": Policy(max_retries=0)}), {}, "the kind allows no retries"),
        (
            None,
            {"classes": {"unknown": ClassRetrySection(max_retries=0)}},
            "retry.classes.unknown.max_retries allows no retries",
        ),
        (None, {"unknown_retries": 0}, "retry.unknown_retries allows no retries"),
        (Policy(retry_unknown=False), {}, "the kind sets retry_unknown=False"),
    ],
)
def test_refused_class_names_the_setting_or_scope(policy, system, why):
    result = preview(policy, "unknown", **system)
    assert (result.retried, result.why) == (False, why)


@pytest.mark.parametrize(
    ("policy", "system", "limit", "origin"),
    [
        (None, {}, 2, "system retry.unknown_retries"),
        (Policy(max_retries=7), {}, 7, "kind retry.max_retries"),
        (Policy(retry_unknown=True), {}, 3, "system retry.max_retries"),
        (
            None,
            {"classes": {"unknown": ClassRetrySection(max_retries=1)}},
            1,
            "system retry.classes.unknown.max_retries",
        ),
    ],
)
def test_tighter_limit_is_shown_with_its_origin(policy, system, limit, origin):
    result = preview(policy, "unknown", **system)
    assert (result.limit, result.limit_origin) == (limit, origin)


def test_class_shows_its_backoff_and_steps():
    for_class = Policy(backoff=Fixed(9), then=[Then(queue="big")])
    result = preview(Policy(max_retries=2, classes={"resource": for_class}), "resource")
    assert (result.backoff, result.backoff_from, result.counts) == (Fixed(9), "kind", "class")
    assert (result.then, result.then_from) == ((Then(queue="big"),), "kind")
    other = preview(Policy(max_retries=2, classes={"resource": for_class}), "timeout")
    assert (other.counts, other.then, other.then_from) == ("all failures", (), None)


@pytest.mark.parametrize(
    ("backoff", "sentence"),
    [
        (Fixed(10), "always 10 s"),
        (Table([60, 300, 900]), "1 min, 5 min, 15 min"),
        (Exponential(5, 3, 900, 0.2), "5 s, then × 3, at most 15 min, ± 20 %"),
        (Exponential(30), "30 s, then × 2, at most 1 h, full jitter"),
    ],
)
def test_description_of_a_backoff(backoff, sentence):
    assert backoff.describe() == sentence
