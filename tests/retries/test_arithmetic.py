"""Explanations of delays."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.retries.backoff import (
    Exponential,
    Fixed,
    Table,
    explain_delay,
)

SECONDS = st.floats(0, 1e6)
BACKOFFS = st.one_of(
    SECONDS.map(Fixed),
    st.lists(SECONDS, min_size=1, max_size=5).map(Table),
    st.builds(
        Exponential,
        SECONDS,
        st.floats(0.1, 10),
        SECONDS,
        st.one_of(st.sampled_from(["full", "equal", "none"]), st.floats(0, 1)),
    ),
)


@given(BACKOFFS, st.integers(0, 60), st.integers())
def test_every_drawn_delay_is_within_its_bounds_and_explained(backoff, n, seed):
    drawn = backoff.delay(n, Random(seed))
    low, high = backoff.bounds(n)
    assert low - 1e-6 * high <= drawn <= high * (1 + 1e-6)
    assert "not stored" not in explain_delay(backoff, n, drawn)


@pytest.mark.parametrize(
    ("backoff", "n", "drawn", "sentence"),
    [
        (Fixed(10), 3, 10, "a fixed backoff of 10 s"),
        (Table([60, 300, 900]), 1, 300, "step 2 of the backoff table 1 min, 5 min, 15 min"),
        (Table([60, 300]), 7, 300, "step 2 of the backoff table 1 min, 5 min"),
        (Exponential(30, 2, 3600, "none"), 0, 30, "a backoff of 30 s"),
        (Exponential(5, 3, 900, "none"), 2, 45, "a backoff of 5 s × 3 × 3 = 45 s"),
        (
            Exponential(30, 2, 3600, "none"),
            9,
            3600,
            "a backoff of 30 s × 2^9 = 1 h (the cap)",
        ),
        (
            Exponential(10, 2, 3600, "equal"),
            0,
            7,
            "; equal jitter (5 s to 10 s) drew 7 s",
        ),
        (Exponential(10, 2, 3600, 0.2), 0, 11, "; ± 20 % jitter (8 s to 12 s) drew 11 s"),
        (
            Exponential(10, 2, 3600, "none"),
            0,
            500,
            "the current policy would give a backoff of 10 s; the policy or server hint",
        ),
    ],
)
def test_explanation_of_a_delay(backoff, n, drawn, sentence):
    assert sentence in explain_delay(backoff, n, drawn)
