"""`mulligan workers`: list, check and drain workers."""

from __future__ import annotations

import json
import socket

import pytest

from support.waiting import until

QUICK = {
    "MULLIGAN_WORKER__HEARTBEAT": "0.2",
    "MULLIGAN_WORKER__LEASE": "5",
    "MULLIGAN_WORKER__SHUTDOWN_GRACE": "0.5",
}


@pytest.fixture
def worker(start, app):
    process = start(
        "worker",
        "jobs:app",
        "--concurrency",
        "3",
        "--queues",
        "default,mail",
        MULLIGAN_RELEASE="r7",
        **QUICK,
    )
    process.wait_for_output("concurrency")
    return process


def listed(call, *more):
    return json.loads(call("workers", "list", "-o", "json", *more).out)


@pytest.mark.any_store
def test_a_worker_is_listed_drains_for_as_long_as_its_job_takes_and_leaves(
    call, app, worker, folder
):
    (row,) = listed(call)
    assert (row["life"], row["host"], row["pid"]) == (
        "live",
        socket.gethostname(),
        worker.process.pid,
    )
    assert (row["release"], row["queues"], row["concurrency"]) == ("r7", ["default", "mail"], 3)
    assert call("workers", "check").code == 0

    running = app.enqueue("wait_for", {"path": str(folder / "now")})
    until(lambda: app.jobs.get(running.id).state == "running", 10)
    assert listed(call)[0]["running"] == 1
    assert call("workers", "drain", row["id"][:-4], "--reason", "new release").code == 0
    worker.wait_for_output("draining")
    later = app.enqueue("add", {"a": 1, "b": 2})
    until(lambda: listed(call)[0]["draining"], 10)
    assert call("workers", "check", "--id", row["id"]).code == 0, "one that drains is alive"
    assert worker.process.poll() is None

    (folder / "now").touch()
    assert worker.wait_for_exit().code == 0
    assert (app.jobs.get(running.id).state, app.jobs.get(later.id).state) == ("succeeded", "queued")
    assert listed(call) == []
    assert listed(call, "--all")[0]["life"] == "left"
    assert call("workers", "check").code == 1


@pytest.mark.any_store
def test_a_signal_ends_the_drain_of_a_worker_whose_job_does_not_end(call, app, worker, folder):
    job = app.enqueue("wait_for", {"path": str(folder / "never")})
    until(lambda: app.jobs.get(job.id).state == "running", 10)
    (row,) = listed(call)
    answer = call("workers", "drain", row["id"], "--wait", "--timeout", "0.5")
    assert answer.code == 1
    assert row["id"] in answer.err
    assert worker.stop().code == 0
    assert (app.jobs.get(job.id).state, app.jobs.get(job.id).failures) == ("queued", 0)


def test_drain_refuses_a_timeout_without_wait(call, app):
    app.store.prepare()
    answer = call("workers", "drain", "w_somebody", "--timeout", "5m")
    assert answer.code == 2
    assert "--timeout needs --wait" in answer.err


@pytest.mark.any_store
@pytest.mark.seed("001-81")
def test_a_dry_run_drains_no_worker_and_a_killed_worker_is_not_alive(call, app, worker):
    (row,) = listed(call)
    answer = call("workers", "drain", row["id"], "--dry-run")
    assert (answer.code, answer.out.split("\t")[0]) == (0, row["id"])
    assert listed(call)[0]["drain_reason"] is None
    assert call("workers", "drain", "w_nobody").code == 3

    assert call("workers", "check", "--host", socket.gethostname()).code == 0  # 001-81
    worker.close()
    assert listed(call)[0]["life"] == "dead"
    answer = call("workers", "check", "--host", socket.gethostname())
    assert answer.code == 1  # 001-81
    assert "is dead" in answer.err


def test_a_locked_liveness_file_proves_life_while_the_database_is_away(
    call, start, folder, postgres_server, postgres_url, monkeypatch
):
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", postgres_url)
    monkeypatch.setenv("MULLIGAN_WORKER__STATE_DIR", str(folder / "state"))
    worker = start("worker", "jobs:app")
    worker.wait_for_output("concurrency")
    postgres_server.stop()
    answer = call("workers", "check")
    assert (answer.code, "alive by liveness file" in answer.err) == (0, True)
    worker.close()
    assert call("workers", "check").code == 1


def test_a_check_creates_no_database(call, folder):
    assert call("workers", "check").code == 1
    assert not (folder / "mulligan.db").exists()


def test_an_empty_list_of_workers_says_so(terminal, file_app):
    file_app.enqueue("ask")
    assert "Start one with: mulligan worker APP" in terminal("workers", "list").out
