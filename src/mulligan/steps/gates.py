"""Dependencies of a step: which of them is down."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries
from mulligan.steps.rules import ClosedGate
from mulligan.storage.base import Transaction


def find_closed_gate(tx: Transaction, keys: Sequence[str]) -> ClosedGate | None:
    """Return the first of these dependencies that is down."""
    now = tx.now()
    closed = {
        gate.key: gate
        for gate in GuardQueries(tx).list_gates()
        if gate.scope == "dependency" and is_closed(gate, now)
    }
    for key in keys:
        if key in closed:
            return ClosedGate(key, closed[key].reason)
    return None
