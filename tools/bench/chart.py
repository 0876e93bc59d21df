"""Draw a comparison as SVG: a row per release, starts per second left, waiting jobs right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from bench.recovery import Run

WIDE, HIGH, GAP = 400, 110, 46  # of one panel, and between rows
LEFT, MIDDLE, TOP = 56, 92, 64
BUSIEST, MOST = 200, 60_000  # where the axes end
EVERY = 5  # seconds in one point of a line
GOOD, BAD, WAIT, INK, FAINT = "#2f6f9f", "#d1495b", "#8d99ae", "#1d2433", "#d9dee7"


def draw_chart(runs: Mapping[str, Run]) -> str:
    width = LEFT + 2 * WIDE + MIDDLE + 24
    height = TOP + len(runs) * (HIGH + GAP) + 12
    rows = (
        _row(name, run, TOP + number * (HIGH + GAP))
        for number, (name, run) in enumerate(runs.items())
    )
    style = f'font-family="sans-serif" font-size="12" fill="{INK}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *_legend(),
            *chain.from_iterable(rows),
            "</svg>\n",
        ]
    )


def _legend() -> Iterator[str]:
    yield _text(LEFT, 22, "Starts a second", weight="bold")
    yield _text(LEFT + WIDE + MIDDLE, 22, "Jobs that wait", weight="bold")
    for x, colour, word in ((130, GOOD, "succeed"), (210, BAD, "fail")):
        yield f'<rect x="{LEFT + x}" y="13" width="10" height="10" fill="{colour}"/>'
        yield _text(LEFT + x + 15, 22, word)
    yield f'<line x1="{LEFT + 270}" x2="{LEFT + 290}" y1="18" y2="18" stroke="{INK}" stroke-dasharray="4 3"/>'
    yield _text(LEFT + 295, 22, "capacity")


def _row(name: str, run: Run, top: float) -> Iterator[str]:
    right = LEFT + WIDE + MIDDLE
    all_, bad = _points(run.started), _points(run.failed)
    yield _text(LEFT, top - 8, name, weight="bold")
    yield from _axes(
        LEFT, top, len(run.started), [(0, "0"), (100, "100"), (BUSIEST, f"{BUSIEST}")], BUSIEST
    )
    yield _area(LEFT, top, all_, BUSIEST, GOOD)
    yield _area(LEFT, top, bad, BUSIEST, BAD)
    capacity = [run.setting.capacity(second) for second in range(0, len(run.started), EVERY)]
    path = _path(LEFT, top, capacity, BUSIEST)
    yield f'<path d="M{path}" fill="none" stroke="{INK}" stroke-dasharray="4 3"/>'
    if max(run.started) > BUSIEST:
        yield _text(LEFT + WIDE, top - 8, f"highest second: {max(run.started):,}", anchor="end")
    yield from _axes(
        right, top, len(run.started), [(0, "0"), (20_000, "20,000"), (MOST, f"{MOST:,}")], MOST
    )
    yield _area(right, top, _points(run.waiting), MOST, WAIT)
    yield _text(right + WIDE, top - 8, _end(run), anchor="end")


def _end(run: Run) -> str:
    if run.drained is None:
        return f"never drained: {run.waiting[-1]:,} in the end"
    return f"drained after {run.drained:,} s; {run.failures:,} failed"


def _points(counts: Sequence[int]) -> list[float]:
    parts = (counts[first : first + EVERY] for first in range(0, len(counts), EVERY))
    return [sum(part) / len(part) for part in parts]


def _axes(
    left: float, top: float, seconds: int, marks: Iterable[tuple[float, str]], most: float
) -> Iterator[str]:
    for value, word in marks:
        y = top + HIGH * (1 - value / most)
        yield f'<line x1="{left}" x2="{left + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
        yield _text(left - 6, y + 4, word, anchor="end")
    for minute in range(0, seconds // 60 + 1, 5):
        yield _text(
            left + WIDE * minute * 60 / seconds, top + HIGH + 16, f"{minute} min", anchor="middle"
        )


def _path(left: float, top: float, points: Sequence[float], most: float) -> str:
    across = WIDE / max(1, len(points) - 1)
    heights = (top + HIGH * (1 - min(1.0, value / most)) for value in points)
    return " ".join(f"{left + number * across:.1f},{y:.1f}" for number, y in enumerate(heights))


def _area(left: float, top: float, points: Sequence[float], most: float, colour: str) -> str:
    base = top + HIGH
    return f'<path d="M{left},{base} {_path(left, top, points, most)} {left + WIDE},{base}Z" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'
    )
