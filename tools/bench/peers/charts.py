"""Pictures of a run as SVG: bars, each with its number; colours that differ for every eye, on light and on dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from typing import NamedTuple

WIDE, HIGH, GAP = 420, 18, 6  # of the longest bar, of a bar, between bars
LEFT, RIGHT, TOP, HEAD = 190, 110, 44, 30
STYLE = """
  .card { fill: #ffffff } .ink { fill: #1d2433 } .faint { fill: #5a6478 } .axis { stroke: #c4ccd8 }
  .ours { fill: #0072b2 } .other { fill: #e69f00 } .limit { fill: #8d99ae }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117 } .ink { fill: #e6edf3 } .faint { fill: #9aa4b2 } .axis { stroke: #3d4654 }
    .ours { fill: #56b4e9 } .other { fill: #e69f00 } .limit { fill: #6e7a8c }
  }
"""


class Bar(NamedTuple):
    name: str
    value: float
    label: str  # the formatted number
    css_class: str  # ours, other, limit


class Panel(NamedTuple):
    title: str
    bars: Sequence[Bar]

    @property
    def height(self) -> float:
        return HEAD + len(self.bars) * (HIGH + GAP) + GAP


def draw_chart(title: str, note: str, panels: Sequence[Panel]) -> str:
    """Draw panels of bars as SVG. Each panel has its own scale."""
    width = LEFT + WIDE + RIGHT
    height = TOP + sum(panel.height for panel in panels) + 10
    attributes = f'role="img" aria-label="{escape(title, quote=True)}" font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" {attributes}>',
            f"<style>{STYLE}</style>",
            f'<rect class="card" width="{width}" height="{height:.0f}" rx="6"/>',
            _text(14, 22, title, "ink", weight="bold"),
            _text(14, 38, note, "faint"),
            *chain.from_iterable(_panels(panels)),
            "</svg>\n",
        ]
    )


def _panels(panels: Sequence[Panel]) -> Iterator[Iterator[str]]:
    top = float(TOP)
    for panel in panels:
        yield _panel(panel, top)
        top += panel.height


def _panel(panel: Panel, top: float) -> Iterator[str]:
    longest = max((bar.value for bar in panel.bars), default=1) or 1
    yield _text(14, top + 22, panel.title, "ink", weight="bold")
    base = top + HEAD + len(panel.bars) * (HIGH + GAP)
    yield f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{top + HEAD - 2:.1f}" y2="{base:.1f}"/>'
    for number, bar in enumerate(panel.bars):
        y = top + HEAD + number * (HIGH + GAP)
        yield _text(
            LEFT - 8,
            y + 13,
            bar.name,
            "ink",
            anchor="end",
            weight="bold" if bar.css_class == "ours" else "normal",
        )
        length = WIDE * bar.value / longest
        yield f'<rect class="{bar.css_class}" x="{LEFT}" y="{y:.1f}" width="{length:.1f}" height="{HIGH}"/>'
        yield _text(LEFT + length + 6, y + 13, bar.label, "ink")


def _text(
    x: float, y: float, text: str, kind: str, *, anchor: str = "start", weight: str = "normal"
) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'
