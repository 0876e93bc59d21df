"""Bridges under failure: outages, kills, late and strange reports, many tasks at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import Ignore, Reject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mulligan import Mulligan, State
from mulligan.core.errors import ConfigError, RetryRefused
from mulligan.integrations.bridge.report import TaskReport
from mulligan.integrations.celery import attach
from support.bridge_tools import (
    PATIENCE,
    assert_sound,
    bridge_of,
    only_job,
    restored_signals,
    wait_until_delivered,
)
from support.waiting import until
from support.worker import FAST, HERE, Worker


@pytest.fixture(autouse=True)
def _restored_signals() -> Iterator[None]:
    with restored_signals():
        yield


def eager_app() -> Celery:
    return Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False)


def attached(app: Mulligan, wait: float = PATIENCE, **options: Any) -> Celery:
    host = eager_app()
    attach(host, app, wait=wait, **options)
    return host


def failing_task(host: Celery) -> Any:
    @host.task(shared=False, name="fails")
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError("invalid order")

    return fails


# --- watch changes nothing ---

STEPS = ("ok", "value", "connection", "retry", "ignore", "reject", "exit")


def scripted_task(host: Celery, script: list[str], options: dict[str, Any]) -> tuple[Any, Any]:
    """Register a task that does in each run what the script says."""
    runs: list[str] = []

    @host.task(shared=False, bind=True, name="scripted", default_retry_delay=0, **options)
    def scripted(self: Any, number: int) -> str:
        step = script[min(len(runs), len(script) - 1)]
        runs.append(step)
        errors: dict[str, BaseException] = {
            "value": ValueError(number),
            "connection": ConnectionError("reset"),
            "ignore": Ignore(),
            "reject": Reject("no"),
            "exit": KeyError("missing"),
        }
        if step == "retry":
            raise self.retry(exc=ValueError("again"), countdown=0)
        if step in errors:
            raise errors[step]
        return f"{step} {number}"

    return scripted, runs


def outcome(host: Celery, script: list[str], options: dict[str, Any]) -> tuple[Any, ...]:
    task, runs = scripted_task(host, script, options)
    try:
        result = task.apply((7,))
    except Exception as error:  # noqa: BLE001 - compared
        return "raised", repr(error), runs
    trace = result.traceback or ""
    return result.state, repr(result.result), runs, trace.count("\n")


@pytest.mark.any_store
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
    max_retries=st.integers(0, 3),
    autoretry=st.booleans(),
)
def test_watching_changes_no_outcome_of_celery(
    app: Mulligan, script: list[str], max_retries: int, autoretry: bool
) -> None:
    options: dict[str, Any] = {"max_retries": max_retries}
    if autoretry:
        options |= {"autoretry_for": (ConnectionError,), "retry_jitter": False}
    bare = outcome(eager_app(), script, options)
    with restored_signals():
        watched = outcome(attached(app), script, options)
    assert watched == bare


# --- Outages and kills ---


@contextmanager
def outage(app: Mulligan) -> Iterator[None]:
    """Let every transaction of others wait: the database is locked."""
    with app.store.begin() as tx:
        if tx.dialect == "postgres":
            tx.run_command("LOCK TABLE mulligan.job IN ACCESS EXCLUSIVE MODE")
        yield


def test_the_host_is_not_kept_while_the_database_is_away(app: Mulligan) -> None:
    fails = failing_task(attached(app))
    app.open()
    with outage(app):
        results = [fails.apply((n,)) for n in range(5)]
        assert {result.state for result in results} == {"FAILURE"}
        assert len(bridge_of(app).courier.spool.files()) == 5
    wait_until_delivered(app)
    assert app.jobs.count("state:dead") == 5
    assert_sound(app)


def test_a_decision_that_takes_too_long_is_left_to_the_host(app: Mulligan) -> None:
    host = attached(app, wait=0.2, mode="decide")
    fails = failing_task(host)
    signals.worker_init.send(sender=host)  # as a worker of Celery does
    app.open()
    with outage(app):
        assert fails.apply().state == "FAILURE"
    until(lambda: app.jobs.count("state:dead") == 1, 20)
    wait_until_delivered(app)
    assert only_job(app).state is State.DEAD
    assert_sound(app)


@pytest.mark.processes
def test_a_killed_process_of_the_host_loses_no_report(
    app: Mulligan, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.open()
    environ = {
        **os.environ,
        **FAST,
        "BRIDGE_FOLDER": str(tmp_path),
        "MULLIGAN_DATABASE_URL": store_url,
        "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": str(HERE.parent),
    }
    with outage(app):
        ended = subprocess.run(
            [sys.executable, "-m", "support.bridge_app"],
            env=environ,
            capture_output=True,
            check=False,
            timeout=50,
        )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    attached(app)
    assert len(bridge_of(app).courier.spool.files()) == 3
    bridge_of(app).courier.start()  # as the next process of the host does
    wait_until_delivered(app)
    assert sorted(job.payload["task_id"] for job in app.jobs.list()) == [
        "order-0",
        "order-1",
        "order-2",
    ]
    assert_sound(app)


# --- Strange reports and payloads ---


@pytest.mark.any_store
def test_arguments_that_cannot_be_stored_are_recorded_without_them(app: Mulligan) -> None:
    fails = failing_task(attached(app))
    fails.apply((object(),))
    fails.apply(("x" * 2_000_000,))
    wait_until_delivered(app)
    for job in app.jobs.list():
        assert job.payload["unsendable"]
        with pytest.raises(RetryRefused, match="the arguments of the task were not stored"):
            job.retry("try")
    assert app.jobs.count("state:dead") == 2
    assert_sound(app)


@pytest.mark.any_store
def test_a_file_that_is_no_report_is_put_aside(app: Mulligan) -> None:
    fails = failing_task(attached(app))
    spool = bridge_of(app).courier.spool
    spool.folder.mkdir(parents=True)
    (spool.folder / "0.json").write_text("{")
    (spool.folder / "1.json").write_text('{"version": 99}')
    (spool.folder / "2.json").write_text("[]")
    fails.apply()
    wait_until_delivered(app)
    assert app.jobs.count("state:dead") == 1
    assert len(list((spool.folder / "refused").iterdir())) == 3


@pytest.mark.any_store
def test_a_task_without_an_outcome_is_dead_after_a_while(app: Mulligan) -> None:
    host = attached(app, silent_after=600)
    fails = failing_task(host)
    fails.apply()
    wait_until_delivered(app)
    app.run_inline()
    job = only_job(app).retry("try again")  # the task waits in the broker, without a worker
    app.run_inline()
    assert job.refresh().state is State.QUEUED
    app.store.shift_clock(700_000_000)
    app.run_inline()
    assert job.refresh().state is State.DEAD
    assert job.refresh().error["code"] == "HOST_SILENT"
    assert_sound(app)


def test_wrong_options_are_refused(app: Mulligan) -> None:
    with pytest.raises(ConfigError, match="unknown mode 'observe'"):
        attach(eager_app(), app, mode="observe")
    with pytest.raises(ConfigError, match="patterns of task names"):
        attach(eager_app(), app, only=[])


def test_a_report_survives_its_encoding(app: Mulligan) -> None:
    attached(app)
    bridge = bridge_of(app)
    report = bridge.build_report("task", "1", "failed", error=ValueError("\x00 \ud800"))
    again = TaskReport.from_json(json.dumps(json.loads(report.to_json())))
    assert again == report


# --- Many tasks, with the workers of both ---


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_412_failed_tasks_are_one_group_and_repaired_by_one_command(
    app: Mulligan,
    store_url: str,
    start: Callable[..., Worker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRIDGE_FOLDER", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", store_url)
    monkeypatch.setenv("MULLIGAN_WORKER__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    command = [sys.executable, "-m", "celery", "-A", "support.bridge_app", "worker", "-c", "2"]
    with (tmp_path / "celery.log").open("wb") as log:
        host = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        worker = start(app="support.bridge_app:app")
        from support.bridge_app import charge

        for order in range(412):
            charge.delay(order)
        until(lambda: app.jobs.count("state:dead") == 412, 120, interval=0.5)
        [group] = app.failures.groups()
        assert group.count == 412
        (tmp_path / "repaired").touch()
        retry = [sys.executable, "-m", "mulligan", "failures", "retry", group.fingerprint]
        subprocess.run([*retry, "--rate", "100", "--yes"], check=True, cwd=tmp_path)
        until(lambda: app.jobs.count("state:succeeded") == 412, 200, interval=0.5)
        assert worker.process.poll() is None
    finally:
        host.terminate()
        host.wait(30)
    assert_sound(app)
