"""A rolling deploy with jobs of three payload versions in the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mulligan import Kind, Mulligan
from support.versioned_app import declare
from support.waiting import until

pytestmark = [pytest.mark.processes]


APP = "support.versioned_app:app"


@pytest.fixture
def kinds(app) -> Iterator[dict[int, Kind]]:
    """Return the kind as three releases declare it, by the version of its payload."""
    apps = {version: Mulligan(settings=app.settings) for version in (1, 2, 3)}
    yield {version: declare(release, version) for version, release in apps.items()}
    for release in apps.values():
        release.close()


def test_jobs_of_three_versions_each_run_once_during_a_rolling_deploy(start, app, kinds, starts):
    jobs = {
        1: [kinds[1].enqueue(to=f"a{n}") for n in range(10)],
        2: [kinds[2].enqueue(address=f"b{n}") for n in range(10)],
    }
    older = start(app=APP, environ={"PAYLOAD_VERSION": "2"})
    jobs[3] = [kinds[3].enqueue(address=f"c{n}", locale="de") for n in range(10)]
    ids = [job.id for job in jobs[3]]
    left = "left to a release with payload version 3 (this one has 2)"
    until(lambda: all(left in app.jobs.get(id_).why for id_ in ids), 30, "left to newer workers")
    start(app=APP, environ={"PAYLOAD_VERSION": "3"})
    late = [kinds[1].enqueue(to=f"d{n}") for n in range(10)]
    until(lambda: app.jobs.count("state:succeeded") == 40, 60, "every job has succeeded")
    assert older.end() == 0
    for job in [*jobs[1], *jobs[2], *jobs[3], *late]:
        assert len(starts(job.id)) == 1
        assert (app.jobs.get(job.id).failures, app.jobs.get(job.id).losses) == (0, 0)
    results = [app.jobs.get(job.id).result for job in jobs[3]]
    assert results == [[f"c{n}", "de"] for n in range(10)]
    assert {starts(job.id)[0].split()[2] for job in jobs[3]} == {"3"}
