"""A short storm and some crashes around commits. `make storm` and `make points` run all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from storm import database_faults, machine_faults, process_faults, tenant_faults  # noqa: F401 - importing registers the faults
from storm.points import PointDatabases, choose_points, crash_at, list_points
from storm.run import StormOptions, Verdict, storm

pytestmark = pytest.mark.processes

QUICK = {
    "kill_runner",
    "kill_supervisor",
    "fall_at_commit",
    "freeze_runner",
    "terminate_backends",
    "reset_connections",
}


def describe(verdict: Verdict) -> str:
    return f"{verdict.violations[:5]}, kept in {verdict.folder}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_a_short_storm_violates_no_guarantee(store: str, tmp_path: Path) -> None:
    options = StormOptions(
        store, 11, 8, QUICK, every=0.8, workers=2, clients=2, pace=0.15, folder=tmp_path
    )
    verdict = storm(options)
    assert verdict.passed, describe(verdict)
    assert sum(verdict.faults.values()) >= 3
    assert verdict.figures["jobs"] > 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_three_minutes_of_all_faults(store: str, tmp_path: Path) -> None:
    verdict = storm(StormOptions(store, 12, 180, every=3, folder=tmp_path))
    assert verdict.passed, describe(verdict)
    assert len(verdict.faults) > 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("store", "most"),
    [
        ("sqlite", 4),
        pytest.param("sqlite", 60, marks=pytest.mark.slow),
        pytest.param("postgres", 40, marks=pytest.mark.slow),
    ],
)
def test_a_crash_around_a_commit_violates_no_invariant(
    store: str, most: int, tmp_path: Path
) -> None:
    place = PointDatabases(store, tmp_path)
    try:
        points = list_points(place, 1)
        assert len({point.name for point in points}) >= 30
        some = choose_points(points, 10_000, 1)[:: max(1, len(points) // most)]
        violations = {
            str(point): crash_at(place, number, point, 1)[1] for number, point in enumerate(some, 1)
        }
    finally:
        place.close()
    assert {point: found for point, found in violations.items() if found} == {}


if sys.platform != "linux":
    pytest.skip("needs the signals, /proc and namespaces of Linux", allow_module_level=True)
