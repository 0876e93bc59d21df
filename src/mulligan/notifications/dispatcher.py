"""The dispatcher: reads the event log, matches subscriptions and enqueues deliveries.

One worker at a time holds it. Each step reads a part of the log, enqueues its deliveries and moves
the cursor in one transaction, so that a kill at any point neither repeats nor skips an event.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.config import Settings
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event
from mulligan.core.job import NewJob
from mulligan.events.queries import EventQueries
from mulligan.manifest.declared import MANIFEST_LIFETIME
from mulligan.manifest.queries import ManifestQueries
from mulligan.notifications.deliveries import build_delivery_job, insert_deliveries
from mulligan.notifications.incidents import (
    END_REASONS,
    IncidentTracker,
    find_end,
    group_event,
    incident_timing,
)
from mulligan.notifications.message import build_event_message
from mulligan.notifications.queries import NotificationQueries
from mulligan.notifications.reactions import build_reaction_job
from mulligan.notifications.rules import HOUR, SubscriptionIndex, SubscriptionMatcher, is_internal
from mulligan.notifications.subscriptions import SubscriptionCache, find_obstacles
from mulligan.storage.base import Store, Transaction

log = logging.getLogger("mulligan.notifications")

READER = "dispatch"
PAGE = 500  # events per transaction
MAX_MESSAGES = 50  # per transaction, or a few more: on SQLite other writers wait for its end
MAX_SCAN = 20_000  # events of the log that one transaction covers
SKIP_AHEAD = 5000  # events without a subscriber after which moving the cursor is worth a write
CLOCK_JUMP = MANIFEST_LIFETIME // 2  # between two runs, which are half a second apart
MANIFEST_WAIT = 10 * SECOND  # time for all workers to renew their manifests

Match = tuple[Event, SubscriptionMatcher]


class Dispatcher:
    """Periodic task of every worker; the first one to take the reader's lock runs it."""

    name = "dispatch"
    every = 0.5

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timing = incident_timing(settings)
        self._subscriptions = SubscriptionCache()
        self._last_run_at: Micros | None = None
        self._clock_jumped_at: Micros | None = None  # manifests may still look expired
        self._warned: set[str] = set()  # subscriptions whose channel cannot send

    def run_once(self, store: Store) -> bool:
        """Process one part of the log. Returns True if there is more to do."""
        with store.read() as tx:
            has_subscriptions = NotificationQueries(tx).subscriptions_version()[0]
            if has_subscriptions:
                self._warn_once(self._subscriptions.load(tx, tx.now()))
            if not has_subscriptions or self._is_after_clock_jump(tx) or not self._has_work(tx):
                return False
        with store.begin() as tx:
            return self._run_step(tx)

    def _warn_once(self, subscriptions: SubscriptionIndex) -> None:
        """Log each subscription whose messages cannot be sent, in every worker, once."""
        for matcher, obstacle in find_obstacles(subscriptions, self._settings):
            if matcher.id not in self._warned:
                self._warned.add(matcher.id)
                # No colon after the id: redaction would hide what follows `token-failed:`.
                log.warning("messages of subscription %s are skipped: %s", matcher.id, obstacle)

    def _is_after_clock_jump(self, tx: Transaction) -> bool:
        """Return True after the clock has jumped forward, until workers renewed their manifests.

        After a machine slept, every manifest looks expired: events would find no declared
        subscription and be lost.
        """
        now = tx.now()
        previous = self._last_run_at
        self._last_run_at = now
        if previous is not None and now - previous > CLOCK_JUMP:
            self._clock_jumped_at = now
        jumped_at = self._clock_jumped_at
        if jumped_at is None:
            return False
        if now < jumped_at:  # set back meanwhile: do not wait until it shows that time again
            self._clock_jumped_at = jumped_at = now
        if now - jumped_at >= MANIFEST_WAIT and _has_manifest_since(tx, jumped_at - CLOCK_JUMP):
            self._clock_jumped_at = None
        return self._clock_jumped_at is not None

    def _has_work(self, tx: Transaction) -> bool:
        """Return whether a write is needed. Reads only, so that an idle fleet writes nothing."""
        reader = EventQueries(tx).get_reader(READER)
        if reader is None:
            return True
        now = tx.now()
        subscriptions = self._subscriptions.load(tx, now)
        log_range = _next_log_range(tx, reader.cursor, subscriptions)
        if log_range.end - reader.cursor > SKIP_AHEAD:
            return True
        if log_range.events(tx, subscriptions, 1):
            return True
        return _is_due(NotificationQueries(tx).next_incident_due(), now) or _is_due(
            NotificationQueries(tx).oldest_message_count(), now - HOUR
        )

    def _run_step(self, tx: Transaction) -> bool:
        reader = EventQueries(tx).lock_reader(READER, start=0)
        if reader is None:
            return False
        now = tx.now()
        subscriptions = self._subscriptions.load(tx, now)
        log_range = _next_log_range(tx, reader.cursor, subscriptions)
        events = log_range.events(tx, subscriptions, PAGE)
        incidents = IncidentTracker(tx, subscriptions, self._settings, self._timing, now)
        incidents.report_withheld()
        result = self._process_events(tx, incidents, events)
        is_full = result.events_read < len(events) or result.events_read == PAGE
        caught_up = not is_full and log_range.is_last
        more_incidents = incidents.check_due(caught_up=caught_up)
        jobs = result.jobs + [build_delivery_job(*message) for message in incidents.messages]
        lost = result.lost + insert_deliveries(tx, jobs)
        cursor = events[result.events_read - 1].id if is_full else log_range.end
        EventQueries(tx).advance_reader(READER, cursor, _add_lost(reader.body, lost))
        return more_incidents or not caught_up

    def _process_events(
        self, tx: Transaction, incidents: IncidentTracker, events: Sequence[Event]
    ) -> _StepResult:
        """Turn events into deliveries and deaths of incidents, until there are enough messages."""
        matches = _find_matches(tx, incidents.subscriptions, events)
        incidents.load(_incident_keys(matches, events))
        matches_by_event: dict[int, list[Match]] = {}
        for match in matches:
            matches_by_event.setdefault(match[0].id, []).append(match)
        result = _StepResult()
        for event in events:
            if len(result.jobs) >= MAX_MESSAGES:
                break
            result.events_read += 1
            incidents.end_by_event(event)
            for match in matches_by_event.get(event.id, ()):
                self._process_match(incidents, match, result)
        incidents.write()
        return result

    def _process_match(self, incidents: IncidentTracker, match: Match, result: _StepResult) -> None:
        event, subscription = match
        try:
            if subscription.groups_into_incident(event):
                incidents.add_death(subscription, event, event.data)
                return
            if subscription.reaction is not None:
                result.jobs.append(
                    build_reaction_job(subscription.id, subscription.reaction, event)
                )
                return
            message = build_event_message(
                event, subscription.id, self._settings, for_staff=subscription.for_staff
            )
            result.jobs.append(build_delivery_job(subscription, message, event.owner))
        except Exception:
            log.exception(
                "failed to build the message of event %d for subscription %s",
                event.id,
                subscription.id,
            )
            result.lost += 1


@dataclass
class _StepResult:
    """Outcome of the events of one step."""

    jobs: list[NewJob] = field(default_factory=list)
    lost: int = 0  # messages that could not be built
    events_read: int = 0


class _LogRange(NamedTuple):
    """A part of the log, from `start` (exclusive) to `end`."""

    start: int
    end: int
    is_last: bool  # no event follows yet

    def events(self, tx: Transaction, subscriptions: SubscriptionIndex, limit: int) -> list[Event]:
        """Return the events that have a subscriber or may end an incident."""
        if not len(subscriptions) or self.end <= self.start:
            return []
        types = subscriptions.types | set(END_REASONS)
        return EventQueries(tx).list_events_of_types(sorted(types), self.start, self.end, limit)


def _next_log_range(tx: Transaction, cursor: int, subscriptions: SubscriptionIndex) -> _LogRange:
    """Return the next part of the log. Skips what is older than all subscriptions."""
    newest = EventQueries(tx).newest_event()
    start = max(cursor, min(subscriptions.after, newest))
    end = max(start, newest)
    if len(subscriptions):
        end = max(start, min(newest, start + MAX_SCAN))
    return _LogRange(start, end, is_last=end >= newest)


def _has_manifest_since(tx: Transaction, since: Micros) -> bool:
    return any(renewed_at > since for *_, renewed_at in ManifestQueries(tx).list_manifests())


def _is_due(at: Micros | None, now: Micros) -> bool:
    return at is not None and at <= now


def _find_matches(
    tx: Transaction, subscriptions: SubscriptionIndex, events: Sequence[Event]
) -> list[Match]:
    """Return (event, subscription) for every matching subscription."""
    wanted = [event for event in events if subscriptions.has_candidates(event)]
    matches: list[Match] = []
    for event in EventQueries(tx).add_kinds(wanted):
        if is_internal(event.data):
            continue
        for subscription in subscriptions.candidates(event):
            if subscriptions.is_loop(subscription, event.data):
                continue
            if subscription.matches(event, event.data):
                matches.append((event, subscription))
    return matches


def _incident_keys(matches: Sequence[Match], events: Sequence[Event]) -> set[str]:
    """Return the keys of all incidents that the events may change."""
    keys = set()
    for event, subscription in matches:
        if subscription.groups_into_incident(event):
            keys.add(group_event(subscription, event)[0])
    for event in events:
        end = find_end(event)
        if end is not None:
            keys.add(end.key)
    return keys


def _add_lost(body: str, lost: int) -> str:
    """Return the reader's body with more lost messages. `mulligan doctor` reports the total."""
    if not lost:
        return body
    counts: dict[str, Any] = json.loads(body or "{}")
    counts["lost"] = counts.get("lost", 0) + lost
    return json.dumps(counts)
