"""Play a script on a store: check everything after each step, then drain all jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

from simulation import draining, picture
from simulation.invariants import Broken
from simulation.steps import do
from simulation.stores import AT_COMMIT, Fault
from simulation.world import Home, World

Step = tuple[str, int, int, int, int]  # name, three numbers, fault
Script = Sequence[Step]
FAULTS = (
    None,
    Fault(1, 0),
    Fault(1, 1),
    Fault(1, 2),
    Fault(1, 4),
    Fault(1, AT_COMMIT),
    Fault(1, None),
    Fault(2, 1),
    Fault(2, AT_COMMIT),
    Fault(2, None),
    Fault(3, None),
)


class Played(NamedTuple):
    answers: list[Any]
    events: list[Any]
    tables: dict[str, list[Any]]


def play(home: Home, script: Script) -> Played:
    home.store.clock.reset()
    world = World(home)
    answers = []
    for number, (name, a, b, c, fault) in enumerate(script):
        with _noted(number, name):
            world.start_step(number + 1)
            home.store.arm(FAULTS[fault % len(FAULTS)])
            answers.append((name, do(world, name, a, b, c)))
            home.store.arm(None)
            world.ledger.check()
    with _noted(len(script), "drain"):
        world.start_step(len(script) + 1)
        draining.drain(world)
    return Played(answers, picture.events(world.ledger), picture.tables(world.ledger))


@contextmanager
def _noted(number: int, name: str) -> Iterator[None]:
    """Add the step to the message of an exception."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in step {number}: {name}")
        raise


def compare(one: Played, other: Played) -> None:
    """Check that two stores gave the same answers, events and tables."""
    _check_equal("answers", one.answers, other.answers)
    _check_equal("events", one.events, other.events)
    for table, rows in one.tables.items():
        _check_equal(f"table {table}", rows, other.tables[table])


def _check_equal(what: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    for place, (first, second) in enumerate(zip_longest(one, other)):
        if first != second:
            raise Broken(f"D2 the stores differ in {what}: place {place}\n  {first}\n  {second}")


def write_script(script: Script) -> str:
    """Return the script as text, without steps that do nothing."""
    return json.dumps([list(step) for step in script if step[0] != "rest"], separators=(",", ":"))


def read_script(text: str) -> list[Step]:
    return [tuple(step) for step in json.loads(text)]
