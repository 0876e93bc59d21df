"""Small charts of text: a bar for a share, a line of bars for a row of them."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float | None, width: int = 20) -> str:
    """A share of `width` characters, to an eighth of one; what is more than nothing is seen."""
    if share is None:
        return "·" * width
    eighths = min(width * 8, max(1 if share > 0 else 0, round(min(max(share, 0.0), 1.0) * width * 8)))
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(width)


def spark(values: Sequence[float | None], most: float | None = None) -> str:
    """One sign each; None is a dot."""
    top = most or max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join("·" if value is None else _LEVELS[min(7, int(value / top * 7.999))] for value in values)
