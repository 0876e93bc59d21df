"""Canaries as real workers: `mulligan worker --canary`."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from mulligan.doctor.verify import verify
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

JOBS = 150
SHARE = 0.2  # of at most 30 jobs: too few to be judged


@pytest.fixture
def start_release(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers of a release."""
    workers: list[Worker] = []

    def make(release: str, *options: str) -> Worker:
        program = ("-m", "mulligan", "worker", *options)
        workers.append(
            Worker(
                store_url,
                tmp_path,
                app="support.deployed_app:app",
                program=program,
                release=release,
                worker__concurrency="2",
            )
        )
        return workers[-1].ready()

    yield make
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


def test_canaries_keep_their_share_and_no_job_is_lost_if_one_is_killed(
    app: Mulligan, start_release: Callable[..., Worker]
) -> None:
    start_release("r41")
    canaries = [start_release("r42", "--canary", str(SHARE)) for _ in range(2)]
    jobs = [app.enqueue("count", {"page": page}) for page in range(JOBS)]
    until(lambda: _by_release(app)["r42"] > 0, 30, "a canary has run a job")
    canaries[0].signal(signal.SIGKILL)
    until(lambda: app.jobs.count("kind:count state:succeeded") == JOBS, 60)
    assert {app.jobs.get(job.id).state for job in jobs} == {State.SUCCEEDED}
    assert 0 < _by_release(app)["r42"] <= SHARE * JOBS
    assert [str(violation) for violation in verify(app.store).violations] == []


def _by_release(app: Mulligan) -> Counter[str]:
    found = app.jobs.list("kind:count state:succeeded", limit=JOBS)
    return Counter(str(job.result) for job in found)
