"""After the last fault: remove all obstacles; every job must end within a bounded time."""

from __future__ import annotations

from contextlib import suppress

from mulligan.core.durations import SECOND
from mulligan.core.errors import MulliganError
from mulligan.core.lifecycle import TERMINAL
from mulligan.doctor.verify import verify
from simulation.invariants import check_invariant
from simulation.shop import HEARTBEAT
from simulation.stores import SimPostgres
from simulation.workers import Worker
from simulation.world import World

MAX_ROUNDS = 80
FINAL_ROUNDS = 3  # after a jump of the clock, messages wait until all workers have renewed
MAX_JUMP = 12 * 3600 * SECOND
SCHEDULES = ("often", "each", "never-late")


def drain(world: World) -> None:
    _remove_obstacles(world)
    for _ in range(MAX_ROUNDS):
        _run_round(world)
        world.ledger.check()
        if _is_finished(world):
            break
        _jump_to_next_due(world)
    left = [row for row in world.ledger.rows.values() if row.state not in TERMINAL]
    check_invariant(not left, "L1 every job ends", left)
    check_invariant(not _operations(world), "L1 every operation ends", _operations(world))
    for _ in range(FINAL_ROUNDS):
        _run_round(world)
    world.ledger.check()
    world.ledger.check_finished_batches()
    _check_messages(world)
    _check_with_doctor(world)


def _remove_obstacles(world: World) -> None:
    """Undo what only a person can undo: pauses, holds, limits, open breakers, paused operations."""
    app = world.app
    for worker in world.workers:
        worker.frozen = False
    for gate in sorted(world.ledger.gates(), key=lambda gate: (gate.scope, gate.key)):
        if gate.scope == "queue":
            app.queues.resume(gate.key)
        elif gate.scope == "kind":
            app.kinds.release(gate.key)
    for scope, key in world.ledger.query("SELECT scope, key FROM {p}limits ORDER BY scope, key"):
        (app.queues if scope == "queue" else app.dependencies).clear(key)
    for key in sorted({gate.key for gate in world.ledger.gates() if gate.scope == "dependency"}):
        app.dependencies.close(key)
    for operation in world.operations:
        with suppress(MulliganError):
            app.operations.resume(operation)
    for name in SCHEDULES:
        with suppress(MulliganError):
            app.schedules.pause(name, reason="the end")
    world.ledger.check()


def _run_round(world: World) -> None:
    """Run one heartbeat of a healthy fleet in which every attempt succeeds."""
    world.advance(HEARTBEAT)
    world.beat()
    for worker in world.workers:
        _run_worker(world, worker)
    first = world.workers[0]
    first.chores.sweep(first.id)
    first.chores.run_operations()
    for task in world.periodic_tasks:
        while task.run_once(world.store):
            pass
    _release_jobs(world)


def _run_worker(world: World, worker: Worker) -> None:
    if worker.stopping and not worker.flights:
        worker.leave()
        world.replace(worker)
        return
    while worker.flights:
        worker.end(0, "returned")
    worker.turns.check_dependencies([], fold=True)
    worker.turn(4, hinted=False)


def _release_jobs(world: World) -> None:
    """Release parked jobs and held kinds, as a person would."""
    for row in world.ledger.rows.values():
        if row.state == "parked":
            with suppress(MulliganError):
                world.app.jobs.release(row.id, reason="released")
    for gate in sorted(world.ledger.gates(), key=lambda gate: (gate.scope, gate.key)):
        if gate.scope == "kind":
            world.app.kinds.release(gate.key)


def _operations(world: World) -> list[str]:
    return [row[0] for row in world.ledger.query("SELECT id FROM {p}operation WHERE active")]


def _is_finished(world: World) -> bool:
    return all(row.state in TERMINAL for row in world.ledger.rows.values()) and not _operations(
        world
    )


def _jump_to_next_due(world: World) -> None:
    """If no job runs and none is due, move the clock to the next due time."""
    rows = world.ledger.rows.values()
    if any(row.state == "running" for row in rows):
        return
    waits = [row.run_at for row in rows if row.state == "queued"]
    now = world.clock.wall
    if waits and min(waits) > now + HEARTBEAT * SECOND:
        world.advance(min(min(waits) - now, MAX_JUMP) / SECOND - HEARTBEAT)


def _check_messages(world: World) -> None:
    """N1: one message per death and per failed or partial batch, and no other."""
    ledger = world.ledger
    wanted = (
        ledger.event_counts["job.died"]
        + ledger.event_counts["batch.partial"]
        + ledger.event_counts["batch.failed"]
    )
    check_invariant(
        ledger.messages["mulligan.deliver.each"] == wanted,
        "N1 one message each",
        ledger.messages,
        ledger.event_counts,
    )


def _check_with_doctor(world: World) -> None:
    """Run `doctor --verify` on the history. It assumes that a server's clock never goes back."""
    if world.clock_set_back and isinstance(world.store, SimPostgres):
        return
    report = verify(world.store, settled=True, settings=world.settings)
    found = [(one.invariant, one.what, one.subject, one.evidence) for one in report.violations]
    check_invariant(report.ok, f"checker {' '.join(sorted(report.counts))}", found[:3])
