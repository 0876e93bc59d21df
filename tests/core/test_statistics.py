"""Shares, intervals and chances."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.statistics import (
    Observation,
    beta_cdf,
    beta_quantile,
    estimate_chance,
    estimate_share,
    event_time_quantile,
)

COUNTS = st.integers(0, 5000).flatmap(
    lambda whole: st.tuples(st.integers(0, whole), st.just(whole))
)


@given(COUNTS)
def test_a_share_lies_within_its_interval(counts):
    part, whole = counts
    found = estimate_share(part, whole)
    assert 0 <= found.low <= found.high <= 1
    if whole:
        assert found.low <= found.value <= found.high
    else:
        assert found.value is None


@given(COUNTS, st.integers(2, 50))
def test_more_data_narrows_the_interval(counts, times):
    part, whole = counts
    if whole:
        few, many = estimate_share(part, whole), estimate_share(part * times, whole * times)
        assert many.high - many.low <= few.high - few.low + 1e-9


def test_wilson_interval_equals_published_values():
    found = estimate_share(2, 66)
    assert (found.low, found.high) == (
        pytest.approx(0.0083, abs=1e-4),
        pytest.approx(0.1039, abs=1e-4),
    )
    assert estimate_share(0, 10).high == pytest.approx(0.2775, abs=1e-4)


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
def test_beta_distribution_equals_known_values(x, a, b, expected):
    assert beta_cdf(x, a, b) == pytest.approx(expected, abs=1e-3)


def test_beta_distribution_at_the_switch_between_both_fractions():
    assert beta_cdf(0.4482679215686244, 1935.6251514052906, 2382.6151741314025) == pytest.approx(
        0.5, abs=0.01
    )


@given(st.floats(0.05, 3000), st.floats(0.05, 3000), st.floats(0.001, 0.999))
def test_a_beta_quantile_has_its_share_below_it(a, b, q):
    x = beta_quantile(q, a, b)
    assert 0 <= x <= 1
    if 1e-6 < x < 1 - 1e-6:
        assert beta_cdf(x, a, b) == pytest.approx(q, abs=0.02)


@given(
    st.floats(0.01, 0.99),
    st.floats(1, 50),
    st.lists(st.tuples(st.floats(0, 1), COUNTS), max_size=5),
)
def test_a_chance_lies_between_the_prior_and_the_observed_rates(mean, weight, observed):
    found = estimate_chance(
        mean, weight, [(worth, whole, part) for worth, (part, whole) in observed]
    )
    rates = [mean, *(part / whole for _, (part, whole) in observed if whole)]
    assert min(rates) - 1e-9 <= found.mean <= max(rates) + 1e-9
    assert 0 <= found.low <= found.high <= 1
    assert found.trials == sum(whole for _, (_, whole) in observed)


def test_old_observations_count_less():
    fresh = estimate_chance(0.5, 4, [(1.0, 20, 0)])
    old = estimate_chance(0.5, 4, [(0.1, 20, 0)])
    assert fresh.mean < old.mean < 0.5
    assert (fresh.trials, old.trials) == (20, 20)


# -- time until something comes ------------------------------------------------------------------
def test_without_censored_jobs_it_is_the_ordinary_quantile():
    endings = [Observation(float(n), True, 1) for n in range(1, 101)]
    assert event_time_quantile(0.5, endings) == 50
    assert event_time_quantile(0.95, endings) == 95


def test_a_censored_job_counts_until_its_last_observation():
    """Two events of four jobs, at 1 and 4; the others were observed until 2 and 5."""
    endings = [
        Observation(1, True, 1),
        Observation(2, False, 1),
        Observation(4, True, 1),
        Observation(5, False, 1),
    ]
    assert event_time_quantile(0.25, endings) == 1
    assert event_time_quantile(0.5, endings) == 4
    assert event_time_quantile(0.8, endings) is None


def test_jobs_that_never_finish_keep_the_share_down():
    endings = [Observation(1, True, 60), Observation(math.inf, False, 40)]
    assert event_time_quantile(0.5, endings) == 1
    assert event_time_quantile(0.95, endings) is None
    assert event_time_quantile(0.5, []) is None
