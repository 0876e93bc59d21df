"""Read everything that must be equal on both stores. Times and ids are virtual, so they are included."""

from __future__ import annotations

import json
from typing import Any

from simulation.invariants import Ledger
from support.store import ATTEMPT_QUERY, EVENT_QUERY, unbundled

TABLES = {
    "job": "SELECT id, kind, queue, owner, state, priority, lane, uses, run_at, created_at, started_at, "
    "first_started_at, finished_at, deadline_at, worker, token, generation, attempt, failures, losses, snoozes, "
    "CAST(alone AS INTEGER), max_retries, unique_key, unique_hash, unique_cover, unique_until, batch_id, "
    "cancel_reason, choice, choices, reason, progress, progress_message, cost, error, result, counts, settings "
    "FROM {p}job ORDER BY id",
    "attempt": "SELECT job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, "  # noqa: S608
    "code, cls, rule, public, evidence, private, fingerprint, next_run_at, reason, cost, judged "
    f"FROM {ATTEMPT_QUERY} ORDER BY job_id, token",
    "checkpoint": "SELECT job_id, name, value, token FROM {p}step ORDER BY job_id, name",
    "gate": "SELECT scope, key, since, until, reason, actor FROM {p}gate ORDER BY scope, key",
    "worker": "SELECT id, renewed_at, closed_at, close_reason FROM {p}worker ORDER BY id",
    "guard": "SELECT scope, key, body FROM {p}guard ORDER BY scope, key",
    "batch": "SELECT b.id, b.sealed_at, b.cancelled_at, p.generation, p.outcome, p.outcome_at, p.previous, "
    "p.expired_at FROM {p}batch b JOIN {p}batch_progress p ON p.id = b.id ORDER BY b.id",
    "operation": "SELECT id, action, state, step, total, tallies, finished_at, note FROM {p}operation ORDER BY id",
    "item": "SELECT operation, place, job_id, state, outcome, message, ended_at FROM {p}operation_item "
    "ORDER BY operation, place",
    "schedule": "SELECT name, cursor FROM {p}schedule ORDER BY name",
    "slot": "SELECT schedule, slot, job_id FROM {p}slot ORDER BY schedule, slot",
    "pruned": "SELECT kind, state, owner, code, count FROM {p}pruned ORDER BY kind, state, owner, code, count",
    "stat": "SELECT * FROM {p}stat ORDER BY 1, 2, 3",
}


def tables(ledger: Ledger) -> dict[str, list[Any]]:
    return {name: [tuple(row) for row in ledger.query(text)] for name, text in TABLES.items()}


def events(ledger: Ledger) -> list[Any]:
    """Return the events, sorted per job: within a transaction the order across jobs is not defined."""
    rows = [(*row[1:-1], json.loads(row[-1])) for row in unbundled(ledger.query(EVENT_QUERY))]
    return sorted(rows, key=lambda event: (event[0], event[2] or "", event[3] or ""))
