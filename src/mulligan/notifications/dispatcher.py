"""One leased dispatcher: reads the log, finds who is to be told, and moves on, in one transaction.

What it leaves behind are jobs; whoever runs them sends. Killed at any moment it has either done all of a step or none
of it, so no event is told twice and none is left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.config import Settings
from mulligan.core.event import Event
from mulligan.core.job import SECOND, Micros, NewJob
from mulligan.manifest.declared import KNOWN_FOR
from mulligan.notifications import deliveries as post
from mulligan.notifications.incidents import (
    ENDS,
    IncidentFolder,
    IncidentMessage,
    ending,
    key_of,
    terms_of,
)
from mulligan.notifications.message import message_of
from mulligan.notifications.rules import HOUR, SubscriptionBook, SubscriptionMatcher, is_ours
from mulligan.notifications.subscriptions import SubscriptionSources
from mulligan.storage.base import Store, Transaction

log = logging.getLogger("mulligan.notifications")

READER = "dispatch"
PAGE = 500
MOST = 50  # messages of events in one transaction, or a few more: others wait for its end on SQLite
STRETCH = 20_000  # events that are looked through at once
LEAP = KNOWN_FOR // 2  # between two turns, of which there are two a second
ROLL_CALL = 10 * SECOND  # for the sweeps of all workers
FAR = 5000  # events that nobody hears: from then on it is worth a write to have passed them

Heard = tuple[Event, SubscriptionMatcher]


class Dispatch:
    """An outlet of every worker; each turn is one worker's."""

    name = "dispatch"
    every = 0.5

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._terms = terms_of(settings)
        self._subscribed = SubscriptionSources()
        self._turned_at: Micros | None = None
        self._leapt_at: Micros | None = None  # and not everybody has said since that they are here

    def turn(self, store: Store) -> bool:
        with store.read() as unit:
            if not unit.subscriptions_mark()[0] or self._leapt(unit) or not self._anything(unit):
                return False
        with store.begin() as unit:
            return self._step(unit)

    def _leapt(self, unit: Transaction) -> bool:
        """Has the clock gone on by so much (a machine that slept) that nothing an app declares seems to hold any more?
        What happens now would be told to nobody: wait until workers have said again that they are here.
        """
        now, before = unit.now(), self._turned_at
        self._turned_at = now
        if before is not None and now - before > LEAP:
            self._leapt_at = now
        since = self._leapt_at
        if since is None:
            return False
        if now - since >= ROLL_CALL and any(named > since - LEAP for *_, named in unit.manifests()):
            self._leapt_at = None
        return self._leapt_at is not None

    def _anything(self, unit: Transaction) -> bool:
        """A look that holds nobody up: while nothing is to be told, nothing is written."""
        reader, now = unit.reader_at(READER), unit.now()
        if reader is None:
            return True
        book = self._subscribed.book(unit, now)
        stretch = _stretch(unit, reader.cursor, book)
        if stretch.upto - reader.cursor > FAR or stretch.events(unit, book, 1):
            return True
        return _past(unit.next_incident(), now) or _past(unit.next_notified(), now - HOUR)

    def _step(self, unit: Transaction) -> bool:
        reader = unit.reader(READER, start=0)
        if reader is None:
            return False
        now = unit.now()
        book = self._subscribed.book(unit, now)
        stretch = _stretch(unit, reader.cursor, book)
        events = stretch.events(unit, book, PAGE)
        folding = IncidentFolder(unit, book, self._settings, self._terms, now)
        folding.hours()
        jobs, lost, read = self._read(unit, folding, events)
        full = read < len(events) or read == PAGE
        caught_up = not full and stretch.last
        more = folding.look(caught_up=caught_up)
        jobs += [post.delivery(*told) for told in folding.told]
        lost += post.insert(unit, jobs)
        body = _counted(reader.body, lost)
        unit.move_reader(READER, events[read - 1].id if full else stretch.upto, body)
        return more or not caught_up

    def _read(
        self, unit: Transaction, folding: IncidentFolder, events: Sequence[Event]
    ) -> tuple[list[NewJob], int, int]:
        """What each event comes to; how many could not be told, whatever is wrong with them; how many were read."""
        heard = list(_heard(unit, folding.book, events))
        keys = {
            key_of(subscription, event)[0]
            for event, subscription in heard
            if subscription.folds(event)
        }
        folding.load(keys | {found[0] for event in events if (found := ending(event)) is not None})
        jobs: list[NewJob] = []
        lost = read = 0
        by_event: dict[int, list[Heard]] = {}
        for one in heard:
            by_event.setdefault(one[0].id, []).append(one)
        for event in events:
            if len(jobs) >= MOST:
                break
            read += 1
            folding.ended(event)
            for told, subscription in by_event.get(event.id, ()):
                try:
                    jobs += self._tell(folding, told, subscription)
                except Exception:
                    log.exception(
                        "event %d cannot be told to subscription %s", event.id, subscription.id
                    )
                    lost += 1
        folding.write()
        return jobs, lost, read

    def _tell(
        self, folding: IncidentFolder, event: Event, subscription: SubscriptionMatcher
    ) -> list[NewJob]:
        if subscription.folds(event):
            folding.died(subscription, event, event.data)
            return []
        return [
            post.delivery(
                *IncidentMessage(
                    subscription, message_of(event, subscription.id, self._settings), event.owner
                )
            )
        ]


class _LogRange(NamedTuple):
    """A part of the log that may be read at once."""

    start: int
    upto: int
    last: bool  # there is nothing after it yet

    def events(self, unit: Transaction, book: SubscriptionBook, limit: int) -> list[Event]:
        """Those that somebody hears, or that end an incident."""
        if not len(book) or self.upto <= self.start:
            return []
        return unit.events_of(sorted(book.types | set(ENDS)), self.start, self.upto, limit)


def _stretch(unit: Transaction, cursor: int, book: SubscriptionBook) -> _LogRange:
    """From the cursor on; what was before all subscriptions is passed over."""
    top = unit.newest_event()
    start = max(cursor, min(book.after, top))
    upto = max(start, min(top, start + STRETCH)) if len(book) else max(top, start)
    return _LogRange(start, upto, upto >= top)


def _past(moment: Micros | None, now: Micros) -> bool:
    return moment is not None and moment <= now


def _heard(unit: Transaction, book: SubscriptionBook, events: Sequence[Event]) -> Iterator[Heard]:
    """Each event with each who hears it, the kind of its job in its data."""
    wanted = [event for event in events if any(True for _ in book.may_hear(event))]
    unnamed = {event.job_id for event in wanted if event.job_id and "kind" not in event.data}
    kinds = unit.kinds_of(sorted(unnamed))
    for event in _named(wanted, kinds):
        if not is_ours(event.data):
            yield from (
                (event, one) for one in book.may_hear(event) if one.hears(event, event.data)
            )


def _named(events: Iterable[Event], kinds: Mapping[str, tuple[str, str]]) -> Iterator[Event]:
    for event in events:
        if event.job_id is not None and event.job_id in kinds and "kind" not in event.data:
            kind, queue = kinds[event.job_id]
            yield event._replace(data={"kind": kind, "queue": queue, **event.data})
        else:
            yield event


def _counted(body: str, lost: int) -> str:
    """How many messages could not be made, ever: for people."""
    said: dict[str, Any] = json.loads(body or "{}")
    return json.dumps({**said, "lost": said.get("lost", 0) + lost}) if lost else body
