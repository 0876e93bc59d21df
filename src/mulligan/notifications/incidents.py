"""Incidents in one turn of the dispatcher: deaths join them, time and people end them, and who is told hears of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.config import Settings
from mulligan.core.event import Event, EventType
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, Micros
from mulligan.failures.groups import EVERYBODY
from mulligan.notifications import rules
from mulligan.notifications.message import Message, message_of_cap, message_of_incident
from mulligan.notifications.rules import (
    Hour,
    Incident,
    IncidentDeath,
    IncidentFacts,
    IncidentTerms,
    SubscriptionBook,
    SubscriptionMatcher,
)
from mulligan.storage.base import Transaction
from mulligan.storage.notification_queries import IncidentRow, NotifiedRow

log = logging.getLogger("mulligan.notifications")

STEP = 100
KEY = 200  # characters
LATER = SECOND
ENDS = {
    EventType.FAILURE_RESOLVED: "resolved",
    EventType.BATCH_READY: "recovered",
    EventType.BATCH_RECOVERED: "recovered",
}

Place = tuple[str, str, str]  # key, subscription, owner


class IncidentMessage(NamedTuple):
    """A message of an incident, and who hears it."""

    subscription: SubscriptionMatcher
    message: Message
    owner: str


def terms_of(settings: Settings) -> IncidentTerms:
    said = settings.notify
    gather, update, quiet = (
        round(seconds * SECOND) for seconds in (said.gather, said.update_every, said.quiet)
    )
    return IncidentTerms(gather, update, quiet, said.cap)


def ending(event: Event) -> tuple[str, str] | None:
    """(key, why) of the incidents that this event ends."""
    why = ENDS.get(event.type)  # type: ignore[call-overload]
    if why is None:
        return None
    key = (
        event.data.get("fingerprint")
        if event.type == EventType.FAILURE_RESOLVED
        else event.batch_id
    )
    return (str(key)[:KEY], why) if key else None


def key_of(subscription: SubscriptionMatcher, event: Event) -> tuple[str, str]:
    """(key, by): of a batch that somebody asked about, all is one; else what has one cause."""
    if subscription.batch is not None:
        return subscription.batch, "batch"
    group = (
        event.data.get("group")
        or f"{event.type}-{event.data.get('code') or event.data.get('kind', '')}"
    )
    return str(group)[:KEY], "group"


def owner_of(subscription: SubscriptionMatcher, event: Event) -> str:
    """Whoever is told of all owners together is told once of what happens to many."""
    return event.owner if subscription.apart else subscription.owner or ""


@dataclass
class IncidentFolder:
    unit: Transaction
    book: SubscriptionBook
    settings: Settings
    terms: IncidentTerms
    now: Micros
    told: list[IncidentMessage] = field(default_factory=list)
    _rows: dict[Place, IncidentRow] = field(default_factory=dict)
    _incidents: dict[Place, Incident] = field(default_factory=dict)
    _changed: set[Place] = field(default_factory=set)
    _muted: dict[tuple[str, str], bool] = field(default_factory=dict)

    # -- what the log tells -------------------------------------------------------------------------
    def load(self, keys: set[str]) -> None:
        for row in self.unit.open_incidents(sorted(keys)):
            self._hold(row)

    def _hold(self, row: IncidentRow) -> Place | None:
        """None: it cannot be read, and is over; one such must not keep all others from being told."""
        place = (row.key, row.subscription, row.owner)
        if place not in self._incidents:
            try:
                self._incidents[place] = Incident.from_json(row.body)
            except (ValueError, TypeError):
                log.exception("incident %s cannot be read", row.id)
                self.unit.write_incident(row._replace(closed_at=self.now))
                return None
            self._rows[place] = row
        return place

    def died(
        self, subscription: SubscriptionMatcher, event: Event, data: Mapping[str, Any]
    ) -> None:
        key, by = key_of(subscription, event)
        owner = owner_of(subscription, event)
        place, death = (
            (key, subscription.id, owner),
            IncidentDeath(event.at, event.job_id, event.batch_id, data),
        )
        known = self._incidents.get(place)
        if known is not None:
            self._keep(place, rules.joined(known, death))
        elif not self._is_muted(key, by, owner):
            self._open(place, rules.begun(key, by, death, event.type))

    def _open(self, place: Place, incident: Incident) -> None:
        key, subscription, owner = place
        row = IncidentRow(f"inc_{new_id()}", subscription, owner, key, "", 0, self.now, None)
        self._rows[place] = row
        self._incidents[place] = incident
        self._changed.add(place)

    def _is_muted(self, group: str, by: str, owner: str) -> bool:
        """Somebody has said that this cause is known: it opens no incident until then."""
        if by != "group":
            return False
        if (group, owner) not in self._muted:
            marks = [self.unit.mark(scope, group) for scope in {EVERYBODY, owner or EVERYBODY}]
            muted = [mark for mark in marks if mark is not None and mark.state == "muted"]
            self._muted[group, owner] = any(
                mark.until is None or mark.until > self.now for mark in muted
            )
        return self._muted[group, owner]

    def ended(self, event: Event) -> None:
        found = ending(event)
        if found is None:
            return
        key, why = found
        for place in [place for place in self._incidents if place[0] == key]:
            if (
                event.type != EventType.FAILURE_RESOLVED
                or not event.owner
                or place[2] == event.owner
            ):
                self._keep(place, rules.ended(self._incidents[place], why))
                self._close(place)

    def write(self) -> None:
        for place in sorted(self._changed):
            self._write(place)

    # -- what time tells ----------------------------------------------------------------------------
    def look(self, *, caught_up: bool) -> bool:
        """Those that want to be looked at by now. True: there are more. None ends before all deaths are read."""
        due = self.unit.incidents_due(self.now, STEP)
        for row in due:
            place = self._hold(row)
            if place is not None:
                self._due(place, caught_up=caught_up)
        return len(due) == STEP

    def _due(self, place: Place, *, caught_up: bool) -> None:
        incident = self._incidents[place]
        step = rules.step(incident, self.now, self.terms)
        if self.book.by_id.get(place[1]) is None or (step == rules.OVER and caught_up):
            self._close(place)
        elif step in (rules.OPENED, rules.GROWN):
            self._keep(place, self._say(place, incident, step))
            self._write(place)
        else:
            self.unit.write_incident(self._rows[place]._replace(due_at=self.now + LATER))

    def hours(self) -> None:
        """What a limit kept back in an hour that is over is told in one message."""
        for row in self.unit.notified_before(self.now - rules.HOUR, STEP):
            subscription = self.book.by_id.get(row.subscription)
            if row.withheld and subscription is not None:
                message = message_of_cap(
                    row.subscription, row.owner, row.since, row.withheld, self.settings
                )
                self.told.append(IncidentMessage(subscription, message, row.owner))
            self.unit.forget_notified(row.subscription, row.owner)

    # -- to say something ---------------------------------------------------------------------------
    def _close(self, place: Place) -> None:
        incident = self._incidents.pop(place)
        if incident.sent:
            incident = self._say(place, rules.ended(incident, "quiet"), rules.OVER)
        row = self._rows.pop(place)
        self._changed.discard(place)
        if row.body:  # else it was never stored
            self.unit.write_incident(row._replace(body=incident.to_json(), closed_at=self.now))

    def _say(self, place: Place, incident: Incident, step: str) -> Incident:
        subscription = self.book.by_id.get(place[1])
        sent = subscription is not None and self._may(place[1], place[2])
        if subscription is not None and sent:
            facts = self._facts(self._rows[place], incident)
            name = f"{step}:{incident.steps}" if step == rules.GROWN else step
            try:
                message = message_of_incident(facts, name, self.settings)
                self.told.append(IncidentMessage(subscription, message, place[2]))
            except Exception:
                log.exception("incident %s cannot be told", facts.id)
        return rules.said(incident, self.now, sent=sent)

    def _may(self, subscription: str, owner: str) -> bool:
        if not self.terms.cap:
            return True
        row = self.unit.notified(subscription, owner)
        hour = None if row is None else Hour(row.since, row.sent, row.withheld)
        may, hour = rules.counted(hour, self.now, self.terms.cap)
        self.unit.write_notified(NotifiedRow(subscription, owner, *hour))
        return may

    def _facts(self, row: IncidentRow, incident: Incident) -> IncidentFacts:
        by_batch, data = incident.by == "batch", incident.data
        batch = self.unit.batch(incident.key) if by_batch else None
        texts = {name: str(data.get(name) or "") for name in ("kind", "queue", "code", "message")}
        return IncidentFacts(
            id=row.id,
            first_at=incident.first_at,
            last_at=incident.last_at,
            count=incident.count,
            owner=row.owner,
            of=incident.of,
            group="" if by_batch else str(data.get("group") or ""),
            batch_id=incident.key if by_batch else "",
            batch_name="" if batch is None else batch.name,
            cls=str(data.get("class") or ""),
            job_id=incident.job_id or "",
            why=incident.ended,
            **texts,
        )

    # -- to keep it ---------------------------------------------------------------------------------
    def _keep(self, place: Place, incident: Incident) -> None:
        self._incidents[place] = incident
        self._changed.add(place)

    def _write(self, place: Place) -> None:
        incident, row = self._incidents[place], self._rows[place]
        changed = row._replace(body=incident.to_json(), due_at=rules.due_at(incident, self.terms))
        if row.body:
            self.unit.write_incident(changed)
        else:
            self.unit.new_incident(changed)
        self._rows[place] = changed
        self._changed.discard(place)
