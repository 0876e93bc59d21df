"""Once the faults have stopped: does everything come to its end? L1, L2, L4, N2. And what runs beside limits: S15."""

from __future__ import annotations

from mulligan.event import EventType
from mulligan.job import SECOND, State
from mulligan.notify.dispatch import READER
from mulligan.notify.subscribed import read_book
from mulligan.policy.lanes import is_closed
from mulligan.store.base import Store, Unit
from mulligan.verify.case import Case, World
from mulligan.verify.finding import Findings, event_line, witness_line
from mulligan.verify.records import END, FAIL


def check_alive(case: Case, world: World, findings: Findings) -> None:
    row = case.row
    if row.state == State.QUEUED:
        _waits(case, world, findings)
    elif row.state == State.RUNNING:
        _runs(case, world, findings)


def _waits(case: Case, world: World, findings: Findings) -> None:
    row = case.row
    late = world.now - world.slack - row.run_at
    if late <= 0 or row.kind not in world.live_kinds or _held(case, world):
        return
    message = row.kind.startswith("mulligan.deliver")
    what = f"due for {(world.now - row.run_at) / SECOND:.1f} s, held by nothing, and a live worker knows its kind"
    _say(findings, "N2" if message else "L1", what, case)


def _held(case: Case, world: World) -> bool:
    row = case.row
    names = {("queue", row.queue), ("kind", row.kind), *(("dependency", key) for key in row.uses.split(",") if key)}
    shut = any((gate.scope, gate.key) in names and is_closed(gate, world.now) for gate in world.gates)
    return shut or bool(names & world.limited)


def _runs(case: Case, world: World, findings: Findings) -> None:
    row = case.row
    worker = world.workers.get(row.worker or "")
    if (worker is None or worker.closed_at is not None) and _older(case, world):
        _say(findings, "L2", f"it runs on {row.worker}, which is gone", case)
        return
    ended = next((line for line in case.lines if line["token"] == row.token and line["what"] in (END, FAIL)), None)
    if ended is not None and ended["at"] < world.now - world.slack:
        _say(findings, "L1", f"its handler came to its end with token {row.token}, and it is still running", case)
        return
    limit = row.timeout or world.timeouts.get(row.kind)
    if limit and row.started_at and row.started_at + limit + world.slack < world.now:
        over = (world.now - row.started_at - limit) / SECOND
        _say(findings, "L1", f"it runs {over:.1f} s beyond its time limit", case)


def _older(case: Case, world: World) -> bool:
    return (case.row.started_at or 0) < world.now - world.slack


def _say(findings: Findings, invariant: str, what: str, case: Case) -> None:
    told = [event_line(event) for event in case.events[-6:]]
    findings.add(invariant, what, case.id, store=told, witness=[witness_line(line) for line in case.lines[-4:]])


def check_breakers(world: World, findings: Findings) -> None:
    for gate in world.gates:
        if gate.scope == "dependency" and gate.actor == "breaker" and gate.probe_at is not None:
            late = world.now - world.slack - gate.probe_at
            if late > 0 and is_closed(gate, world.now) and world.live_kinds:
                what = f"dependency {gate.key} was to be tried again {late / SECOND:.1f} s ago"
                findings.add("L4", what, gate.key, store=[f"open since {gate.since}: {gate.reason}"])


def check_told(store: Store, world: World, findings: Findings) -> None:
    """What somebody hears is told soon, wherever a worker lives."""
    if not world.live_kinds:
        return
    with store.snapshot() as unit:
        book, reader = read_book(unit, world.now), unit.reader_at(READER)
        after = max(world.gone, book.after, 0 if reader is None else reader.cursor)
        types = sorted(book.types & {kind.value for kind in EventType})
        waiting = unit.events_of(types, after, unit.newest_event(), 1) if types else []
    for event in waiting:
        if event.at < world.now - world.slack and any(True for _ in book.may_hear(event)):
            findings.add("N2", "somebody hears of this event, and it was not looked at yet", store=[event_line(event)])


def check_limits(unit: Unit, world: World, findings: Findings) -> None:
    """S15, as it is now: of jobs that began since an operator set a limit, no more run than it allows."""
    for limit in unit.limits():
        if limit.concurrency is None or (limit.until is not None and limit.until <= world.now):
            continue
        found = unit.running_since(limit.since)
        of = sum(
            n for queue, uses, n in found if limit.key in ((queue,) if limit.scope == "queue" else uses.split(","))
        )
        if of > limit.concurrency:
            what = f"{of} jobs run in {limit.scope} {limit.key}, whose limit is {limit.concurrency}"
            findings.add("S15", what, limit.key, store=[f"set {limit.since} by {limit.actor}"])
