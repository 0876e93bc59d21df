"""Draw an outage as SVG: requests per second at the gateway, outages shaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from support.gateway import Call, Mode, bad_periods, per_second

HIGH, LEFT, BELOW, MARGIN = 220, 48, 36, 20
GOOD, BAD, SHADE, OPEN = "#3a7d44", "#c0392b", "#f6d5d1", "#34495e"

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
    wide = max(2.0, min(8.0, 900 / len(counts)))
    top = max(capacity, *(good + bad for good, bad in counts))

    def x(at: float) -> float:
        return LEFT + (min(max(at, since), until) - since) * wide

    def high(count: float) -> float:
        return count / top * HIGH

    floor = MARGIN + HIGH
    shapes = [_box(x(a), MARGIN, x(b) - x(a), HIGH, SHADE) for a, b, _ in bad_periods(modes, until)]
    for second, (good, bad) in enumerate(counts):
        left = LEFT + second * wide
        shapes.append(_box(left, floor - high(good), wide * 0.9, high(good), GOOD))
        shapes.append(_box(left, floor - high(good + bad), wide * 0.9, high(bad), BAD))
    shapes += [_box(x(a), floor + 4, max(1.0, x(b) - x(a)), 5, OPEN) for a, b in opens]
    right = LEFT + len(counts) * wide
    line = floor - high(capacity)
    shapes.append(
        f'<path d="M{LEFT} {line:.1f}H{right:.1f}" stroke="{OPEN}" stroke-dasharray="4 3"/>'
    )
    shapes += [
        _word(LEFT - 6, line + 4, str(capacity), "end"),
        _word(LEFT - 6, MARGIN + 4, str(top), "end"),
    ]
    step = next(
        nice for nice in (1, 5, 10, 20, 30, 60, 600) if nice * 12 >= len(counts) or nice == 600
    )
    shapes += [_word(LEFT + at * wide, floor + 24, f"{at} s") for at in range(0, len(counts), step)]
    shapes.append(
        _word(LEFT, 13, f"{title}: requests per second; dashed: capacity; bar below: breaker open")
    )
    size = f'width="{right + 2 * MARGIN:.0f}" height="{floor + BELOW}"'
    body = "\n".join([_box(0, 0, right + 2 * MARGIN, floor + BELOW, "#ffffff"), *shapes])
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n', encoding="utf-8"
    )
    return path


def _box(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"/>'


def _word(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="11" text-anchor="{anchor}">{text}</text>'
