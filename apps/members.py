"""Read all jobs of a batch, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mulligan import Job, Mulligan

PAGE = 200  # jobs


def list_members(app: Mulligan, batch_id: str, where: str = "") -> Iterator[Job]:
    """Return the jobs of a batch that match a filter, page by page."""
    cursor: Any = None
    while True:
        page: Any = app.batches.members(batch_id, where, limit=PAGE, before=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return
