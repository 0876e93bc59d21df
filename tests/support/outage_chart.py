"""Draw an outage as SVG: requests per second at the gateway, outages shaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from support.gateway import Call, Mode, bad_periods, per_second

HEIGHT, LEFT, BELOW, MARGIN = 220, 48, 36, 20
FLOOR = MARGIN + HEIGHT  # y of the horizontal axis
GOOD, BAD, SHADE, OPEN = "#3a7d44", "#c0392b", "#f6d5d1", "#34495e"
LABEL_STEPS = (1, 5, 10, 20, 30, 60)  # seconds between two labels of the horizontal axis
MAX_LABELS = 12

Span = tuple[float, float]


def draw_outage(
    path: Path,
    calls: Sequence[Call],
    modes: Sequence[Mode],
    opens: Iterable[Span],
    capacity: int,
    title: str,
) -> Path:
    """Draw calls. Green: success, red: failure, shaded: outage, dark bar: breaker open."""
    since = min([modes[0].since, *(call.began for call in calls)])
    until = max([modes[-1].since, *(call.began for call in calls)]) + 1
    counts = per_second(calls, since, until)
    second_width = max(2.0, min(8.0, 900 / len(counts)))
    most = max(capacity, *(good + bad for good, bad in counts))

    def x(at: float) -> float:
        """Return the place of a time; one outside the chart is at its border."""
        return LEFT + (min(max(at, since), until) - since) * second_width

    def height(count: float) -> float:
        return count / most * HEIGHT

    shapes = []
    for start, end, _ in bad_periods(modes, until):
        shapes.append(_box(x(start), MARGIN, x(end) - x(start), HEIGHT, SHADE))
    for second, (good, bad) in enumerate(counts):
        left = LEFT + second * second_width
        bar_width = second_width * 0.9
        shapes.append(_box(left, FLOOR - height(good), bar_width, height(good), GOOD))
        shapes.append(_box(left, FLOOR - height(good + bad), bar_width, height(bad), BAD))
    for start, end in opens:
        shapes.append(_box(x(start), FLOOR + 4, max(1.0, x(end) - x(start)), 5, OPEN))
    right = LEFT + len(counts) * second_width
    line = FLOOR - height(capacity)
    shapes += [
        f'<path d="M{LEFT} {line:.1f}H{right:.1f}" stroke="{OPEN}" stroke-dasharray="4 3"/>',
        _text(LEFT - 6, line + 4, str(capacity), "end"),
        _text(LEFT - 6, MARGIN + 4, str(most), "end"),
    ]
    for second in range(0, len(counts), _label_step(len(counts))):
        shapes.append(_text(LEFT + second * second_width, FLOOR + 24, f"{second} s"))
    heading = f"{title}: requests per second; dashed: capacity; bar below: breaker open"
    shapes.append(_text(LEFT, 13, heading))
    path.write_text(_document(right + 2 * MARGIN, FLOOR + BELOW, shapes), encoding="utf-8")
    return path


def _label_step(seconds: int) -> int:
    for step in LABEL_STEPS:
        if step * MAX_LABELS >= seconds:
            return step
    return 600


def _document(width: float, height: int, shapes: Sequence[str]) -> str:
    body = "\n".join([_box(0, 0, width, height, "#ffffff"), *shapes])
    size = f'width="{width:.0f}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    font = f'font-family="sans-serif" font-size="11" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {font}>{text}</text>'
