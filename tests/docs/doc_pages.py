"""List the pages of the docs and parse their blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
_FENCE = re.compile(r"^```(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)

_STORES = re.compile(r"^<!-- stores: ([\w, +]+) -->$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    text: str
    line: int  # line number of its first line


def pages() -> list[Path]:
    return [ROOT / name for name in TOP] + sorted(
        [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("apps/*/README.md")]
    )


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def stores(page: Path) -> list[str]:
    """Return the databases a page must work on: `<!-- stores: sqlite, postgresql -->`.

    The page runs once per database with its DATABASE_URL; "" means without one.
    """
    found = _STORES.search(page.read_text(encoding="utf-8"))
    return [name.strip() for name in found[1].split(",")] if found else [""]


def prose(page: Path) -> str:
    """Return the page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
