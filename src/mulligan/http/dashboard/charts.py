"""Charts as geometry for the SVG templates: coordinates and labels. Colours are in the CSS."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import log10
from typing import NamedTuple

from mulligan.core.attempt import Ended, Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType
from mulligan.core.format import format_duration, format_time, format_time_after
from mulligan.core.job import AttemptRow, State
from mulligan.events.queries import MINUTE, StatQueries
from mulligan.http.dashboard.renderer import JobStory
from mulligan.releases.queries import ReleaseQueries
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


MIN_LINE = 3  # points: fewer say nothing


def depth_line(values: Sequence[int], minutes: int) -> Sparkline | None:
    """Draw the number of jobs of a queue by minute, the newest at the right edge.

    A queue that is younger than `minutes` has a shorter line.
    """
    if len(values) < MIN_LINE or not any(values):
        return None
    points = _spark_points(values, max(values), minutes)
    line = _join_points(points)
    label = f"{values[-1]:,} now, at most {max(values):,} in {len(values)} min"
    return Sparkline(
        line, f"{points[0][0]:g},{SPARK_HEIGHT:g} {line} {WIDTH:g},{SPARK_HEIGHT:g}", label
    )


def _join_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _spark_points(values: Sequence[int], peak: int, slots: int) -> list[tuple[float, float]]:
    step = WIDTH / (max(slots, len(values)) - 1)
    usable = SPARK_HEIGHT - 3  # leave space for the thickness of the line
    points = []
    for ago, value in enumerate(reversed(values)):
        y = SPARK_HEIGHT - 1.5 - value / peak * usable
        points.append((round(WIDTH - ago * step, 2), round(y, 2)))
    return points[::-1]


# --- Column charts ---


class ChartStep(NamedTuple):
    """One column before it is drawn."""

    label: str  # "14:02", "3 h ago", "2nd attempt"
    counts: Mapping[str, int]  # by tone
    at: str = ""  # start of the step in ISO 8601, if it stands for a time
    link: str = ""  # list of the jobs of the step


class ChartMark(NamedTuple):
    """A vertical line with a word, such as the start of a release."""

    step: float  # position in steps: 3.5 is the middle of the fourth column
    label: str


class Block(NamedTuple):
    """One tone of a column, in percent of the height."""

    y: float
    height: float
    tone: str


class Column(NamedTuple):
    """One drawn step, in percent of the width. Names as in ChartStep."""

    x: float
    width: float
    center: float
    blocks: tuple[Block, ...]
    label: str
    at: str
    link: str
    values: tuple[tuple[str, int], ...]  # count by tone, the top of the column first


class AxisTick(NamedTuple):
    """A number or a time at an axis. `at` as in ChartStep."""

    place: float  # in percent
    label: str
    at: str = ""


class DrawnMark(NamedTuple):
    """A ChartMark in percent of the width. Marks on the right have their word on the left."""

    x: float
    label: str
    on_left: bool


class ColumnChart(NamedTuple):
    """Counts over time, stacked by tone, with axes and the same numbers as a table."""

    columns: tuple[Column, ...]
    peak: int
    label: str
    tones: tuple[str, ...]
    y_ticks: tuple[AxisTick, ...]
    x_ticks: tuple[AxisTick, ...]
    marks: tuple[DrawnMark, ...]
    form: str  # how scripts write the times of the x axis: minute or day


MAX_COLUMN_WIDTH = 8.0  # percent, so that few columns are not blocks
MAX_NAME_TICKS = 7  # more columns have only some of their names at the axis
MAX_TIME_TICKS = 6
TIME_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880)  # minutes between two
DAY_MINUTES = 1440


def column_chart(
    steps: Sequence[ChartStep | tuple[str, Mapping[str, int]]],
    tones: Sequence[str],
    marks: Sequence[ChartMark] = (),
) -> ColumnChart:
    """Draw steps, oldest first. The first tone is at the bottom."""
    drawn = [ChartStep(*step) for step in steps]
    totals: Counter[str] = Counter()
    peak = 0
    for step in drawn:
        totals.update(step.counts)
        peak = max(peak, sum(step.counts.get(tone, 0) for tone in tones))
    top = _axis_top(peak)
    width = WIDTH / max(1, len(drawn))
    columns = [_column(step, place, width, top, tones) for place, step in enumerate(drawn)]
    return ColumnChart(
        columns=tuple(columns),
        peak=peak,
        label=", ".join(f"{totals[tone]:,} {tone}" for tone in tones),
        tones=tuple(tones),
        y_ticks=_y_ticks(top),
        x_ticks=_x_ticks(columns),
        marks=tuple(_draw_marks(marks, width)),
        form=_tick_form(columns),
    )


def _axis_top(peak: int) -> int:
    """Return the highest number of an axis: 1, 2, 3, 4, 6, 8 or 10 times a power of ten."""
    scale = 1
    while peak > 10 * scale:
        scale *= 10
    return next(top * scale for top in (1, 2, 3, 4, 6, 8, 10) if top * scale >= peak)


def _y_ticks(top: int) -> tuple[AxisTick, ...]:
    numbers = [0, top // 2, top]
    if top in {1, 3}:  # half of it is no count
        numbers = [*range(top + 1)]
    return tuple(AxisTick(round(100 - 100 * n / top, 2), f"{n:,}") for n in numbers)


def _column(step: ChartStep, place: int, width: float, top: int, tones: Sequence[str]) -> Column:
    """Draw a step in the middle of its slot, which is `width` wide."""
    values = [(tone, step.counts.get(tone, 0)) for tone in reversed(tones)]
    drawn_width = min(width * 0.84, MAX_COLUMN_WIDTH)
    center = (place + 0.5) * width
    return Column(
        x=round(center - drawn_width / 2, 3),
        width=round(drawn_width, 3),
        center=round(center, 3),
        blocks=_stack(step.counts, tones, top),
        label=step.label,
        at=step.at,
        link=step.link,
        values=tuple(values),
    )


def _stack(counts: Mapping[str, int], tones: Sequence[str], top: int) -> tuple[Block, ...]:
    blocks = []
    level = 0.0
    for tone in tones:
        count = counts.get(tone, 0)
        if not count:
            continue
        height = max(100 * count / top, 1.0)  # one death among thousands stays visible
        level = min(100.0, level + height)
        blocks.append(Block(round(100 - level, 2), round(height, 2), tone))
    return tuple(blocks)


def _x_ticks(columns: Sequence[Column]) -> tuple[AxisTick, ...]:
    """Return round times; without times all labels, or the first, the middle and the last."""
    if not columns:
        return ()
    if not columns[0].at:
        places = list(range(len(columns)))
        if len(columns) > MAX_NAME_TICKS:
            places = [0, len(columns) // 2, len(columns) - 1]
        return tuple(AxisTick(columns[place].center, columns[place].label) for place in places)
    ticks = []
    for column, minute in zip(columns, _minutes(columns), strict=True):
        if minute % _tick_minutes(columns) == 0:
            ticks.append(AxisTick(column.center, column.label, column.at))
    return tuple(ticks)


def _minutes(columns: Sequence[Column]) -> list[int]:
    """Return the minute since 1970 of each column."""
    return [int(datetime.fromisoformat(column.at).timestamp()) // 60 for column in columns]


def _tick_minutes(columns: Sequence[Column]) -> int:
    """Return the number of minutes between two times of the axis."""
    minutes = _minutes(columns)
    span = minutes[-1] - minutes[0]
    fitting = [one for one in TIME_TICKS if span / one <= MAX_TIME_TICKS]
    return fitting[0] if fitting else TIME_TICKS[-1]


def _tick_form(columns: Sequence[Column]) -> str:
    if columns and columns[0].at and _tick_minutes(columns) >= DAY_MINUTES:
        return "day"
    return "minute"


def _draw_marks(marks: Iterable[ChartMark], width: float) -> Iterator[DrawnMark]:
    for mark in marks:
        x = mark.step * width
        if 0 <= x <= WIDTH:
            yield DrawnMark(round(x, 3), mark.label, on_left=x > WIDTH * 0.85)


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
    found = []
    for label, count in shown:
        share = round(100 * count / largest, 1)
        found.append(Bar(label, count, share, links.get(label, "")))
    return tuple(found)


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
    parts = []
    x = 0.0
    for (word, tone, count), width in zip(shown, widths, strict=True):
        scaled_width = width * scale
        parts.append(BarPart(round(x, 2), round(scaled_width, 2), tone, f"{count:,} {word}"))
        x += scaled_width
    return tuple(parts)


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

    upper = []
    lower = []
    middle = []
    dots = []
    for x, delay, label in zip(xs, delays, labels, strict=True):
        upper.append((x, y(delay.most)))
        lower.append((x, y(delay.least)))
        middle.append((x, y(delay.nominal)))
        dots.append((x, y(delay.nominal), label))
    ticks = [(y(seconds), label) for seconds, label in TICKS if seconds <= longest]
    return Curve(
        band=_join_points([*upper, *reversed(lower)]),
        line=_join_points(middle),
        dots=tuple(dots),
        ticks=tuple(ticks),
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
        return STEP_LABELS[self.minutes]


STEP_LABELS = {1: "per minute", 15: "per 15 minutes", 120: "per 2 hours"}
WINDOWS = {"1h": ChartWindow(60, 1), "24h": ChartWindow(96, 15), "7d": ChartWindow(84, 120)}


def load_outcomes(tx: Transaction, now: Micros, window: ChartWindow, kind: str = "") -> ColumnChart:
    """Chart how attempts ended, from the statistics of each minute."""
    width = window.minutes
    first = now // MINUTE // width - window.steps + 1
    counts: list[Counter[str]] = [Counter() for _ in range(window.steps)]
    tones: dict[str, str | None] = {}  # a week has thousands of rows, but few different labels
    for row in StatQueries(tx).list_stats(["verdicts"], first * width * MINUTE):
        if row.labels not in tones:
            tones[row.labels] = _outcome_tone(json.loads(row.labels), kind)
        tone = tones[row.labels]
        step = row.minute // width - first
        if tone is not None and 0 <= step < window.steps:
            counts[step][tone] += row.n
    minutes = [(first + step) * width for step in range(window.steps)]
    steps = [
        time_step(minute, width, now, one) for minute, one in zip(minutes, counts, strict=True)
    ]
    marks = release_marks(tx, first * width * MINUTE, width * MINUTE)
    return column_chart(steps, TONE_ORDER, marks)


MAX_MARKS = 8  # in one chart; more would cover each other


def release_marks(tx: Transaction, start: Micros, width: Micros) -> list[ChartMark]:
    """Return the starts of the newest releases, in a chart whose steps have this width."""
    newest = ReleaseQueries(tx).list_releases(MAX_MARKS + 1)
    # The first release of all is no deploy.
    deploys = newest if len(newest) > MAX_MARKS else newest[:-1]
    return [
        ChartMark((row.first_at - start) / width, row.name[:MAX_MARK_NAME])
        for row in deploys[:MAX_MARKS]
        if row.first_at >= start
    ]


MAX_MARK_NAME = 12  # characters


def _outcome_tone(labels: Mapping[str, str], kind: str) -> str | None:
    """Return the tone of an outcome, or None if the chart of this kind does not show it."""
    if kind and kind != labels.get("kind"):
        return None
    return OUTCOME_TONES.get(labels["outcome"])


def time_step(minute: int, length: int, now: Micros, counts: Mapping[str, int]) -> ChartStep:
    """Return the step of `length` minutes from `minute` on. The date is left out if it is today."""
    start = format_time(minute * MINUTE)[:16]
    today = format_time(now)[:10]
    label = start[11:] if start.startswith(today) else start
    iso = start.replace(" ", "T")
    end = format_time((minute + length) * MINUTE)[:16].replace(" ", "T")
    return ChartStep(label, counts, f"{iso}Z", f"/jobs?filter=ended:{iso}..{end}")


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
    Verb.WAIT: Wait("snoozed", "waiting without a slot"),
    Verb.HOLD: Wait("held", "held: a dependency is down"),
    Verb.PARK: Wait("parked", "parked: a person must decide"),
    Verb.DIE: Wait("over", "dead"),
    Verb.STOP: Wait("over", "cancelled"),
    Verb.UNDO: Wait("waiting", "waiting to undo its steps"),
    Verb.SUCCEED: Wait("over", "succeeded"),
}
UNTIL_PERSON = frozenset({"parked", "over"})  # tones of waits that a person ends
UNTIL_DUE = frozenset({"backoff", "snoozed"})  # tones of waits that the due time ends
LEGEND = (
    ("good", "returned"),
    ("bad", "failed"),
    ("lost", "process died"),
    ("calm", "snoozed, waiting, parked or stopped"),
    ("busy", "running"),
    ("waiting", "waiting for a worker"),
    ("backoff", "waiting before a retry"),
    ("snoozed", "snoozed or waiting"),
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
    segments = []
    deaths = []
    tones = set()
    for span in _spans(story, start, end):
        if span.end <= span.start:
            continue
        segments.append(_segment(span, start, scale))
        tones.add(span.tone)
        if span.died:
            deaths.append(TimelineMark(_x(span.end, start, scale), span.label))
            tones.add("death")
    return Timeline(
        segments,
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
    for attempt in [one for one in story.attempts[-MAX_ATTEMPTS:] if one.has_run]:
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
    first_move = end
    for event in story.events:
        if event.type in moves and start <= event.at:
            first_move = min(first_move, event.at)
    return first_move


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
    width = (span.end - span.start) * scale
    if is_run:
        width = max(MIN_RUN_WIDTH, width)
    x = min(max(0.0, (span.start - start) * scale), TIMELINE_WIDTH - width)
    return Segment(round(x, 1), round(width, 1), span.tone, span.label, is_run)
