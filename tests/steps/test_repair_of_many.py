"""Jobs that died at their second step are repaired by one operation, in a ramp, by real workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.doctor.verify import verify
from mulligan.operations.service import Operation
from support.stepped import calls
from support.waiting import until
from support.worker import Worker

Start = Callable[..., Worker]
SETTINGS = {
    "app": "support.stepped:app",
    "guards__same_cause": "0",
    "worker__concurrency": "20",
}
DEAD = "kind:fulfils state:dead step:reserve"


@pytest.mark.processes
def test_an_operation_repairs_a_hundred_jobs_at_their_second_step(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    stops_then_repairs(app, start, tmp_path, jobs=100, rate=100, patience=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_operation_repairs_ten_thousand_jobs_at_their_second_step(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    stops_then_repairs(app, start, tmp_path, jobs=10_000, rate=1000, patience=240)


def stops_then_repairs(
    app: Mulligan, start: Start, tmp_path: Path, *, jobs: int, rate: float, patience: float
) -> None:
    app.insert([app.build_job("fulfils", {"order": n}) for n in range(jobs)])
    start(**SETTINGS)
    until(lambda: app.jobs.count(DEAD, cap=2 * jobs) == jobs, patience, "all dead", interval=0.5)
    assert count_calls(tmp_path) == {"charge": jobs, "reserve": jobs}

    stopped = retry_all(app, rate, patience)
    assert stopped.state == "stopped", stopped
    assert f"{jobs - 1:,} of {jobs:,} jobs were not retried" in stopped.note
    assert count_calls(tmp_path) == {"charge": jobs, "reserve": jobs + 1}

    (tmp_path / "in-stock").touch()
    repaired = retry_all(app, rate, patience)
    assert (repaired.state, repaired.counts.recovered) == ("finished", jobs), repaired
    assert app.jobs.count("kind:fulfils state:succeeded", cap=2 * jobs) == jobs
    assert count_calls(tmp_path) == {"charge": jobs, "reserve": 2 * jobs + 1, "mail": jobs}
    assert len(set(calls(tmp_path))) == 3 * jobs  # each job made each call
    assert not verify(app.store).violations


def retry_all(app: Mulligan, rate: float, patience: float) -> Operation:
    """Start an operation with canary steps on all dead jobs and return it when it has ended."""
    begun = app.operations.start("retry", DEAD, steps=[1, 10, "rest"], rate=rate, reason="perhaps")

    def ended() -> Operation | None:
        now = app.operations.get(begun.id)
        return None if now.under_way or now.counts.sent else now

    return until(ended, patience, "the operation's end", interval=0.2)


def count_calls(folder: Path) -> Counter[str]:
    return Counter(call.split()[0] for call in calls(folder))
