"""What happens when: a plan drawn from a seed. Pure, so that one seed is one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

QUIET = 3.0  # seconds before the first fault


class Fault(NamedTuple):
    at: float  # seconds after the start
    kind: str
    seed: int  # what the fault itself draws from: whom, how long


def plan(seed: int, seconds: float, weights: Mapping[str, float], every: float) -> list[Fault]:
    """About one fault every so many seconds; each kind comes once before any comes by its weight alone."""
    rng = Random(seed)
    kinds = first_of_all(rng, weights, seconds, every)
    faults, at = [], QUIET
    while at < seconds:
        kind = kinds.pop() if kinds else rng.choices(list(weights), list(weights.values()))[0]
        faults.append(Fault(round(at, 2), kind, rng.randrange(2**32)))
        at += rng.uniform(0.4, 1.6) * every
    return faults


def first_of_all(
    rng: Random, weights: Mapping[str, float], seconds: float, every: float
) -> list[str]:
    """Every kind once, in a drawn order, if there is time for all of them."""
    once = sorted(weights)
    rng.shuffle(once)
    return once if len(once) * every < seconds * 0.8 else []


def counted(faults: Sequence[Fault]) -> dict[str, int]:
    return {
        kind: sum(fault.kind == kind for fault in faults)
        for kind in sorted({fault.kind for fault in faults})
    }
