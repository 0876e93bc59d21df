"""Random scripts on real stores under a virtual clock. `make simulate` plays thousands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings

from mulligan.batches import completion as batching
from mulligan.storage.statements import load_positional
from mulligan.worker import upkeep
from simulation.play import Script, play, read_script, write_script
from simulation.runs import find_failure, script_of, shorten, stores
from simulation.scripts import scripts
from simulation.steps import SPANS, STEPS
from simulation.world import Home


@pytest.fixture(scope="module")
def sqlite() -> Iterator[list[Home]]:
    with stores(["sqlite"]) as homes:
        yield homes


def check_script(homes: list[Home], script: Script) -> None:
    found = find_failure(homes, script)
    assert found is None, f"{found.trace}\n{write_script(shorten(homes, script, found).script)}"


@pytest.mark.parametrize("seed", range(1, 16))
def test_every_job_ends_once_in_a_random_script(sqlite, seed):
    check_script(sqlite, script_of(seed))


# Scripts that found defects: workers that started after the clock was set back were declared lost,
# a refusal came before the injected fault on one store and after it on the other, a worker was
# declared lost at the very end of its lease, limits were listed in no fixed order, a worker that
# renewed a little late after the clock was set forth was declared lost, and messages waited until a
# clock that had jumped ahead and was set back showed the wrong time again.
CLOCK_SET_BACK = (
    '[["wait",38,24,55,0],["kill",3,25,11,0],["set the clock",33,35,22,0],["sweep",6,7,41,0]]'
)
REFUSED_WHILE_UNAVAILABLE = '[["batch",48,28,11,0],["change a batch",53,14,15,3]]'
RENEWED_AT_THE_LAST_INSTANT = (
    '[["freeze",38,52,34,0],["sweep",42,25,54,0],["wait",53,53,29,0],["wait",28,48,27,0]]'
)
CLOCK_SET_FORTH = (
    '[["wait",57,34,25,0],["sweep",48,20,16,0],["set the clock",47,39,38,0],["wait",27,17,56,7]]'
)
CLOCK_CORRECTED = (
    '[["enqueue",12,47,48,0],["wait",38,24,55,0],["run a periodic task",39,21,27,0],'
    '["set the clock",33,35,22,0],["turn",1,17,31,0],["turn",28,21,13,0]]'
)
TWO_LIMITS = '[["change a queue",35,41,21,0],["change a dependency",50,51,19,0]]'
FOUND = (
    CLOCK_CORRECTED,
    CLOCK_SET_BACK,
    CLOCK_SET_FORTH,
    REFUSED_WHILE_UNAVAILABLE,
    RENEWED_AT_THE_LAST_INSTANT,
    TWO_LIMITS,
)


@pytest.mark.timeout(240)  # hundreds of synced commits
def test_both_stores_give_the_same_results():
    with stores(["sqlite", "postgres"]) as homes:
        for text in FOUND:
            check_script(homes, read_script(text))
        for seed in range(100, 104):
            check_script(homes, script_of(seed))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_stores_give_the_same_results_for_many_scripts():
    with stores(["sqlite", "postgres"]) as homes:

        @settings(
            max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(scripts)
        def compare_stores(script: Script) -> None:
            check_script(homes, script)

        compare_stores()


def test_a_script_is_reproducible(sqlite):
    (home,) = sqlite
    assert play(home, script_of(3)) == play(home, script_of(3))


def test_a_script_can_be_serialised_and_read_back():
    script = script_of(4)
    assert read_script(write_script(script)) == [step for step in script if step[0] != "rest"]
    assert {name for name, *_ in script} <= STEPS.keys()


# -- Detection of defects ------------------------------------------------------------------
WAIT = SPANS.index(31)
RUN: Script = [("enqueue", 0, 0, 0, 0), ("turn", 0, 0, 0, 0)]
FROZEN: Script = [
    ("freeze", 0, 0, 0, 0),
    ("wait", WAIT, 0, 0, 0),
    ("turn", 1, 0, 0, 0),
    ("settle late", 0, 0, 0, 0),
]


def _without_token(verb: str, prefix: str, names: tuple[str, ...]) -> tuple[str, Any]:
    text, of_row = load_positional(verb, prefix, names)
    return re.sub(
        r"AND worker = (\?\d+) AND token = (\?\d+)", r"AND (1 OR \1 OR \2)", text
    ), of_row  # every parameter stays bound


DEFECTS: dict[str, tuple[Any, Script, str]] = {
    "an ending without its token": (
        patch("mulligan.storage.sqlite.load_positional", _without_token),
        [*RUN, *FROZEN],
        "S7",
    ),
    "lost jobs are not recovered": (
        patch.object(upkeep, "settle_orphans", lambda *_: []),
        [*RUN, ("kill", 0, 0, 0, 0)],
        "L1",
    ),
    "batches never complete": (
        patch.object(batching, "complete_batches", lambda *_, **__: None),
        [("batch", 0, 0, 0, 0), ("seal", 0, 0, 1, 0)],
        "L1",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_engine_is_detected(sqlite, defect):
    broken, script, name = DEFECTS[defect]
    check_script(sqlite, script)
    with broken:
        found = find_failure(sqlite, script)
    assert found is not None
    assert found.name.startswith(name)


def test_a_failing_script_is_shorten(sqlite):
    broken, script, _ = DEFECTS["batches never complete"]
    longer = [*script_of(5)[:6], *script]
    with broken:
        found = find_failure(sqlite, longer)
        assert found is not None
        short = shorten(sqlite, longer, found)
    assert short.name == found.name
    assert len(json.loads(write_script(short.script))) <= 4
