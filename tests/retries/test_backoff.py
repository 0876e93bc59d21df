"""Backoffs: delays, jitter and validation."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mulligan.core.errors import InvalidPolicy
from mulligan.retries.backoff import (
    MAX_WAIT_SECONDS,
    BackoffField,
    Exponential,
    Fixed,
    Table,
)

seconds = st.floats(0, MAX_WAIT_SECONDS)
factors = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
jitters = st.sampled_from(["full", "equal", "none"]) | st.floats(0, 1)
exponentials = st.builds(Exponential, seconds, factors, seconds, jitters)
tables = st.builds(Table, st.lists(seconds, min_size=1, max_size=5))
backoffs = exponentials | tables | st.builds(Fixed, seconds)
counts = st.integers(0, 10**6)


def test_the_last_delay_of_a_table_repeats():
    table = Table([60, 300, 900])
    assert [table.delay(n, Random(0)) for n in range(5)] == [60, 300, 900, 900, 900]


def test_exponential_grows_to_its_cap():
    wait = Exponential(5, 3, 900, "none")
    assert [wait.delay(n, Random(0)) for n in range(6)] == [5, 15, 45, 135, 405, 900]


def test_delays_may_be_timedeltas():
    assert Fixed(timedelta(minutes=2)) == Fixed(120)
    assert Table([timedelta(seconds=1), 2]).seconds == (1, 2)


@given(exponentials, counts, st.integers())
@pytest.mark.seed("004-25")
def test_delay_is_never_negative_or_above_the_cap_plus_jitter(backoff, n, seed):
    share = backoff.jitter if isinstance(backoff.jitter, float) else 0
    drawn = backoff.delay(n, Random(seed))
    assert 0 <= drawn <= backoff.cap * (1 + share) * (1 + 1e-12)


@given(backoffs, counts, st.integers())
def test_the_same_seed_gives_the_same_schedule(backoff, n, seed):
    assert backoff.delay(n, Random(seed)) == backoff.delay(n, Random(seed))


@given(st.floats(1, 1e6), st.integers(30, 10**6))
def test_cap_is_applied_before_jitter(cap, n):
    """If the drawn delay were capped, half of the delays would equal the cap."""
    wait = Exponential(1, 2, cap, 0.2)
    assert wait.nominal(n) == cap
    rng = Random(n)
    drawn = [wait.delay(n, rng) for _ in range(50)]
    assert len(set(drawn)) == 50
    assert max(drawn) > cap


@given(st.sampled_from(["full", "equal"]), st.integers())
def test_full_and_equal_jitter_stay_within_the_nominal_delay(jitter, seed):
    drawn = Exponential(10, 2, 3600, jitter).delay(2, Random(seed))
    assert (20 if jitter == "equal" else 0) <= drawn <= 40


@pytest.mark.parametrize("factor", [1e308, 5e-324, 1.0000001, 2, 1e-300])
@pytest.mark.parametrize("n", [0, 1, 10**3, 10**6])
@pytest.mark.seed("002-25")
def test_extreme_factors_do_not_overflow(factor, n):
    assert math.isfinite(Exponential(1, factor).delay(n, Random(0)))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fixed(-1), "seconds"),
        (lambda: Fixed(math.nan), "seconds"),
        (lambda: Fixed(math.inf), "seconds"),
        (lambda: Fixed(True), "seconds"),
        (lambda: Fixed(1e30), "seconds"),
        (lambda: Fixed(timedelta(seconds=-1)), "seconds"),
        (lambda: Table([]), "seconds"),
        (lambda: Table([60, -1]), "seconds"),
        (lambda: Exponential(-1), "base"),
        (lambda: Exponential(1, factor=0), "factor"),
        (lambda: Exponential(1, factor=math.inf), "factor"),
        (lambda: Exponential(1, factor="nan"), "factor"),
        (lambda: Exponential(1, cap=math.nan), "cap"),
        (lambda: Exponential(1, jitter=1.5), "jitter"),
        (lambda: Exponential(1, jitter=-0.1), "jitter"),
        (lambda: Exponential(1, jitter="ful"), "jitter"),
        (lambda: Exponential(1, jitter=math.nan), "jitter"),
        (lambda: Exponential(1, jiter="full"), "jiter"),
    ],
)
def test_invalid_value_is_refused_with_the_name_of_its_field(make, field):
    with pytest.raises(InvalidPolicy, match=field):
        make()


@given(backoffs)
def test_backoff_survives_json(backoff):
    travel = TypeAdapter(BackoffField)
    assert travel.validate_json(travel.dump_json(backoff)) == backoff


@given(backoffs)
def test_a_backoff_is_a_frozen_hashable_value(backoff):
    assert hash(backoff) == hash(backoff)
    with pytest.raises(FrozenInstanceError):
        backoff.type = "other"
