"""Operations over many dead jobs: writing them down, moving them, and a turn that finds nothing to do."""

from __future__ import annotations

import time

from bench.groups import fill

from mulligan import Mulligan
from mulligan.operations import chore as operate

NO_RATE = 1_000_000  # items a second: as fast as it goes
IDLE = 50  # turns


def measure(app: Mulligan, jobs: int) -> dict[str, float]:
    """A third of the jobs is dead, about half of these of each cause."""
    fill(app, jobs)
    figures = {}
    for action, group in (("retry", "v2-one"), ("discard", "v2-two")):
        began = time.monotonic()
        begun = app.operations.start(
            action, f"group:{group}", steps=["rest"], rate=NO_RATE, reason="bench"
        )
        figures[f"{action}, written down, items/s"] = begun.total / (time.monotonic() - began)
        figures[f"{action}, moved, items/s"] = _measure_moves(app, begun.id)
    figures["a turn with nothing to do, ms"] = _measure_idle_turn(app)
    return figures


def _measure_moves(app: Mulligan, operation: str) -> float:
    began, moved, did = time.monotonic(), 0, operate.TurnResult()
    while (did := operate.run_turn(app.store, operation, previous=did)).sent:
        moved += did.sent
    assert moved == app.operations.get(operation).total
    return moved / (time.monotonic() - began)


def _measure_idle_turn(app: Mulligan) -> float:
    for operation in app.operations.list():
        if operation.under_way:
            app.operations.abort(operation.id)
    began = time.monotonic()
    for _ in range(IDLE):
        operate.run_operations(app.store)
    return (time.monotonic() - began) / IDLE * 1000
