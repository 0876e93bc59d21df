"""Wrap the prose of pages at 100 characters: `python docs/wrap.py`.

Tables, code, headings and comments keep their lines, because Markdown needs them on one line.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).parent
WIDTH = 100
# A line that stands alone: a table row, heading, comment, picture, HTML or quote.
ALONE = re.compile(r"\s*(\||#|<|!\[|>|$)")
ITEM = re.compile(r"(\s*(?:[-*]|\d+\.) )")
FENCE = re.compile(r"^(```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)


def wrap(text: str) -> str:
    """Return a page with its paragraphs and list items wrapped."""
    parts = FENCE.split(text)
    return "".join(part if index % 2 else _wrap_prose(part) for index, part in enumerate(parts))


def _wrap_prose(text: str) -> str:
    lines: list[str] = []
    paragraph: list[str] = []
    for line in text.split("\n"):
        if ALONE.match(line) or ITEM.match(line):
            lines += _wrap_paragraph(paragraph)
            paragraph = []
        if ALONE.match(line):
            lines.append(line)
        else:
            paragraph.append(line)
    return "\n".join(lines + _wrap_paragraph(paragraph))


def _wrap_paragraph(lines: list[str]) -> list[str]:
    if not lines:
        return []
    item = ITEM.match(lines[0])
    first = item[1] if item else re.match(r"\s*", lines[0])[0]  # type: ignore[index]
    words = " ".join(line.strip() for line in lines)
    return textwrap.wrap(
        words.removeprefix(first.strip()).strip(),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def pages() -> list[Path]:
    """Return the pages for users; those for contributors are wrapped as their authors like."""
    hidden = {DOCS / "contributors", DOCS / "decisions"}
    return [page for page in sorted(DOCS.rglob("*.md")) if page.parent not in hidden]


def main() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if wrap(text) != text:
            page.write_text(wrap(text), encoding="utf-8")


if __name__ == "__main__":
    main()
