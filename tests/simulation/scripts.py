"""Hypothesis strategy for scripts: lists of steps (name, three small numbers, fault)."""

from __future__ import annotations

from hypothesis import strategies as st

from simulation.play import FAULTS, Step
from simulation.steps import WEIGHTED_STEPS

MIN_STEPS = 30
MAX_STEPS = 60
numbers = st.integers(0, 59)
faults = st.sampled_from([0] * (3 * len(FAULTS)) + list(range(1, len(FAULTS))))
steps: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(WEIGHTED_STEPS), numbers, numbers, numbers, faults
)
scripts = st.lists(steps, min_size=MIN_STEPS, max_size=MAX_STEPS)
