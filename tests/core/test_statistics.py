from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.statistics import Observation, beta_below, beta_quantile, chance, quantile, share

COUNTS = st.integers(0, 5000).flatmap(
    lambda whole: st.tuples(st.integers(0, whole), st.just(whole))
)


@given(COUNTS)
def test_a_share_lies_in_its_interval_and_the_interval_in_reason(counts):
    part, whole = counts
    found = share(part, whole)
    assert 0 <= found.low <= found.high <= 1
    if whole:
        assert found.low <= found.value <= found.high
    else:
        assert found.value is None


@given(COUNTS, st.integers(2, 50))
def test_more_of_the_same_makes_surer(counts, times):
    part, whole = counts
    if whole:
        few, many = share(part, whole), share(part * times, whole * times)
        assert many.high - many.low <= few.high - few.low + 1e-9


def test_wilsons_interval_as_in_the_books():
    found = share(2, 66)
    assert (found.low, found.high) == (
        pytest.approx(0.0083, abs=1e-4),
        pytest.approx(0.1039, abs=1e-4),
    )
    assert share(0, 10).high == pytest.approx(0.2775, abs=1e-4)


@pytest.mark.parametrize(
    ("x", "a", "b", "expected"),
    [
        (0.3, 1, 1, 0.3),
        (0.3, 2, 1, 0.09),
        (0.25, 1, 2, 0.4375),
        (0.5, 7, 7, 0.5),
        (0.1, 0.4, 19.6, 0.9678),
        (0.5, 0.5, 0.5, 0.5),
    ],
)
def test_the_beta_distribution_where_it_is_known(x, a, b, expected):
    assert beta_below(x, a, b) == pytest.approx(expected, abs=1e-3)


def test_at_the_place_where_both_sides_are_as_good_one_is_taken():
    assert beta_below(0.4482679215686244, 1935.6251514052906, 2382.6151741314025) == pytest.approx(
        0.5, abs=0.01
    )


@given(st.floats(0.05, 3000), st.floats(0.05, 3000), st.floats(0.001, 0.999))
def test_a_quantile_has_its_share_below_it(a, b, q):
    x = beta_quantile(q, a, b)
    assert 0 <= x <= 1
    if 1e-6 < x < 1 - 1e-6:
        assert beta_below(x, a, b) == pytest.approx(q, abs=0.02)


@given(
    st.floats(0.01, 0.99),
    st.floats(1, 50),
    st.lists(st.tuples(st.floats(0, 1), COUNTS), max_size=5),
)
def test_a_chance_lies_between_what_was_believed_and_what_was_seen(mean, weight, seen):
    found = chance(mean, weight, [(worth, whole, part) for worth, (part, whole) in seen])
    rates = [mean, *(part / whole for _, (part, whole) in seen if whole)]
    assert min(rates) - 1e-9 <= found.mean <= max(rates) + 1e-9
    assert 0 <= found.low <= found.high <= 1
    assert found.trials == sum(whole for _, (_, whole) in seen)


def test_what_is_old_counts_less():
    fresh, old = chance(0.5, 4, [(1.0, 20, 0)]), chance(0.5, 4, [(0.1, 20, 0)])
    assert fresh.mean < old.mean < 0.5
    assert (fresh.trials, old.trials) == (20, 20)


# -- time until something comes ---------------------------------------------------------------------
def test_without_anything_cut_short_it_is_the_plain_quantile():
    endings = [Observation(float(n), True, 1) for n in range(1, 101)]
    assert quantile(0.5, endings) == 50
    assert quantile(0.95, endings) == 95


def test_one_that_is_still_watched_counts_as_far_as_it_was_seen():
    """By the book: of four, two come at 1 and 4, one is watched until 2 only, one until 5."""
    endings = [
        Observation(1, True, 1),
        Observation(2, False, 1),
        Observation(4, True, 1),
        Observation(5, False, 1),
    ]
    assert quantile(0.25, endings) == 1
    assert quantile(0.5, endings) == 4
    assert quantile(0.8, endings) is None


def test_what_can_never_come_keeps_the_share_down():
    endings = [Observation(1, True, 60), Observation(math.inf, False, 40)]
    assert quantile(0.5, endings) == 1
    assert quantile(0.95, endings) is None
    assert quantile(0.5, []) is None
