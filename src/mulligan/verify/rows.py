"""What one row alone must look like: S10, S11. The schema refuses most of it, but can be changed by hand."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.job import SECOND, State, WorkerRow
from mulligan.verify.case import Case, World
from mulligan.verify.finding import Findings

AHEAD = 5 * SECOND


def check_row(case: Case, findings: Findings) -> None:
    row = case.row
    facts = f"state {row.state}, worker {row.worker}, token {row.token}, attempt {row.attempt}"
    for invariant, what in _wrong(case):
        findings.add(invariant, what, row.id, store=[facts])


def _wrong(case: Case) -> Iterator[tuple[str, str]]:
    row, running = case.row, case.row.state == State.RUNNING
    ended = row.state in {State.SUCCEEDED, State.DEAD, State.CANCELLED}
    if running != (row.worker is not None):
        yield "S10", "it has a lease and does not run" if row.worker else "it runs and has no lease"
    if running and row.started_at is None:
        yield "S10", "it runs, and has not started"
    if row.result is not None and row.state != State.SUCCEEDED:
        yield "S11", f"it has a result and is {row.state}"
    if (row.error is not None) != (row.state == State.DEAD):
        yield "S11", f"it is {row.state} and its final error is {'set' if row.error else 'missing'}"
    if (row.finished_at is not None) != ended:
        yield "S11", f"it is {row.state} and finished_at is {row.finished_at}"
    if row.choices is not None and row.state != State.PARKED:
        yield "S11", f"it offers choices and is {row.state}"
    cover = (row.unique_cover or "").split(",")
    if row.unique_hash is not None and row.state not in cover:
        yield "S11", f"it holds its unique key while {row.state}, which its key does not cover"
    if row.attempt > row.token:
        yield "S11", f"attempt {row.attempt} of token {row.token}"


def check_worker(worker: WorkerRow, world: World, findings: Findings) -> None:
    """A lease is judged by one clock, so it must have been written by it: the server's."""
    if not world.one_clock:
        return
    evidence = [f"started {worker.started_at}, renewed {worker.renewed_at}, closed {worker.closed_at}, now {world.now}"]
    if worker.renewed_at < worker.started_at:
        ago = (worker.started_at - worker.renewed_at) / SECOND
        findings.add("S10", f"its lease was renewed {ago:.3f} s before it began", worker.id, store=evidence)
    if worker.renewed_at > world.now + AHEAD:
        ahead = (worker.renewed_at - world.now) / SECOND
        findings.add("S10", f"its lease was renewed {ahead:.3f} s ahead of the clock", worker.id, store=evidence)
