"""A real worker and very many lanes of one owner."""

from __future__ import annotations

import pytest

from support.store import HOUR, a_job, insert
from support.waiting import until

LANES = 39_000


@pytest.mark.parametrize("delay", [0, HOUR], ids=["due and not served", "later"])
def test_39000_lanes_of_one_owner_delay_no_job_of_another(app, start, delay):
    kind = "nap" if delay else "unknown"
    for first in range(0, LANES, 1000):
        names = [f"A{n:06}" for n in range(first, first + 1000)]
        insert(app.store, *[a_job(kind=kind, queue=name, delay=delay) for name in names])
    old = app.enqueue("nap", {"seconds": 0})
    start()
    until(lambda: old.refresh().state == "succeeded", 30)
    jobs = [app.enqueue("nap", {"seconds": 0}, delay=seconds) for seconds in (0, 0.5)]
    until(lambda: {job.refresh().state for job in jobs} == {"succeeded"}, 30)
    waits = [job.refresh().started_at - job.refresh().run_at for job in jobs]
    assert max(waits).total_seconds() < 5
