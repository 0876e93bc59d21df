"""The checker is checked: defects of the engine, each found from outside in one run; without them nothing is found.

A mutant that lives is a hole in the checker or in its scenario, and is mended there.
"""

from __future__ import annotations

import ast
import time

import pytest

from mutants.patching import copy_of, names, patched, says
from mutants.scenarios import TRIALS
from mutants.stage import Stage

pytestmark = pytest.mark.processes

SCENARIOS = sorted(
    {(trial.scenario, trial.store) for trial in TRIALS}, key=lambda one: (one[0].__name__, one[1])
)


def play(scenario, store, mutant, request, tmp_path):
    url = request.getfixturevalue(f"ready_{store}_url")
    stage = Stage(url, tmp_path, copy_of(mutant, tmp_path))
    began = time.monotonic()
    try:
        return scenario(stage), time.monotonic() - began
    finally:
        stage.close()


def test_every_mutant_applies_to_this_tree_and_says_what_is_wrong_with_it():
    assert len(names()) >= 16
    for name in names():
        assert says(name).endswith("."), name
        for path, text in patched(name):
            if path.endswith(".py"):
                ast.parse(text, path)


def test_every_mutant_is_tried():
    assert sorted(trial.mutant for trial in TRIALS) == names()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.mutant)
def test_a_defect_is_caught_from_outside(trial, request, tmp_path, table):
    report, seconds = play(trial.scenario, trial.store, trial.mutant, request, tmp_path)
    caught = ", ".join(f"{name} × {n}" for name, n in sorted(report.counts.items()))
    table.append(
        (trial.mutant, trial.store, trial.scenario.__name__, caught or "NOTHING: it lives", seconds)
    )
    assert trial.caught_by & report.counts.keys(), report.to_plain()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("scenario", "store"), SCENARIOS, ids=lambda one: getattr(one, "__name__", one)
)
def test_without_a_defect_the_same_scenario_breaks_nothing(
    scenario, store, request, tmp_path, table
):
    report, seconds = play(scenario, store, None, request, tmp_path)
    found = [f"{one.invariant}: {one.what} {dict(one.evidence)}" for one in report.violations]
    table.append(
        (
            f"(none) {scenario.__name__}",
            store,
            scenario.__name__,
            "; ".join(report.counts) or "–",
            seconds,
        )
    )
    assert report.jobs, "nothing happened at all"
    assert not found
