"""Real workers: waits use no slot, survive kills, and are answered once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mulligan import Job, Mulligan, State
from mulligan.core.errors import AnswerRefused
from mulligan.doctor.verify import verify
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes
APP = "support.waiting_jobs:app"


@pytest.fixture
def start(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(**settings: str) -> Worker:
        workers.append(Worker(store_url, tmp_path, app=APP, **settings))
        return workers[-1].ready()

    yield make
    for worker in workers:
        worker.end()


def test_more_jobs_wait_than_there_are_slots(app: Mulligan, start) -> None:
    start(WORKER__CONCURRENCY="2")
    waiting = [app.enqueue("asks", {"order": n}) for n in range(20)]
    naps = [app.enqueue("naps", {"seconds": 0.3}) for _ in range(5)]
    until(lambda: {app.jobs.get(job.id).phase for job in waiting} == {"waiting"}, 30)
    assert app.jobs.wait(app.enqueue("quick", {"n": 3}).id, 30).result == 3
    for n, job in enumerate(waiting):
        app.tell(job=job, name="approval", value=n)
    assert [app.jobs.wait(job.id, 30).result for job in waiting] == list(range(20))
    assert {app.jobs.wait(job.id, 30).result for job in naps} == {"awake"}
    assert not verify(app.store).violations


def test_waits_outlive_a_killed_worker(app: Mulligan, start) -> None:
    first = start()
    job = app.enqueue("asks", {"order": 7})
    until(lambda: app.jobs.get(job.id).phase == "waiting", 30)
    first.kill()
    app.tell(job=job, name="approval", value="yes")
    start()
    assert app.jobs.wait(job.id, 30).result == "yes"
    assert app.jobs.get(job.id).losses == 0


def test_an_answer_near_the_end_of_the_wait_counts_or_is_refused(app: Mulligan, start) -> None:
    start()
    jobs = [app.enqueue("answers_in_time", {"timeout": 0.2 + n / 100}) for n in range(20)]
    until(lambda: any(app.jobs.get(job.id).token for job in jobs), 30)

    def answer(job: object) -> bool:
        try:
            app.tell(job=job, name="approval", value="somebody")
        except AnswerRefused:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        counted = list(pool.map(answer, jobs))
    ended = [app.jobs.wait(job.id, 30) for job in jobs]
    assert {job.state for job in ended} == {State.SUCCEEDED}
    assert [job.result == "somebody" for job in ended] == counted
    assert not verify(app.store).violations


def test_of_twenty_threads_at_most_one_answers_at_the_end_of_a_wait(app: Mulligan, start) -> None:
    """Each thread answers each job twice, between 19 ms before the end of its wait and 18 ms after."""
    start()
    jobs = [app.enqueue("answers_in_time", {"timeout": 1 + n / 10}) for n in range(10)]
    until(lambda: {app.jobs.get(job.id).phase for job in jobs} == {"waiting"}, 30)

    def answer(thread: int) -> list[tuple[str, str]]:
        counted = []
        for number, job in enumerate(jobs):
            wait_for_end(job, before=(thread - 2 * number) / 1000)
            for _ in range(2):
                with suppress(AnswerRefused):
                    app.tell(job=job, name="approval", value=f"thread {thread}")
                    counted.append((job.id, f"thread {thread}"))
        return counted

    def wait_for_end(job: Job, before: float) -> None:
        """Return this many seconds before the end of a wait: the instant of an answer."""
        ends_at = app.jobs.get(job.id).next_retry_at
        if ends_at is not None:
            time.sleep(max(0.0, (ends_at - datetime.now(UTC)).total_seconds() - before))

    with ThreadPoolExecutor(20) as pool:
        counted = [one for answers in pool.map(answer, range(20)) for one in answers]
    assert len(counted) == len(dict(counted))
    expected = dict.fromkeys((job.id for job in jobs), "nobody") | dict(counted)
    assert {job.id: app.jobs.wait(job.id, 30).result for job in jobs} == expected
    for job in jobs:
        answered = [event for event in app.jobs.history(job.id) if event.type == "job.answered"]
        assert len(answered) == (expected[job.id] != "nobody")
    assert not verify(app.store).violations


def test_parents_outlive_kills_and_each_child_is_enqueued_once(app: Mulligan, start) -> None:
    """Workers are killed while parents wait, and while their children end."""
    workers = [start(), start()]
    parents = [app.enqueue("adds_up", {"numbers": [n, n + 1, n + 2]}) for n in range(20)]
    until(lambda: any(app.jobs.get(job.id).phase == "waiting" for job in parents), 30)
    for worker in workers:
        worker.kill()
        start()
    assert [app.jobs.wait(job.id, 60).result for job in parents] == [3 * n + 3 for n in range(20)]
    assert len(app.jobs.list("kind:slowly", limit=200)) == 60
    assert not verify(app.store).violations
