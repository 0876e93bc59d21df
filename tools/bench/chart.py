"""Draw a comparison as SVG: a row per release, starts per second left, waiting jobs right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bench.recovery import Run

LEFT, TOP = 56, 64  # margins of the first panel
WIDTH, HEIGHT = 400, 110  # of a panel
COLUMN_GAP, ROW_GAP = 92, 46  # between panels
MAX_STARTS, MAX_WAITING = 200, 60_000  # where the vertical axes end
POINT_SECONDS = 5  # seconds in one point of a line
GOOD, BAD, WAIT, INK, FAINT = "#2f6f9f", "#d1495b", "#8d99ae", "#1d2433", "#d9dee7"


def draw_chart(runs: Mapping[str, Run]) -> str:
    """Return the SVG of several runs, one row each."""
    row_height = HEIGHT + ROW_GAP
    width = LEFT + 2 * WIDTH + COLUMN_GAP + 24
    height = TOP + len(runs) * row_height + 12
    style = f'font-family="sans-serif" font-size="12" fill="{INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for number, (name, run) in enumerate(runs.items()):
        lines += _row(name, run, TOP + number * row_height)
    lines.append("</svg>\n")
    return "\n".join(lines)


def _legend() -> Iterator[str]:
    yield _text(LEFT, 22, "Starts a second", weight="bold")
    yield _text(LEFT + WIDTH + COLUMN_GAP, 22, "Jobs that wait", weight="bold")
    for x, colour, word in ((130, GOOD, "succeed"), (210, BAD, "fail")):
        yield f'<rect x="{LEFT + x}" y="13" width="10" height="10" fill="{colour}"/>'
        yield _text(LEFT + x + 15, 22, word)
    x1, x2 = LEFT + 270, LEFT + 290
    yield f'<line x1="{x1}" x2="{x2}" y1="18" y2="18" stroke="{INK}" stroke-dasharray="4 3"/>'
    yield _text(LEFT + 295, 22, "capacity")


class Panel(NamedTuple):
    """Place of one diagram: seconds to the right, a value up to `most` upwards."""

    left: float
    top: float
    seconds: int
    most: float

    def y(self, value: float) -> float:
        return self.top + HEIGHT * (1 - value / self.most)

    def path(self, points: Sequence[float]) -> str:
        """Return the points of a line. Values above the axis are drawn at its end."""
        step = WIDTH / max(1, len(points) - 1)
        pairs = []
        for number, value in enumerate(points):
            x = self.left + number * step
            pairs.append(f"{x:.1f},{self.y(min(self.most, value)):.1f}")
        return " ".join(pairs)

    def area(self, points: Sequence[float], colour: str) -> str:
        base = self.top + HEIGHT
        outline = f"M{self.left},{base} {self.path(points)} {self.left + WIDTH},{base}Z"
        return f'<path d="{outline}" fill="{colour}"/>'

    def axes(self, marks: Sequence[int]) -> Iterator[str]:
        """Yield a horizontal line at each mark, and the minutes."""
        x1, x2 = self.left, self.left + WIDTH
        for mark in marks:
            y = self.y(mark)
            yield f'<line x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
            yield _text(self.left - 6, y + 4, f"{mark:,}", anchor="end")
        for minute in range(0, self.seconds // 60 + 1, 5):
            x = self.left + WIDTH * minute * 60 / self.seconds
            yield _text(x, self.top + HEIGHT + 16, f"{minute} min", anchor="middle")


def _row(name: str, run: Run, top: float) -> Iterator[str]:
    seconds = len(run.started)
    starts = Panel(LEFT, top, seconds, MAX_STARTS)
    yield _text(LEFT, top - 8, name, weight="bold")
    yield from starts.axes((0, 100, MAX_STARTS))
    yield starts.area(_points(run.started), GOOD)
    yield starts.area(_points(run.failed), BAD)
    capacity = [run.setting.capacity(second) for second in range(0, seconds, POINT_SECONDS)]
    path = starts.path(capacity)
    yield f'<path d="M{path}" fill="none" stroke="{INK}" stroke-dasharray="4 3"/>'
    highest = max(run.started)
    if highest > MAX_STARTS:
        yield _text(LEFT + WIDTH, top - 8, f"highest second: {highest:,}", anchor="end")
    waiting = Panel(LEFT + WIDTH + COLUMN_GAP, top, seconds, MAX_WAITING)
    yield from waiting.axes((0, 20_000, MAX_WAITING))
    yield waiting.area(_points(run.waiting), WAIT)
    yield _text(waiting.left + WIDTH, top - 8, _describe_end(run), anchor="end")


def _describe_end(run: Run) -> str:
    if run.drained is None:
        return f"never drained: {run.waiting[-1]:,} in the end"
    return f"drained after {run.drained:,} s; {run.failures:,} failed"


def _points(counts: Sequence[int]) -> list[float]:
    """Return the mean of the counts in each point of a line."""
    means = []
    for first in range(0, len(counts), POINT_SECONDS):
        part = counts[first : first + POINT_SECONDS]
        means.append(sum(part) / len(part))
    return means


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'
    )
