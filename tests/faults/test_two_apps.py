"""Workers of two applications on one database and one queue."""

from __future__ import annotations

import pytest

from mulligan.jobs.queries import JobQueries

pytestmark = pytest.mark.processes

MODULE = """
from mulligan import Mulligan

app = Mulligan()


@app.job(name="{name}")
def run(n: int) -> int:
    return n
"""
NAMES = ("encode", "detect")
JOBS = 30  # of each kind


@pytest.mark.timeout(120)
@pytest.mark.seed("000-28")
def test_a_worker_runs_only_jobs_of_the_kinds_that_it_has(app, start, tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}_app.py").write_text(MODULE.format(name=name))
        start(app=f"{name}_app:app")
    jobs = [app.enqueue(name, {"n": n}) for n in range(JOBS) for name in NAMES]
    workers = {name: set() for name in NAMES}
    for job in jobs:
        done = app.jobs.wait(job.id, timeout=60)
        assert (done.state, done.queue, done.failures) == ("succeeded", "default", 0)
        with app.store.read() as tx:
            attempts = JobQueries(tx).list_attempts(job.id)
        workers[job.kind] |= {attempt.worker for attempt in attempts}
    assert len(workers["encode"]) == 1  # 000-28
    assert len(workers["detect"]) == 1  # 000-28
    assert workers["encode"] != workers["detect"]  # 000-28


def test_a_worker_warns_of_another_app_that_uses_its_names(start, tmp_path):
    (tmp_path / "shop.py").write_text(MODULE.format(name="work"))
    other = MODULE.format(name="work").replace("n: int) -> int", "n: str) -> str")
    (tmp_path / "billing.py").write_text(other)
    first = start(app="shop:app")
    second = start(app="billing:app")
    assert "each takes what belongs to the other" not in first.text()
    assert "both have kind work with different arguments" in second.text()
