"""Logs, stacks and causes of death are kept with the attempts that failed, and only with those."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from mulligan.core.errors import NotFound
from mulligan.core.job import Job
from mulligan.failures.facts import SOURCE_MARK
from support.database_contents import contents
from support.waiting import until
from support.worker import Worker

pytestmark = [pytest.mark.processes, pytest.mark.any_store]

Start = Callable[..., Worker]
APP = "support.recorded_app:app"


def run(app: Mulligan, kind: str, **payload: object) -> Job:
    """Run a job to its end."""
    return app.jobs.wait(app.enqueue(kind, payload).id, 60)


def messages(app: Mulligan, job: Job) -> list[str]:
    return [line.message for line in app.jobs.log(job.id).records]


def group(app: Mulligan, job: Job) -> str | None:
    return app.jobs.attempts(job.id)[-1].fingerprint


def test_the_last_200_records_are_kept_without_secrets(app: Mulligan, start: Start) -> None:
    start(app=APP)
    kept = messages(app, run(app, "raises", lines=10_000))
    assert kept[0].startswith("line 9800 ")
    assert kept[-1].startswith("line 9999 ")
    assert len(kept) == 200
    assert "hunter" not in "".join(kept)


def test_records_come_from_any_logger_thread_output_and_program(
    app: Mulligan, start: Start
) -> None:
    start(app=APP)
    log = app.jobs.log(run(app, "talks").id)
    assert [(line.level, line.source, line.message) for line in log.records] == [
        ("ERROR", "shop.quiet", "not propagated"),
        ("", "stdout", "one"),
        ("", "stdout", "two"),
        ("", "stderr", "to stderr"),
        ("WARNING", "shop.orders", "on a thread of the loop"),
        ("WARNING", "shop.orders", "on a thread of its own"),
    ]
    assert log.stacks == ""


def stored_rows(app: Mulligan, job: Job) -> list[str]:
    """Return all rows about a job, without what differs between two equal jobs."""
    rows = [f"{table} {row}" for table, rows in contents(app.store).items() for row in rows]
    texts = [row.replace(job.id, "ID") for row in rows if job.id in row]
    return sorted(re.sub(r"\d+", "N", text.replace(job.kind, "KIND")) for text in texts)


def test_a_success_stores_the_same_bytes_with_and_without_a_recorder(
    app: Mulligan, start: Start
) -> None:
    start(app=APP)
    recorded, unrecorded = run(app, "succeeds"), run(app, "succeeds_unrecorded")
    assert recorded.state is unrecorded.state is State.SUCCEEDED
    assert stored_rows(app, recorded) == stored_rows(app, unrecorded) != []
    assert "all is well" not in str(contents(app.store))
    with pytest.raises(NotFound, match="no log"):
        app.jobs.log(recorded.id)


def test_the_option_log_says_how_many_records_are_kept(app: Mulligan, start: Start) -> None:
    start(app=APP)
    assert messages(app, run(app, "keeps_three")) == ["line 7", "line 8", "line 9"]
    with pytest.raises(NotFound):
        app.jobs.log(run(app, "keeps_none").id)


def test_a_killed_process_leaves_its_last_lines(app: Mulligan, start: Start) -> None:
    start(app=APP)
    job = run(app, "is_killed", number=7)
    assert job.error is not None
    assert (job.error["code"], job.error["signal"]) == ("PROCESS_DIED", 9)
    assert messages(app, job) == ["the last line of 7"]


def assert_kept_until_the_end(app: Mulligan, job: Job, witness: list[str]) -> None:
    """Assert that the log ends with the last number that the killed process had logged."""
    numbers = [int(text.removeprefix("number ")) for text in messages(app, job)]
    last = int(witness[-1].split()[1])
    assert numbers[-1] in {last, last + 1}  # it may have logged one that it could not note
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
    assert len(numbers) == min(200, numbers[-1] + 1)


@pytest.fixture
def witness(tmp_path: Path) -> Callable[[], list[str]]:
    """Return the lines that handlers have noted in a file."""
    path = tmp_path / "witness"
    return lambda: path.read_text().splitlines() if path.exists() else []


def test_a_process_that_is_killed_while_it_logs_keeps_its_lines_up_to_the_kill(
    app: Mulligan, start: Start, witness: Callable[[], list[str]]
) -> None:
    start(app=APP)
    job = app.enqueue("counts", {})
    until(lambda: len(witness()) > 1000, 60, interval=0.2)
    os.kill(int(witness()[-2].split()[0]), signal.SIGKILL)
    job = app.jobs.wait(job.id, 60)
    assert job.error is not None
    assert (job.error["code"], job.error["signal"]) == ("PROCESS_DIED", 9)
    assert_kept_until_the_end(app, job, witness())


def test_a_worker_that_is_killed_as_a_whole_leaves_its_lines_to_the_next_one_of_its_host(
    app: Mulligan, start: Start, witness: Callable[[], list[str]]
) -> None:
    worker = start(app=APP)
    job = app.enqueue("counts", {})
    until(lambda: len(witness()) > 1000, 60, interval=0.2)
    runner = int(witness()[-2].split()[0])
    for pid in (worker.pid, runner):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    start(app=APP)
    job = app.jobs.wait(job.id, 60)
    assert job.error is not None
    assert job.error["code"] == "WORKER_LOST"
    assert_kept_until_the_end(app, job, witness())


def test_an_attempt_over_its_memory_limit_keeps_its_lines_up_to_the_kill(
    app: Mulligan, start: Start, witness: Callable[[], list[str]]
) -> None:
    start(app=APP)
    job = run(app, "eats_memory")
    assert job.error is not None
    assert job.error["code"] == "MEMORY_LIMIT"
    assert_kept_until_the_end(app, job, witness())


def innermost_line(stacks: str) -> str:
    """Return the innermost line of the app's code in the first stack."""
    lines = stacks.partition("\n\n")[0].splitlines()
    return [line for line in lines if line.startswith(SOURCE_MARK)][-1]


@pytest.mark.parametrize(
    "kind", ["sleeps", "awaits", "deadlocks", "spins", "matches", "waits_for_program"]
)
def test_a_time_limit_shows_the_line_that_hung(app: Mulligan, start: Start, kind: str) -> None:
    start(app=APP)
    job = run(app, kind)
    assert job.error is not None
    assert job.error["code"] == "TIMEOUT"
    assert f"# hangs in {kind}" in innermost_line(app.jobs.log(job.id).stacks)


def test_the_stacks_of_tasks_that_the_handler_waits_for_are_kept(
    app: Mulligan, start: Start
) -> None:
    start(app=APP)
    stacks = app.jobs.log(run(app, "gathers").id).stacks
    assert "in gathers" in stacks
    assert "# hangs in awaits" in stacks


def test_a_cancelled_attempt_keeps_its_log_and_stacks(app: Mulligan, start: Start) -> None:
    start(app=APP)
    job = app.enqueue("stalls", {})
    until(lambda: app.jobs.get(job.id).state is State.RUNNING)
    app.jobs.cancel(job.id, reason="not needed")
    app.jobs.wait(job.id, 20)
    assert "# hangs in stalls" in app.jobs.log(job.id).stacks


@pytest.mark.parametrize("kind", ["stalls", "stalls_async", "stalls_alone"])
def test_an_attempt_without_progress_is_stopped(app: Mulligan, start: Start, kind: str) -> None:
    start(app=APP)
    job = run(app, kind)
    assert job.error is not None
    assert (job.state, job.error["code"], job.error["class"]) == (State.DEAD, "STALLED", "timeout")
    assert job.error["message"] == "The job made no progress for 1 s and was stopped."
    assert f"# hangs in {kind}" in app.jobs.log(job.id).stacks


def test_progress_checkpoints_and_steps_keep_an_attempt_alive(app: Mulligan, start: Start) -> None:
    start(app=APP)
    assert run(app, "moves_on").result == "done"


def test_time_limits_are_grouped_by_place_and_kind(app: Mulligan, start: Start) -> None:
    start(app=APP)
    here, again, there = (run(app, "hangs_at", place=place) for place in ("here", "here", "there"))
    other = run(app, "sleeps")
    assert group(app, here) == group(app, again)
    assert len({group(app, job) for job in (here, there, other)}) == 3
    assert app.failures.get(str(group(app, here))).count == 2


def test_deaths_are_grouped_by_signal_and_kind(app: Mulligan, start: Start) -> None:
    start(app=APP)
    first, again, other = (run(app, "is_killed_too", number=number) for number in (9, 9, 11))
    kind = run(app, "is_killed", number=1)
    assert group(app, first) == group(app, again)
    assert len({group(app, job) for job in (first, other, kind)}) == 3


def test_deaths_are_grouped_by_exit_code(app: Mulligan, start: Start) -> None:
    start(app=APP)
    first, again, other = (run(app, "exits", code=code) for code in (3, 3, 4))
    assert group(app, first) == group(app, again) != group(app, other)
