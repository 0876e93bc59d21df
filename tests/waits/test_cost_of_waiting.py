"""Waiting jobs cost claims nothing: other jobs of the same lane are drained as fast as without."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psycopg
import pytest

from mulligan.core.attempt import Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.waits import RequestedWait, WaitKind
from mulligan.storage import Store
from mulligan.worker.claim import Claimer
from support.store import (
    KINDS,
    RETURNED,
    enqueue,
    is_postgres,
    migrated,
    now,
    open_worker,
    settle_leases,
    sql,
)

pytestmark = [pytest.mark.timing, pytest.mark.timeout(900)]
log = logging.getLogger(__name__)
WAITING = 100_000
JOBS = 12_000  # to drain on each side
SLICE = 20  # jobs of a claim: as many as a worker has slots
CHUNK = 500
MONTH = 30 * 86_400 * SECOND


class Site:
    """A database, and a worker that claims and settles in this process."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store
        self.claimer = Claimer(open_worker(store), KINDS)

    def run(self, count: int, outcome: Outcome) -> int:
        """Claim up to `count` due jobs and settle them. Return how many."""
        with self.store.begin() as tx:
            leases = self.claimer.claim(tx, count).leases
        settle_leases(self.store, leases, outcome)
        return len(leases)

    def insert(self, count: int) -> None:
        for _ in range(0, count, CHUNK):
            enqueue(self.store, CHUNK)

    def make_wait(self, count: int) -> None:
        """Add jobs that wait for an answer: one half for good, the other for a month."""
        month_later = now(self.store) + MONTH
        for chunk in range(count // CHUNK):
            enqueue(self.store, CHUNK)
            until = month_later + chunk if chunk % 2 else None
            wait = RequestedWait(WaitKind.ANSWER, "approval", 1)
            outcome = Outcome(Ended.WAITING, until=until, reason="an answer", wait=wait)
            assert self.run(CHUNK, outcome) == CHUNK

    def make_end(self, count: int) -> None:
        """Run as many jobs that end: a database that has done the same work."""
        for _ in range(count // CHUNK):
            enqueue(self.store, CHUNK)
            assert self.run(CHUNK, RETURNED) == CHUNK

    def vacuum(self) -> None:
        """Remove the old versions of rows on PostgreSQL, as autovacuum does within a minute.

        Jobs that wait leave three each at the front of their lane, and jobs that end leave two.
        """
        if is_postgres(self.store):
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def time_slice(self) -> float:
        """Return how many seconds it takes to claim and settle the next jobs."""
        began = time.perf_counter()
        assert self.run(SLICE, RETURNED) == SLICE
        return time.perf_counter() - began


@pytest.fixture
def sites(
    store_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Site, Site]]:
    """Two databases of one store."""
    if store_url.startswith("sqlite"):
        other = f"sqlite:///{tmp_path}/other.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "other.db")
    else:
        other = request.getfixturevalue("postgres_url")
    with ExitStack() as stack:
        first, second = (
            Site(url, stack.enter_context(migrated(url))) for url in (store_url, other)
        )
        yield first, second


def test_a_hundred_thousand_waiting_jobs_do_not_slow_claims(sites: tuple[Site, Site]) -> None:
    with_waiting, without = sites
    with_waiting.make_wait(WAITING)
    without.make_end(WAITING)
    query = "SELECT count(*) FROM {p}job WHERE state = 'queued' AND waits IS NOT NULL"
    assert sql(with_waiting.store, query) == [(WAITING,)]
    for site in sites:
        site.vacuum()
        site.insert(JOBS)
    slow, fast = [], []
    for _ in range(JOBS // SLICE):  # alternating, so that other load meets both
        fast.append(without.time_slice())
        slow.append(with_waiting.time_slice())
    ratio = median(fast) / median(slow)
    log.info(
        "drain: %.3f of the rate without; medians of %d jobs: %.2f ms without, %.2f ms with",
        ratio, SLICE, median(fast) * 1000, median(slow) * 1000,
    )  # fmt: skip
    assert ratio >= 0.95
