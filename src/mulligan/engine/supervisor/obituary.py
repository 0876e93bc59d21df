"""What is said of a runner that is gone, and what is left to clean up after it."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.engine.life import surely_kill_marked
from mulligan.engine.supervisor.child import Child, Death, Flight, Recipe
from mulligan.engine.workdirs import remove_workdir

LOAD_LIMIT_NS = 600_000_000_000  # importing the app and its on_start may take this long
LEAVE_NS = 10_000_000_000  # `on_stop` may take this long


def left_over(child: Child, now_ns: int) -> bool:
    """Told to leave and still there, or never there at all."""
    gone = child.doomed_ns and not child.flights and now_ns - child.doomed_ns > LEAVE_NS
    return bool(gone) or (not child.ready and now_ns - child.born_ns > LOAD_LIMIT_NS)


def facts(death: Death) -> dict[str, int]:
    facts = {"signal": death.signal, "exit_code": death.exit_code}
    return {name: value for name, value in facts.items() if value is not None}


def how(death: Death) -> str:
    return f"signal {death.signal}" if death.signal is not None else f"exit code {death.exit_code}"


def clean(recipe: Recipe, mark: str, lost: Sequence[Flight]) -> None:
    surely_kill_marked(mark)
    for flight in lost:
        remove_workdir(recipe.folder, flight.lease)
