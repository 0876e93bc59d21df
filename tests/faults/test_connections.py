"""How many connections a worker opens, by the server's own list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from mulligan import Mulligan
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

MAX_IDLE_CONNECTIONS = 4
MAX_BUSY_CONNECTIONS = 6
COUNT = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'mulligan'"""
Start = Callable[..., Worker]


@pytest.fixture
def store_url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def count(postgres_url: str) -> Iterator[Callable[[], int]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def counted() -> int:
            row = connection.execute(COUNT).fetchone()
            assert row is not None
            return int(row[0])

        yield counted


def test_a_worker_needs_few_connections(
    app: Mulligan, start: Start, count: Callable[[], int]
) -> None:
    app.enqueue("nap", {"seconds": 0})
    app.close()
    start()
    most = 0
    jobs = [app.enqueue("says", {"text": "x", "times": 1}) for _ in range(300)]

    def all_done() -> bool:
        nonlocal most
        most = max(most, count())
        return app.jobs.get(jobs[-1].id).state == "succeeded"

    until(all_done, 60)
    ours = 1  # the connection of this test's app
    assert most - ours <= MAX_BUSY_CONNECTIONS
    app.close()
    # An unneeded connection is closed after 30 s; the peak of the start counts until then.
    until(lambda: count() <= MAX_IDLE_CONNECTIONS, 60, "the worker is idle")
