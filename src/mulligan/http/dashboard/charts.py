"""Charts as geometry for the SVG templates: coordinates and labels. Colours are in the CSS."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log10
from typing import NamedTuple

from mulligan.core.attempt import Ended, Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType
from mulligan.core.format import format_duration, format_time, format_time_after
from mulligan.core.job import AttemptRow, State
from mulligan.events.queries import MINUTE, StatQueries
from mulligan.http.dashboard.renderer import JobStory
from mulligan.storage.base import Transaction

WIDTH = 100.0  # of every chart, in its own units; the page stretches it
SPARK_HEIGHT = 28.0
CHART_HEIGHT = 80.0


# --- Sparklines ---


class Sparkline(NamedTuple):
    """A small line of counts, oldest first."""

    line: str
    area: str
    label: str


def sparkline(values: Sequence[int], unit: str) -> Sparkline:
    """Draw counts as a line. `unit` is the time that one value covers: "an hour"."""
    peak = max(values, default=0)
    points = _spark_points(values, peak)
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    area = f"0,{SPARK_HEIGHT:g} {line} {WIDTH:g},{SPARK_HEIGHT:g}" if points else ""
    last = values[-1] if values else 0
    highest = f"at most {peak:,} {unit}" if peak else f"none in {len(values)} × {unit}"
    return Sparkline(line, area, f"{sum(values):,} in total, {highest}, last {last:,}")


def _spark_points(values: Sequence[int], peak: int) -> list[tuple[float, float]]:
    step = WIDTH / max(1, len(values) - 1)
    usable = SPARK_HEIGHT - 3  # leave space for the thickness of the line
    points = []
    for index, value in enumerate(values):
        height = value / peak * usable if peak else 0
        points.append((round(index * step, 2), round(SPARK_HEIGHT - 1.5 - height, 2)))
    return points


# --- Column charts ---


class Block(NamedTuple):
    """One tone of a column."""

    y: float
    height: float
    tone: str


class Column(NamedTuple):
    """One time step of a column chart."""

    x: float
    width: float
    blocks: tuple[Block, ...]
    label: str


class ColumnChart(NamedTuple):
    """Counts over time, stacked by tone."""

    columns: tuple[Column, ...]
    peak: int
    label: str
    rows: tuple[tuple[str, tuple[int, ...]], ...]  # the same numbers as a table
    tones: tuple[str, ...]


def column_chart(
    steps: Sequence[tuple[str, Mapping[str, int]]],
    tones: Sequence[str],
    height: float = CHART_HEIGHT,
) -> ColumnChart:
    """Draw (time, count by tone) steps, oldest first. The first tone is at the bottom."""
    rows = [(when, tuple(counts.get(tone, 0) for tone in tones)) for when, counts in steps]
    peak = max((sum(counts) for _, counts in rows), default=0)
    width = WIDTH / max(14, len(steps))  # a few steps do not fill the whole width
    columns = []
    for index, (when, counts) in enumerate(steps):
        blocks = _stack(counts, tones, peak, height)
        label = _column_label(when, counts, tones)
        columns.append(Column(round(index * width, 3), round(width * 0.82, 3), blocks, label))
    totals = [f"{sum(counts.get(tone, 0) for _, counts in steps):,} {tone}" for tone in tones]
    return ColumnChart(tuple(columns), peak, ", ".join(totals), tuple(rows), tuple(tones))


def _stack(
    counts: Mapping[str, int], tones: Sequence[str], peak: int, height: float
) -> tuple[Block, ...]:
    blocks = []
    top = 0.0
    for tone in tones:
        count = counts.get(tone, 0)
        if not count or not peak:
            continue
        block_height = max(count / peak * height, 1.0)  # one death among thousands stays visible
        top += block_height
        blocks.append(Block(round(height - top, 2), round(block_height, 2), tone))
    return tuple(blocks)


def _column_label(when: str, counts: Mapping[str, int], tones: Sequence[str]) -> str:
    parts = [f"{counts[tone]:,} {tone}" for tone in tones if counts.get(tone)]
    return f"{when}: {', '.join(parts) or 'nothing'}"


# --- Bars ---


class Bar(NamedTuple):
    """A count with its share of the largest one."""

    label: str
    value: int
    share: float  # of the largest bar, in percent
    link: str


def bars(
    counts: Mapping[str, int], links: Mapping[str, str] | None = None, limit: int = 8
) -> tuple[Bar, ...]:
    """Return a bar per count, largest first. Counts beyond `limit` share one bar."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked[:limit]
    rest = sum(count for _, count in ranked[limit:])
    if rest:
        shown.append((f"{len(ranked) - limit} others", rest))
    largest = max((count for _, count in shown), default=1) or 1
    links = links or {}
    return tuple(
        Bar(label, count, round(100 * count / largest, 1), links.get(label, ""))
        for label, count in shown
    )


class BarPart(NamedTuple):
    """A part of one bar that is 100 wide."""

    x: float
    width: float
    tone: str
    label: str


def stacked_bar(counts: Sequence[tuple[str, str, int]]) -> tuple[BarPart, ...]:
    """Draw (word, tone, count) items as one bar. Every part is wide enough to be seen."""
    shown = [item for item in counts if item[2]]
    if not shown:
        return ()
    total = sum(count for _, _, count in shown)
    widths = [max(1.0, 100 * count / total) for _, _, count in shown]
    scale = 100 / sum(widths)
    edges = [0.0]
    for width in widths:
        edges.append(edges[-1] + width * scale)
    return tuple(
        BarPart(round(left, 2), round(right - left, 2), tone, f"{count:,} {word}")
        for (word, tone, count), (left, right) in zip(shown, pairwise(edges), strict=True)
    )


# --- Delay curves ---


class Delay(NamedTuple):
    """The delay before one retry in seconds: the least, the nominal and the most."""

    least: float
    nominal: float
    most: float


class Curve(NamedTuple):
    """Delays on a logarithmic scale, with the range of the jitter as a band."""

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


def delay_curve(
    delays: Sequence[Delay], labels: Sequence[str], height: float = CHART_HEIGHT
) -> Curve:
    """Draw the delays of a backoff; `labels` describe the dots."""
    longest = max([10.0, *(delay.most for delay in delays)])
    xs = _spread(len(delays))

    def y(seconds: float) -> float:
        share = log10(1 + max(0.0, seconds)) / log10(1 + longest)
        return round(height - 4 - share * (height - 8), 2)

    placed = list(zip(xs, delays, strict=True))
    upper = [f"{x:g},{y(delay.most):g}" for x, delay in placed]
    lower = [f"{x:g},{y(delay.least):g}" for x, delay in placed]
    middle = [(x, y(delay.nominal)) for x, delay in placed]
    return Curve(
        band=" ".join([*upper, *reversed(lower)]),
        line=" ".join(f"{x:g},{at:g}" for x, at in middle),
        dots=tuple((x, at, label) for (x, at), label in zip(middle, labels, strict=True)),
        ticks=tuple((y(seconds), label) for seconds, label in TICKS if seconds <= longest),
    )


def _spread(count: int) -> list[float]:
    """Return evenly spaced x coordinates with a margin."""
    step = (WIDTH - 12) / max(1, count - 1)
    return [round(6 + index * step, 2) for index in range(count)]


# --- Outcomes over time ---

OUTCOME_TONES = {"succeeded": "succeeded", "retry": "retried", "lost": "retried", "dead": "dead"}
TONE_ORDER = ("succeeded", "retried", "dead")


class ChartWindow(NamedTuple):
    """A period of time that a chart shows, in equal steps."""

    steps: int
    minutes: int  # of each step

    @property
    def label(self) -> str:
        return f"each column is {format_duration(self.minutes * 60)}"


WINDOWS = {"1h": ChartWindow(60, 1), "24h": ChartWindow(96, 15), "7d": ChartWindow(84, 120)}


def load_outcomes(tx: Transaction, now: Micros, window: ChartWindow, kind: str = "") -> ColumnChart:
    """Chart how attempts ended, from the statistics of each minute."""
    width = window.minutes
    first = now // MINUTE // width - window.steps + 1
    counts: list[Counter[str]] = [Counter() for _ in range(window.steps)]
    for row in StatQueries(tx).list_stats(["verdicts"], first * width * MINUTE):
        labels = json.loads(row.labels)
        if kind and kind != labels.get("kind"):
            continue
        tone = OUTCOME_TONES.get(labels["outcome"])
        step = row.minute // width - first
        if tone is not None and 0 <= step < window.steps:
            counts[step][tone] += row.n
    times = [_step_time((first + step) * width, now) for step in range(window.steps)]
    return column_chart(list(zip(times, counts, strict=True)), TONE_ORDER)


def _step_time(minute: int, now: Micros) -> str:
    """Format the start of a step; without the date if it is today."""
    text = format_time(minute * MINUTE)[:16]
    today = format_time(now)[:10]
    return text[11:] if text.startswith(today) else text


# --- Timeline of a job ---

TIMELINE_WIDTH = 1000
MIN_RUN_WIDTH = 6.0  # a run of milliseconds stays visible
MAX_ATTEMPTS = 200  # drawn
HELD_PHASES = ("held", "over_budget", "limited")


class Wait(NamedTuple):
    """Something that a job waits for."""

    tone: str
    label: str


IN_QUEUE = Wait("waiting", "waiting for a worker")
WAIT_AFTER = {
    Verb.RETRY: Wait("backoff", "waiting before its next retry"),
    Verb.SNOOZE: Wait("snoozed", "snoozed by its handler"),
    Verb.HOLD: Wait("held", "held: a dependency is down"),
    Verb.PARK: Wait("parked", "parked: a person must decide"),
    Verb.DIE: Wait("over", "dead"),
    Verb.STOP: Wait("over", "cancelled"),
    Verb.SUCCEED: Wait("over", "succeeded"),
}
UNTIL_PERSON = frozenset({"parked", "over"})  # tones of waits that a person ends
UNTIL_DUE = frozenset({"backoff", "snoozed"})  # tones of waits that the due time ends
LEGEND = (
    ("good", "returned"),
    ("bad", "failed"),
    ("lost", "process died"),
    ("calm", "snoozed or stopped"),
    ("busy", "running"),
    ("waiting", "waiting for a worker"),
    ("backoff", "waiting before a retry"),
    ("snoozed", "snoozed"),
    ("held", "held"),
    ("parked", "parked"),
    ("death", "died"),
)
RUN_TONES = frozenset({"good", "bad", "lost", "calm", "busy"})


class Segment(NamedTuple):
    """A run or a wait in the timeline."""

    x: float
    width: float
    tone: str
    label: str
    run: bool  # drawn solid; a wait is hatched


class TimelineMark(NamedTuple):
    """A death in the timeline."""

    x: float
    label: str


class Timeline(NamedTuple):
    """The life of a job, drawn to scale."""

    segments: list[Segment]
    deaths: list[TimelineMark]
    ticks: list[str]  # evenly spaced
    length: str
    legend: list[tuple[str, str]]  # of the tones that occur


def timeline(story: JobStory) -> Timeline:
    """Draw the life of a job: runs, waits and deaths."""
    start = story.row.created_at
    end = max(start + 1, story.row.finished_at or story.now)
    scale = TIMELINE_WIDTH / (end - start)
    spans = [span for span in _spans(story, start, end) if span.end > span.start]
    deaths = [TimelineMark(_x(span.end, start, scale), span.label) for span in spans if span.died]
    tones = {span.tone for span in spans}
    if deaths:
        tones.add("death")
    return Timeline(
        [_segment(span, start, scale) for span in spans],
        deaths,
        _ticks(story, start, end),
        format_duration((end - start) / SECOND),
        [(tone, label) for tone, label in LEGEND if tone in tones],
    )


def _ticks(story: JobStory, start: Micros, end: Micros) -> list[str]:
    last = "now" if story.row.finished_at is None else format_time_after(end, start)
    return [format_time(start), format_time_after((start + end) // 2, start), last]


class _TimelineSpan(NamedTuple):
    start: Micros
    end: Micros
    tone: str
    label: str
    died: bool = False


def _spans(story: JobStory, start: Micros, end: Micros) -> Iterator[_TimelineSpan]:
    """Yield runs and waits in order, without gaps."""
    row = story.row
    at = start
    wait = IN_QUEUE
    due = start if story.attempts else row.run_at
    for attempt in story.attempts[-MAX_ATTEMPTS:]:
        yield from _wait_spans(story, at, attempt.started_at, wait, due)
        yield _run_span(attempt)
        at = attempt.ended_at
        due = attempt.next_run_at or attempt.ended_at
        wait = WAIT_AFTER.get(Verb(attempt.verb), IN_QUEUE)
    if row.state == State.RUNNING and row.started_at is not None:
        yield from _wait_spans(story, at, row.started_at, wait, due)
        yield _TimelineSpan(row.started_at, story.now, "busy", f"attempt {row.attempt} is running")
    else:
        if row.state == State.QUEUED:
            wait = _current_wait(story, wait)
        yield from _wait_spans(story, at, end, wait, due)


def _current_wait(story: JobStory, after_attempt: Wait) -> Wait:
    """Return what a queued job waits for now."""
    if story.job.phase in HELD_PHASES:
        return Wait("held", story.job.why)
    return IN_QUEUE if after_attempt.tone in UNTIL_PERSON else after_attempt


def _wait_spans(
    story: JobStory, start: Micros, end: Micros, wait: Wait, due: Micros
) -> Iterator[_TimelineSpan]:
    """Yield a wait; then, once it was due or a person ended it, the wait for a worker."""
    if wait.tone in UNTIL_PERSON:
        until = _manual_move_at(story, start, end)
    elif wait.tone in UNTIL_DUE:
        until = min(end, max(start, due))
    else:
        until = end
    yield _wait_span(start, until, wait)
    if until < end:
        yield _wait_span(until, end, IN_QUEUE)


def _wait_span(start: Micros, end: Micros, wait: Wait) -> _TimelineSpan:
    length = format_duration(max(0, end - start) / SECOND)
    return _TimelineSpan(start, end, wait.tone, f"{wait.label}: {length}")


def _manual_move_at(story: JobStory, start: Micros, end: Micros) -> Micros:
    """Return when a person retried or released the job between `start` and `end`, else `end`."""
    moves = (EventType.JOB_RETRIED, EventType.JOB_RELEASED)
    times = [event.at for event in story.events if event.type in moves and start <= event.at <= end]
    return min(times, default=end)


def _run_span(attempt: AttemptRow) -> _TimelineSpan:
    length = format_duration(max(0, attempt.ended_at - attempt.started_at) / SECOND)
    outcome = f"{attempt.ended} {attempt.code or ''}".strip()
    return _TimelineSpan(
        attempt.started_at,
        max(attempt.ended_at, attempt.started_at + 1),
        _run_tone(attempt.ended),
        f"attempt {attempt.attempt} ran {length}: {outcome}",
        attempt.verb == Verb.DIE,
    )


def _run_tone(ended: str) -> str:
    if ended == Ended.RETURNED:
        return "good"
    if ended == Ended.LOST:
        return "lost"
    if ended in {Ended.FAILED, Ended.REFUSED}:
        return "bad"
    return "calm"


def _x(at: Micros, start: Micros, scale: float) -> float:
    return round(min(max(0.0, (at - start) * scale), TIMELINE_WIDTH), 1)


def _segment(span: _TimelineSpan, start: Micros, scale: float) -> Segment:
    is_run = span.tone in RUN_TONES
    width = max(MIN_RUN_WIDTH if is_run else 0.0, (span.end - span.start) * scale)
    x = min(max(0.0, (span.start - start) * scale), TIMELINE_WIDTH - width)
    return Segment(round(x, 1), round(width, 1), span.tone, span.label, is_run)
