"""Measure operations over many dead jobs: gathering, moving, and an idle turn."""

from __future__ import annotations

import time

from bench.groups import fill

from mulligan import Mulligan
from mulligan.operations import chore as operations

NO_RATE = 1_000_000  # items per second: no limit
IDLE = 50  # turns


def measure(app: Mulligan, jobs: int) -> dict[str, float]:
    """Retry and discard dead jobs. A third of the jobs is dead, half of each cause."""
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
    began = time.monotonic()
    moved = 0
    turn = operations.TurnResult()
    while (turn := operations.run_turn(app.store, operation, previous=turn)).sent:
        moved += turn.sent
    assert moved == app.operations.get(operation).total
    return moved / (time.monotonic() - began)


def _measure_idle_turn(app: Mulligan) -> float:
    for operation in app.operations.list():
        if operation.under_way:
            app.operations.abort(operation.id)
    began = time.monotonic()
    for _ in range(IDLE):
        operations.run_operations(app.store)
    return (time.monotonic() - began) / IDLE * 1000
