"""Numbers as shapes: what the templates draw. Only geometry and words; colours are the style sheet's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log10
from typing import NamedTuple

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
    return Spark(line, area, f"{sum(values):,} in all, {peak}, last {values[-1] if values else 0:,}")


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


class Columns(NamedTuple):
    """Counts over time, stacked by tone."""

    columns: tuple[Column, ...]
    most: int
    words: str
    rows: tuple[tuple[str, tuple[int, ...]], ...]  # the same as a table
    tones: tuple[str, ...]


def columns(steps: Sequence[tuple[str, Mapping[str, int]]], tones: Sequence[str], height: float = 80.0) -> Columns:
    """`steps`: (when, how many of each tone), oldest first; `tones`: the lowest first."""
    totals = [sum(counts.get(tone, 0) for tone in tones) for _, counts in steps]
    most = max(totals, default=0)
    width = WIDTH / max(14, len(steps))  # a single step is no wall
    drawn = [
        Column(
            round(place * width, 3), round(width * 0.82, 3), _stacked(counts, tones, most, height), _said(step, tones)
        )
        for place, step in enumerate(steps)
        for counts in [step[1]]
    ]
    rows = tuple((when, tuple(counts.get(tone, 0) for tone in tones)) for when, counts in steps)
    each = ", ".join(f"{sum(counts.get(tone, 0) for _, counts in steps):,} {tone}" for tone in tones)
    return Columns(tuple(drawn), most, each, rows, tuple(tones))


def _stacked(counts: Mapping[str, int], tones: Sequence[str], most: int, height: float) -> tuple[Block, ...]:
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


def bars(counts: Mapping[str, int], link: Mapping[str, str] | None = None, most: int = 8) -> tuple[Bar, ...]:
    """The largest first; what is beyond `most` is one bar of its own."""
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown, rest = ranked[:most], sum(count for _, count in ranked[most:])
    if rest:
        shown.append((f"{len(ranked) - most} others", rest))
    top = max((count for _, count in shown), default=1) or 1
    links = link or {}
    return tuple(Bar(label, count, round(100 * count / top, 1), links.get(label, "")) for label, count in shown)


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


TICKS = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (21_600, "6 h"), (86_400, "1 d"))


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
