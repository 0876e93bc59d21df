"""The sequential test of a release, on simulated fleets."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.releases.rules import (
    MIN_STARTS,
    ReleaseKindRow,
    ReleaseState,
    canary_starts_left,
    judge_release,
)

WORSE, OPEN, FINE = ReleaseState.WORSE, ReleaseState.OPEN, ReleaseState.FINE
STEP = 5  # starts between two looks at the counters


def a_kind(starts, failures, base_starts=2000, base_failures=40, **others):
    row = ReleaseKindRow("r42", "render", 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return row._replace(
        starts=starts,
        failures=failures,
        base_starts=base_starts,
        base_failures=base_failures,
        **others,
    )


def other(starts, failures):
    return a_kind(starts, failures)._replace(release="r41")


def draw(rng, starts, share):
    return sum(rng.random() < share for _ in range(starts))


class Fleet:
    """A kind that ran under old releases and meets a new one."""

    def __init__(self, rng, share_before, share_after, history=2000, meanwhile=19):
        self._rng = rng
        self._shares = share_before, share_after
        self._meanwhile = meanwhile  # starts of old releases per start of the new one
        self._base = history, draw(rng, history, share_before)
        self.starts = self._failures = 0
        self._old = list(self._base)

    def step(self, kinds):
        """Run a few jobs and judge the release."""
        before, after = self._shares
        self.starts += STEP
        self._failures += draw(self._rng, STEP, after)
        self._old[0] += STEP * self._meanwhile
        self._old[1] += draw(self._rng, STEP * self._meanwhile, before)
        row = a_kind(self.starts, self._failures, *self._base)
        return judge_release(row, [other(*self._old)], kinds)


def test_fewer_than_fifty_starts_are_never_judged():
    assert judge_release(a_kind(MIN_STARTS - 1, MIN_STARTS - 1), [], 1) is OPEN
    assert judge_release(a_kind(MIN_STARTS, MIN_STARTS), [], 1) is WORSE
    assert judge_release(a_kind(MIN_STARTS - 1, 0), [], 1) is OPEN
    assert judge_release(a_kind(MIN_STARTS, 0), [], 1) is FINE
    assert judge_release(a_kind(MIN_STARTS, 4), [], 1) is OPEN


@pytest.mark.parametrize("starts", [50, 100, 1000, 10_000, 1_000_000])
@pytest.mark.parametrize("base_starts", [200, 2000])
@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_a_release_that_fails_far_more_stays_worse_however_long_it_runs(starts, base_starts, share):
    row = a_kind(starts, round(share * starts), base_starts, base_starts // 100)
    assert judge_release(row, [], 1) is WORSE


@pytest.mark.parametrize("starts", [2000, 10_000, 1_000_000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.15])
def test_a_release_that_fails_as_before_or_less_stays_fine_however_long_it_runs(starts, share):
    assert judge_release(a_kind(starts, round(share * starts), 2000, 200), [], 1) is FINE


def test_without_a_baseline_nothing_is_judged():
    assert judge_release(a_kind(1000, 900, 49, 0), [], 1) is OPEN


def test_an_outage_that_hits_all_releases_blames_none():
    row = a_kind(100, 60)
    assert judge_release(row, [other(2000, 40)], 1) is WORSE
    assert judge_release(row, [other(3000, 640)], 1) is not WORSE


def test_a_release_after_a_bad_day_is_compared_with_that_day_too():
    assert judge_release(a_kind(100, 30, 2000, 600), [], 1) is not WORSE


@pytest.mark.parametrize("kinds", [1, 20])
def test_fewer_than_one_deploy_in_a_hundred_raises_a_false_alarm(kinds):
    rng = Random(1)
    deploys = 2400 // kinds
    alarms = 0
    for _ in range(deploys):
        fleets = []
        for _ in range(kinds):
            share = rng.choice((0.0, 0.01, 0.02, 0.05, 0.1, 0.3))
            fleets.append(Fleet(rng, share, share, history=500, meanwhile=1))
        alarms += any(fleet.step(kinds) is WORSE for fleet in fleets for _ in range(400 // STEP))
    assert alarms < deploys * 0.01


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.05])
def test_a_release_that_fails_ten_points_more_is_noticed_within_200_starts(share):
    rng = Random(11)
    found = []
    for _ in range(200):
        fleet = Fleet(rng, share, share + 0.10, meanwhile=1)
        while fleet.starts < 200 and fleet.step(1) is not WORSE:
            pass
        found.append(fleet.starts < 200)
    assert sum(found) >= 0.95 * len(found)


def test_a_release_that_fails_as_before_is_soon_fine():
    rng = Random(13)
    needed = []
    for _ in range(200):
        fleet = Fleet(rng, 0.02, 0.02, meanwhile=1)
        while fleet.starts < 1000 and fleet.step(1) is not FINE:
            pass
        needed.append(fleet.starts)
    assert sorted(needed)[len(needed) // 2] <= 100


def test_canaries_never_get_more_than_their_share():
    rng = Random(17)
    for share in (0.01, 0.05, 0.5, 0.9):
        claimed = others = 0
        for _ in range(500):
            others += rng.randrange(40)
            claimed += rng.randint(0, canary_starts_left(share, claimed, others))
            assert claimed <= share * (claimed + others) + 1e-9
        claimed += canary_starts_left(share, claimed, others)
        assert claimed >= share * (claimed + others) - 1


def test_one_job_of_twenty_is_five_percent():
    assert canary_starts_left(0.05, 0, 18) == 0
    assert canary_starts_left(0.05, 0, 19) == 1
    assert canary_starts_left(0.05, 3, 19) == 0
