"""Test the invariant checker: it must detect each deliberate defect, and nothing without a defect.

If a mutant survives, the checker or its scenario has a gap: fix it there.
"""

from __future__ import annotations

import ast
import time

import pytest

from mutants.patching import copy_source, describe, names, patched
from mutants.scenarios import TRIALS
from mutants.stage import Stage

pytestmark = pytest.mark.processes

SCENARIOS = sorted(
    {(trial.scenario, trial.store) for trial in TRIALS}, key=lambda one: (one[0].__name__, one[1])
)


def run_scenario(scenario, store, mutant, request, tmp_path):
    url = request.getfixturevalue(f"ready_{store}_url")
    stage = Stage(url, tmp_path, copy_source(mutant, tmp_path))
    began = time.monotonic()
    try:
        return scenario(stage), time.monotonic() - began
    finally:
        stage.close()


def test_every_mutant_applies_and_describes_its_defect():
    assert len(names()) >= 16
    for name in names():
        assert describe(name).endswith("."), name
        for path, text in patched(name):
            if path.endswith(".py"):
                ast.parse(text, path)


def test_every_mutant_has_a_trial():
    assert sorted(trial.mutant for trial in TRIALS) == names()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.mutant)
def test_the_checker_detects_the_defect(trial, request, tmp_path, table):
    report, seconds = run_scenario(trial.scenario, trial.store, trial.mutant, request, tmp_path)
    caught = ", ".join(f"{name} × {n}" for name, n in sorted(report.counts.items()))
    table.append(
        (
            trial.mutant,
            trial.store,
            trial.scenario.__name__,
            caught or "NOTHING: it survived",
            seconds,
        )
    )
    assert trial.caught_by & report.counts.keys(), report.to_dict()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("scenario", "store"), SCENARIOS, ids=lambda one: getattr(one, "__name__", one)
)
def test_without_a_defect_the_scenario_breaks_no_invariant(
    scenario, store, request, tmp_path, table
):
    report, seconds = run_scenario(scenario, store, None, request, tmp_path)
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
    assert report.jobs, "the scenario created no jobs"
    assert not found
