"""Check that work completes (L1, L2, L4, N2), limits (S15) and notifications (N1 to N5)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mulligan.core.durations import SECOND
from mulligan.core.event import Event, EventType
from mulligan.core.job import Gate, LimitRow, State
from mulligan.doctor.verify.case import (
    Findings,
    JobCase,
    VerifyContext,
    format_event,
    format_events,
    format_witness,
)
from mulligan.doctor.verify.queries import VerifyQueries
from mulligan.doctor.verify.records import END, FAIL, RecordIndex, digest
from mulligan.doctor.verify.shared import iter_events
from mulligan.events.queries import EventQueries
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.specs import DELIVER_KIND
from mulligan.notifications.dispatcher import READER
from mulligan.notifications.message import derive_message_id
from mulligan.notifications.queries import NotificationQueries
from mulligan.notifications.rules import SubscriptionIndex, is_internal
from mulligan.notifications.subscriptions import load_subscriptions
from mulligan.storage.base import Store, Transaction

PAGE_SIZE = 500
MAX_WITNESS_LINES = 4
SYSTEM_PREFIX = "mulligan."  # built-in kinds

# --- Liveness, after the faults have stopped: L1, L2, L4, N2 ---


def check_liveness(case: JobCase, context: VerifyContext, findings: Findings) -> None:
    """Check that a queued job has a reason to wait, and that a running one makes progress."""
    if case.row.state == State.QUEUED:
        _check_waiting(case, context, findings)
    elif case.row.state == State.RUNNING:
        _check_running(case, context, findings)


def _check_waiting(case: JobCase, context: VerifyContext, findings: Findings) -> None:
    row = case.row
    is_late = row.run_at < context.now - context.slack
    if not is_late or row.kind not in context.live_kinds or _is_held(case, context):
        return
    invariant = "N2" if row.kind.startswith(DELIVER_KIND) else "L1"
    late = (context.now - row.run_at) / SECOND
    what = f"due for {late:.1f} s, not held, and a live worker has its kind"
    _report(findings, invariant, what, case)


def _is_held(case: JobCase, context: VerifyContext) -> bool:
    row = case.row
    names = {("queue", row.queue), ("kind", row.kind)}
    names.update(("dependency", key) for key in row.uses.split(",") if key)
    if names & context.limited:
        return True
    return any(
        (gate.scope, gate.key) in names and is_closed(gate, context.now) for gate in context.gates
    )


def _check_running(case: JobCase, context: VerifyContext, findings: Findings) -> None:
    row = case.row
    settled_before = context.now - context.slack
    worker = context.workers.get(row.worker or "")
    is_worker_gone = worker is None or worker.closed_at is not None
    if is_worker_gone and (row.started_at or 0) < settled_before:
        _report(findings, "L2", f"it runs on worker {row.worker}, which is gone", case)
        return
    if _handler_ended_before(case, settled_before):
        what = f"its handler ended with token {row.token}, but the job is still running"
        _report(findings, "L1", what, case)
        return
    limit = row.timeout or context.timeouts.get(row.kind)
    if limit and row.started_at and row.started_at + limit < settled_before:
        over = (context.now - row.started_at - limit) / SECOND
        _report(findings, "L1", f"it runs {over:.1f} s beyond its time limit", case)


def _handler_ended_before(case: JobCase, at: int) -> bool:
    for line in case.witness_lines:
        if line["token"] == case.row.token and line["what"] in (END, FAIL):
            return bool(line["at"] < at)
    return False


def _report(findings: Findings, invariant: str, what: str, case: JobCase) -> None:
    lines = case.witness_lines[-MAX_WITNESS_LINES:]
    findings.add(
        invariant,
        what,
        case.id,
        store=format_events(case.events),
        witness=[format_witness(line) for line in lines],
    )


def check_breakers(context: VerifyContext, findings: Findings) -> None:
    """Report open circuit breakers whose probe is overdue."""
    for gate in context.gates:
        late = _probe_delay(gate, context)
        if late > 0 and is_closed(gate, context.now) and context.live_kinds:
            what = f"the probe of dependency {gate.key} is overdue by {late / SECOND:.1f} s"
            findings.add("L4", what, gate.key, store=[f"open since {gate.since}: {gate.reason}"])


def _probe_delay(gate: Gate, context: VerifyContext) -> int:
    """Return how long the probe of a circuit breaker is overdue, beyond the slack."""
    is_breaker = gate.scope == "dependency" and gate.actor == "breaker"
    if not is_breaker or gate.probe_at is None:
        return 0
    return context.now - context.slack - gate.probe_at


def check_dispatch(store: Store, context: VerifyContext, findings: Findings) -> None:
    """Report events that match a subscription and were not dispatched, although a worker lives."""
    if not context.live_kinds:
        return
    with store.snapshot() as tx:
        subscriptions = load_subscriptions(tx, context.now)
        types = sorted(subscriptions.types & {event_type.value for event_type in EventType})
        if not types:
            return
        after = max(context.pruned_upto, subscriptions.after, _dispatch_cursor(tx))
        undispatched = EventQueries(tx).list_events_of_types(
            types, after, EventQueries(tx).newest_event(), 1
        )
    for event in undispatched:
        has_candidate = next(iter(subscriptions.candidates(event)), None) is not None
        if event.at < context.now - context.slack and has_candidate:
            what = "this event matches a subscription, but was not dispatched yet"
            findings.add("N2", what, store=[format_event(event)])


def _dispatch_cursor(tx: Transaction) -> int:
    reader = EventQueries(tx).get_reader(READER)
    if reader is None:
        return 0
    return reader.cursor


# --- Limits: S15 ---


def check_limits(tx: Transaction, context: VerifyContext, findings: Findings) -> None:
    """Check limits set by an operator, now: count running jobs that started since it was set."""
    for limit in GuardQueries(tx).list_limits():
        is_expired = limit.until is not None and limit.until <= context.now
        if limit.concurrency is None or is_expired:
            continue
        running = _count_running(tx, limit)
        if running > limit.concurrency:
            what = (
                f"{running} jobs run in {limit.scope} {limit.key}, its limit is {limit.concurrency}"
            )
            findings.add("S15", what, limit.key, store=[f"set {limit.since} by {limit.actor}"])


def _count_running(tx: Transaction, limit: LimitRow) -> int:
    total = 0
    for queue, uses, count in VerifyQueries(tx).count_running_since(limit.since):
        keys = [queue] if limit.scope == "queue" else uses.split(",")
        if limit.key in keys:
            total += count
    return total


# --- Notifications: N1, N3 to N5 ---

REPEATED_MESSAGES = """
SELECT message, subscription, min(job), max(job), count(*) AS jobs FROM delivery
GROUP BY 1 HAVING jobs > 1
"""
DIFFERENT_BODIES = """
SELECT id, count(DISTINCT json_extract(line, '$.body')) AS bodies FROM received
WHERE what = 'message' GROUP BY 1 HAVING bodies > 1
"""
# Only for subscriptions whose receiver records what it gets.
NOT_RECEIVED = """
SELECT message, job FROM delivery WHERE state = 'succeeded' AND subscription IN (
  SELECT DISTINCT subscription FROM delivery
  JOIN received ON received.what = 'message' AND received.id = delivery.message
) AND NOT EXISTS (SELECT 1 FROM received WHERE what = 'message' AND id = message)
"""
WITHOUT_DELIVERY = """
SELECT DISTINCT id, client FROM received WHERE what = 'message'
AND NOT EXISTS (SELECT 1 FROM delivery WHERE message = received.id)
"""


def collect_delivery(case: JobCase, records: RecordIndex) -> None:
    """Store the message of a delivery job, to be checked after all jobs were read."""
    row = case.row
    if not row.kind.startswith(DELIVER_KIND):
        return
    payload = json.loads(row.payload)
    message = payload.get("message", {})
    message_id = str(message.get("id", ""))
    subscription = str(payload.get("subscription", ""))
    records.insert("delivery", [(message_id, subscription, row.id, row.state, digest(message))])


def check_messages(
    store: Store, context: VerifyContext, records: RecordIndex, findings: Findings
) -> None:
    """Report events with two messages, and dispatched events without one: N1."""
    for message, subscription, first, last, count in records.query(REPEATED_MESSAGES):
        what = f"message {message} to {subscription} was enqueued {count} times: {first}, {last}"
        findings.add("N1", what, last)
    with store.snapshot() as tx:
        reader = EventQueries(tx).get_reader(READER)
        subscriptions = _load_unchanged(tx, context)
        pruned_at = _deliveries_pruned_at(tx)
    if reader is None or not len(subscriptions):
        return
    excused = int(json.loads(reader.body or "{}").get("lost", 0))
    after = max(context.pruned_upto, subscriptions.after)
    for event in _matching_events(store, subscriptions, after, reader.cursor):
        if event.at <= pruned_at:
            continue
        for subscription in _subscriptions_without_message(event, subscriptions, records):
            excused -= 1
            if excused < 0:
                what = f"subscription {subscription} matches this event, but there is no message"
                subject = event.job_id or subscription
                findings.add("N1", what, subject, store=[format_event(event)])


def _subscriptions_without_message(
    event: Event, subscriptions: SubscriptionIndex, records: RecordIndex
) -> Iterator[str]:
    for subscription in subscriptions.candidates(event):
        if not subscription.matches(event, event.data):
            continue
        if subscription.groups_into_incident(event):
            continue
        message = derive_message_id(subscription.id, event.id)
        if not records.exists("SELECT 1 FROM delivery WHERE message = ?", message):
            yield subscription.id


def _load_unchanged(tx: Transaction, context: VerifyContext) -> SubscriptionIndex:
    """Return the subscriptions that are on and were never changed."""
    unchanged = {
        row.id
        for row in NotificationQueries(tx).list_subscriptions()
        if row.version == 1 and row.state == "on"
    }
    subscriptions = load_subscriptions(tx, context.now)
    return SubscriptionIndex(one for one in subscriptions.by_id.values() if one.id in unchanged)


def _deliveries_pruned_at(tx: Transaction) -> int:
    """Return when retention last removed messages; messages of later events all exist."""
    times = [
        at for kind, at in VerifyQueries(tx).list_pruned_kinds() if kind.startswith(DELIVER_KIND)
    ]
    return max(times, default=0)


def _matching_events(
    store: Store, subscriptions: SubscriptionIndex, after: int, upto: int
) -> Iterator[Event]:
    """Yield the events of subscribed types, with kind and queue of the job as in the dispatcher."""
    for event in iter_events(store, sorted(subscriptions.types), after, upto):
        complete = _add_kind(store, event)
        if not is_internal(complete.data):
            yield complete


def _add_kind(store: Store, event: Event) -> Event:
    if event.job_id is None or "kind" in event.data:
        return event
    with store.snapshot() as tx:
        kind, queue = (
            JobQueries(tx).get_kinds_and_queues([event.job_id]).get(event.job_id, ("", ""))
        )
    return event._replace(data={"kind": kind, "queue": queue, **event.data})


def check_received(store: Store, records: RecordIndex, findings: Findings) -> None:
    """Compare the messages with what receivers recorded: N3, N4."""
    for message, bodies in records.query(DIFFERENT_BODIES):
        findings.add(
            "N3", f"message {message} was received with {bodies} different bodies", message
        )
    for message, job in records.query(NOT_RECEIVED):
        findings.add("N3", f"message {message} was delivered, but its receiver never got it", job)
    with store.snapshot() as tx:
        if _deliveries_pruned_at(tx):
            return
    for message, client in records.query(WITHOUT_DELIVERY):
        what = f"{client} received message {message}, which does not exist"
        findings.add("N4", what, message)


def check_streams(
    store: Store, context: VerifyContext, records: RecordIndex, findings: Findings
) -> None:
    """Check each follower of the event log, over all its connections: N5."""
    clients = list(records.query("SELECT DISTINCT client FROM received WHERE what = 'event'"))
    for (client,) in clients:
        stream = _Stream(store, records, findings, str(client))
        stream.check_order()
        stream.check_complete(context.pruned_upto)


class _Stream:
    """The events that one follower of the log received."""

    def __init__(self, store: Store, records: RecordIndex, findings: Findings, client: str) -> None:
        self._store = store
        self._records = records
        self._findings = findings
        self._client = client
        self._first = 0
        self._last = 0
        self._owner: str | None = None  # the stream of an owner has only their events

    def check_order(self) -> None:
        rows = self._records.query(
            "SELECT id, line FROM received WHERE what = 'event' AND client = ? ORDER BY ns, rowid",
            self._client,
        )
        for number, line in rows:
            event_id = int(number)
            if event_id <= self._last:
                what = f"{self._client} received event {event_id} after event {self._last}"
                self._findings.add("N5", what, self._client)
            self._first = self._first or event_id
            self._last = event_id
            self._owner = json.loads(line).get("owner")

    def check_complete(self, pruned_upto: int) -> None:
        """Report events between the first and the last received one that are missing."""
        after = max(self._first, pruned_upto)
        while after < self._last:
            with self._store.snapshot() as tx:
                page = EventQueries(tx).list_events_after(after, PAGE_SIZE)
            page = [event for event in page if event.id <= self._last]
            if not page:
                return
            for event in page:
                if self._is_missing(event):
                    what = f"{self._client} never received event {event.id}"
                    subject = event.job_id or self._client
                    self._findings.add("N5", what, subject, store=[format_event(event)])
            after = page[-1].id

    def _is_missing(self, event: Event) -> bool:
        if not event.type.startswith("job.") or self._owner not in (None, event.owner):
            return False
        if is_internal(event.data):
            return False
        is_received = self._records.exists(
            "SELECT 1 FROM received WHERE what = 'event' AND id = ? AND client = ?",
            str(event.id),
            self._client,
        )
        return not is_received and not _is_of_system_kind(self._store, event)


def _is_of_system_kind(store: Store, event: Event) -> bool:
    """Return whether the event is of a built-in kind, or of a job that does not exist any more."""
    if event.job_id is None:
        return False
    with store.snapshot() as tx:
        kind, _ = (
            JobQueries(tx)
            .get_kinds_and_queues([event.job_id])
            .get(event.job_id, (SYSTEM_PREFIX, ""))
        )
    return kind.startswith(SYSTEM_PREFIX)
