"""Messages: each event that somebody hears has one, and what receivers got are those. N1 to N5."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mulligan.core.durations import SECOND
from mulligan.core.event import Event, EventType
from mulligan.core.job import State
from mulligan.doctor.verify.case import Findings, JobCase, World, event_line, witness_line
from mulligan.doctor.verify.records import END, FAIL, Side, digest
from mulligan.doctor.verify.shared import events_of
from mulligan.guards.lanes import is_closed
from mulligan.manifest.specs import DELIVER_KIND
from mulligan.notifications.dispatcher import READER
from mulligan.notifications.message import derive_message_id
from mulligan.notifications.rules import SubscriptionIndex, is_internal
from mulligan.notifications.subscriptions import load_subscriptions
from mulligan.storage.base import Store, Transaction

# Once the faults have stopped: does everything come to its end? L1, L2, L4, N2. And what runs beside limits: S15.


def check_alive(case: JobCase, world: World, findings: Findings) -> None:
    row = case.row
    if row.state == State.QUEUED:
        _waits(case, world, findings)
    elif row.state == State.RUNNING:
        _runs(case, world, findings)


def _waits(case: JobCase, world: World, findings: Findings) -> None:
    row = case.row
    late = world.now - world.slack - row.run_at
    if late <= 0 or row.kind not in world.live_kinds or _held(case, world):
        return
    message = row.kind.startswith("mulligan.deliver")
    what = f"due for {(world.now - row.run_at) / SECOND:.1f} s, held by nothing, and a live worker knows its kind"
    _say(findings, "N2" if message else "L1", what, case)


def _held(case: JobCase, world: World) -> bool:
    row = case.row
    names = {
        ("queue", row.queue),
        ("kind", row.kind),
        *(("dependency", key) for key in row.uses.split(",") if key),
    }
    shut = any(
        (gate.scope, gate.key) in names and is_closed(gate, world.now) for gate in world.gates
    )
    return shut or bool(names & world.limited)


def _runs(case: JobCase, world: World, findings: Findings) -> None:
    row = case.row
    worker = world.workers.get(row.worker or "")
    if (worker is None or worker.closed_at is not None) and _older(case, world):
        _say(findings, "L2", f"it runs on {row.worker}, which is gone", case)
        return
    ended = next(
        (line for line in case.lines if line["token"] == row.token and line["what"] in (END, FAIL)),
        None,
    )
    if ended is not None and ended["at"] < world.now - world.slack:
        _say(
            findings,
            "L1",
            f"its handler came to its end with token {row.token}, and it is still running",
            case,
        )
        return
    limit = row.timeout or world.timeouts.get(row.kind)
    if limit and row.started_at and row.started_at + limit + world.slack < world.now:
        over = (world.now - row.started_at - limit) / SECOND
        _say(findings, "L1", f"it runs {over:.1f} s beyond its time limit", case)


def _older(case: JobCase, world: World) -> bool:
    return (case.row.started_at or 0) < world.now - world.slack


def _say(findings: Findings, invariant: str, what: str, case: JobCase) -> None:
    told = [event_line(event) for event in case.events[-6:]]
    findings.add(
        invariant,
        what,
        case.id,
        store=told,
        witness=[witness_line(line) for line in case.lines[-4:]],
    )


def check_breakers(world: World, findings: Findings) -> None:
    for gate in world.gates:
        if gate.scope == "dependency" and gate.actor == "breaker" and gate.probe_at is not None:
            late = world.now - world.slack - gate.probe_at
            if late > 0 and is_closed(gate, world.now) and world.live_kinds:
                what = f"dependency {gate.key} was to be tried again {late / SECOND:.1f} s ago"
                findings.add(
                    "L4", what, gate.key, store=[f"open since {gate.since}: {gate.reason}"]
                )


def check_told(store: Store, world: World, findings: Findings) -> None:
    """What somebody hears is told soon, wherever a worker lives."""
    if not world.live_kinds:
        return
    with store.snapshot() as unit:
        book, reader = load_subscriptions(unit, world.now), unit.get_reader(READER)
        after = max(world.gone, book.after, 0 if reader is None else reader.cursor)
        types = sorted(book.types & {kind.value for kind in EventType})
        waiting = unit.list_events_of_types(types, after, unit.newest_event(), 1) if types else []
    for event in waiting:
        if event.at < world.now - world.slack and any(True for _ in book.candidates(event)):
            findings.add(
                "N2",
                "somebody hears of this event, and it was not looked at yet",
                store=[event_line(event)],
            )


def check_limits(unit: Transaction, world: World, findings: Findings) -> None:
    """S15, as it is now: of jobs that began since an operator set a limit, no more run than it allows."""
    for limit in unit.list_limits():
        if limit.concurrency is None or (limit.until is not None and limit.until <= world.now):
            continue
        found = unit.count_running_since(limit.since)
        of = sum(
            n
            for queue, uses, n in found
            if limit.key in ((queue,) if limit.scope == "queue" else uses.split(","))
        )
        if of > limit.concurrency:
            what = f"{of} jobs run in {limit.scope} {limit.key}, whose limit is {limit.concurrency}"
            findings.add("S15", what, limit.key, store=[f"set {limit.since} by {limit.actor}"])


# Messages: each event that somebody hears has one, and what receivers got are those. N1 to N5.

OURS = "mulligan."


def gather_message(case: JobCase, side: Side) -> None:
    row = case.row
    if not row.kind.startswith(DELIVER_KIND):
        return
    payload = json.loads(row.payload)
    message = payload.get("message", {})
    body = digest(message)
    side.put(
        "delivery",
        [
            (
                str(message.get("id", "")),
                str(payload.get("subscription", "")),
                row.id,
                row.state,
                body,
            )
        ],
    )


def check_outbox(store: Store, world: World, side: Side, findings: Findings) -> None:
    sql = "SELECT message, subscription, min(job), max(job), count(*) AS n FROM delivery GROUP BY 1 HAVING n > 1"
    for message, subscription, first, last, n in side.ask(sql):
        findings.add(
            "N1",
            f"message {message} to {subscription} was enqueued {n} times: {first}, {last}",
            last,
        )
    with store.snapshot() as unit:
        reader, book, since = unit.get_reader(READER), _steady(unit, world), _pruned_at(unit)
    if reader is None or not len(book):
        return
    forgiven = int(json.loads(reader.body or "{}").get("lost", 0))
    for event in _heard_events(store, book, max(world.gone, book.after), reader.cursor):
        if event.at <= since:
            continue
        for one in book.candidates(event):
            if not one.matches(event, event.data) or one.groups_into_incident(event):
                continue
            if any(
                side.ask(
                    "SELECT 1 FROM delivery WHERE message = ?", derive_message_id(one.id, event.id)
                )
            ):
                continue
            forgiven -= 1
            if forgiven < 0:
                what = f"subscription {one.id} hears of this event, the log was read past it, and there is no message"
                findings.add("N1", what, event.job_id or one.id, store=[event_line(event)])


def _steady(unit: Transaction, world: World) -> SubscriptionIndex:
    """Subscriptions that are as they were begun: on, and never changed."""
    rows = {row.id for row in unit.list_subscriptions() if row.version == 1 and row.state == "on"}
    book = load_subscriptions(unit, world.now)
    return SubscriptionIndex(one for one in book.by_id.values() if one.id in rows)


def _pruned_at(unit: Transaction) -> int:
    """When messages were last removed by retention; those of later events are all there."""
    return max(
        (at for kind, at in unit.list_pruned_kinds() if kind.startswith(DELIVER_KIND)), default=0
    )


def _heard_events(store: Store, book: SubscriptionIndex, after: int, upto: int) -> Iterator[Event]:
    """With the kind of its job in the data of each, as who tells has it."""
    for event in events_of(store, sorted(book.types), after, upto):
        if event.job_id is not None and "kind" not in event.data:
            with store.snapshot() as unit:
                kind, queue = unit.get_kinds_and_queues([event.job_id]).get(event.job_id, ("", ""))
            event = event._replace(data={"kind": kind, "queue": queue, **event.data})  # noqa: PLW2901 - the same event
        if not is_internal(event.data):
            yield event


def check_received(store: Store, side: Side, findings: Findings) -> None:
    """N3, N4: what receivers say they got."""
    sql = (
        "SELECT id, count(DISTINCT json_extract(line, '$.body')) AS n FROM saw WHERE what = 'message' "
        "GROUP BY 1 HAVING n > 1"
    )
    for message, n in side.ask(sql):
        findings.add("N3", f"message {message} came with {n} different bodies", message)
    heard = "SELECT DISTINCT subscription FROM delivery JOIN saw ON saw.what = 'message' AND saw.id = delivery.message"
    sql = (
        f"SELECT message, job FROM delivery WHERE state = 'succeeded' AND subscription IN ({heard}) "
        "AND NOT EXISTS (SELECT 1 FROM saw WHERE what = 'message' AND id = message)"
    )
    for message, job in side.ask(sql):
        findings.add(
            "N3", f"message {message} is marked as delivered, and its receiver never got it", job
        )
    with store.snapshot() as unit:
        removed = _pruned_at(unit)
    sql = (
        "SELECT DISTINCT id, client FROM saw WHERE what = 'message' "
        "AND NOT EXISTS (SELECT 1 FROM delivery WHERE message = saw.id)"
    )
    for message, client in () if removed else side.ask(sql):
        findings.add("N4", f"{client} got message {message}, which nothing asked for", message)


def check_streams(store: Store, world: World, side: Side, findings: Findings) -> None:
    """N5: each follower of the log, over all its connections."""
    for (client,) in list(side.ask("SELECT DISTINCT client FROM saw WHERE what = 'event'")):
        lines = side.ask(
            "SELECT id, line FROM saw WHERE what = 'event' AND client = ? ORDER BY ns, rowid",
            client,
        )
        first = last = 0
        owner: str | None = None
        for number, line in lines:
            event = int(number)
            if event <= last:
                findings.add("N5", f"{client} got event {event} after event {last}", client)
            first, last, owner = first or event, event, json.loads(line).get("owner")
        _left_out(store, world, side, findings, client, (first, last), owner)


def _left_out(
    store: Store,
    world: World,
    side: Side,
    findings: Findings,
    client: str,
    span: tuple[int, int],
    owner: str | None,
) -> None:
    after, upto = max(span[0], world.gone), span[1]
    while after < upto:
        with store.snapshot() as unit:
            page = [event for event in unit.list_events_after(after, 500) if event.id <= upto]
        if not page:
            return
        for event in page:
            wanted = (
                event.type.startswith("job.")
                and owner in (None, event.owner)
                and not is_internal(event.data)
            )
            got = wanted and any(
                side.ask(
                    "SELECT 1 FROM saw WHERE what = 'event' AND id = ? AND client = ?",
                    str(event.id),
                    client,
                )
            )
            if wanted and not got and not _of_ours(store, event):
                findings.add(
                    "N5",
                    f"{client} never got event {event.id}",
                    event.job_id or client,
                    store=[event_line(event)],
                )
        after = page[-1].id


def _of_ours(store: Store, event: Event) -> bool:
    if event.job_id is None:
        return False
    with store.snapshot() as unit:
        kind, _ = unit.get_kinds_and_queues([event.job_id]).get(event.job_id, (OURS, ""))
    return kind.startswith(OURS)
