"""Restore from a backup: old workers are closed, and no token is used twice."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest

from mulligan import Mulligan
from mulligan.core.durations import SECOND
from mulligan.core.errors import Refused
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.service import TOKEN_INCREMENT, mark_restored
from support.store import open_worker
from support.waiting import until


@pytest.fixture
def app(store_url):
    with closing(Mulligan(store_url)) as app:
        yield app


def test_the_tokens_of_all_jobs_are_raised(app):
    @app.job(name="good")
    def good() -> None: ...

    done, waits = good.enqueue(), good.options(delay=60).enqueue()
    app.run_inline()
    assert mark_restored(app.store) == (0, 2)
    assert [job.refresh().token for job in (done, waits)] == [TOKEN_INCREMENT + 1, TOKEN_INCREMENT]
    assert [event.type for event in app.jobs.history(done.id)] == [
        "job.queued",
        "job.started",
        "job.succeeded",
    ]


def test_it_is_refused_while_a_worker_may_be_running(app):
    @app.job(name="asks")
    def asks() -> str:
        with pytest.raises(Refused, match="may be running"):
            mark_restored(app.store)
        return "refused"

    job = asks.enqueue()
    app.run_inline()
    assert (job.refresh().result, job.refresh().token) == ("refused", 1)


def test_workers_of_the_backup_are_closed_after_their_lease(app):
    open_worker(
        app.store, "of-before", lease=SECOND // 10
    )  # as in a backup: open, without a process

    def closed() -> int:
        with suppress(Refused):
            return mark_restored(app.store).workers
        return 0

    assert until(closed) == 1
    with app.store.read() as tx:
        assert WorkerQueries(tx).list_workers(closed=False) == []
