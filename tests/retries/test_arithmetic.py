from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.retries.backoff import Exponential, Fixed, Table, arithmetic, delay, draw_bounds

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
def test_every_draw_of_a_policy_lies_in_its_bounds_and_is_explained_by_it(backoff, n, seed):
    drawn = delay(backoff, n, Random(seed))
    low, high = draw_bounds(backoff, n)
    assert low - 1e-6 * high <= drawn <= high * (1 + 1e-6)
    assert "not stored" not in arithmetic(backoff, n, drawn)


@pytest.mark.parametrize(
    ("backoff", "n", "drawn", "words"),
    [
        (Fixed(10), 3, 10, "the schedule is always 10 s"),
        (Table([60, 300, 900]), 1, 300, "step 2 of the schedule 1 min, 5 min, 15 min"),
        (Table([60, 300]), 7, 300, "step 2 of the schedule 1 min, 5 min"),
        (Exponential(30, 2, 3600, "none"), 0, 30, "the schedule says 30 s"),
        (Exponential(5, 3, 900, "none"), 2, 45, "the schedule says 5 s × 3 × 3 = 45 s"),
        (
            Exponential(30, 2, 3600, "none"),
            9,
            3600,
            "30 s × 2 to the power of 9 = 1 h (its upper limit)",
        ),
        (
            Exponential(10, 2, 3600, "equal"),
            0,
            7,
            ", and equal jitter, half to all of that, drew 7 s",
        ),
        (Exponential(10, 2, 3600, 0.2), 0, 11, ", and jitter of ± 0.2 of it drew 11 s"),
        (
            Exponential(10, 2, 3600, "none"),
            0,
            500,
            "today's policy would say the schedule says 10 s; what was in force",
        ),
    ],
)
def test_the_arithmetic_of_a_wait(backoff, n, drawn, words):
    assert words in arithmetic(backoff, n, drawn)
