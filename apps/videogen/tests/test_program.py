"""A killed worker, and `mulligan demo videogen`, which leaves no process behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from mulligan.testing import worker
from support.waiting import until

pytestmark = pytest.mark.processes

QUICK = {
    "MULLIGAN_WORKER__LEASE": "2",
    "MULLIGAN_WORKER__HEARTBEAT": "0.5",
    "MULLIGAN_WORKER__SWEEP": "0.5",
    "MULLIGAN_WORKER__RUNNERS": "1",
    "MULLIGAN_WORKER__SHUTDOWN_GRACE": "1",
}
TASKS = "/v1/videos/generations/tasks"


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.seed("002-31", "002-32")
def test_generation_of_a_killed_worker_is_continued_by_another(world, ann):
    task = ann.order("a cat [slow]")
    with worker(world.app, "mulligan.apps.videogen.jobs:app", env=QUICK) as first:
        until(lambda: ann.task(task).progress, 60, "a beginning")
        first.kill()
    assert ann.task(task).status == "running"  # 002-32: the loss is not detected yet
    with worker(world.app, "mulligan.apps.videogen.jobs:app", env=QUICK):
        done = until(lambda: (now := ann.task(task)).status == "succeeded" and now, 60, "an end")
    assert (done.retryCount, done.cost, len(world.calls())) == (0, 0.1, 1)  # 002-31, 002-32


def descendants(pid):
    """Return the ids of all processes below this one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_demo_starts_all_processes_and_sigterm_ends_them(store_url, tmp_path):
    command = [sys.executable, "-m", "mulligan", "demo", "videogen", "--database", store_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True)
    try:
        address, key = re.fullmatch(
            r"(http://127.0.0.1:\d+)/#(mk_\w+)", process.stdout.readline().strip()
        ).groups()
        with httpx2.Client(
            base_url=address, verify=False, headers={"Authorization": f"Bearer {key}"}
        ) as ann:
            assert "<h1>Video generation</h1>" in ann.get("/").text
            order = {"model": "nimbus-1", "prompt": "a cat", "seconds": 1}
            task = ann.post("/v1/videos/generations", json=order).json()["taskId"]
            until(lambda: ann.get(f"{TASKS}/{task}/content").status_code == 200, 60, "a video")
        started = descendants(process.pid)
        assert len(started) >= 3  # the providers, the worker, its runners
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 20, "nothing is left"
        )
    finally:
        process.terminate()  # it also ends its children
        process.stdout.close()
        process.wait(30)
