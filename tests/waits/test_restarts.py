"""PostgreSQL restarts at once, again and again, while jobs wait: no wait and no answer is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

from mulligan import Job, Mulligan, State
from mulligan.core.errors import AnswerRefused, StoreUnavailable
from mulligan.doctor.verify import verify
from support.postgres import PostgresServer
from support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
only_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
RESTARTS = 10
EACH = 3  # jobs of each kind that begin before each restart


@only_postgres
@pytest.mark.timeout(400)
def test_no_wait_is_lost_in_ten_restarts(
    app: Mulligan, start, postgres_server: PostgresServer
) -> None:
    start(app="support.waiting_jobs:app")
    rng = Random(7)
    expected: dict[str, object] = {}
    with ThreadPoolExecutor(EACH) as pool:
        answers = []
        for turn in range(RESTARTS):
            for n in range(turn * EACH, (turn + 1) * EACH):
                expected[enqueue(app, "naps", seconds=rng.uniform(0.1, 3)).id] = "awake"
                expected[enqueue(app, "adds_up", numbers=[n, 1]).id] = n + 1
                asking = enqueue(app, "asks", order=n)
                expected[asking.id] = n
                answers.append(pool.submit(answer, app, asking, n))
            until(lambda job=asking: has_begun(app, job.id), 60, "the last job has begun")
            postgres_server.restart("immediate")
        for one in answers:
            one.result(120)
    ended = {job_id: wait_for(app, job_id) for job_id in expected}
    assert {job.state for job in ended.values()} == {State.SUCCEEDED}
    assert {job_id: job.result for job_id, job in ended.items()} == expected
    assert not verify(app.store).violations


def enqueue(app: Mulligan, kind: str, **payload: object) -> Job:
    """Enqueue a job once the server answers. One whose commit was lost on the way may run twice."""
    found: list[Job] = []

    def is_enqueued() -> bool:
        with suppress(StoreUnavailable):
            found.append(app.enqueue(kind, payload))
        return bool(found)

    until(is_enqueued, 60, "enqueued")
    return found[0]


def answer(app: Mulligan, job: Job, value: int) -> None:
    """Answer until it counts. A refusal says that an answer before, whose reply was lost, did."""

    def is_answered() -> bool:
        try:
            app.tell(job=job, name="approval", value=value)
        except StoreUnavailable:
            return False
        except AnswerRefused as refused:
            return "was answered by" in str(refused)
        return True

    until(is_answered, 60, "answered")


def wait_for(app: Mulligan, job_id: str) -> Job:
    return until(lambda: ended(app, job_id), 120, f"end of {job_id}", interval=0.1)


def has_begun(app: Mulligan, job_id: str) -> bool:
    with suppress(StoreUnavailable):
        return app.jobs.get(job_id).token > 0
    return False


def ended(app: Mulligan, job_id: str) -> Job | None:
    with suppress(StoreUnavailable):
        job = app.jobs.get(job_id)
        return None if job.state in {State.QUEUED, State.RUNNING} else job
    return None
