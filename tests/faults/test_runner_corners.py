"""Runners that do not start, do not exit, or cannot run a job: no job is charged for it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mulligan import Job, Mulligan, State
from mulligan.config import WorkerSection as WorkerSettings
from mulligan.core.attempt import Ended, Ending, Failure, Outcome
from mulligan.manifest.specs import KindSpec
from mulligan.testing import advance, now
from mulligan.worker.protocol import (
    JUST_RETURNED,
    duration_from_wire,
    failure_from_wire,
    failure_to_wire,
    outcome_to_wire,
    returned_from_wire,
    stopped_to_wire,
)
from mulligan.worker.supervisor import runner_process
from mulligan.worker.supervisor import runners as runners_module
from mulligan.worker.supervisor.runner_process import (
    GARBLED,
    ActiveAttempt,
    KillReason,
    RunnerCommand,
    RunnerProcess,
    StopReason,
)
from mulligan.worker.supervisor.runners import Runners
from support.builders import make_failure, make_lease
from support.proc import is_alive
from support.reluctant import FORGET, STAY
from support.store import RELEASED, RETURNED, claim_new_job, save_checkpoint, settle_leases, sql
from support.troubled import NO_FORK, PROGRAM, SHORT_TIMEOUTS, Faults
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]

RELUCTANT = "support.reluctant:app"
# These tests do not depend on the database.
only_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path)


def are_uncharged(app: Mulligan, *jobs: Job) -> bool:
    return all((job.refresh().failures, job.refresh().losses) == (0, 0) for job in jobs)


def count_events(app: Mulligan, job: Job, what: str) -> int:
    """Return how often a job has had an event."""
    return len([event for event in app.jobs.history(job.id) if event.type == f"job.{what}"])


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


# --- Runners that do not start ---


@only_sqlite
def test_a_worker_that_cannot_start_a_runner_stays_and_its_jobs_run_once_it_can(
    app: Mulligan, start: Start, starts: Starts, faults: Faults
) -> None:
    def tried(times: int) -> bool:
        return worker.text().count("cannot start a runner") >= times

    faults.begin(NO_FORK)
    worker = start(wait=False, program=PROGRAM)
    until(lambda: tried(2))
    faults.end(NO_FORK)
    lost = app.enqueue("nap_first", {"seconds": 60})
    until(lambda: starts(lost.id), 15)

    faults.begin(NO_FORK)
    os.kill(int(starts(lost.id)[0].split()[4]), signal.SIGKILL)
    until(lambda: count_events(app, lost, "lost"))
    fresh = app.enqueue("nap", {"seconds": 0})
    until(lambda: tried(5))
    assert [job.refresh().state for job in (lost, fresh)] == [State.QUEUED, State.QUEUED]
    faults.end(NO_FORK)
    assert {app.jobs.wait(job.id, 15).state for job in (lost, fresh)} == {State.SUCCEEDED}
    assert (count_events(app, lost, "lost"), count_events(app, lost, "started")) == (1, 2)
    assert (are_uncharged(app, fresh), fresh.refresh().attempt) == (True, 1)
    assert worker.process.poll() is None


@only_sqlite
def test_a_job_whose_single_use_runner_cannot_be_started_is_released_uncharged(
    app: Mulligan, start: Start, faults: Faults
) -> None:
    faults.begin(SHORT_TIMEOUTS)
    worker = start(program=PROGRAM)
    faults.begin(NO_FORK)
    jobs = [app.enqueue("alone", {}) for _ in range(3)]  # the spare takes one of them at most
    until(lambda: sum(count_events(app, job, "released") > 0 for job in jobs) >= 2, 10)
    assert are_uncharged(app, *jobs)
    shared_job = app.enqueue("says", {"text": "x", "times": 1})
    assert app.jobs.wait(shared_job.id, 10).state is State.SUCCEEDED
    faults.end(NO_FORK)
    assert {app.jobs.wait(job.id, 15).state for job in jobs} == {State.SUCCEEDED}
    assert are_uncharged(app, *jobs)
    assert worker.end() == 0


def test_runners_that_cannot_be_started_are_retried_by_one_timer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries: list[float] = []

    class RefusingPopen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *_: object, **__: object) -> None:
            self.returncode = 0
            tries.append(time.monotonic())
            raise BlockingIOError(errno.EAGAIN, "no more processes")

    async def scenario() -> None:
        async with open_runners(tmp_path, runners=3) as runners:
            runners.start()
            await wait_until(lambda: len(tries) >= 30)

    monkeypatch.setattr(subprocess, "Popen", RefusingPopen)
    monkeypatch.setattr(runners_module, "MAX_RESPAWN_DELAY", 0.1)
    asyncio.run(scenario())
    assert tries[29] - tries[0] > 0.8  # three at a time, ten times, a tenth of a second apart


@pytest.mark.parametrize("missing", ["socket.socketpair", "mmap.mmap", "subprocess.Popen"])
def test_a_runner_that_cannot_be_started_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, missing: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario() -> None:
        async with open_runners(tmp_path, runners=3) as runners:
            before = open_files()
            monkeypatch.setattr(missing, refuse)
            runners.start()
            await wait_until(lambda: "cannot start a runner" in caplog.text)
            await runners.close(KillReason.SHUTDOWN)
            assert open_files() == before

    asyncio.run(scenario())


# --- Runners that do not exit ---


@only_sqlite
def test_a_runner_that_does_not_exit_when_drained_is_killed(
    app: Mulligan, start: Start, faults: Faults
) -> None:
    faults.begin(SHORT_TIMEOUTS)
    faults.begin(STAY)
    worker = start(app=RELUCTANT, program=PROGRAM, worker__concurrency="1")
    jobs = [app.enqueue("isolated") for _ in range(3)]  # at most two single-use runners
    done = [app.jobs.wait(job.id, 15) for job in jobs]
    assert {job.state for job in done} == {State.SUCCEEDED}
    assert are_uncharged(app, *jobs)
    until(lambda: not any(is_alive(job.result) for job in done), 5)
    assert [count_events(app, job, "succeeded") for job in jobs] == [1, 1, 1]
    assert worker.process.poll() is None


@only_sqlite
def test_a_retiring_runner_is_killed_after_the_neighbour_grace_and_neighbours_are_not_charged(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start(program=PROGRAM, worker__kill_grace="0.1", worker__neighbour_grace="0.3")
    long = [app.enqueue("nap_first", {"seconds": 60}) for _ in range(2)]
    until(lambda: all(starts(job.id) for job in long))
    [retiring] = {int(starts(job.id)[0].split()[4]) for job in long}
    over = app.enqueue("sleeping_thread", {}, timeout=0.2)
    dead = app.jobs.wait(over.id, 10)
    assert (dead.state, dead.failures, dead.losses, dead.attempts) == (State.DEAD, 1, 0, 1)
    assert not is_alive(retiring)
    for job in long:
        done = app.jobs.wait(job.id, 10)
        assert (done.state, done.failures, done.losses, done.token) == (State.SUCCEEDED, 0, 0, 2)
        types = [event.type.removeprefix("job.") for event in app.jobs.history(job.id)]
        assert types == ["queued", "started", "released", "started", "succeeded"]


def test_a_runner_that_never_becomes_ready_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with open_runners(tmp_path) as runners:
            runners.start()
            await runners.wait_for_manifest()
            [first] = shared(runners)
            runners.command.env["SLOW_IMPORT"] = "600"
            os.kill(first.pid, signal.SIGKILL)
            await wait_until(lambda: shared(runners) not in ([], [first]))
            del runners.command.env["SLOW_IMPORT"]
            [second] = shared(runners)
            runners.tick()
            assert not second.kill_reason  # within the load limit
            with monkeypatch.context() as later:
                later.setattr(runner_process, "LOAD_LIMIT_NS", 0)
                runners.tick()
            await wait_until(lambda: runners.can_accept)
            assert not is_alive(second.pid)

    asyncio.run(scenario())


# --- Runners that cannot run a job ---


@only_sqlite
def test_a_job_that_its_runner_cannot_accept_is_released_uncharged_and_the_others_run(
    app: Mulligan, start: Start, faults: Faults
) -> None:
    app.store.prepare()
    broken = claim_new_job(app.store, kind="reads_checkpoint", worker="earlier")
    with app.store.begin() as tx:
        save_checkpoint(tx, broken, "page", "no JSON at all")
    settle_leases(app.store, broken, RELEASED)  # a second attempt reads the checkpoints
    unknown = app.enqueue("forgotten")
    faults.begin(FORGET)
    worker = start(app=RELUCTANT, program=PROGRAM)
    refused = [app.jobs.get(broken.id), unknown]
    until(
        lambda: [count_events(app, job, "released") for job in refused] == [2, 1], 10, worker.text()
    )
    assert all(job.refresh().run_at > now(app) for job in refused), (
        "delayed, so that they are not claimed in a loop"
    )
    others = [app.enqueue("shared") for _ in range(5)]
    assert {app.jobs.wait(job.id, 10).state for job in others} == {State.SUCCEEDED}
    assert are_uncharged(app, *refused, *others)
    sql(app.store, "UPDATE {p}step SET value = '7'")
    advance(app, 6, anywhere=True)
    assert app.jobs.wait(broken.id, 10).result == 7
    assert worker.end() == 0
    assert unknown.refresh().state is State.QUEUED
    assert are_uncharged(app, *refused)


@pytest.mark.parametrize("stop_reason", [None, StopReason.CANCEL, StopReason.TIMEOUT])
def test_an_attempt_that_is_recalled_or_stopped_just_after_its_end_has_returned(
    tmp_path: Path, stop_reason: StopReason | None
) -> None:
    """A runner answers a stop of an ended attempt with "stopped", perhaps in the same message."""
    endings: list[Ending] = []

    async def scenario() -> None:
        async with open_runners(tmp_path) as runners:
            runners._on_end = endings.extend
            runners.start()
            await runners.wait_for_manifest()
            [runner] = shared(runners)
            attempt = ActiveAttempt(
                7, make_lease(), KindSpec("noop"), 0, stop_reason=stop_reason, recalled=True
            )
            runner.attempts[attempt.seq] = attempt
            runners._on_message(
                runner, ["ended", [outcome_to_wire(7, RETURNED, 3), stopped_to_wire(7, 0, 0.0)]]
            )
            assert not runner.attempts

    asyncio.run(scenario())
    assert [(ending.outcome, ending.duration_ms) for ending in endings] == [(RETURNED, 3)]


def test_a_job_that_waits_behind_a_delivery_that_started_is_not_charged_for_the_death_of_its_runner(
    tmp_path: Path,
) -> None:
    """Deliveries start ahead of the line, so a higher number says nothing about lower ones."""
    endings: list[Ending] = []

    async def scenario() -> None:
        async with open_runners(tmp_path) as runners:
            runners._on_end = endings.extend
            runners.start()
            await runners.wait_for_manifest()
            [runner] = shared(runners)
            for seq, name in ((7, "running"), (8, "waiting"), (9, "delivery")):
                lease = make_lease(id=name)
                runner.attempts[seq] = ActiveAttempt(seq, lease, KindSpec("noop"), 0)
                if name != "waiting":
                    runner.status_page.start(seq - 7, seq, 10, lease.fence)
            os.kill(runner.pid, signal.SIGKILL)
            await wait_until(lambda: len(endings) == 3)

    asyncio.run(scenario())
    assert {end.lease.id: end.outcome.ended for end in endings} == {
        "running": Ended.LOST,
        "waiting": Ended.RELEASED,
        "delivery": Ended.LOST,
    }


def test_each_of_many_returned_attempts_is_settled_once(tmp_path: Path) -> None:
    endings: list[Ending] = []

    async def scenario() -> None:
        async with open_runners(tmp_path) as runners:
            runners._on_end = endings.extend
            runners.start()
            await runners.wait_for_manifest()
            [runner] = shared(runners)
            for seq, uses in ((7, ""), (8, "gateway")):
                runner.attempts[seq] = ActiveAttempt(
                    seq, make_lease(id=f"job{seq}", uses=uses), KindSpec("noop"), 0
                )
            runner.dependency_users[8] = runner.attempts[8]
            runners._on_message(runner, ["returned", [7, 3, 99, 1, 8, 0, 7, 5]])
            runners._on_message(runner, ["ended", [stopped_to_wire(8, 0, 0.0)]])
            assert (runner.attempts, runner.dependency_users) == ({}, {})

    asyncio.run(scenario())
    assert [(end.lease.id, end.outcome, end.duration_ms) for end in endings] == [
        ("job7", JUST_RETURNED, 3),
        ("job8", JUST_RETURNED, 0),
    ]


def test_failed_attempts_keep_their_own_messages_and_their_first_end(tmp_path: Path) -> None:
    endings: list[Ending] = []

    def failed(seq: int, message: str, duration_ms: int) -> list[Any]:
        failure = make_failure(private={"message": message})
        return outcome_to_wire(seq, Outcome(Ended.FAILED, failure=failure), duration_ms)

    async def scenario() -> None:
        async with open_runners(tmp_path) as runners:
            runners._on_end = endings.extend
            runners.start()
            await runners.wait_for_manifest()
            [runner] = shared(runners)
            for seq in (7, 8):
                runner.attempts[seq] = ActiveAttempt(
                    seq, make_lease(id=f"job{seq}"), KindSpec("noop"), 0
                )
            items = [failed(7, "one", 3), failed(99, "none", 1), failed(8, "two", 0)]
            runners._on_message(runner, ["ended", [*items, failed(7, "again", 5)]])
            runners._on_message(runner, ["ended", [stopped_to_wire(8, 0, 0.0)]])
            runner.attempts[9] = ActiveAttempt(9, make_lease(id="job9"), KindSpec("noop"), 0)
            garbled = failed(9, "one", 3)
            garbled[4][0] = None  # the code of the failure
            with pytest.raises(GARBLED):
                runners._on_message(runner, ["ended", [garbled]])
            assert [runner.attempts.pop(9).seq] == [9]  # the whole message is decoded first

    asyncio.run(scenario())
    found = [
        (end.lease.id, end.outcome.failure.private["message"], end.duration_ms)
        for end in endings
        if end.outcome.failure is not None
    ]
    assert found == [("job7", "one", 3), ("job8", "two", 0)]


@pytest.mark.parametrize(
    "ends",
    [
        [],
        [7],
        [7, 1, 8],
        [7, "1"],
        [7, True],
        [7, 1.0],
        [7, None],
        [7, -1],
        [7, 2**53],
        [[7], 1],
        "77",
        {"7": 1},
        7,
    ],
)
def test_returned_attempts_with_invalid_numbers_are_refused(ends: object) -> None:
    with pytest.raises(GARBLED):
        returned_from_wire(ends)  # type: ignore[arg-type]


@pytest.mark.parametrize("took", ["1", 1.5, True, None, -1, 2**53, [1]])
def test_an_invalid_duration_is_refused(took: object) -> None:
    with pytest.raises(GARBLED):
        duration_from_wire([7, "returned", took, 0.0, "null"])


@pytest.mark.parametrize(
    "invalid",
    [
        {"code": ["BOOM"]},
        {"public": None},
        {"rule": 7},
        {"fingerprint": {}},
        {"evidence": []},
        {"private": "{}"},
        {"terms": None},
        {"judged": [["table", "1"]]},
        {"cls": "no class"},
        {"cls": []},
    ],
)
def test_an_invalid_failure_is_refused(invalid: dict[str, object]) -> None:
    names = [spec.name for spec in fields(Failure)]
    encoded = dict(zip(names, failure_to_wire(make_failure()) or (), strict=True))
    assert failure_from_wire([*encoded.values()]) == make_failure()
    with pytest.raises(GARBLED):
        failure_from_wire([*(encoded | invalid).values()])


# --- Runners without a supervisor ---


@asynccontextmanager
async def open_runners(folder: Path, **settings: int) -> AsyncIterator[Runners]:
    env = {"PYTHONPATH": str(Path(__file__).parent.parent), "WITNESS": str(folder / "witness")}
    env["MULLIGAN_DATABASE_URL"] = f"sqlite:///{folder}/mulligan.db"
    command = RunnerCommand("support.faulty:app", "w_test", folder, env=env)
    runners = Runners(
        command, WorkerSettings(**settings), lambda _: None, lambda: time.time_ns() // 1000
    )
    try:
        yield runners
    finally:
        await runners.close(KillReason.SHUTDOWN)


def shared(runners: Runners) -> list[RunnerProcess]:
    return [runner for runner in runners._processes if not runner.single_use]


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition while the event loop runs."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for may be in another process
            await asyncio.sleep(0.01)
