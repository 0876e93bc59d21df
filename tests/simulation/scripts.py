"""Scripts as Hypothesis draws them: a list of steps, each a name, three small numbers and perhaps a fault."""

from __future__ import annotations

from hypothesis import strategies as st

from simulation.play import FAULTS, Step
from simulation.steps import OFTEN

LEAST, MOST = 30, 60
numbers = st.integers(0, 59)
faults = st.sampled_from([0] * (3 * len(FAULTS)) + list(range(1, len(FAULTS))))
steps: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(OFTEN), numbers, numbers, numbers, faults
)
scripts = st.lists(steps, min_size=LEAST, max_size=MOST)
