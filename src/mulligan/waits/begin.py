"""Begin the waits of settled attempts, in the transaction of the settlement."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mulligan.batches.children import begin_children
from mulligan.core.attempt import Decision, Ending
from mulligan.core.durations import Micros
from mulligan.core.waits import NEVER, WaitingFor
from mulligan.steps.rules import read_detail
from mulligan.storage.base import Transaction
from mulligan.waits.queries import WaitQueries, WaitRow

Decided = tuple[Ending, Decision]


def begin_waits(tx: Transaction, decided: Sequence[Decided], now: Micros) -> None:
    """Write what the jobs of these settled attempts wait for."""
    rows = [row for ending, decision in decided if (row := _begin_wait(tx, ending, decision, now))]
    if rows:
        WaitQueries(tx).begin_waits(rows)


def _begin_wait(tx: Transaction, ending: Ending, decision: Decision, now: Micros) -> WaitRow | None:
    wait = ending.outcome.wait
    if wait is None:
        return None
    lease = ending.lease
    until = None if decision.run_at == NEVER else decision.run_at
    detail = {"since": now, **read_detail(wait.detail), "until": until}
    if "children" in detail:
        batch = begin_children(tx, lease, wait.name, detail)
        detail |= {"batch": batch, "jobs": len(detail.pop("children"))}
    waits = WaitingFor(wait.kind, wait.name, until, detail.get("batch", "")).to_json()
    text = json.dumps(detail)
    return WaitRow(lease.id, lease.token, wait.name, wait.kind, wait.number, text, waits)
