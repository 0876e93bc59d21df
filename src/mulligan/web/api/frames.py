"""Server-sent events, as bytes. Only what is in the log has an `id:`, so that nobody resumes where nothing was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mulligan.event import Event
from mulligan.web.api.shapes import event_shape

RETRY = b"retry: 2000\n\n"
BEAT = b": still here\n\n"
_LINES = re.compile(r"\r\n|\r|\n")


def frame(event: str, data: Mapping[str, Any], number: int | None = None) -> bytes:
    """One frame, whatever is in the data: a line break in it begins another line of data, never another field."""
    lines = [] if number is None else [f"id: {number}"]
    lines.append(f"event: {_one_line(event)}")
    lines += [f"data: {line}" for line in _LINES.split(json.dumps(data, separators=(",", ":"), default=str))]
    return ("\n".join(lines) + "\n\n").encode()


def _one_line(text: str) -> str:
    return _LINES.sub(" ", text).replace("\x00", "")


class Told:
    """An event on its way to many: written out once for each half, at most."""

    __slots__ = ("_frames", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._frames: dict[bool, bytes] = {}

    def frame(self, *, private: bool) -> bytes:
        if private not in self._frames:
            self._frames[private] = frame(self.event.type, event_shape(self.event, private=private), self.event.id)
        return self._frames[private]
