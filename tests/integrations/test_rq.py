"""Failures of RQ's jobs: recorded, decided and enqueued again, on a real Redis server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker

from mulligan import Fixed, Mulligan, Policy, State
from mulligan.integrations.rq import attach
from support.bridge_jobs import charge, crash, refuse
from support.bridge_tools import PATIENCE, assert_sound, only_job, wait_until_delivered
from support.waiting import until

pytestmark = pytest.mark.processes


@pytest.fixture
def redis(redis_url: str) -> Redis:
    return Redis.from_url(redis_url)


def make_worker(app: Mulligan, redis: Redis, base: type[Any] = SimpleWorker, **options: Any) -> Any:
    """Return a worker of a class of its own: attach() changes the class."""
    worker_class = type("AttachedWorker", (base,), {})
    attach(worker_class, app, redis, wait=PATIENCE, **options)
    return worker_class(["default"], connection=redis)


def work(worker: Any) -> None:
    worker.work(burst=True, logging_level="CRITICAL")


def test_a_group_of_failed_jobs_is_repaired_through_rq(
    app: Mulligan, redis: Redis, tmp_path: Path
) -> None:
    queue = Queue(connection=redis)
    jobs = [queue.enqueue(charge, str(tmp_path), order) for order in range(5)]
    worker = make_worker(app, redis)
    work(worker)
    wait_until_delivered(app)
    [group] = app.failures.groups()
    assert group.count == 5
    assert list(group.kinds) == ["rq:support.bridge_jobs.charge"]
    (tmp_path / "repaired").touch()
    operation = app.operations.start("retry", f"group:{group.fingerprint}", steps=[1, "rest"])

    def finished() -> bool:
        app.run_inline()
        work(worker)
        wait_until_delivered(app)
        return app.operations.get(operation.id).state == "finished"

    until(finished, 40)
    assert app.operations.get(operation.id).counts.recovered == 5
    assert [job.return_value(refresh=True) for job in jobs] == [f"charged {n}" for n in range(5)]
    assert_sound(app)


def test_a_job_that_redis_has_dropped_is_enqueued_anew(
    app: Mulligan, redis: Redis, tmp_path: Path
) -> None:
    queue = Queue(connection=redis)
    job = queue.enqueue(charge, str(tmp_path), 1)
    worker = make_worker(app, redis)
    work(worker)
    wait_until_delivered(app)
    app.run_inline()
    job.delete()
    (tmp_path / "repaired").touch()
    only_job(app).retry("Redis was emptied")
    app.run_inline()
    work(worker)
    wait_until_delivered(app)
    assert only_job(app).state is State.SUCCEEDED
    assert_sound(app)


def test_retries_of_rq_are_attempts_of_one_job(app: Mulligan, redis: Redis, tmp_path: Path) -> None:
    queue = Queue(connection=redis)
    queue.enqueue(charge, str(tmp_path), 1, retry=Retry(max=2))
    work(make_worker(app, redis))
    wait_until_delivered(app)
    job = only_job(app)
    assert job.state is State.DEAD
    assert [attempt.verb for attempt in app.jobs.attempts(job.id)] == ["retry", "retry", "die"]
    assert_sound(app)


def test_a_killed_process_of_rq_is_recorded(app: Mulligan, redis: Redis) -> None:
    Queue(connection=redis).enqueue(crash)
    work(make_worker(app, redis, Worker))
    wait_until_delivered(app)
    [group] = app.failures.groups()
    assert "terminated unexpectedly" in group.exception
    assert_sound(app)


def test_mulligan_decides_about_retries_of_rq(app: Mulligan, redis: Redis, tmp_path: Path) -> None:
    queue = Queue(connection=redis)
    queue.enqueue(charge, str(tmp_path), 1)
    queue.enqueue(refuse, retry=Retry(max=9))
    policy = Policy(max_retries=2, backoff=Fixed(0))
    work(make_worker(app, redis, mode="decide", policy=policy))
    wait_until_delivered(app)
    by_kind = {job.kind.rpartition(".")[2]: job for job in app.jobs.list()}
    assert len((tmp_path / "runs").read_text().split()) == 3
    assert by_kind["charge"].state is State.DEAD
    assert by_kind["charge"].retries == 2
    assert by_kind["refuse"].attempts == 1
    assert_sound(app)
