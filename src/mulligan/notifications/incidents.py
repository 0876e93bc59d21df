"""Incidents within one transaction of the dispatcher.

Deaths join incidents, time or people end them, and subscribers get messages about them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mulligan.batches.queries import BatchQueries
from mulligan.config import Settings
from mulligan.core.attempt import Alarm
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event, EventType
from mulligan.core.ids import new_id
from mulligan.core.job import ALL_OWNERS
from mulligan.core.json import decode
from mulligan.failures.queries import FailureQueries
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.view import Titles
from mulligan.notifications import rules
from mulligan.notifications.message import Message, build_cap_message, build_incident_message
from mulligan.notifications.queries import IncidentRow, MessageCountRow, NotificationQueries
from mulligan.notifications.rules import (
    HourlyCount,
    Incident,
    IncidentDeath,
    IncidentFacts,
    IncidentTiming,
    NamedJob,
    SubscriptionIndex,
    SubscriptionMatcher,
)
from mulligan.storage.base import Transaction

log = logging.getLogger("mulligan.notifications")

MAX_ROWS = 100  # incidents or hours per transaction
NAMED_JOBS = 10  # in a message
MAX_KEY = 200  # characters
RECHECK_DELAY = SECOND
END_REASONS = {
    EventType.FAILURE_RESOLVED: "resolved",
    EventType.BATCH_READY: "recovered",
    EventType.BATCH_RECOVERED: "recovered",
}


class IncidentKey(NamedTuple):
    """Identity of an open incident."""

    key: str  # fingerprint, event type and code, or batch id
    subscription: str
    owner: str
    batch: str


class IncidentMessage(NamedTuple):
    """A message and the subscription that gets it."""

    subscription: SubscriptionMatcher
    message: Message
    owner: str


class IncidentEnd(NamedTuple):
    """Incidents that an event ends, by their cause or batch, and why."""

    key: str
    reason: str

    def ends(self, incident_key: IncidentKey) -> bool:
        """Return whether an incident ends."""
        return self.key in (incident_key.key, incident_key.batch)


def incident_timing(settings: Settings) -> IncidentTiming:
    """Return the timing of incidents from the settings."""
    notify = settings.notify
    return IncidentTiming(
        gather=round(notify.gather * SECOND),
        update_every=round(notify.update_every * SECOND),
        quiet=round(notify.quiet * SECOND),
        cap=notify.cap,
    )


def find_end(event: Event) -> IncidentEnd | None:
    """Return which incidents an event ends; None for most events."""
    reason = END_REASONS.get(event.type)  # type: ignore[call-overload]
    if reason is None:
        return None
    key = event.batch_id
    if event.type == EventType.FAILURE_RESOLVED:
        key = event.data.get("fingerprint")
    return IncidentEnd(str(key)[:MAX_KEY], reason) if key else None


def group_event(subscription: SubscriptionMatcher, event: Event) -> tuple[str, str]:
    """Return the key of the event's incident and what it is grouped by.

    A subscription to one batch groups all its deaths; others group by cause.
    """
    if subscription.batch is not None:
        return subscription.batch, "batch"
    group = event.data.get("group")
    if not group:
        group = f"{event.type}-{event.data.get('code') or event.data.get('kind', '')}"
    return str(group)[:MAX_KEY], "group"


def incident_owner(subscription: SubscriptionMatcher, event: Event) -> str:
    """Return the owner of the event's incident; empty for one incident of all owners."""
    if subscription.per_owner:
        return event.owner
    return subscription.owner or ""


def incident_batch(subscription: SubscriptionMatcher, event: Event) -> str:
    """Return the batch of the event's incident; empty for one incident of all batches.

    An owner wants to know what happened to each batch. An operator who gets one message about all
    owners gets one about all their batches: a thousand batches would be a thousand messages.
    """
    is_for_all_owners = bool(event.owner) and not incident_owner(subscription, event)
    if subscription.batch is not None or is_for_all_owners:
        return ""
    return event.batch_id or ""


def _is_expected(subscription: SubscriptionMatcher, event: Event) -> bool:
    """Return whether operators expect this death: its rule has alarm="none"."""
    return subscription.for_staff and event.data.get("alarm") == Alarm.NONE


def _was_retried_by_hand(event: Event) -> bool:
    """Return whether the job is in a later generation, in which attempts are counted again."""
    return (event.token or 0) > (event.attempt or 0)


@dataclass
class IncidentTracker:
    """Open incidents that one transaction of the dispatcher reads and changes."""

    tx: Transaction
    subscriptions: SubscriptionIndex
    settings: Settings
    timing: IncidentTiming
    now: Micros
    messages: list[IncidentMessage] = field(default_factory=list)  # to be sent
    _rows: dict[IncidentKey, IncidentRow] = field(default_factory=dict)
    _incidents: dict[IncidentKey, Incident] = field(default_factory=dict)
    _changed: set[IncidentKey] = field(default_factory=set)
    _muted: dict[tuple[str, str], bool] = field(default_factory=dict)

    # --- Events ---

    def load(self, keys: set[str]) -> None:
        """Load the open incidents with these keys."""
        for row in NotificationQueries(self.tx).list_open_incidents(sorted(keys)):
            self._load_row(row)

    def _load_row(self, row: IncidentRow) -> IncidentKey | None:
        """Return the key of a stored incident; None if its body is damaged.

        A damaged incident is closed, so that it does not block the others.
        """
        incident_key = IncidentKey(row.key, row.subscription, row.owner, row.batch_id)
        if incident_key not in self._incidents:
            try:
                self._incidents[incident_key] = Incident.from_json(row.body)
            except (ValueError, TypeError):
                log.exception("closing incident %s: its stored state cannot be read", row.id)
                NotificationQueries(self.tx).update_incident(row._replace(closed_at=self.now))
                return None
            self._rows[incident_key] = row
        return incident_key

    def add_death(
        self, subscription: SubscriptionMatcher, event: Event, data: Mapping[str, Any]
    ) -> None:
        """Add a death to its incident, or open one unless the cause is muted."""
        key, grouped_by = group_event(subscription, event)
        owner = incident_owner(subscription, event)
        batch = incident_batch(subscription, event)
        incident_key = IncidentKey(key, subscription.id, owner, batch)
        death = IncidentDeath(
            event.at, event.job_id, event.batch_id, data, _was_retried_by_hand(event)
        )
        incident = self._incidents.get(incident_key)
        if incident is not None:
            self._update(incident_key, rules.add_death(incident, death))
        elif not self._is_muted(key, grouped_by, owner) and not _is_expected(subscription, event):
            self._open(incident_key, rules.open_incident(key, grouped_by, death, event.type))

    def _open(self, incident_key: IncidentKey, incident: Incident) -> None:
        key, subscription, owner, batch = incident_key
        self._rows[incident_key] = IncidentRow(
            f"inc_{new_id()}", subscription, owner, key, batch, "", 0, self.now, None
        )
        self._update(incident_key, incident)

    def _is_muted(self, group: str, grouped_by: str, owner: str) -> bool:
        """Return whether a person has muted this cause for the owner or for all owners."""
        if grouped_by != "group":
            return False
        if (group, owner) not in self._muted:
            self._muted[group, owner] = self._has_mute(group, owner)
        return self._muted[group, owner]

    def _has_mute(self, group: str, owner: str) -> bool:
        for scope in {ALL_OWNERS, owner or ALL_OWNERS}:
            mark = FailureQueries(self.tx).get_group_state(scope, group)
            if mark is None or mark.state != "muted":
                continue
            if mark.until is None or mark.until > self.now:
                return True
        return False

    def end_by_event(self, event: Event) -> None:
        """Close the incidents that this event ends."""
        end = find_end(event)
        if end is None:
            return
        # An owner who resolves a failure ends only incidents of that owner.
        only_owner = event.owner if event.type == EventType.FAILURE_RESOLVED else ""
        for incident_key in list(self._incidents):
            if not end.ends(incident_key):
                continue
            if only_owner and incident_key.owner != only_owner:
                continue
            incident = rules.end_incident(self._incidents[incident_key], end.reason)
            self._update(incident_key, incident)
            self._close(incident_key)

    def write(self) -> None:
        """Store all changed incidents."""
        for incident_key in sorted(self._changed):
            self._write(incident_key)

    # --- Time ---

    def check_due(self, *, caught_up: bool) -> bool:
        """Evaluate the incidents that are due. Returns True if there are more.

        No incident ends unless the log was read to its end (`caught_up`): deaths that were not
        read yet may belong to it.
        """
        due = NotificationQueries(self.tx).list_due_incidents(self.now, MAX_ROWS)
        for row in due:
            incident_key = self._load_row(row)
            if incident_key is not None:
                self._check(incident_key, caught_up=caught_up)
        return len(due) == MAX_ROWS

    def _check(self, incident_key: IncidentKey, *, caught_up: bool) -> None:
        incident = self._incidents[incident_key]
        step = rules.next_step(incident, self.now, self.timing)
        is_subscribed = incident_key.subscription in self.subscriptions.by_id
        if not is_subscribed or (step == rules.OVER and caught_up):
            self._close(incident_key)
        elif step in (rules.OPENED, rules.GROWN):
            self._update(incident_key, self._send(incident_key, incident, step))
            self._write(incident_key)
        else:
            row = self._rows[incident_key]._replace(due_at=self.now + RECHECK_DELAY)
            NotificationQueries(self.tx).update_incident(row)

    def report_withheld(self) -> None:
        """Send one message about the messages that the limit withheld in each past hour."""
        for row in NotificationQueries(self.tx).list_message_counts(
            self.now - rules.HOUR, MAX_ROWS
        ):
            subscription = self.subscriptions.by_id.get(row.subscription)
            if row.withheld and subscription is not None:
                message = build_cap_message(
                    row.subscription, row.owner, row.since, row.withheld, self.settings
                )
                self.messages.append(IncidentMessage(subscription, message, row.owner))
            NotificationQueries(self.tx).delete_message_count(row.subscription, row.owner)

    # --- Messages ---

    def _close(self, incident_key: IncidentKey) -> None:
        incident = self._incidents.pop(incident_key)
        if incident.sent:
            incident = rules.end_incident(incident, "quiet")
            incident = self._send(incident_key, incident, rules.OVER)
        row = self._rows.pop(incident_key)
        self._changed.discard(incident_key)
        is_stored = bool(row.body)
        if is_stored:
            row = row._replace(body=incident.to_json(), closed_at=self.now)
            NotificationQueries(self.tx).update_incident(row)

    def _send(self, incident_key: IncidentKey, incident: Incident, step: str) -> Incident:
        """Add the message of a step unless the hourly limit withholds it."""
        _, subscription_id, owner, _ = incident_key
        subscription = self.subscriptions.by_id.get(subscription_id)
        if subscription is None or not self._count_message(subscription_id, owner):
            return rules.record_step(incident, self.now, sent=False)
        facts = self._build_facts(self._rows[incident_key], incident)
        if subscription.for_staff:
            facts = replace(
                facts,
                runbook=str(incident.data.get("runbook") or ""),
                alarm=str(incident.data.get("alarm") or ""),
            )
        step_name = f"{step}:{incident.steps}" if step == rules.GROWN else step
        try:
            message = build_incident_message(facts, step_name, self.settings)
            self.messages.append(IncidentMessage(subscription, message, owner))
        except Exception:
            log.exception("failed to build the message of incident %s", facts.id)
        return rules.record_step(incident, self.now, sent=True)

    def _count_message(self, subscription: str, owner: str) -> bool:
        """Count a message against the hourly limit. Returns whether it may be sent."""
        if not self.timing.cap:
            return True
        queries = NotificationQueries(self.tx)
        row = queries.get_message_count(subscription, owner)
        hour = None
        if row is not None:
            hour = HourlyCount(row.since, row.sent, row.withheld)
        allowed, hour = rules.count_message(hour, self.now, self.timing.cap)
        queries.write_message_count(MessageCountRow(subscription, owner, *hour))
        return allowed

    def _build_facts(self, row: IncidentRow, incident: Incident) -> IncidentFacts:
        data = incident.data
        facts = IncidentFacts(
            id=row.id,
            first_at=incident.first_at,
            last_at=incident.last_at,
            count=incident.count,
            owner=row.owner,
            event_type=incident.event_type,
            group=str(data.get("group") or ""),
            kind=str(data.get("kind") or ""),
            queue=str(data.get("queue") or ""),
            code=str(data.get("code") or ""),
            cls=str(data.get("class") or ""),
            message=str(data.get("message") or ""),
            job_id=incident.job_id or "",
            jobs=self._name_jobs(incident.jobs[:NAMED_JOBS]),
            end_reason=incident.end_reason,
        )
        if incident.grouped_by == "batch":
            return self._add_batch(replace(facts, group=""), incident.key)
        return self._add_batch(facts, row.batch_id)

    def _add_batch(self, facts: IncidentFacts, batch_id: str) -> IncidentFacts:
        batch = BatchQueries(self.tx).get_batch(batch_id) if batch_id else None
        if batch is None:
            return replace(facts, batch_id=batch_id)
        counts = BatchQueries(self.tx).count_batch_members([batch_id])
        size = sum(count for *_, count in counts)
        return replace(facts, batch_id=batch_id, batch_name=batch.name, batch_size=size)

    def _name_jobs(self, ids: Sequence[str]) -> tuple[NamedJob, ...]:
        """Return jobs with the titles that their kinds declare for messages."""
        titles = Titles.load(self.tx)
        rows = [JobQueries(self.tx).get_job(job_id) for job_id in ids]
        return tuple(
            NamedJob(row.id, titles.declared(row.kind, decode(row.payload)))
            for row in rows
            if row is not None
        )

    # --- Storage ---

    def _update(self, incident_key: IncidentKey, incident: Incident) -> None:
        self._incidents[incident_key] = incident
        self._changed.add(incident_key)

    def _write(self, incident_key: IncidentKey) -> None:
        incident = self._incidents[incident_key]
        row = self._rows[incident_key]
        due_at = rules.next_check_at(incident, self.timing)
        changed = row._replace(body=incident.to_json(), due_at=due_at)
        is_stored = bool(row.body)
        if is_stored:
            NotificationQueries(self.tx).update_incident(changed)
        else:
            NotificationQueries(self.tx).insert_incident(changed)
        self._rows[incident_key] = changed
        self._changed.discard(incident_key)
