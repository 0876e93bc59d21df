"""A script is played on a store: step by step, with everything checked after each, then healed and drained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

from simulation import draining, picture
from simulation.invariants import Broken
from simulation.steps import do
from simulation.stores import AT_THE_END, Fault
from simulation.world import Home, World

Step = tuple[str, int, int, int, int]  # name, three numbers, fault
Script = Sequence[Step]
FAULTS = (
    None,
    Fault(1, 0),
    Fault(1, 1),
    Fault(1, 2),
    Fault(1, 4),
    Fault(1, AT_THE_END),
    Fault(1, None),
    Fault(2, 1),
    Fault(2, AT_THE_END),
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
        with _in(number, name):
            world.turn_over(number + 1)
            home.store.arm(FAULTS[fault % len(FAULTS)])
            answers.append((name, do(world, name, a, b, c)))
            home.store.arm(None)
            world.ledger.check()
    with _in(len(script), "drain"):
        world.turn_over(len(script) + 1)
        draining.drain(world)
    return Played(answers, picture.events(world.ledger), picture.tables(world.ledger))


@contextmanager
def _in(number: int, name: str) -> Iterator[None]:
    """Where it was, for whoever reads of it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in step {number}: {name}")
        raise


def compare(one: Played, other: Played) -> None:
    """Both stores were told the same and told the same."""
    _same("answers", one.answers, other.answers)
    _same("events", one.events, other.events)
    for table, rows in one.tables.items():
        _same(f"table {table}", rows, other.tables[table])


def _same(what: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    for place, (first, second) in enumerate(zip_longest(one, other)):
        if first != second:
            raise Broken(f"D2 the stores differ in {what}: place {place}\n  {first}\n  {second}")


def written(script: Script) -> str:
    """As it can be given back; rests are left out."""
    return json.dumps([list(step) for step in script if step[0] != "rest"], separators=(",", ":"))


def read(text: str) -> list[Step]:
    return [tuple(step) for step in json.loads(text)]
