"""Messages: each event that somebody hears has one, and what receivers got are those. N1 to N5."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mulligan.engine.kinds import DELIVER_KIND
from mulligan.event import Event
from mulligan.notify.dispatch import READER
from mulligan.notify.message import message_id
from mulligan.notify.subscribed import read_book
from mulligan.policy.subscription import Book, is_ours
from mulligan.store.base import Store, Unit
from mulligan.verify.case import Case, World
from mulligan.verify.finding import Findings, event_line
from mulligan.verify.records import digest
from mulligan.verify.side import Side
from mulligan.verify.together import events_of

OURS = "mulligan."


def gather_message(case: Case, side: Side) -> None:
    row = case.row
    if not row.kind.startswith(DELIVER_KIND):
        return
    payload = json.loads(row.payload)
    message = payload.get("message", {})
    body = digest(message)
    side.put("delivery", [(str(message.get("id", "")), str(payload.get("subscription", "")), row.id, row.state, body)])


def check_outbox(store: Store, world: World, side: Side, findings: Findings) -> None:
    sql = "SELECT message, subscription, min(job), max(job), count(*) AS n FROM delivery GROUP BY 1 HAVING n > 1"
    for message, subscription, first, last, n in side.ask(sql):
        findings.add("N1", f"message {message} to {subscription} was enqueued {n} times: {first}, {last}", last)
    with store.snapshot() as unit:
        reader, book, since = unit.reader_at(READER), _steady(unit, world), _pruned_at(unit)
    if reader is None or not len(book):
        return
    forgiven = int(json.loads(reader.body or "{}").get("lost", 0))
    for event in _heard_events(store, book, max(world.gone, book.after), reader.cursor):
        if event.at <= since:
            continue
        for one in book.may_hear(event):
            if not one.hears(event, event.data) or one.folds(event):
                continue
            if any(side.ask("SELECT 1 FROM delivery WHERE message = ?", message_id(one.id, event.id))):
                continue
            forgiven -= 1
            if forgiven < 0:
                what = f"subscription {one.id} hears of this event, the log was read past it, and there is no message"
                findings.add("N1", what, event.job_id or one.id, store=[event_line(event)])


def _steady(unit: Unit, world: World) -> Book:
    """Subscriptions that are as they were begun: on, and never changed."""
    rows = {row.id for row in unit.subscriptions() if row.version == 1 and row.state == "on"}
    book = read_book(unit, world.now)
    return Book(one for one in book.by_id.values() if one.id in rows)


def _pruned_at(unit: Unit) -> int:
    """When messages were last removed by retention; those of later events are all there."""
    return max((at for kind, at in unit.pruned_kinds() if kind.startswith(DELIVER_KIND)), default=0)


def _heard_events(store: Store, book: Book, after: int, upto: int) -> Iterator[Event]:
    """With the kind of its job in the data of each, as who tells has it."""
    for event in events_of(store, sorted(book.types), after, upto):
        if event.job_id is not None and "kind" not in event.data:
            with store.snapshot() as unit:
                kind, queue = unit.kinds_of([event.job_id]).get(event.job_id, ("", ""))
            event = event._replace(data={"kind": kind, "queue": queue, **event.data})  # noqa: PLW2901 - the same event
        if not is_ours(event.data):
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
        findings.add("N3", f"message {message} is marked as delivered, and its receiver never got it", job)
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
        lines = side.ask("SELECT id, line FROM saw WHERE what = 'event' AND client = ? ORDER BY ns, rowid", client)
        first = last = 0
        owner: str | None = None
        for number, line in lines:
            event = int(number)
            if event <= last:
                findings.add("N5", f"{client} got event {event} after event {last}", client)
            first, last, owner = first or event, event, json.loads(line).get("owner")
        _left_out(store, world, side, findings, client, (first, last), owner)


def _left_out(
    store: Store, world: World, side: Side, findings: Findings, client: str, span: tuple[int, int], owner: str | None
) -> None:
    after, upto = max(span[0], world.gone), span[1]
    while after < upto:
        with store.snapshot() as unit:
            page = [event for event in unit.events_after(after, 500) if event.id <= upto]
        if not page:
            return
        for event in page:
            wanted = event.type.startswith("job.") and owner in (None, event.owner) and not is_ours(event.data)
            got = wanted and any(
                side.ask("SELECT 1 FROM saw WHERE what = 'event' AND id = ? AND client = ?", str(event.id), client)
            )
            if wanted and not got and not _of_ours(store, event):
                findings.add(
                    "N5", f"{client} never got event {event.id}", event.job_id or client, store=[event_line(event)]
                )
        after = page[-1].id


def _of_ours(store: Store, event: Event) -> bool:
    if event.job_id is None:
        return False
    with store.snapshot() as unit:
        kind, _ = unit.kinds_of([event.job_id]).get(event.job_id, (OURS, ""))
    return kind.startswith(OURS)
