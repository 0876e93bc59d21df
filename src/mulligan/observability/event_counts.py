"""What is counted of the events, by minute: one fold for the exporter, the alerts and insight.

Durable, so that a counter goes on after a restart, and in one place, so that a fleet counts nothing twice. Its names
and labels are the table in docs/reference/metrics.md.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.job import SECOND, Micros
from mulligan.core.statistics import FAILED
from mulligan.manifest.specs import OURS
from mulligan.storage.base import Store, Transaction
from mulligan.storage.stat_queries import HOUR, MINUTE, NewsRow, StatRow

# Labels that come from outside: of each sort only so many, and none too long.

MOST_LABELS = {"kind": 200, "queue": 100, "code": 200, "dependency": 200}
LONGEST = 100
OTHER = "other"


def printable(name: str) -> str:
    """Nothing that could break a line or could not be written at all."""
    return "".join(sign if sign.isprintable() else "?" for sign in name[:LONGEST])


class Names:
    """The first so many keep their names for good; whatever comes after them is counted together."""

    def __init__(self, known: Mapping[str, list[str]]) -> None:
        self.known = {sort: list(known.get(sort, ())) for sort in MOST_LABELS}
        self._sets = {sort: set(names) for sort, names in self.known.items()}

    def keep(self, sort: str, name: str) -> str:
        name = printable(name)
        if not name or name in self._sets[sort]:
            return name
        if len(self._sets[sort]) >= MOST_LABELS[sort]:
            return OTHER
        self._sets[sort].add(name)
        self.known[sort].append(name)
        return name


# What is counted of the events, by minute: one fold for the exporter, the alerts and insight.

READER = "fold"
MOST = 2000  # events of one turn
ASK_AGAIN = 60.0  # seconds
MINUTES_KEPT = 24 * HOUR
HOURS_KEPT = 30 * 24 * HOUR

RUN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
WAIT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
DELAY_SECONDS = (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 21600, 86400)
LENGTHS = ((300, "0-5min"), (1800, "5-30min"), (3600, "30-60min"))
TRIES = (1, 2, 3, 4, 5, 8, 13)
MOST_TRIES = 8
ENDLESS = 1e18

OUTCOMES = {
    "job.succeeded": "succeeded",
    "job.retry_scheduled": "retry",
    "job.died": "dead",
    "job.cancelled": "cancelled",
    "job.parked": "parked",
    "job.released": "released",
    "job.lost": "lost",
    "job.snoozed": "snoozed",
}
STATES = {"job.succeeded": "succeeded", "job.died": "dead", "job.cancelled": "cancelled"}
WORKERS = {"worker.started": "started", "worker.lost": "lost", "worker.runner_died": "runner_died"}
BREAKERS = {
    "dependency.opened": "open",
    "dependency.closed": "closed",
    "dependency.probing": "probing",
}
DELIVERY = f"{OURS}deliver"
ENDPOINT = f"{OURS}endpoint."

_RUN = [round(bound * 1000) for bound in RUN_SECONDS]
_WAIT = [round(bound * 1000) for bound in WAIT_SECONDS]
_DELAY = [round(bound * SECOND) for bound in DELAY_SECONDS]


class EventLabels(NamedTuple):
    """What of an event's data decides under which names and labels it counts."""

    kind: str
    queue: str
    code: str
    cls: str
    uses: str
    before: int  # counted failures of this life before this attempt
    of: str  # what else it concerns: a dependency


class Like(NamedTuple):
    """Events that count alike."""

    minute: int
    type: str
    attempt: bool  # the end of one
    said: EventLabels
    run: int | None  # in which bucket
    wait: int | None
    delay: int | None


class Sums:
    __slots__ = ("cost", "delay", "n", "paid", "run", "wait")

    def __init__(self) -> None:
        self.n = self.paid = 0
        self.run = self.wait = self.delay = self.cost = 0.0

    def add(self, n: int, run: float, wait: float) -> None:
        self.n += n
        self.run += run
        self.wait += wait


Counted = dict[Like, Sums]
Plain = tuple[int, str, int, int]  # minute, the text without its numbers, buckets of run and wait
Stat = tuple[str, dict[str, str], int, float]  # name, labels, n, total


class Fold:
    """The outlet. Whoever of a fleet comes first counts, and the others see that it was done."""

    name = READER

    def __init__(self, every: float = 1.0) -> None:
        self.every = every
        self._behind = False
        self._cursor = -1  # of the reader, when it was last seen
        self._asked = float("-inf")  # when the clock was

    def turn(self, store: Store) -> bool:
        with store.read() as unit:
            if not self._behind and self._rests(unit):
                return False
            seen = next((row for row in unit.readers() if row.name == READER), None)
            self._cursor = -1 if seen is None else seen.cursor
            now = unit.now()
            if (
                seen is not None
                and not self._behind
                and now - seen.updated_at < self.every * 0.9 * SECOND
            ):
                return False
            top, news = (0, []) if seen is None else unit.news_after(seen.cursor, MOST)
        memory = CounterState(seen.body if seen is not None else "")
        if seen is not None and top == seen.cursor and memory.rolled >= _day_ago(now):
            return self._done(behind=False)
        # Counted before anything is held: on SQLite nobody could write meanwhile.
        rows = list(stats(counted(news), memory))
        with store.begin() as unit:
            mine = unit.reader(READER)
            if mine is None or seen is None or mine.cursor != seen.cursor:
                return self._done(behind=False)
            unit.add_stats(rows)
            if memory.rolled < _day_ago(now):
                memory.rolled = unit.roll_stats(memory.rolled, _day_ago(now))
                unit.drop_stats(now // MINUTE - HOURS_KEPT)
            unit.move_reader(READER, top, memory.to_json())
        return self._done(behind=top - seen.cursor >= MOST or memory.rolled < _day_ago(now))

    def _rests(self, unit: Transaction) -> bool:
        """Is there nothing to count, and was the clock asked lately whether it is time to make minutes into hours?"""
        now = time.monotonic()
        if (
            self._cursor >= 0
            and now - self._asked < ASK_AGAIN
            and unit.newest_event(self._cursor) == self._cursor
        ):
            return True
        self._asked = now
        return False

    def _done(self, *, behind: bool) -> bool:
        self._behind = behind
        return behind


def _day_ago(now: Micros) -> int:
    """The hour before which minutes are made into hours."""
    return (now // MINUTE - MINUTES_KEPT) // HOUR * HOUR


class CounterState:
    """What the fold remembers beside its place: which names it has met, and how far minutes were made into hours."""

    def __init__(self, body: str) -> None:
        said: Mapping[str, Any] = json.loads(body) if body else {}
        self.rolled: int = said.get("rolled", 0)
        self.names = Names(said.get("names", {}))

    def to_json(self) -> str:
        return json.dumps({"rolled": self.rolled, "names": self.names.known}, separators=(",", ":"))


# -- from events to what counts alike ---------------------------------------------------------------
def counted(news: Iterable[NewsRow]) -> Counted:
    """One pass, and nothing in it that can stop the rest: what cannot be read is left out."""
    found: defaultdict[Like, Sums] = defaultdict(Sums)
    plain: dict[Plain, list[int]] = {}
    samples: dict[str, str] = {}
    for row in news:
        try:
            if row[1] != "job.succeeded" or not _count_plain(plain, samples, *row):
                _count(found, *row)
        except (AttributeError, IndexError, TypeError, ValueError):
            continue
    said = {text: _said(json.loads(data).get) for text, data in samples.items()}
    for (minute, text, run, wait), (n, ran, waited) in plain.items():
        found[Like(minute, "job.succeeded", True, said[text], run, wait, None)].add(n, ran, waited)
    return found


def _count(
    found: defaultdict[Like, Sums],
    at: Micros,
    kind: str,
    attempt: int | None,
    data: str,
    n: int = 1,
) -> None:
    get = json.loads(data).get
    run, wait, cost = _number(get("duration_ms")), _number(get("wait_ms")), _number(get("cost"))
    delay = _number(get("next_retry_at")) if kind == "job.retry_scheduled" else None
    delay = None if delay is None else max(0, delay - at)
    places = _place(_RUN, run), _place(_WAIT, wait), _place(_DELAY, delay)
    sums = found[Like(_minute(at), kind, attempt is not None, _said(get), *places)]
    sums.add(n, (run or 0) * n, (wait or 0) * n)
    sums.delay += (delay or 0) * n
    if cost:
        sums.paid += n
        sums.cost += cost * n


def _count_plain(
    plain: dict[Plain, list[int]],
    samples: dict[str, str],
    at: Micros,
    _: str,
    attempt: int | None,
    data: str,
    n: int = 1,
) -> bool:
    """Most successes differ in two numbers alone: without these their text is looked up, not parsed.

    False: it is not as plain as that.
    """
    head, _, tail = data.partition('"duration_ms":')
    ran, _, rest = tail.partition(",")
    middle, _, waited = rest.rpartition('"wait_ms":')
    waited = waited[:-1]
    text = head + middle
    if attempt is None or not (ran.isdecimal() and waited.isdecimal()) or '"cost"' in text:
        return False
    run, wait = int(ran), int(waited)
    key = _minute(at), text, bisect_left(_RUN, run), bisect_left(_WAIT, wait)
    sums = plain.get(key)
    if sums is None:
        samples[text] = data
        plain[key] = [n, run * n, wait * n]
        return True
    sums[0] += n
    sums[1] += run * n
    sums[2] += wait * n
    return True


def _said(get: Callable[[str], Any]) -> EventLabels:
    return EventLabels(
        str(get("kind") or ""),
        str(get("queue") or ""),
        str(get("code") or ""),
        str(get("class") or ""),
        str(get("uses") or ""),
        int(_number(get("failed_before")) or 0),
        str(get("dependency") or ""),
    )


def _minute(at: Micros) -> int:
    return max(HOUR, at // MINUTE)  # what lies before is not for time


def _place(bounds: list[int], value: float | None) -> int | None:
    return None if value is None else bisect_left(bounds, value)


def _number(value: Any) -> float | None:
    """Not what JSON calls NaN: one of them would spoil a sum for ever."""
    return value if isinstance(value, int | float) and 0 <= value < ENDLESS else None


# -- from what counts alike to rows -----------------------------------------------------------------
def stats(found: Counted, memory: CounterState) -> Iterator[StatRow]:
    """At most one row for each minute, name and labels."""
    rows: dict[tuple[int, str, str], list[float]] = {}
    for like, sums in found.items():
        minute = like.minute if like.minute >= memory.rolled else like.minute // HOUR * HOUR
        for name, labels, n, total in _of(like, _named(like.said, memory.names), sums):
            text = json.dumps(labels, separators=(",", ":"), sort_keys=True)
            row = rows.setdefault((minute, name, text), [0, 0.0])
            row[0] += n
            row[1] += total
    for (minute, name, text), row in rows.items():
        yield StatRow(minute, name, text, int(row[0]), row[1])


def _named(said: EventLabels, names: Names) -> EventLabels:
    """With names of which there are only so many, whatever jobs are called."""
    if said.kind.startswith(OURS):
        return said
    return said._replace(
        kind=names.keep("kind", said.kind),
        queue=names.keep("queue", said.queue),
        code=names.keep("code", said.code),
        cls=printable(said.cls),
        uses=",".join(names.keep("dependency", key) for key in said.uses.split(",") if key),
        of=names.keep("dependency", said.of),
    )


def _of(like: Like, said: EventLabels, sums: Sums) -> Iterator[Stat]:
    if said.kind.startswith(DELIVERY):
        yield from _of_delivery(like, sums)
    if said.kind.startswith(OURS):
        return
    yield "events", {"type": like.type}, sums.n, 0.0
    job = {"kind": said.kind, "queue": said.queue}
    if like.type in WORKERS:
        yield "workers", {"what": WORKERS[like.type]}, sums.n, 0.0
    if like.type in BREAKERS:
        yield "breakers", {"dependency": said.of, "to": BREAKERS[like.type]}, sums.n, 0.0
    if like.type == "job.queued":
        yield "enqueued", job, sums.n, 0.0
    if like.type == "job.retried":
        yield "manual", job, sums.n, 0.0
    if like.type in STATES:
        end = {"state": STATES[like.type], "class": said.cls}
        yield "ends", {**job, **end, "code": said.code}, sums.n, 0.0
        yield "finished", end, sums.n, 0.0
    if like.attempt and like.type in OUTCOMES:
        yield from _of_attempt(like, said, sums)
        yield from _of_times(like, said, sums)


def _of_attempt(like: Like, said: EventLabels, sums: Sums) -> Iterator[Stat]:
    """By what became of it."""
    outcome, seconds = OUTCOMES[like.type], sums.run / 1000
    job, verdict = {"kind": said.kind, "queue": said.queue}, {"outcome": outcome, "class": said.cls}
    nth, number = "retry" if said.before else "first", str(min(said.before + 1, MOST_TRIES))
    yield "verdicts", {**verdict, "nth": nth}, sums.n, seconds
    yield "attempts", {**job, **verdict, "code": said.code}, sums.n, seconds
    yield "tries", {**job, "try": number, "outcome": outcome}, sums.n, seconds
    for key in said.uses.split(",") if said.uses else ():
        yield "calls", {"dependency": key, **verdict}, sums.n, seconds
    if sums.paid:
        yield "cost", {"kind": said.kind, "nth": nth, **verdict}, sums.paid, sums.cost
    if outcome == "retry":
        yield "retries", {**job, "class": said.cls, "code": said.code}, sums.n, sums.delay / SECOND
    if outcome in FAILED:
        final = "true" if outcome == "dead" else "false"
        yield (
            "failures",
            {"code": said.code, "final": final, "length": _length(like.run)},
            sums.n,
            seconds,
        )


def _of_times(like: Like, said: EventLabels, sums: Sums) -> Iterator[Stat]:
    """Into which buckets it falls."""
    job = {"kind": said.kind, "queue": said.queue}
    if like.run is not None:
        yield "run", {**job, "le": _le(RUN_SECONDS, like.run)}, sums.n, sums.run / 1000
    if like.wait is not None:
        yield "wait", {**job, "le": _le(WAIT_SECONDS, like.wait)}, sums.n, sums.wait / 1000
    if like.delay is not None:
        yield (
            "delay",
            {"class": said.cls, "le": _le(DELAY_SECONDS, like.delay)},
            sums.n,
            sums.delay / SECOND,
        )
    if like.type == "job.succeeded":
        needed = said.before + 1
        place = _le(TRIES, bisect_left(TRIES, needed))
        yield "needed", {"kind": said.kind, "le": place}, sums.n, float(sums.n * needed)


def _of_delivery(like: Like, sums: Sums) -> Iterator[Stat]:
    """Endpoints are named `mulligan.endpoint.CHANNEL.…`; of one that is not the channel is unknown."""
    if like.attempt and like.type in OUTCOMES:
        channel, dot, _ = like.said.uses.removeprefix(ENDPOINT).partition(".")
        labels = {"channel": channel if dot else "unknown", "outcome": OUTCOMES[like.type]}
        yield "deliveries", labels, sums.n, sums.run / 1000


def _le(bounds: tuple[float, ...], place: int) -> str:
    return f"{bounds[place]:g}" if place < len(bounds) else "+Inf"


def _length(run: int | None) -> str:
    """How long a failed attempt ran, as coarse as a label should be."""
    if run is None:
        return "unknown"
    bound = RUN_SECONDS[run] if run < len(RUN_SECONDS) else LENGTHS[-1][0] + 1
    return next((name for most, name in LENGTHS if bound <= most), "60min+")
