"""Failures of a Celery app: recorded, grouped and sent again, with Celery's own workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from mulligan import Fixed, Mulligan, Policy, State
from mulligan.integrations.celery import attach
from support.bridge_tools import (
    PATIENCE,
    assert_sound,
    bridge_of,
    celery_on_files,
    celery_worker,
    only_job,
    restored_signals,
    wait_until_delivered,
)
from support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _restored_signals() -> Iterator[None]:
    with restored_signals():
        yield


@pytest.fixture
def host(tmp_path: Path) -> Celery:
    return celery_on_files(tmp_path / "celery")


def watched(host: Celery, app: Mulligan, **options: Any) -> Celery:
    attach(host, app, wait=PATIENCE, **options)
    return host


def charge_task(host: Celery, folder: Path) -> Any:
    """Register a task that fails until the folder has a file `repaired`."""

    @host.task(shared=False, name="billing.charge")
    def charge(order: int) -> str:
        if not (folder / "repaired").exists():
            raise ConnectionRefusedError(111, "the gateway refused the connection")
        return f"charged {order}"

    return charge


def test_a_failed_task_is_a_dead_job_with_its_cause_and_arguments(
    app: Mulligan, host: Celery, tmp_path: Path
) -> None:
    charge = charge_task(watched(host, app), tmp_path)
    result = charge.apply((7,))
    assert result.state == "FAILURE"
    wait_until_delivered(app)
    job = only_job(app)
    assert job.kind == "celery:billing.charge"
    assert job.queue == "celery"
    assert job.state is State.DEAD
    assert job.payload["args"] == [7]
    assert job.payload["task_id"] == result.id
    assert app.jobs.list(f"arg.task_id:{result.id}")[0].id == job.id
    [group] = app.failures.groups()
    assert group.code == "CONNECTION"
    assert group.exception.startswith("ConnectionRefusedError")
    assert group.location.startswith("test_celery.py:")
    assert_sound(app)


def test_retries_of_celery_are_attempts_of_one_job(
    app: Mulligan, host: Celery, tmp_path: Path
) -> None:
    watched(host, app)

    @host.task(
        shared=False, bind=True, autoretry_for=(OSError,), max_retries=2, default_retry_delay=0
    )
    def fetch(self: Any) -> str:
        if self.request.retries < 2:
            raise OSError(f"broken pipe {self.request.retries}")
        return "done"

    assert fetch.apply().state == "SUCCESS"
    wait_until_delivered(app)
    job = only_job(app)
    assert job.state is State.SUCCEEDED
    assert job.failures == 2
    verbs = [attempt.verb for attempt in app.jobs.attempts(job.id)]
    assert verbs[:2] == ["retry", "retry"]
    assert_sound(app)


def test_a_task_that_never_failed_leaves_no_trace(app: Mulligan, host: Celery) -> None:
    watched(host, app)

    @host.task(shared=False)
    def work() -> str:
        return "done"

    assert work.apply().get() == "done"
    assert bridge_of(app).courier.spool.is_empty
    assert app.jobs.list() == []


def test_only_attached_tasks_are_recorded(app: Mulligan, host: Celery, tmp_path: Path) -> None:
    charge = charge_task(watched(host, app, only=["mail.*"]), tmp_path)
    charge.apply((7,))
    assert bridge_of(app).courier.spool.is_empty
    assert app.jobs.list() == []


def test_a_report_that_is_delivered_twice_is_one_attempt(
    app: Mulligan, host: Celery, tmp_path: Path
) -> None:
    charge = charge_task(watched(host, app), tmp_path)
    for _ in range(2):  # Celery delivers a task again if its worker is lost
        charge.apply((7,), task_id="one")
    wait_until_delivered(app)
    assert len(app.jobs.attempts(only_job(app).id)) == 1
    assert_sound(app)


@pytest.mark.processes
def test_a_group_is_repaired_through_celery_with_one_operation(
    app: Mulligan, host: Celery, tmp_path: Path
) -> None:
    charge = charge_task(watched(host, app), tmp_path)
    with celery_worker(host):
        results = [charge.delay(order) for order in range(12)]
        until(lambda: app.jobs.count("state:dead") == 12, 30)
        [group] = app.failures.groups()
        assert group.count == 12
        (tmp_path / "repaired").touch()
        which = f"group:{group.fingerprint}"
        operation = app.operations.start("retry", which, steps=[1, 5, "rest"], rate=1000)

        def finished() -> bool:
            app.run_inline()
            return app.operations.get(operation.id).state == "finished"

        until(finished, 60)
    assert app.operations.get(operation.id).counts.recovered == 12
    assert app.jobs.count("state:succeeded") == 12
    assert sorted(result.get(timeout=5) for result in results) == sorted(
        f"charged {order}" for order in range(12)
    )
    assert_sound(app)


# --- mode="decide" ---


@pytest.mark.processes
def test_mulligan_decides_about_retries_of_celery(
    app: Mulligan, host: Celery, tmp_path: Path
) -> None:
    policy = Policy(max_retries=2, backoff=Fixed(0))
    watched(host, app, mode="decide", only=["billing.*"], policy=policy)
    runs: list[str] = []

    @host.task(shared=False, name="billing.refuse", autoretry_for=(Exception,), max_retries=9)
    def refuse() -> None:
        runs.append("refuse")
        raise KeyError("a programming error is not retried")

    @host.task(shared=False, name="billing.flaky")
    def flaky() -> str:
        runs.append("flaky")
        if runs.count("flaky") < 3:
            raise ConnectionResetError("a connection error is retried, without autoretry_for")
        return "done"

    @host.task(shared=False, name="mail.send")
    def send() -> None:
        runs.append("send")
        raise ConnectionResetError("not attached")

    with celery_worker(host):
        refused, done, sent = refuse.delay(), flaky.delay(), send.delay()
        assert done.get(timeout=30) == "done"
        for result in (refused, sent):
            until(result.ready, 30)
    assert sorted(runs) == ["flaky", "flaky", "flaky", "refuse", "send"]
    assert refused.state == sent.state == "FAILURE"
    assert isinstance(refused.result, KeyError)
    wait_until_delivered(app)
    by_kind = {job.kind: job for job in app.jobs.list()}
    assert set(by_kind) == {"celery:billing.refuse", "celery:billing.flaky"}
    assert by_kind["celery:billing.refuse"].state is State.DEAD
    flaky_job = by_kind["celery:billing.flaky"]
    assert flaky_job.state is State.SUCCEEDED
    assert flaky_job.retries == 2
    assert_sound(app)


@pytest.mark.processes
def test_an_open_breaker_postpones_tasks_of_celery_uncharged(
    app: Mulligan, host: Celery, tmp_path: Path
) -> None:
    app.dependency("gateway", min_calls=3, cool_down=1)
    policy = Policy(max_retries=3, backoff=Fixed(0))
    charge = charge_task(watched(host, app, mode="decide", uses="gateway", policy=policy), tmp_path)
    app.run_inline()  # stores what the app declares
    with celery_worker(host):
        results = [charge.delay(order) for order in range(6)]
        until(lambda: app.dependencies.get("gateway").state == "open", 30)
        (tmp_path / "repaired").touch()
        assert [result.get(timeout=30) for result in results] == [
            f"charged {order}" for order in range(6)
        ]
        until(lambda: app.dependencies.get("gateway").state != "open", 30)
    wait_until_delivered(app)
    assert app.jobs.count("state:dead") == 0
    assert_sound(app)
