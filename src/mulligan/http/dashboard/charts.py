"""Numbers as shapes: what the templates draw. Only geometry and words; colours are the style sheet's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log10
from typing import NamedTuple

from mulligan.core.attempt import Ended, Verb
from mulligan.core.event import EventType
from mulligan.core.format import clock, duration, moment
from mulligan.core.job import SECOND, AttemptRow, Micros, State
from mulligan.http.dashboard.renderer import Story
from mulligan.storage.base import Transaction
from mulligan.storage.stat_queries import MINUTE

WIDTH = 100.0  # of every drawing, in its own units; the page stretches it
HEIGHT = 28.0


class Spark(NamedTuple):
    """A small line of counts, oldest first."""

    line: str
    area: str
    words: str


def spark(values: Sequence[int], of: str) -> Spark:
    """`of`: what one value is: "an hour"."""
    most = max(values, default=0)
    points = _points(values, most)
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    area = f"0,{HEIGHT:g} {line} {WIDTH:g},{HEIGHT:g}" if points else ""
    peak = f"at most {most:,} {of}" if most else f"none in {len(values)} × {of}"
    return Spark(
        line, area, f"{sum(values):,} in all, {peak}, last {values[-1] if values else 0:,}"
    )


def _points(values: Sequence[int], most: int) -> list[tuple[float, float]]:
    step = WIDTH / max(1, len(values) - 1)
    room = HEIGHT - 3  # the line has a thickness
    return [
        (round(place * step, 2), round(HEIGHT - 1.5 - (value / most * room if most else 0), 2))
        for place, value in enumerate(values)
    ]


class Block(NamedTuple):
    y: float
    height: float
    tone: str


class Column(NamedTuple):
    x: float
    width: float
    blocks: tuple[Block, ...]
    words: str


class ColumnChart(NamedTuple):
    """Counts over time, stacked by tone."""

    columns: tuple[Column, ...]
    most: int
    words: str
    rows: tuple[tuple[str, tuple[int, ...]], ...]  # the same as a table
    tones: tuple[str, ...]


def columns(
    steps: Sequence[tuple[str, Mapping[str, int]]], tones: Sequence[str], height: float = 80.0
) -> ColumnChart:
    """`steps`: (when, how many of each tone), oldest first; `tones`: the lowest first."""
    totals = [sum(counts.get(tone, 0) for tone in tones) for _, counts in steps]
    most = max(totals, default=0)
    width = WIDTH / max(14, len(steps))  # a single step is no wall
    drawn = [
        Column(
            round(place * width, 3),
            round(width * 0.82, 3),
            _stacked(counts, tones, most, height),
            _said(step, tones),
        )
        for place, step in enumerate(steps)
        for counts in [step[1]]
    ]
    rows = tuple((when, tuple(counts.get(tone, 0) for tone in tones)) for when, counts in steps)
    each = ", ".join(
        f"{sum(counts.get(tone, 0) for _, counts in steps):,} {tone}" for tone in tones
    )
    return ColumnChart(tuple(drawn), most, each, rows, tuple(tones))


def _stacked(
    counts: Mapping[str, int], tones: Sequence[str], most: int, height: float
) -> tuple[Block, ...]:
    blocks, below = [], 0.0
    for tone in tones:
        if share := counts.get(tone, 0) / most * height if most else 0.0:
            tall = max(share, 1.0)  # one death among thousands must still be seen
            below += tall
            blocks.append(Block(round(height - below, 2), round(tall, 2), tone))
    return tuple(blocks)


def _said(step: tuple[str, Mapping[str, int]], tones: Sequence[str]) -> str:
    when, counts = step
    said = [f"{counts[tone]:,} {tone}" for tone in tones if counts.get(tone)]
    return f"{when}: {', '.join(said) or 'nothing'}"


class Bar(NamedTuple):
    label: str
    many: int
    share: float  # of the largest, in percent
    link: str


def bars(
    counts: Mapping[str, int], link: Mapping[str, str] | None = None, most: int = 8
) -> tuple[Bar, ...]:
    """The largest first; what is beyond `most` is one bar of its own."""
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown, rest = ranked[:most], sum(count for _, count in ranked[most:])
    if rest:
        shown.append((f"{len(ranked) - most} others", rest))
    top = max((count for _, count in shown), default=1) or 1
    links = link or {}
    return tuple(
        Bar(label, count, round(100 * count / top, 1), links.get(label, ""))
        for label, count in shown
    )


class Delay(NamedTuple):
    """One retry of a schedule: seconds, as drawn at least, as meant, and at most."""

    least: float
    nominal: float
    most: float


class Curve(NamedTuple):
    """Delays on a logarithmic scale, with the band in which jitter draws them."""

    band: str
    line: str
    dots: tuple[tuple[float, float, str], ...]
    ticks: tuple[tuple[float, str], ...]


TICKS = (
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (21_600, "6 h"),
    (86_400, "1 d"),
)


def curve(delays: Sequence[Delay], words: Sequence[str], height: float = 80.0) -> Curve:
    """`words`: what each dot says."""
    top = max([10.0, *(delay.most for delay in delays)])
    xs = _across(len(delays))

    def y(seconds: float) -> float:
        return round(height - 4 - log10(1 + max(0.0, seconds)) / log10(1 + top) * (height - 8), 2)

    upper = [f"{x:g},{y(delay.most):g}" for x, delay in zip(xs, delays, strict=True)]
    lower = [f"{x:g},{y(delay.least):g}" for x, delay in zip(xs, delays, strict=True)]
    middle = [(x, y(delay.nominal)) for x, delay in zip(xs, delays, strict=True)]
    return Curve(
        band=" ".join([*upper, *reversed(lower)]),
        line=" ".join(f"{x:g},{at:g}" for x, at in middle),
        dots=tuple((x, at, said) for (x, at), said in zip(middle, words, strict=True)),
        ticks=tuple((y(seconds), said) for seconds, said in TICKS if seconds <= top),
    )


def _across(many: int) -> list[float]:
    step = (WIDTH - 12) / max(1, many - 1)
    return [round(6 + place * step, 2) for place in range(many)]


class Part(NamedTuple):
    """A stretch of a bar that is whole at 100."""

    x: float
    width: float
    tone: str
    words: str


def parts(counts: Sequence[tuple[str, str, int]]) -> tuple[Part, ...]:
    """(word, tone, how many) → one bar. What is there can be seen, however few."""
    total = sum(count for _, _, count in counts)
    shown = [(word, tone, count) for word, tone, count in counts if count]
    if not total:
        return ()
    widths = [max(1.0, 100 * count / total) for _, _, count in shown]
    scale = 100 / sum(widths)
    edges = [0.0]
    for width in widths:
        edges.append(edges[-1] + width * scale)
    return tuple(
        Part(round(left, 2), round(right - left, 2), tone, f"{count:,} {word}")
        for (word, tone, count), (left, right) in zip(shown, pairwise(edges), strict=True)
    )


# How attempts ended over time, from what was counted minute by minute.

TONES = {"succeeded": "succeeded", "retry": "retried", "lost": "retried", "dead": "dead"}
ORDER = ("succeeded", "retried", "dead")


class ChartWindow(NamedTuple):
    steps: int
    minutes: int  # of each

    @property
    def words(self) -> str:
        return f"each column is {duration(self.minutes * 60)}"


WINDOWS = {"1h": ChartWindow(60, 1), "24h": ChartWindow(96, 15), "7d": ChartWindow(84, 120)}


def outcomes(unit: Transaction, now: Micros, window: ChartWindow, kind: str = "") -> ColumnChart:
    width = window.minutes
    last = now // MINUTE // width
    begins = last - window.steps + 1
    counts: list[Counter[str]] = [Counter() for _ in range(window.steps)]
    for row in unit.stats(["verdicts"], begins * width * MINUTE):
        labels = json.loads(row.labels)
        tone, place = TONES.get(labels["outcome"]), row.minute // width - begins
        if tone is not None and 0 <= place < window.steps and kind in ("", labels.get("kind")):
            counts[place][tone] += row.n
    names = [_name((begins + place) * width, now) for place in range(window.steps)]
    return columns(list(zip(names, counts, strict=True)), ORDER)


def _name(minute: int, now: Micros) -> str:
    at = minute * MINUTE
    said, today = moment(at)[:16], moment(now)[:10]
    return said[11:] if said.startswith(today) else said


# A job's life on one line, drawn to scale: waits hatched, runs solid, deaths marked, holds told apart from waits.

TIMELINE_WIDTH = 1000
LEAST = 6.0  # a run of milliseconds must still be seen
MOST = 200  # attempts drawn
HELD = ("held", "over_budget", "limited")

# What a job waits for after an attempt that came to this.
AFTER = {
    Verb.RETRY: ("backoff", "waits before its next try"),
    Verb.SNOOZE: ("put-off", "put off by its own code"),
    Verb.HOLD: ("held", "held: what it uses is down"),
    Verb.PARK: ("parked", "parked: a person must decide"),
    Verb.DIE: ("over", "dead"),
    Verb.STOP: ("over", "cancelled"),
    Verb.SUCCEED: ("over", "succeeded"),
}
TURN = ("waiting", "waits for its turn")
LEGEND = (
    ("good", "returned"),
    ("bad", "failed"),
    ("lost", "process died"),
    ("calm", "put off or stopped"),
    ("busy", "running"),
    ("waiting", "waits for its turn"),
    ("backoff", "waits before a retry"),
    ("put-off", "put off"),
    ("held", "held"),
    ("parked", "parked"),
    ("death", "given up here"),
)
RUNS = frozenset({"good", "bad", "lost", "calm", "busy"})


class Segment(NamedTuple):
    x: float
    width: float
    tone: str
    words: str
    run: bool  # solid; else a wait, hatched


class TimelineMark(NamedTuple):
    x: float
    words: str


class Timeline(NamedTuple):
    segments: list[Segment]
    deaths: list[TimelineMark]
    ticks: list[str]  # evenly apart
    length: str
    legend: list[tuple[str, str]]  # of what is there


def timeline(found: Story) -> Timeline:
    row = found.row
    begins = row.created_at
    ends = max(begins + 1, row.finished_at or found.now)
    scale = TIMELINE_WIDTH / (ends - begins)
    stretches = [one for one in _stretches(found, begins, ends) if one.end > one.start]
    segments = [_segment(one, begins, scale) for one in stretches]
    deaths = [TimelineMark(_x(one.end, begins, scale), one.words) for one in stretches if one.died]
    there = {one.tone for one in stretches} | ({"death"} if deaths else set())
    legend = [(tone, word) for tone, word in LEGEND if tone in there]
    return Timeline(
        segments, deaths, _ticks(found, begins, ends), duration((ends - begins) / SECOND), legend
    )


def _ticks(found: Story, begins: Micros, ends: Micros) -> list[str]:
    last = "now" if found.row.finished_at is None else clock(ends, begins)
    return [moment(begins), clock((begins + ends) // 2, begins), last]


class _TimelineSpan(NamedTuple):
    start: Micros
    end: Micros
    tone: str
    words: str
    died: bool = False


def _stretches(found: Story, begins: Micros, ends: Micros) -> Iterator[_TimelineSpan]:
    """In order, without gaps."""
    at, after = begins, TURN
    due = found.row.run_at if not found.attempts else begins
    for attempt in found.attempts[-MOST:]:
        yield from _waited(found, at, attempt.started_at, after, due)
        yield _ran(attempt)
        at, due = attempt.ended_at, attempt.next_run_at or attempt.ended_at
        after = AFTER.get(Verb(attempt.verb), TURN)
    row = found.row
    if row.state == State.RUNNING and row.started_at is not None:
        yield from _waited(found, at, row.started_at, after, due)
        yield _TimelineSpan(row.started_at, found.now, "busy", f"attempt {row.attempt} is running")
    else:
        yield from _waited(
            found, at, ends, after if row.state != State.QUEUED else _now(found, after), due
        )


def _now(found: Story, after: tuple[str, str]) -> tuple[str, str]:
    """What waits now says itself what it waits for."""
    if found.job.phase in HELD:
        return "held", found.job.why
    return after if after[0] not in {"over", "parked"} else TURN


def _waited(
    found: Story, start: Micros, end: Micros, after: tuple[str, str], due: Micros
) -> Iterator[_TimelineSpan]:
    """What it waited for first, and from when it was due, or somebody let it go, for its turn."""
    tone, words = after
    until = _let_go(found, start, end) if tone in {"parked", "over"} else min(end, max(start, due))
    if tone in {"backoff", "put-off", "parked", "over"}:
        yield _wait(start, until, tone, words)
        yield _wait(until, end, *TURN)
    else:
        yield _wait(start, end, tone, words)


def _wait(start: Micros, end: Micros, tone: str, words: str) -> _TimelineSpan:
    return _TimelineSpan(start, end, tone, f"{words}: {duration(max(0, end - start) / SECOND)}")


def _let_go(found: Story, start: Micros, end: Micros) -> Micros:
    """When a person retried or released it."""
    by_hand = (EventType.JOB_RETRIED, EventType.JOB_RELEASED)
    times = [
        event.at for event in found.events if event.type in by_hand and start <= event.at <= end
    ]
    return min(times, default=end)


def _ran(attempt: AttemptRow) -> _TimelineSpan:
    ran = duration(max(0, attempt.ended_at - attempt.started_at) / SECOND)
    words = f"attempt {attempt.attempt} ran {ran}: {attempt.ended} {attempt.code or ''}".strip()
    end = max(attempt.ended_at, attempt.started_at + 1)
    return _TimelineSpan(
        attempt.started_at, end, _tone(attempt.ended), words, attempt.verb == Verb.DIE
    )


def _tone(ended: str) -> str:
    if ended == Ended.RETURNED:
        return "good"
    if ended == Ended.LOST:
        return "lost"
    return "bad" if ended in {Ended.FAILED, Ended.REFUSED} else "calm"


def _x(at: Micros, begins: Micros, scale: float) -> float:
    return round(min(max(0.0, (at - begins) * scale), TIMELINE_WIDTH), 1)


def _segment(one: _TimelineSpan, begins: Micros, scale: float) -> Segment:
    run = one.tone in RUNS
    width = max(LEAST if run else 0.0, (one.end - one.start) * scale)
    x = min(max(0.0, (one.start - begins) * scale), TIMELINE_WIDTH - width)
    return Segment(round(x, 1), round(width, 1), one.tone, one.words, run)
