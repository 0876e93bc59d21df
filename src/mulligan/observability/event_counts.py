"""Count events by minute into the `stat` table, for the exporter, alerts and insight.

The counts are stored, so a counter survives a restart, and one worker counts for the whole fleet,
so nothing is counted twice. Names and labels: docs/reference/metrics.md.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.attempt import Alarm
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import split_uses
from mulligan.core.statistics import FAILED_OUTCOMES
from mulligan.events.queries import (
    HOUR,
    MINUTE,
    CountedEvent,
    EventQueries,
    ReaderRow,
    StatQueries,
    StatRow,
)
from mulligan.failures.queries import (
    DeathsByCause,
    read_deaths,
    read_last_failures,
    record_deaths,
)
from mulligan.failures.regressions import record_regressions
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.storage.base import Store, Transaction

# --- Label values that come from outside: limited in number and length ---

MAX_LABELS = {"kind": 200, "queue": 100, "code": 200, "dependency": 200}
MAX_LABEL_LENGTH = 100
OTHER = "other"


def printable_label(name: str) -> str:
    """Replace characters that could break an output line, and cut the label."""
    label = name[:MAX_LABEL_LENGTH]
    if label.isprintable():
        return label
    return "".join([_printable(character) for character in label])


def _printable(character: str) -> str:
    return character if character.isprintable() else "?"


class LabelNames:
    """Known label values. The first ones keep their names, later ones are counted as `other`."""

    def __init__(self, known: Mapping[str, list[str]]) -> None:
        self.known = {sort: list(known.get(sort, ())) for sort in MAX_LABELS}
        self._sets = {sort: set(names) for sort, names in self.known.items()}

    def limit(self, sort: str, name: str) -> str:
        """Return the label to count under."""
        name = printable_label(name)
        if not name or name in self._sets[sort]:
            return name
        if len(self._sets[sort]) >= MAX_LABELS[sort]:
            return OTHER
        self._sets[sort].add(name)
        self.known[sort].append(name)
        return name


# --- Counting ---

READER = "fold"
MAX_EVENTS = 2000  # per transaction
ROLL_UP_CHECK_SECONDS = 60.0
MINUTE_RETENTION = 24 * HOUR
HOUR_RETENTION = 30 * 24 * HOUR

# 240: the alert slow_jobs starts there.
RUN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240, 300, 600, 1800, 3600, 7200)
WAIT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
DELAY_SECONDS = (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 21600, 86400)
LENGTHS = ((300, "0-5min"), (1800, "5-30min"), (3600, "30-60min"))
ATTEMPT_BUCKETS = (1, 2, 3, 4, 5, 8, 13)
MAX_ATTEMPT_LABEL = 8
MAX_NUMBER = 1e18

OUTCOMES = {
    "job.succeeded": "succeeded",
    "job.retry_scheduled": "retry",
    "job.died": "dead",
    "job.cancelled": "cancelled",
    "job.parked": "parked",
    "job.released": "released",
    "job.lost": "lost",
    "job.snoozed": "snoozed",
    "job.waiting": "waiting",
}
STATES = {"job.succeeded": "succeeded", "job.died": "dead", "job.cancelled": "cancelled"}
WORKERS = {"worker.started": "started", "worker.lost": "lost", "worker.runner_died": "runner_died"}
BREAKERS = {
    "dependency.opened": "open",
    "dependency.closed": "closed",
    "dependency.probing": "probing",
}
DELIVERY = f"{SYSTEM_PREFIX}deliver"
ENDPOINT = f"{SYSTEM_PREFIX}endpoint."

_RUN_MS = [round(bound * 1000) for bound in RUN_SECONDS]
_WAIT_MS = [round(bound * 1000) for bound in WAIT_SECONDS]
_DELAY_MICROS = [round(bound * SECOND) for bound in DELAY_SECONDS]


class EventLabels(NamedTuple):
    """The parts of an event's data that decide under which labels it is counted."""

    kind: str
    queue: str
    code: str
    cls: str
    uses: str
    retries: int  # of this generation so far, this attempt included
    dependency: str
    alarm: str = ""  # "none": operators expect this death


class EventGroup(NamedTuple):
    """Events that are counted under the same names and labels."""

    minute: int
    type: str
    attempt: bool  # the event ends an attempt
    labels: EventLabels
    run: int | None  # bucket index
    wait: int | None
    delay: int | None


class GroupSums:
    """Sums over the events of one group."""

    __slots__ = ("cost", "delay", "n", "paid", "run", "wait")

    def __init__(self) -> None:
        self.n = self.paid = 0
        self.run = self.wait = self.delay = self.cost = 0.0

    def add(self, n: int, run: float, wait: float) -> None:
        self.n += n
        self.run += run
        self.wait += wait


GroupedEvents = dict[EventGroup, GroupSums]
SuccessKey = tuple[int, str, int, int]  # minute, data without its numbers, run and wait buckets
Stat = tuple[str, dict[str, str], int, float]  # name, labels, n, total


class EventCounter:
    """Periodic task that counts events. One worker of the fleet does it at a time."""

    name = READER

    def __init__(self, every: float = 1.0) -> None:
        self.every = every
        self._behind = False
        self._cursor = -1  # last known cursor of the reader
        self._clock_read_at = float("-inf")

    def run_once(self, store: Store) -> bool:
        """Count the next events. Return whether more are waiting."""
        with store.read() as tx:
            if not self._behind and self._nothing_to_count(tx):
                return False
            reader = EventQueries(tx).get_reader(READER)
            if reader is not None:
                self._cursor = reader.cursor
                now = tx.now()
                if not self._behind and self._is_recent(reader, now):
                    return False
                top, events = StatQueries(tx).list_events_to_count(reader.cursor, MAX_EVENTS)
                deaths: DeathsByCause = {}
                types = {event[1] for event in events}
                if "job.died" in types:
                    deaths = read_deaths(tx, reader.cursor, top, MAX_EVENTS)
                last_failures = read_last_failures(tx, deaths)
        if reader is None:
            return self._create_reader(store)
        state = CounterState(reader.body)
        if top == reader.cursor and state.rolled >= _roll_up_before(now):
            return self._done(behind=False)
        # Count before the write transaction: on SQLite it blocks all other writers.
        rows = list(build_stat_rows(group_events(events), state))
        with store.begin() as tx:
            locked = EventQueries(tx).lock_reader(READER)
            if locked is None or locked.cursor != reader.cursor:
                return self._done(behind=False)
            StatQueries(tx).add_stats(rows)
            record_deaths(tx, deaths, last_failures)
            record_regressions(tx, deaths)
            if state.rolled < _roll_up_before(now):
                state.rolled = StatQueries(tx).roll_up_stats(state.rolled, _roll_up_before(now))
                StatQueries(tx).delete_stats(now // MINUTE - HOUR_RETENTION)
            EventQueries(tx).advance_reader(READER, top, state.to_json())
        more_events = top - reader.cursor >= MAX_EVENTS
        more_to_roll_up = state.rolled < _roll_up_before(now)
        return self._done(behind=more_events or more_to_roll_up)

    def _create_reader(self, store: Store) -> bool:
        """Create the row of the reader. Counting begins with the next call, at the first event.

        Jobs may have been enqueued, and have died, before the first worker counts.
        """
        self._cursor = -1
        with store.begin() as tx:
            EventQueries(tx).lock_reader(READER, start=0)
        return self._done(behind=False)

    def _is_recent(self, reader: ReaderRow, now: Micros) -> bool:
        """Return whether another worker has just counted."""
        return now - reader.updated_at < self.every * 0.9 * SECOND

    def _nothing_to_count(self, tx: Transaction) -> bool:
        """Return whether there is no new event and no roll-up is due.

        The clock, which tells whether minutes must be rolled up into hours, is read once a minute.
        """
        now = time.monotonic()
        if (
            self._cursor >= 0
            and now - self._clock_read_at < ROLL_UP_CHECK_SECONDS
            and EventQueries(tx).newest_event(self._cursor) == self._cursor
        ):
            return True
        self._clock_read_at = now
        return False

    def _done(self, *, behind: bool) -> bool:
        self._behind = behind
        return behind


def _roll_up_before(now: Micros) -> int:
    """Return the minute before which minutes are rolled up into hours."""
    return (now // MINUTE - MINUTE_RETENTION) // HOUR * HOUR


class CounterState:
    """State stored with the cursor: known label names, and how far minutes were rolled up."""

    def __init__(self, body: str) -> None:
        stored: Mapping[str, Any] = json.loads(body) if body else {}
        self.rolled: int = stored.get("rolled", 0)
        self.names = LabelNames(stored.get("names", {}))

    def to_json(self) -> str:
        return json.dumps({"rolled": self.rolled, "names": self.names.known}, separators=(",", ":"))


# --- From events to groups ---
def group_events(events: Iterable[CountedEvent]) -> GroupedEvents:
    """Group events in one pass. Leave out events whose data cannot be read."""
    found: defaultdict[EventGroup, GroupSums] = defaultdict(GroupSums)
    successes: dict[SuccessKey, list[int]] = {}
    samples: dict[str, str] = {}
    for row in events:
        try:
            if row[1] != "job.succeeded" or not _count_success(successes, samples, *row):
                _count(found, *row)
        except (AttributeError, IndexError, TypeError, ValueError):
            continue
    labels = {text: _read_labels(json.loads(data).get) for text, data in samples.items()}
    for (minute, text, run, wait), (n, ran, waited) in successes.items():
        group = EventGroup(minute, "job.succeeded", True, labels[text], run, wait, None)
        found[group].add(n, ran, waited)
    return found


def _count(
    found: defaultdict[EventGroup, GroupSums],
    at: Micros,
    kind: str,
    attempt: int | None,
    data: str,
    n: int = 1,
) -> None:
    get = json.loads(data).get
    run = _valid_number(get("duration_ms"))
    wait = _valid_number(get("wait_ms"))
    cost = _valid_number(get("cost"))
    delay = _retry_delay(get, at) if kind == "job.retry_scheduled" else None
    group = EventGroup(
        _minute_of(at),
        kind,
        attempt is not None,
        _read_labels(get),
        run=_bucket(_RUN_MS, run),
        wait=_bucket(_WAIT_MS, wait),
        delay=_bucket(_DELAY_MICROS, delay),
    )
    sums = found[group]
    sums.add(n, (run or 0) * n, (wait or 0) * n)
    sums.delay += (delay or 0) * n
    if cost:
        sums.paid += n
        sums.cost += cost * n


def _retry_delay(get: Callable[[str], Any], at: Micros) -> float | None:
    next_retry_at = _valid_number(get("next_retry_at"))
    return None if next_retry_at is None else max(0, next_retry_at - at)


def _count_success(
    successes: dict[SuccessKey, list[int]],
    samples: dict[str, str],
    at: Micros,
    _: str,
    attempt: int | None,
    data: str,
    n: int = 1,
) -> bool:
    """Count a success without parsing its JSON. Return False if its data must be parsed.

    Most successes differ only in two numbers; the text without them identifies the labels.
    """
    head, _, tail = data.partition('"duration_ms":')
    ran, _, rest = tail.partition(",")
    middle, _, waited = rest.rpartition('"wait_ms":')
    waited = waited[:-1]
    text = head + middle
    if attempt is None or not (ran.isdecimal() and waited.isdecimal()) or '"cost"' in text:
        return False
    run, wait = int(ran), int(waited)
    key = _minute_of(at), text, bisect_left(_RUN_MS, run), bisect_left(_WAIT_MS, wait)
    sums = successes.get(key)
    if sums is None:
        samples[text] = data
        successes[key] = [n, run * n, wait * n]
        return True
    sums[0] += n
    sums[1] += run * n
    sums[2] += wait * n
    return True


def _read_labels(get: Callable[[str], Any]) -> EventLabels:
    return EventLabels(
        str(get("kind") or ""),
        str(get("queue") or ""),
        str(get("code") or ""),
        str(get("class") or ""),
        str(get("uses") or ""),
        int(_valid_number(get("retries")) or 0),
        str(get("dependency") or ""),
        Alarm.NONE if get("alarm") == Alarm.NONE else "",
    )


def _minute_of(at: Micros) -> int:
    # Minute 0 holds the totals since counting began, so no event may be counted there.
    return max(HOUR, at // MINUTE)


def _bucket(bounds: list[int], value: float | None) -> int | None:
    return None if value is None else bisect_left(bounds, value)


def _valid_number(value: Any) -> float | None:
    """Return the number if it is finite and not negative: one NaN would spoil a sum for ever."""
    is_valid = isinstance(value, int | float) and 0 <= value < MAX_NUMBER
    return value if is_valid else None


# --- From groups to rows ---
def build_stat_rows(found: GroupedEvents, state: CounterState) -> Iterator[StatRow]:
    """Yield one row per minute, name and label set."""
    rows: dict[tuple[int, str, str], list[float]] = {}
    for group, sums in found.items():
        minute = group.minute
        if minute < state.rolled:
            minute = minute // HOUR * HOUR
        limited = _limit_labels(group.labels, state.names)
        for name, labels, n, total in _stats_of(group, limited, sums):
            text = json.dumps(labels, separators=(",", ":"), sort_keys=True)
            row = rows.setdefault((minute, name, text), [0, 0.0])
            row[0] += n
            row[1] += total
    for (minute, name, text), row in rows.items():
        yield StatRow(minute, name, text, int(row[0]), row[1])


def _limit_labels(labels: EventLabels, names: LabelNames) -> EventLabels:
    """Limit the number of label values, whatever users call their jobs."""
    if labels.kind.startswith(SYSTEM_PREFIX):
        return labels
    return labels._replace(
        kind=names.limit("kind", labels.kind),
        queue=names.limit("queue", labels.queue),
        code=names.limit("code", labels.code),
        cls=printable_label(labels.cls),
        uses=",".join(names.limit("dependency", key) for key in split_uses(labels.uses)),
        dependency=names.limit("dependency", labels.dependency),
    )


def _stats_of(group: EventGroup, labels: EventLabels, sums: GroupSums) -> Iterator[Stat]:
    if labels.kind.startswith(DELIVERY):
        yield from _delivery_stats(group, sums)
    if labels.kind.startswith(SYSTEM_PREFIX):
        return
    yield "events", {"type": group.type}, sums.n, 0.0
    job = {"kind": labels.kind, "queue": labels.queue}
    if group.type in WORKERS:
        yield "workers", {"what": WORKERS[group.type]}, sums.n, 0.0
    if group.type in BREAKERS:
        change = {"dependency": labels.dependency, "to": BREAKERS[group.type]}
        yield "breakers", change, sums.n, 0.0
    if group.type == "job.queued":
        yield "enqueued", job, sums.n, 0.0
    if group.type == "job.retried":
        yield "manual", job, sums.n, 0.0
    if group.type in STATES:
        end = {"state": STATES[group.type], "class": labels.cls}
        if labels.alarm:
            end["alarm"] = labels.alarm
        yield "ends", {**job, **end, "code": labels.code}, sums.n, 0.0
        yield "finished", end, sums.n, 0.0
    if group.attempt and group.type in OUTCOMES:
        yield from _attempt_stats(group, labels, sums)
        yield from _duration_stats(group, labels, sums)


def _attempt_stats(group: EventGroup, labels: EventLabels, sums: GroupSums) -> Iterator[Stat]:
    """Yield statistics of attempts by outcome."""
    outcome = OUTCOMES[group.type]
    seconds = sums.run / 1000
    job = {"kind": labels.kind, "queue": labels.queue}
    verdict = {"outcome": outcome, "class": labels.cls}
    nth = "retry" if labels.retries else "first"
    number = str(min(labels.retries + 1, MAX_ATTEMPT_LABEL))
    yield "verdicts", {**verdict, "nth": nth}, sums.n, seconds
    yield "attempts", {**job, **verdict, "code": labels.code}, sums.n, seconds
    yield "tries", {**job, "try": number, "outcome": outcome}, sums.n, seconds
    for key in split_uses(labels.uses):
        yield "calls", {"dependency": key, **verdict}, sums.n, seconds
    if sums.paid:
        yield "cost", {"kind": labels.kind, "nth": nth, **verdict}, sums.paid, sums.cost
    if outcome == "retry":
        cause = {"class": labels.cls, "code": labels.code}
        yield "retries", {**job, **cause}, sums.n, sums.delay / SECOND
    if outcome in FAILED_OUTCOMES:
        final = "true" if outcome == "dead" else "false"
        length = _length_label(group.run)
        yield "failures", {"code": labels.code, "final": final, "length": length}, sums.n, seconds


def _duration_stats(group: EventGroup, labels: EventLabels, sums: GroupSums) -> Iterator[Stat]:
    """Yield histogram statistics of durations and numbers of attempts."""
    job = {"kind": labels.kind, "queue": labels.queue}
    if group.run is not None:
        bound = _bucket_label(RUN_SECONDS, group.run)
        yield "run", {**job, "le": bound}, sums.n, sums.run / 1000
    if group.wait is not None:
        bound = _bucket_label(WAIT_SECONDS, group.wait)
        yield "wait", {**job, "le": bound}, sums.n, sums.wait / 1000
    if group.delay is not None:
        bound = _bucket_label(DELAY_SECONDS, group.delay)
        yield "delay", {"class": labels.cls, "le": bound}, sums.n, sums.delay / SECOND
    if group.type == "job.succeeded":
        needed = labels.retries + 1
        bound = _bucket_label(ATTEMPT_BUCKETS, bisect_left(ATTEMPT_BUCKETS, needed))
        yield "needed", {"kind": labels.kind, "le": bound}, sums.n, float(sums.n * needed)


def _delivery_stats(group: EventGroup, sums: GroupSums) -> Iterator[Stat]:
    """Yield statistics of deliveries by channel; endpoints are `mulligan.endpoint.CHANNEL.…`."""
    if group.attempt and group.type in OUTCOMES:
        channel, dot, _ = group.labels.uses.removeprefix(ENDPOINT).partition(".")
        if not dot:
            channel = "unknown"
        labels = {"channel": channel, "outcome": OUTCOMES[group.type]}
        yield "deliveries", labels, sums.n, sums.run / 1000


def _bucket_label(bounds: tuple[float, ...], place: int) -> str:
    return f"{bounds[place]:g}" if place < len(bounds) else "+Inf"


def _length_label(run: int | None) -> str:
    """Return how long a failed attempt ran, in a few coarse classes."""
    if run is None:
        return "unknown"
    if run < len(RUN_SECONDS):
        for most, name in LENGTHS:
            if RUN_SECONDS[run] <= most:
                return name
    return "60min+"
