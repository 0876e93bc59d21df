"""A worker without free descriptors waits quietly and continues once there are some."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mulligan import Mulligan, State
from support.proc import cpu_seconds
from support.waiting import until
from support.worker import Worker

pytestmark = [
    pytest.mark.processes,
    pytest.mark.any_store,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

LENGTH = 4.0  # seconds: a lease

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]


@contextmanager
def no_more_files(pid: int) -> Iterator[None]:
    """Leave a process without free descriptors."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_worker_without_free_descriptors_waits_and_continues(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start(worker__runners="1")
    job = app.enqueue("nap_first", {"seconds": 30})
    until(lambda: starts(job.id), 10)
    runner = int(starts(job.id)[0].split()[4])
    spent, began = cpu_seconds(worker.pid), time.monotonic()
    with no_more_files(worker.pid):
        os.kill(runner, signal.SIGKILL)
        until(lambda: time.monotonic() - began > LENGTH, LENGTH + 5)
    spent = cpu_seconds(worker.pid) - spent
    done = app.jobs.wait(job.id, 120)
    assert (done.state, done.losses <= 1, worker.process.poll()) == (State.SUCCEEDED, True, None)
    assert "Exception in callback" not in worker.text()
    assert spent < LENGTH / 2
    assert worker.text().count(" ERROR ") < 5 * LENGTH, worker.text()[-3000:]
