"""Fleets of ten workers with canaries: real claims, settlements, counters and alerts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from mulligan.alerts.chore import AlertChecker
from mulligan.config import AlertSection
from mulligan.doctor.verify import verify
from mulligan.releases.chore import ReleaseCounter
from mulligan.releases.rules import ReleaseState
from support.app_tools import advance
from support.released import register_worker
from support.store import FATAL, RETURNED, claim, settle_leases

SHARE = 0.2  # of canaries
CLAIM = 4  # jobs that a worker claims at once
OLD, NEW = "r41", "r42"
BEFORE = 0.02  # share of first attempts that fail under the old release


class Fleet:
    """Five workers of the old release, and later five canaries. Jobs fail at a drawn share."""

    def __init__(self, app, render, seed, share_of_new):
        self._app = app
        self._render = render
        self._shares = {OLD: BEFORE, NEW: share_of_new}
        self._rngs = {OLD: Random(seed), NEW: Random(seed + 1)}
        self._counters = {OLD: ReleaseCounter(), NEW: ReleaseCounter()}
        for release, counter in self._counters.items():
            counter.release = release
        self._claimers = []
        self.claimed = {OLD: 0, NEW: 0}  # since the canaries began
        self.enqueued = 0

    def join(self, release, canary=None):
        for number in range(5):
            worker = f"w_{release}_{number}"
            self._claimers.append(
                (release, register_worker(self._app, worker, release, canary=canary))
            )

    def enqueue(self, jobs):
        self.enqueued += jobs
        self._render.enqueue_many([{"clip": n} for n in range(jobs)])

    def step(self):
        """Let all workers claim at once, end what they claimed, and evaluate the alerts."""
        with ThreadPoolExecutor(len(self._claimers)) as threads:
            found = list(threads.map(self._claim, self._claimers))
        for (release, _), leases in zip(self._claimers, found, strict=True):
            self.claimed[release] += len(leases)
            self._counters[release].count([self._end(release, lease) for lease in leases])
        for counter in self._counters.values():
            counter.run_once(self._app.store)
        AlertChecker(AlertSection()).run_once(self._app.store)
        advance(self._app, 5)
        return sum(map(len, found))

    def _claim(self, claimer):
        return claim(self._app.store, CLAIM, claimer=claimer[1])

    def _end(self, release, lease):
        has_failed = self._rngs[release].random() < self._shares[release]
        (verdict,) = settle_leases(self._app.store, lease, FATAL if has_failed else RETURNED)
        return verdict


@pytest.fixture
def make_fleet(app):
    """Make a fleet that has run 300 jobs under the old release before the canaries begin."""

    @app.job(name="render")
    def render(clip: int) -> int:
        return clip

    app.open()

    def make(seed, share_of_new):
        fleet = Fleet(app, render, seed, share_of_new)
        fleet.join(OLD)
        fleet.enqueue(300)
        while fleet.step():
            pass
        fleet.join(NEW, canary=SHARE)
        fleet.claimed = {OLD: 0, NEW: 0}
        return fleet

    return make


def assert_every_job_ended_once(app, fleet):
    counts = {
        state: app.jobs.count(f"kind:render state:{state}") for state in ("succeeded", "dead")
    }
    assert sum(counts.values()) == app.jobs.count("kind:render") == fleet.enqueued
    assert all(job.attempts == 1 for job in app.jobs.list("kind:render", limit=1000))
    assert [str(violation) for violation in verify(app.store).violations] == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_canary_that_fails_ten_points_more_is_held_within_200_starts(app, make_fleet, seed):
    fleet = make_fleet(seed, BEFORE + 0.10)
    while not app.releases.get(NEW).holds:
        fleet.enqueue(40)
        fleet.step()
        assert fleet.claimed[NEW] <= SHARE * sum(fleet.claimed.values())
        assert fleet.claimed[NEW] <= 200
    (hold,) = app.releases.get(NEW).holds
    assert (hold.kind, hold.actor) == ("render", "alert")
    until_hold = fleet.claimed[NEW]
    fleet.enqueue(100)
    while fleet.step():
        pass
    assert fleet.claimed[NEW] == until_hold  # the other release has run the rest
    assert_every_job_ended_once(app, fleet)


def test_a_canary_that_fails_as_before_is_soon_no_longer_limited(app, make_fleet):
    fleet = make_fleet(7, BEFORE)
    while app.releases.get(NEW).state is not ReleaseState.FINE:
        fleet.enqueue(40)
        fleet.step()
        assert fleet.claimed[NEW] <= SHARE * sum(fleet.claimed.values())
        assert app.releases.get(NEW).holds == ()
    before = fleet.claimed[NEW]
    fleet.enqueue(200)
    while fleet.step():
        pass
    assert fleet.claimed[NEW] - before > SHARE * 200
    assert_every_job_ended_once(app, fleet)
