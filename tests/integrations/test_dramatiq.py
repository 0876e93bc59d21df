"""Failures of Dramatiq's actors: recorded, decided and sent again, with Dramatiq's workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

from mulligan import Fixed, Mulligan, Policy, State
from mulligan.integrations.dramatiq import attach
from support.bridge_tools import PATIENCE, assert_sound, only_job, wait_until_delivered
from support.waiting import until


@pytest.fixture(params=["stub", "redis"])
def broker(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "stub":
        broker: Any = StubBroker()
    else:
        broker = RedisBroker(url=request.getfixturevalue("redis_url"))
    yield broker
    broker.close()


@contextmanager
def working(broker: Any) -> Iterator[None]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    yield
    worker.stop()


def charge_actor(broker: Any, folder: Path, **options: Any) -> Any:
    """Declare an actor that fails until the folder has a file `repaired`."""

    @dramatiq.actor(broker=broker, actor_name="charge", min_backoff=1, max_backoff=1, **options)
    def charge(order: int) -> None:
        with (folder / "runs").open("a", encoding="utf-8") as runs:
            runs.write(f"{order}\n")
        if not (folder / "repaired").exists():
            raise ConnectionRefusedError(111, "the gateway refused the connection")

    return charge


@pytest.mark.processes
def test_a_group_of_failed_messages_is_repaired_through_dramatiq(
    app: Mulligan, broker: Any, tmp_path: Path
) -> None:
    attach(broker, app, wait=PATIENCE)
    charge = charge_actor(broker, tmp_path, max_retries=0)
    with working(broker):
        for order in range(5):
            charge.send(order)
        until(lambda: app.jobs.count("state:dead") == 5, 30)
        [group] = app.failures.groups()
        assert list(group.kinds) == ["dramatiq:charge"]
        (tmp_path / "repaired").touch()
        operation = app.operations.start("retry", f"group:{group.fingerprint}", steps=[1, "rest"])

        def finished() -> bool:
            app.run_inline()
            return app.operations.get(operation.id).state == "finished"

        until(finished, 40)
    assert app.operations.get(operation.id).counts.recovered == 5
    assert len((tmp_path / "runs").read_text().split()) == 10
    assert_sound(app)


def test_retries_of_dramatiq_are_attempts_of_one_job(
    app: Mulligan, broker: Any, tmp_path: Path
) -> None:
    attach(broker, app, wait=PATIENCE)
    charge = charge_actor(broker, tmp_path, max_retries=2)
    charge.send(1)
    with working(broker):
        until(lambda: app.jobs.count("state:dead") == 1, 30)
    job = only_job(app)
    assert [attempt.verb for attempt in app.jobs.attempts(job.id)] == ["retry", "retry", "die"]
    assert_sound(app)


def test_mulligan_decides_about_retries_of_dramatiq(
    app: Mulligan, broker: Any, tmp_path: Path
) -> None:
    policy = Policy(max_retries=1, backoff=Fixed(0))
    attach(broker, app, wait=PATIENCE, mode="decide", policy=policy)
    charge = charge_actor(broker, tmp_path)
    runs = []

    @dramatiq.actor(broker=broker, actor_name="refuse")
    def refuse() -> None:
        runs.append("refuse")
        raise KeyError("a programming error is not retried")

    charge.send(1)
    refuse.send()
    with working(broker):
        until(lambda: app.jobs.count("state:dead") == 2, 30)
    wait_until_delivered(app)
    by_kind = {job.kind: job for job in app.jobs.list()}
    assert by_kind["dramatiq:charge"].retries == 1
    assert len((tmp_path / "runs").read_text().split()) == 2
    assert runs == ["refuse"]
    assert all(job.state is State.DEAD for job in by_kind.values())
    assert_sound(app)
