"""Plan the faults of a storm. Pure: one seed gives one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

FIRST_FAULT_AT = 3.0  # seconds before the first fault


class Fault(NamedTuple):
    """A planned fault."""

    at: float  # seconds after the start
    kind: str
    seed: int  # for the fault's own choices: which process, how long


def plan(seed: int, seconds: float, weights: Mapping[str, float], every: float) -> list[Fault]:
    """Plan about one fault per `every` seconds. Each kind comes once, then kinds are weighted."""
    rng = Random(seed)
    kinds = each_kind_once(rng, weights, seconds, every)
    faults, at = [], FIRST_FAULT_AT
    while at < seconds:
        kind = kinds.pop() if kinds else rng.choices(list(weights), list(weights.values()))[0]
        faults.append(Fault(round(at, 2), kind, rng.randrange(2**32)))
        at += rng.uniform(0.4, 1.6) * every
    return faults


def each_kind_once(
    rng: Random, weights: Mapping[str, float], seconds: float, every: float
) -> list[str]:
    """Return every kind once in random order; nothing if there is too little time for all."""
    once = sorted(weights)
    rng.shuffle(once)
    return once if len(once) * every < seconds * 0.8 else []


def count_faults(faults: Sequence[Fault]) -> dict[str, int]:
    return {
        kind: sum(fault.kind == kind for fault in faults)
        for kind in sorted({fault.kind for fault in faults})
    }
