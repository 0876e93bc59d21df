"""Handlers that attack the process that started them."""

from __future__ import annotations

import pytest

from support.cli_fixtures import app_on
from support.waiting import until

pytestmark = pytest.mark.processes

APP = """
import os, struct, sys, json
from mulligan import Mulligan, Policy

app = Mulligan()
WIRE = int(sys.argv[sys.argv.index("--wire") + 1]) if "--wire" in sys.argv else -1

def framed(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">I", len(text)) + text

SAYS = {
    "noise": os.urandom(64) + b"x" * 1000,
    "huge": struct.pack(">I", 2**32 - 1) + b"x" * 100,
    "no json": framed(b"{not json"),
    "no text": framed(b"\\xff\\xfe"),
    "deep": framed(b"[" * 200_000),
    "an ending without an end": framed(["ended", [[seq] for seq in range(1, 200)]]),
    "endings that are none": framed(["ended", [[1, "returned"], [{}, 7], 7]]),
    "a time that is none": framed(["ended", [[seq, "returned", '0,"x":1', 0.0, "null"] for seq in range(1, 200)]]),
    "times that are none": framed(["returned", [at for seq in range(1, 200) for at in (seq, '0,"x":1')]]),
    "progress without a job": framed(["progress", 7]),
    "a manifest that is none": framed(["ready", "{"]),
}

@app.job(policy=Policy(max_retries=0, max_losses=0), isolate=True)
def garbles(how: str) -> None:
    if how == "closes":
        os.close(WIRE)
    else:
        os.set_blocking(WIRE, True)
        os.write(WIRE, SAYS[how])
    import time
    time.sleep(30)

@app.job
def works() -> str:
    return "fine"
"""
HOW = (
    "noise",
    "huge",
    "no json",
    "no text",
    "deep",
    "an ending without an end",
    "endings that are none",
    "a time that is none",
    "times that are none",
    "progress without a job",
    "a manifest that is none",
    "closes",
)


@pytest.fixture
def app(folder, store_url, monkeypatch):
    (folder / "jobs.py").write_text(APP)
    with app_on(store_url, folder, monkeypatch) as made:
        yield made


@pytest.fixture
def store_url(ready_sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return ready_sqlite_url


@pytest.mark.slow
@pytest.mark.security("A39")
@pytest.mark.timeout(150)
def test_a_handler_that_corrupts_its_supervisor_pipe_fails_only_itself(app, start):
    hostile = {how: app.enqueue("garbles", {"how": how}) for how in HOW}
    worker = start("worker", "jobs:app", MULLIGAN_RETRY__MAX_LOSSES="0")
    until(
        lambda: all(job.refresh().state == "dead" for job in hostile.values()),
        100,
        "every hostile job is dead",
    )
    after = app.enqueue("works")
    until(lambda: after.refresh().state == "succeeded", 30, "the worker works on")
    assert worker.process.poll() is None
    assert "sent a message that cannot be read" in worker.err
    assert "Traceback" not in worker.err
    assert worker.stop().code == 0


@pytest.mark.security("S49")
def test_in_a_fair_queue_a_flood_of_one_owner_does_not_delay_another(file_app):
    file_app.queue("fair", fair=True)

    @file_app.job(name="counted", queue="fair")
    def counted() -> None:
        pass

    flood = [counted.options(owner="flood").enqueue() for _ in range(200)]
    other = counted.options(owner="other").enqueue()
    file_app.run_inline()
    began = sorted((job.refresh().started_at, job.id) for job in [*flood, other])
    assert [name for _, name in began].index(other.id) < 20
