"""After the last fault: everything is healed, and within a bounded time every job ends. What does not is stuck."""

from __future__ import annotations

from contextlib import suppress

from mulligan.core.durations import SECOND
from mulligan.core.errors import MulliganError
from mulligan.core.lifecycle import TERMINAL
from mulligan.doctor.verify import verify
from simulation.invariants import must
from simulation.shop import HEARTBEAT
from simulation.stores import SimPostgres
from simulation.workers import Worker
from simulation.world import World

ROUNDS = 80
LAST_WORDS = 3  # rounds: after a leap of the clock messages wait until all workers have said that they are here
FAR = 12 * 3600 * SECOND
SCHEDULES = ("often", "each", "never-late")


def drain(world: World) -> None:
    _heal(world)
    for _ in range(ROUNDS):
        _round(world)
        world.ledger.check()
        if _quiet(world):
            break
        _go_to_the_next(world)
    left = [row for row in world.ledger.rows.values() if row.state not in TERMINAL]
    must(not left, "L1 every job ends", left)
    must(not _operations(world), "L1 every operation ends", _operations(world))
    for _ in range(LAST_WORDS):
        _round(world)
    world.ledger.check()
    world.ledger.quiet_batches()
    _told(world)
    _verified(world)


def _heal(world: World) -> None:
    """What only a person can end, a person ends."""
    app = world.app
    for worker in world.workers:
        worker.frozen = False
    for gate in world.ledger.gates():
        if gate.scope == "queue":
            app.queues.resume(gate.key)
        elif gate.scope == "kind":
            app.kinds.release(gate.key)
    for scope, key in world.ledger.ask("SELECT scope, key FROM {p}limits"):
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


def _round(world: World) -> None:
    """One heartbeat of a healthy fleet in which everything that runs succeeds."""
    world.passes(HEARTBEAT)
    world.beat()
    for worker in world.workers:
        _works(world, worker)
    first = world.workers[0]
    first.chores.sweep(first.id)
    first.chores.run_operations()
    for outlet in world.outlets:
        while outlet.run_once(world.store):
            pass
    _by_hand(world)


def _works(world: World, worker: Worker) -> None:
    if worker.stopping and not worker.flights:
        worker.leave()
        world.replace(worker)
        return
    while worker.flights:
        worker.end(0, "returned")
    worker.turns.check_dependencies([], idle=True)
    worker.turn(4, hinted=False)


def _by_hand(world: World) -> None:
    """Who is parked or held waits for a person."""
    for row in world.ledger.rows.values():
        if row.state == "parked":
            with suppress(MulliganError):
                world.app.jobs.release(row.id, reason="go on")
    for gate in world.ledger.gates():
        if gate.scope == "kind":
            world.app.kinds.release(gate.key)


def _operations(world: World) -> list[str]:
    return [row[0] for row in world.ledger.ask("SELECT id FROM {p}operation WHERE active")]


def _quiet(world: World) -> bool:
    return all(row.state in TERMINAL for row in world.ledger.rows.values()) and not _operations(
        world
    )


def _go_to_the_next(world: World) -> None:
    """Where nothing runs and nothing is due, nobody need live through the time until something is."""
    rows = world.ledger.rows.values()
    if any(row.state == "running" for row in rows):
        return
    waits = [row.run_at for row in rows if row.state == "queued"]
    now = world.clock.wall
    if waits and min(waits) > now + HEARTBEAT * SECOND:
        world.passes(min(min(waits) - now, FAR) / SECOND - HEARTBEAT)


def _told(world: World) -> None:
    """N1: of every death and every poor end of a batch one message, and no other."""
    ledger = world.ledger
    wanted = ledger.told["job.died"] + ledger.told["batch.partial"] + ledger.told["batch.failed"]
    must(
        ledger.messages["mulligan.deliver.each"] == wanted,
        "N1 one message each",
        ledger.messages,
        ledger.told,
    )


def _verified(world: World) -> None:
    """What the checker of users makes of the same history. It believes that a server's clock never goes back."""
    if world.set_back and isinstance(world.store, SimPostgres):
        return
    report = verify(world.store, settled=True, settings=world.settings)
    found = [(one.invariant, one.what, one.subject, one.evidence) for one in report.violations]
    must(report.ok, f"checker {' '.join(sorted(report.counts))}", found[:3])
