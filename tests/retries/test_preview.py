"""The calendar of attempts, and why a class is retried or not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.retries.backoff import Exponential, Fixed, Table, bounds, delay, nominal
from mulligan.retries.policy import ClassSettings, Policy, RetrySettings, Then, layer
from mulligan.retries.preview import MOST_TRIES, calendar, described, outlook
from retries.test_backoff import backoffs


def seen(policy=None, cls="transient", **system):
    effective = layer(RetrySettings(**system), None, policy)
    return outlook(effective, Cls(cls), lambda scope, names: f"{scope} {names[0]}")


@given(backoffs, st.integers(0, 100), st.integers())
def test_no_draw_leaves_the_bounds(backoff, n, seed):
    low, high = bounds(backoff, n)
    assert low <= nominal(backoff, n) <= high or nominal(backoff, n) == pytest.approx(high)
    drawn = delay(backoff, n, Random(seed))
    assert low * (1 - 1e-9) <= drawn <= high * (1 + 1e-9)


def test_a_calendar_says_when_each_attempt_would_come():
    tries = calendar(Exponential(5, 3, 900, 0.2), 3)
    assert [(found.attempt, found.wait) for found in tries] == [(1, 0), (2, 5), (3, 15), (4, 45)]
    last = tries[-1]
    assert (last.earliest, last.latest) == (36, 54)
    assert (last.at_earliest, last.at, last.at_latest) == (52, 65, 78)


def test_a_calendar_stops_where_nobody_reads_on_and_says_so():
    kept = seen(Policy(max_retries=10**6, backoff=Fixed(1)))
    assert (len(kept.calendar), kept.more) == (MOST_TRIES, True)
    assert not seen(Policy(max_retries=5)).more


def test_a_calendar_ends_with_max_age():
    kept = seen(Policy(max_retries=9, backoff=Table([60, 300, 900]), max_age=400))
    assert [found.at for found in kept.calendar] == [0, 60, 360]


@pytest.mark.parametrize("cls", [cls for cls in Cls if cls not in RETRYABLE])
def test_what_does_not_go_away_by_itself_is_not_retried(cls):
    kept = seen(Policy(max_retries=9), cls)
    assert (kept.retried, kept.limit, len(kept.calendar)) == (False, 0, 1)


@pytest.mark.parametrize(
    ("policy", "system", "why"),
    [
        (None, {"enabled": False}, "retries are switched off (retry.enabled)"),
        (None, {"only": ("timeout",)}, "only timeout may be retried (retry.only)"),
        (None, {"max_retries": 0}, "retry.max_retries allows none"),
        (Policy(max_retries=0), {}, "the kind allows none"),
        (Policy(classes={"unknown": Policy(max_retries=0)}), {}, "the kind allows none"),
        (
            None,
            {"classes": {"unknown": ClassSettings(max_retries=0)}},
            "retry.classes.unknown.max_retries allows none",
        ),
        (None, {"unknown_retries": 0}, "retry.unknown_retries allows none"),
        (Policy(retry_unknown=False), {}, "the kind says retry_unknown=False"),
    ],
)
def test_what_is_forbidden_says_by_what(policy, system, why):
    kept = seen(policy, "unknown", **system)
    assert (kept.retried, kept.why) == (False, why)


@pytest.mark.parametrize(
    ("policy", "system", "limit", "origin"),
    [
        (None, {}, 2, "system retry.unknown_retries"),
        (Policy(max_retries=7), {}, 7, "kind retry.max_retries"),
        (Policy(retry_unknown=True), {}, 3, "system retry.max_retries"),
        (
            None,
            {"classes": {"unknown": ClassSettings(max_retries=1)}},
            1,
            "system retry.classes.unknown.max_retries",
        ),
    ],
)
def test_the_tighter_limit_is_shown_with_who_names_it(policy, system, limit, origin):
    kept = seen(policy, "unknown", **system)
    assert (kept.limit, kept.limit_origin) == (limit, origin)


def test_a_class_shows_its_own_backoff_and_ladder():
    own = Policy(backoff=Fixed(9), then=[Then(queue="big")])
    kept = seen(Policy(max_retries=2, classes={"resource": own}), "resource")
    assert (kept.backoff, kept.backoff_from, kept.counts) == (Fixed(9), "kind", "class")
    assert (kept.then, kept.then_from) == ((Then(queue="big"),), "kind")
    other = seen(Policy(max_retries=2, classes={"resource": own}), "timeout")
    assert (other.counts, other.then, other.then_from) == ("all failures", (), None)


@pytest.mark.parametrize(
    ("backoff", "words"),
    [
        (Fixed(10), "always 10 s"),
        (Table([60, 300, 900]), "1 min, 5 min, 15 min"),
        (Exponential(5, 3, 900, 0.2), "5 s × 3, at most 15 min, ± 20 %"),
        (Exponential(30), "30 s × 2, at most 1 h, full jitter"),
    ],
)
def test_a_backoff_in_words(backoff, words):
    assert described(backoff) == words
