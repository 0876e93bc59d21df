"""Waiting jobs cost claims nothing: ordinary jobs of the same lane are drained as fast."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.config import read_settings
from support.store import sql
from support.waiting import until
from support.worker import FAST, Worker

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.timing, pytest.mark.processes, pytest.mark.timeout(900)]
WAITING = 100_000
JOBS = 20_000
ROUNDS = 6
CHUNK = 5_000


class Site:
    """A database, an app for it, and workers that drain its jobs."""

    def __init__(self, url: str, folder: Path) -> None:
        folder.mkdir()
        self.url = url
        self.folder = folder
        environ = {**FAST, "MULLIGAN_DATABASE_URL": url}
        self.app = Mulligan(settings=read_settings(environ=environ, file=folder / "none.toml"))

    def insert(self, count: int, *, waits: bool) -> str:
        """Insert jobs and return the id of the last one."""
        for first in range(0, count, CHUNK):
            payloads = [{"n": n, "waits": waits} for n in range(first, min(first + CHUNK, count))]
            jobs = self.app.insert([self.app.build_job("may_wait", one) for one in payloads])
        return jobs[-1].id

    def make_wait(self, count: int) -> None:
        """Run this many jobs until each waits for an answer."""
        self._work_until(self.insert(count, waits=True), "waits IS NOT NULL", count)

    def drain(self, count: int) -> float:
        """Run this many ordinary jobs. Return the seconds from the first start to the last end."""
        last_job = self.insert(count, waits=False)
        before = self._count("state = 'succeeded'")
        last = sql(self.app.store, "SELECT max(finished_at) FROM {p}job")[0][0] or 0
        self._work_until(last_job, "state = 'succeeded'", before + count)
        [(began, ended)] = sql(
            self.app.store,
            "SELECT min(started_at), max(finished_at) FROM {p}job WHERE finished_at > :last",
            {"last": last},
        )
        return (ended - began) / 1e6

    def _work_until(self, last_job: str, condition: str, count: int) -> None:
        """Run a worker until so many jobs are in a condition. Count only once the last has run."""
        worker = Worker(
            self.url, self.folder, app="support.waiting_jobs:app", worker__concurrency="20"
        )
        try:
            until(lambda: self.app.jobs.get(last_job).token, 400, "last job", interval=0.2)
            until(lambda: self._count(condition) == count, 60, condition, interval=0.5)
        finally:
            worker.end()

    def _count(self, condition: str) -> int:
        query = f"SELECT count(*) FROM {{p}}job WHERE {condition}"  # noqa: S608
        return int(sql(self.app.store, query)[0][0])


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
    found = Site(store_url, tmp_path / "with"), Site(other, tmp_path / "without")
    yield found
    for site in found:
        site.app.close()


def test_a_hundred_thousand_waiting_jobs_do_not_slow_claims(
    sites: tuple[Site, Site],
) -> None:
    with_waiting, without = sites
    with_waiting.make_wait(WAITING)
    slow, fast = [], []
    for _ in range(ROUNDS):
        fast.append(without.drain(JOBS))
        slow.append(with_waiting.drain(JOBS))
    ratio = min(fast) / min(slow)
    log.info("drain: %.3f of the rate without waiting jobs; %s %s", ratio, fast, slow)
    assert ratio >= 0.95, (ratio, fast, slow)
