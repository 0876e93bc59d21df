"""A storm that is short, and a few of the points around commits: the long ones are `make storm` and `make points`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from storm import on_database, on_machine, on_processes  # noqa: F401 - each fault enters itself in the list
from storm.points import Place, chosen, enumerated, fallen
from storm.run import Verdict, Wanted, storm

pytestmark = pytest.mark.processes

QUICK = {
    "kill_runner",
    "kill_supervisor",
    "fall_at_commit",
    "freeze_runner",
    "terminate_backends",
    "reset_connections",
}


def told(verdict: Verdict) -> str:
    return f"{verdict.violations[:5]}, kept in {verdict.folder}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_a_short_storm_costs_nothing_that_was_promised(store: str, tmp_path: Path) -> None:
    wanted = Wanted(
        store, 11, 8, QUICK, every=0.8, workers=2, clients=2, pace=0.15, folder=tmp_path
    )
    verdict = storm(wanted)
    assert verdict.good, told(verdict)
    assert sum(verdict.faults.values()) >= 3
    assert verdict.figures["jobs"] > 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_three_minutes_of_every_fault_there_is(store: str, tmp_path: Path) -> None:
    verdict = storm(Wanted(store, 12, 180, every=3, folder=tmp_path))
    assert verdict.good, told(verdict)
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
def test_who_falls_at_a_commit_leaves_nothing_wrong_behind(
    store: str, most: int, tmp_path: Path
) -> None:
    place = Place(store, tmp_path)
    try:
        points = enumerated(place, 1)
        assert len({point.name for point in points}) > 30
        some = chosen(points, 10_000, 1)[:: max(1, len(points) // most)]
        judged = {
            str(point): fallen(place, number, point, 1)[1] for number, point in enumerate(some, 1)
        }
    finally:
        place.close()
    assert {point: said for point, said in judged.items() if said} == {}


if sys.platform != "linux":
    pytest.skip("signals, /proc and namespaces as Linux has them", allow_module_level=True)
